"""Write the page of verdicts from result files alone; a test compares it with the stored page."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from hierspec_lab.papers.prompts import MAX_PROMPT_TOKENS as LONGEST

from . import computed
from .changes import CHANGES
from .claims import Finding, combined_verdict, decide
from .computed import markdown_table
from .experiments import EXPERIMENTS, RECORDED
from .files import COMPRESSED, ExperimentFile, read_experiment
from .items import ITEMS, FixedVerdict, Item, Status
from .paper_claims import CLAIMS
from .recorded import read_recorded
from .sequential import ERROR, LOOKS, POWER

FilesByExperiment = Mapping[str, ExperimentFile]
_LENGTHS = " to ".join(str(f(e.max_new_tokens for e in EXPERIMENTS.values())) for f in (min, max))
STATUSES = ("holds", "does not hold", "undecided", "cannot be had here")

INTRO = f"""# What holds, here

Written by `python benchmarks/evidence.py page` from `benchmarks/results/evidence/`, and for P3's
Figure 1 and SWIFT from `reproduce-p3-table1.json` beside that folder; a test writes it again and
compares. Every table, figure, algorithm and theorem of the five papers is listed with a verdict *on
the models used here*: SmolLM2-135M-Instruct with its trained drafters, the shipped trunk with its
early exits, and a synthetic cost with a real distribution. None is a verdict on the papers' models.

**How it is decided.** Prompts are code, mathematics and Spec-Bench's kinds of text; the domains
take turns. An effect is paired by prompt. Intervals are Student's, on the mean of logarithms (of
ratios) or of differences. Runs stop at planned looks ({", ".join(map(str, LOOKS))} prompts, as far
as an experiment goes), and each look's interval has the level 1 − {ERROR:g} / number of looks
(Bonferroni), so that all looks together err in {100 * ERROR:g} % of cases at most. Where domains
are compared there is one look, at 24 prompts of each. With values on fewer than {LOOKS[0]} prompts
a claim is *undecided*. *Does not hold*: the whole interval is below the smallest effect that
matters, even if it is above 0. *Holds*: else, if the whole interval is above 0. The smallest effect
that matters is 3 % of speed, tokens or cost between systems, 1 to 2 % between verification rules,
half a per cent for P1's heuristic, .03 of an acceptance (.05 of P5's σ, .092 of what P3 §3.3 says
is gained), .05 of an AUC or of a variation, .01 of the time, half of P4's own loss of accuracy, .1
of a token, a tenth of P5's gain off mathematics over that on it. A claim that two methods are alike
holds if the interval lies within plus or minus the smallest effect that matters, and does not hold
if it lies outside; one that a choice is within 2 % of the best holds if the interval lies above the
loss of 2 %, and does not hold if it lies below. Otherwise it is *undecided*. *Needed*: the number
of prompts that show the smallest effect with probability {POWER:g}, given the measured spread.

**From files to items.** A claim that several files measure holds if it holds in one of them and
fails in none. Where two of them decide differently, both are shown, and it does not hold. An item
does not hold if one of its claims does not, and is undecided if one is. *Beside* marks a claim that
does not decide its item, since it compares costs that differ in kind, methods with drafters of
their own, or models outside the paper's range (SmolLM2's exits keep a tenth of their tokens where
P3's keep .397), or since it is about the item's reason, or asks for more.

**In time, by weights, by layers.** What is *in time* was measured in seconds, methods taking turns.
*By weights* charges each call for the weights it runs through (P1's standardized walltime
improvement), *by layers* the same where early exits share their trunk: a check runs all layers up
to its exit once, since the last drafted token has not been through any, as counters of the engine
say. *At P5's costs* a call of M1 is charged .02 of the target's, one of M2 .19, as Table 4's rows
of single drafters imply. Tokens, acceptances and such costs do not depend on the load.

