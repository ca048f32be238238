"""P3's Figure 9: how long the prompts of the data sets are, and the answers, in tokens.

Lengths of answers say as much of the model that writes them as of the data sets: these are the
target's own, greedy, in its chat template where it has one.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median, quantiles

from hierspec.api import Hierarchy
from hierspec.config.build import build
from hierspec.errors import HierspecError
from hierspec.presets.defaults import stack
from hierspec.utils.prompts import apply_chat
from hierspec_papers.lab import Lab
from hierspec_papers.tables import Curve, Figure, Reproduction, Table, TableRow

ANSWERED = 8  # prompts of each domain that are answered

Lengths = dict[str, list[int]]  # by domain


def measure(lab: Lab) -> Reproduction:
    """Return the cumulative distributions of prompt and answer lengths, domain by domain.

    Raises:
        HierspecError: there is no prompt.
    """
    lab.require("p3-figure9")
    prompts: Lengths = lab.once("tokens of the prompts", lambda: _by_domain(lab, lab.lengths))
    answers: Lengths = lab.once("tokens of the answers", lambda: _answers(lab))
    parts = (
        ("prompt", prompts, "Prompts as they are, without a chat template."),
        (
            "answer",
            answers,
            f"The target's own answers, greedy, to the first {ANSWERED} prompts of a domain, cut "
            f"at {lab.max_new_tokens} tokens.",
        ),
    )
    tables = tuple(_table(lab, what, found, note) for what, found, note in parts)
    figures = tuple(_figure(what, found, note) for what, found, note in parts)
    return Reproduction("p3-figure9", tables, figures, lab.to_dict())


def _table(lab: Lab, what: str, found: Lengths, note: str) -> Table:
    rows = tuple(
        TableRow(domain, (), (len(each), median(each), _ninth(each), max(each)))
        for domain, each in found.items()
    )
    return Table(
        f"Figure 9, {what}s",
        f"tokens of {'an' if what == 'answer' else 'a'} {what}, in those of {lab.target}",
        "domain",
        (),
        rows,
        (f"{what}s", "median", "nine in ten are below", "longest"),
        compared=False,
        notes=(f"{note} P3 prints a picture without numbers.",),
    )


def _figure(what: str, found: Lengths, note: str) -> Figure:
    curves = tuple(
        Curve(
            domain,
            tuple(float(one) for one in sorted(each)),
            tuple((i + 1) / len(each) for i in range(len(each))),
        )
        for domain, each in found.items()
    )
    caption = f"share of the {what}s that are no longer"
    return Figure(
        f"Figure 9, {what}s", caption, "tokens", f"share of {what}s", curves, notes=(note,)
    )


def _by_domain(lab: Lab, lengths: Sequence[int]) -> Lengths:
    out: Lengths = {}
    for domain, length in zip(lab.domains, lengths, strict=False):
        out.setdefault(domain, []).append(length)
    return out


def _answers(lab: Lab) -> Lengths:
    """Return tokens of the target's answers: a hierarchy's text is the target's own, and sooner."""
    hierarchy, tokenizer = _fast(lab), lab.models.tokenizer
    out: Lengths = {domain: [] for domain in lab.domains}
    total = sum(min(ANSWERED, lab.domains.count(domain)) for domain in out)
    for domain, text in zip(lab.domains, lab.texts, strict=True):
        if len(out[domain]) == ANSWERED:
            continue
        chat = getattr(tokenizer, "chat_template", None)
        result = hierarchy.generate(
            apply_chat(tokenizer, text) if chat else text,
            max_new_tokens=lab.max_new_tokens,
            temperature=0.0,
        )
        out[domain].append(result.num_tokens)
        lab.report("p3-figure9", sum(map(len, out.values())) / total)
    return out


def _fast(lab: Lab) -> Hierarchy:
    """Return the target above what drafts for it without being named, where something does."""
    try:
        return Hierarchy(build(stack(lab.models.target), lab.models.loaded))
    except HierspecError:
        return lab.models.hierarchy()


def _ninth(each: list[int]) -> float:
    return quantiles(each, n=10)[-1] if len(each) > 1 else float(each[0])
