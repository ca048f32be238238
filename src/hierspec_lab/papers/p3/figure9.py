"""P3's Figure 9: how long the prompts of the data sets are, and the answers, in tokens.

Lengths of answers depend on the model that writes them as much as on the data sets: here the target
writes them, greedily, in its chat template where it has one.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median, quantiles

from hierspec.api import Hierarchy
from hierspec.config.build import build
from hierspec.errors import HierspecError
from hierspec.presets.defaults import best_unmeasured
from hierspec.utils.prompts import apply_chat
from hierspec_lab.papers.lab import Lab
from hierspec_lab.papers.tables import Curve, Figure, Reproduction, Table, TableRow

ANSWERED = 8  # prompts of each domain that are answered

DomainLengths = dict[str, list[int]]


def measure(lab: Lab) -> Reproduction:
    """Measure the cumulative distributions of prompt and answer lengths, domain by domain.

    Raises:
        HierspecError: there is no prompt.
    """
    lab.require("p3-figure9")
    prompts: DomainLengths = lab.once("tokens of the prompts", lambda: _by_domain(lab, lab.lengths))
    answers: DomainLengths = lab.once("tokens of the answers", lambda: _answers(lab))
    parts = (
        ("prompt", prompts, "Prompts as they are, without a chat template."),
        (
            "answer",
            answers,
            f"The target's own answers, greedy, to the first {ANSWERED} prompts of a domain, cut "
            f"at {lab.max_new_tokens} tokens.",
        ),
    )
    tables = tuple(_table(lab, *part) for part in parts)
    figures = tuple(_figure(*part) for part in parts)
    return Reproduction("p3-figure9", tables, figures, lab.to_dict())


def _table(lab: Lab, kind: str, by_domain: DomainLengths, note: str) -> Table:
    rows = tuple(
        TableRow(domain, (), (len(lengths), median(lengths), _ninth_decile(lengths), max(lengths)))
        for domain, lengths in by_domain.items()
    )
    return Table(
        f"Figure 9, {kind}s",
        f"tokens of {'an' if kind == 'answer' else 'a'} {kind}, in those of {lab.target}",
        "domain",
        (),
        rows,
        (f"{kind}s", "median", "nine in ten are below", "longest"),
        compared=False,
        notes=(f"{note} P3 prints a picture without numbers.",),
    )


def _figure(kind: str, by_domain: DomainLengths, note: str) -> Figure:
    curves = tuple(
        Curve(
            domain,
            tuple(map(float, sorted(lengths))),
            tuple((i + 1) / len(lengths) for i in range(len(lengths))),
        )
        for domain, lengths in by_domain.items()
    )
    caption = f"share of the {kind}s that are no longer"
    return Figure(
        f"Figure 9, {kind}s", caption, "tokens", f"share of {kind}s", curves, notes=(note,)
    )


def _by_domain(lab: Lab, lengths: Sequence[int]) -> DomainLengths:
    by_domain: DomainLengths = {}
    for domain, length in zip(lab.domains, lengths, strict=False):
        by_domain.setdefault(domain, []).append(length)
    return by_domain


def _answers(lab: Lab) -> DomainLengths:
    """Return the lengths of the target's own answers; drafters only make them faster."""
    hierarchy, tokenizer = _fast_hierarchy(lab), lab.models.tokenizer
    answers: DomainLengths = {domain: [] for domain in lab.domains}
    total = sum(min(ANSWERED, lab.domains.count(domain)) for domain in answers)
    for domain, text in zip(lab.domains, lab.texts, strict=True):
        if len(answers[domain]) == ANSWERED:
            continue
        chat = getattr(tokenizer, "chat_template", None)
        result = hierarchy.generate(
            apply_chat(tokenizer, text) if chat else text,
            max_new_tokens=lab.max_new_tokens,
            temperature=0.0,
        )
        answers[domain].append(result.num_tokens)
        lab.report("p3-figure9", sum(map(len, answers.values())) / total)
    return answers


def _fast_hierarchy(lab: Lab) -> Hierarchy:
    """Return the target with its default drafters, or alone where it has none."""
    try:
        return Hierarchy(build(best_unmeasured(lab.models.target), lab.models.loaded))
    except HierspecError:
        return lab.models.hierarchy()


def _ninth_decile(lengths: list[int]) -> float:
    # Inclusive: the other method leads beyond the longest of a few.
    if len(lengths) == 1:
        return float(lengths[0])
    return quantiles(lengths, n=10, method="inclusive")[-1]