**Limits.** Prompts are cut to their last {LONGEST} tokens, so that a long text is continued from
its end, and have no chat template, although SmolLM2 was tuned with one. Files named `chats`, and
those of SmolLM2 in time (`clock`), have second turns of Spec-Bench's conversations instead, whole
and in the template, the first turn answered greedily by plain decoding. What is timed runs in
bfloat16, in the compiled kernels. {_LENGTHS} tokens are written after each. On SmolLM2, P5's M2
is the target's own copy in 4 bits, and the checkpoint was released in 4 bits: the copy holds the
same weights, agrees with the target far more often than a smaller model does, and what it decides
says little about a real M2. On the synthetic cost, the target's distribution is made from that of
M2, the trunk, with the same consequence. Only in the trunk's family is M2 a smaller model of its
own. Where a claim uses an M2 made from the target, or a target made from M2, its line says so. In
P4's Table 4(b), published EAGLE-3 picks its drafts deterministically: q is one-hot there, and block
is tokenwise. What is measured here is an EAGLE-3 drafter with *sampled* drafts, one or four. Llama
3.1, part (a) of that table, is not measured."""


def read_results(folder: Path) -> dict[str, ExperimentFile]:
    """Read the experiments' files that exist, and return their contents by experiment."""
    files = {
        name: read_experiment(path)
        for name, experiment in EXPERIMENTS.items()
        if name not in RECORDED and (path := folder / f"{experiment.file}{COMPRESSED}").exists()
    }
    return {**files, **read_recorded(folder.parent)}


def render_page(folder: Path) -> str:
    """Return the page as Markdown."""
    files = read_results(folder)
    rows, details, counts = [], [], dict.fromkeys(STATUSES, 0)
    verdicts: dict[tuple[str, ...], str] = {}  # by item, or item, claim and file
    for item in ITEMS:
        groups = findings(item, files)
        fixed = fixed_verdicts(item) + judged_by_files(item, files)
        status = status_of(groups, fixed)
        counts[status] += 1
        rows.append((item.name, item.statement, status, "<br>".join(_lines(groups, fixed, status))))
        verdicts[item.name,] = status
        for finding in (finding for group in groups for finding in group):
            details.append(_detail(finding))
            key = item.name, finding.claim.text, finding.experiment.file
            verdicts[key] = f"{finding.verdict}, {finding.effect_text}"
    summary = ", ".join(f"{status}: {counts[status]}" for status in STATUSES)
    parts = [
        INTRO,
        f"## Every table, figure, algorithm and theorem\n\n{len(ITEMS)} items. {summary}.",
        markdown_table(("item", "what it says", "verdict", "on what"), rows),
        "## Verdicts that changed",
        markdown_table(
            ("item", "claim", "before", "now", "why"),
            [
                (
                    change.item,
                    change.claim and f"{change.claim} (`{change.file}`)",
                    change.before,
                    verdicts[
                        (change.item, change.claim, change.file) if change.claim else (change.item,)
                    ],
                    change.why,
                )
                for change in CHANGES
            ],
        ),
        "## The claims, one by one",
        markdown_table(
            ("item", "claim", "models", "effect", "prompts", "needed", "verdict", "file"), details
        ),
        "## Where it was measured",
        markdown_table(
            ("file", "models", "prompts", "tokens", "temperature", "commit", "machine"),
            [_origin(name, file) for name, file in files.items()],
        ),
        *computed.sections(files),
    ]
    return "\n\n".join(parts) + "\n"


def findings(item: Item, files: FilesByExperiment) -> list[list[Finding]]:
    """Return the findings on an item: for each claim a list, one for each of its experiments."""
    return [
        [decide(claim, EXPERIMENTS[name], files.get(name)) for name in claim.experiments]
        for claim in CLAIMS
        if claim.item == item.name
    ]


def fixed_verdicts(item: Item) -> list[FixedVerdict]:
    """Return the verdicts on an item that need no measurement."""
    return [*([item.fixed] if item.fixed else []), *computed.computed_verdicts(item.name)]


