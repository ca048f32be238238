"""The page of verdicts, written from result files alone.

Nothing is stored but runs, so the page is what the files say, or a test fails.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from . import computed
from .claims import Claim, Finding, finding
from .experiments import EXPERIMENTS
from .items import ITEMS, Fixed, Item, Status
from .said import CLAIMS
from .sequential import ERROR, LOOKS, POWER

Files = Mapping[str, Mapping[str, Any]]
ORDER = ("holds", "does not hold", "undecided", "cannot be had here")

INTRO = f"""# What holds, here

Written by `python benchmarks/evidence.py page` from `benchmarks/results/evidence/`; a test writes
it again and compares. Every table, figure and algorithm of the five papers stands here with a
verdict *on the models at hand*: SmolLM2-135M-Instruct with its trained drafters, the shipped trunk
with its early exits, and a synthetic cost with a real law. None is a verdict on the papers' models.

**How it is decided.** Prompts are code, mathematics and Spec-Bench's kinds of text, a domain after
the other, cut to their last 64 tokens. An effect is paired by prompt. Intervals are Student's, on
the mean of logarithms (ratios) or of differences. Runs stop at planned looks
({", ".join(map(str, LOOKS))} prompts, as far as an experiment goes), and each look's interval has
the level 1 − {ERROR:g} / number of looks (Bonferroni), so that all looks together err in
{100 * ERROR:g} % of cases at most. *Holds*: the interval excludes 0 from below. *Does not hold*: it
excludes every effect as large as the smallest that matters: 3 % of speed, tokens or cost between
systems, 1 to 2 % between verification rules, .03 of an acceptance, .05 of an AUC. Else
*undecided*. A claim has the verdict of the first of its families that decides it. An item does not
hold if one of its claims does not, and is undecided if one is. *Needed*: prompts that show the
smallest effect with probability {POWER:g}, given the measured spread.

**In time, by weights, by layers.** What is *in time* was measured with the clock, methods taking
turns. *By weights* charges each call for the weights it runs through (P1's standardized walltime
improvement), *by layers* the same where early exits share their trunk, each level charged for the
layers above the exit below it. Tokens, acceptances and such costs do not depend on the load."""


def read(folder: Path) -> dict[str, Mapping[str, Any]]:
    """Return the experiments' files by name, as far as there are any."""
    paths = (folder / f"{name}.json" for name in EXPERIMENTS)
    return {path.stem: json.loads(path.read_text()) for path in paths if path.exists()}


def page(folder: Path) -> str:
    """Return the page as Markdown."""
    files = read(folder)
    rows, details, counts = [], [], dict.fromkeys(ORDER, 0)
    for item in ITEMS:
        found = findings(item, files)
        facts = fixed(item)
        status = status_of(found, facts)
        counts[status] += 1
        rows.append((item.name, item.says, status, "<br>".join(_lines(found, facts, status))))
        details += [_detail(item, one) for group in found for one in group]
    summary = ", ".join(f"{status}: {counts[status]}" for status in ORDER)
    parts = [
        INTRO,
        f"## Every table, figure and algorithm\n\n{len(ITEMS)} items. {summary}.",
        _table(("item", "what it says", "verdict", "on what"), rows),
        "## The claims, one by one",
        _table(
            ("item", "claim", "models", "effect", "prompts", "needed", "verdict", "file"), details
        ),
        "## Where it was measured",
        _table(
            ("file", "models", "prompts", "tokens", "temperature", "commit", "machine"),
            [_origin(name, data) for name, data in files.items()],
        ),
        *computed.sections(files),
    ]
    return "\n\n".join(parts) + "\n"


def findings(item: Item, files: Files) -> list[list[Finding]]:
    """Return an item's claims, each on every family it is measured on."""
    return [
        [finding(claim, EXPERIMENTS[name], files.get(name)) for name in claim.experiments]
        for claim in CLAIMS
        if claim.item == item.name
    ]


def fixed(item: Item) -> list[Fixed]:
    """Return what is proved, computed or missing about an item."""
    out = [item.fixed] if item.fixed else []
    return [*out, *computed.facts(item.name)]


def decisive(group: list[Finding]) -> Finding:
    """Return a claim's finding on the first family that decides it, else on the first measured."""
    decided = [one for one in group if one.verdict != "undecided"]
    measured = [one for one in group if one.found]
    return (decided or measured or group)[0]


def status_of(found: list[list[Finding]], facts: list[Fixed]) -> Status:
    """Return an item's verdict."""
    said: set[Status] = {decisive(group).verdict for group in found}
    said |= {fact.status for fact in facts}
    decided: tuple[Status, ...] = ("does not hold", "undecided", "holds")
    for status in decided:
        if status in said:
            return status
    return "cannot be had here"


def _lines(found: list[list[Finding]], facts: list[Fixed], status: Status) -> list[str]:
    out = []
    for group in found:
        one = decisive(group)
        mark = f"{one.verdict}: " if one.verdict != status else ""
        family = one.experiment.family.name
        out.append(f"{mark}{one.claim.text}: {one.shown} ({family}{_count(one)})")
    for fact in facts:
        mark = f"{fact.status}: " if fact.status != status else ""
        out.append(f"{mark}{fact.why}" + (f" ({fact.source})" if fact.source else ""))
    return out


def _count(one: Finding) -> str:
    if not one.found:
        return ""
    more = f" of {one.needed} needed" if one.verdict == "undecided" else ""
    return f", {one.found.n}{more} prompts"


def _detail(item: Item, one: Finding) -> tuple[str, ...]:
    claim: Claim = one.claim
    return (
        item.name,
        claim.text,
        one.experiment.family.name,
        one.shown,
        str(one.found.n) if one.found else "",
        str(one.needed or ""),
        one.verdict,
        f"`{one.experiment.name}.json`",
    )


def _origin(name: str, data: Mapping[str, Any]) -> tuple[str, ...]:
    machines = data["environment"]
    given = data["settings"]
    return (
        f"`{name}.json`",
        EXPERIMENTS[name].family.about,
        str(len(data["prompts"])),
        str(given["max_new_tokens"]),
        f"{given['temperature']:g}",
        ", ".join(dict.fromkeys(one["commit"] for one in machines)),
        ", ".join(dict.fromkeys(f"{one['cpu']}, {one['threads']} threads" for one in machines)),
    )


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])