def judged_by_files(item: Item, files: FilesByExperiment) -> list[FixedVerdict]:
    """Return the verdicts on an item that are computed from several files at once."""
    return computed.judge_sweep(files) if item.name == "P1 §5" else []


def status_of(groups: list[list[Finding]], fixed: list[FixedVerdict]) -> Status:
    """Return an item's status from its findings, grouped by claim, and its fixed verdicts."""
    verdicts: set[Status] = {combined_verdict(group) for group in groups if group[0].claim.decides}
    verdicts |= {verdict.status for verdict in fixed}
    by_precedence: tuple[Status, ...] = ("does not hold", "undecided", "holds")
    for status in by_precedence:
        if status in verdicts:
            return status
    return "cannot be had here"


def representatives(group: list[Finding]) -> list[Finding]:
    """Return the findings to show of a claim's: the first that holds and the first that does not.

    If none of them decides the claim, it is the first that was measured.
    """
    firsts = {finding.verdict: finding for finding in reversed(group)}
    firsts.pop("undecided", None)
    measured = [finding for finding in group if finding.estimate]
    return [f for f in group if f in firsts.values()] or (measured or group)[:1]


def _lines(groups: list[list[Finding]], fixed: list[FixedVerdict], status: Status) -> list[str]:
    """Return a line for each finding shown and each fixed verdict.

    A line begins with its own verdict if that differs from the item's status.
    """
    lines = []
    for group in groups:
        claim = group[0].claim
        for finding in representatives(group):
            prefix = f"{finding.verdict}: " if finding.verdict != status else ""
            prefix = prefix if claim.decides else f"beside, {finding.verdict}: "
            source = _describe_source(finding, group)
            lines.append(f"{prefix}{claim.text}: {finding.effect_text} ({source})")
    for verdict in fixed:
        prefix = f"{verdict.status}: " if verdict.status != status else ""
        source = f" ({verdict.source})" if verdict.source else ""
        lines.append(f"{prefix}{verdict.reason}{source}")
    return lines


def _describe_source(finding: Finding, group: list[Finding]) -> str:
    """Return a finding's models and prompts, a note on them, and where the claim is undecided.

    Args:
        group: all findings of the claim.
    """
    undecided = [_models(member, group) for member in group if member.verdict == "undecided"]
    undecided = list(dict.fromkeys(undecided))
    note = finding.experiment.drafter_note(finding.claim.methods)
    parts = [_models(finding, group) + _count(finding), note]
    if undecided and finding.verdict != "undecided":
        parts.append(f"undecided: {', '.join(undecided)}")
    return "; ".join(filter(None, parts))


def _models(finding: Finding, group: list[Finding]) -> str:
    """Return the family's name, with the temperature if the group has several."""
    experiment = finding.experiment
    if len({member.experiment.temperature for member in group}) == 1:
        return experiment.family.name
    return f"{experiment.family.name} at temperature {experiment.temperature:g}"


def _count(finding: Finding) -> str:
    if not finding.estimate:
        return ""
    needed = f" of {finding.num_needed} needed" if finding.verdict == "undecided" else ""
    return f", {finding.estimate.n}{needed} prompts"


def _detail(finding: Finding) -> tuple[str, ...]:
    claim = finding.claim
    return (
        claim.item,
        claim.text,
        finding.experiment.family.name,
        finding.effect_text,
        str(finding.estimate.n) if finding.estimate else "",
        str(finding.num_needed or ""),
        finding.verdict if claim.decides else f"beside: {finding.verdict}",
        f"`{finding.experiment.file}`",
    )


def _origin(name: str, file: ExperimentFile) -> tuple[str, ...]:
    machines = file.environment
    return (
        f"`{EXPERIMENTS[name].file}`",
        EXPERIMENTS[name].family.description,
        str(len(file.prompts)),
        str(file.settings.max_new_tokens),
        f"{file.settings.temperature:g}",
        ", ".join(dict.fromkeys(str(machine.commit) for machine in machines)),
        ", ".join(dict.fromkeys(f"{m.cpu}, {m.threads} threads" for m in machines)),
    )
