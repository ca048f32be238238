"""P3's Figure 9: how long the prompts of the data sets are, in the target's tokens.

Nothing is generated: the figure's other half, the lengths of outputs, says as much of the models
that write them as of the data sets.
"""

from __future__ import annotations

from statistics import median, quantiles

from hierspec_papers.lab import Lab
from hierspec_papers.tables import Curve, Figure, Reproduction, Row, Table


def measure(lab: Lab) -> Reproduction:
    """Return the cumulative distribution of prompt lengths, domain by domain.

    Raises:
        HierspecError: there is no prompt.
    """
    lab.require("p3-figure9")
    found: dict[str, list[int]] = lab.once("tokens of the prompts", lambda: _lengths(lab))
    rows = tuple(
        Row(domain, (), (len(each), median(each), _ninth(each), max(each)))
        for domain, each in found.items()
    )
    note = "Prompts as they are, without a chat template; P3 prints a picture without numbers."
    table = Table(
        "Figure 9",
        f"tokens of a prompt, in those of {lab.target}",
        "domain",
        (),
        rows,
        ("prompts", "median", "nine in ten are below", "longest"),
        compared=False,
        notes=(note,),
    )
    curves = tuple(
        Curve(
            domain,
            tuple(float(one) for one in sorted(each)),
            tuple((i + 1) / len(each) for i in range(len(each))),
        )
        for domain, each in found.items()
    )
    caption = "share of the prompts that are no longer"
    figure = Figure("Figure 9", caption, "tokens", "share of prompts", curves, notes=(note,))
    return Reproduction("p3-figure9", (table,), (figure,), lab.to_dict())


def _lengths(lab: Lab) -> dict[str, list[int]]:
    out: dict[str, list[int]] = {}
    for domain, length in zip(lab.domains, lab.lengths, strict=True):
        out.setdefault(domain, []).append(length)
    return out


def _ninth(each: list[int]) -> float:
    return quantiles(each, n=10)[-1] if len(each) > 1 else float(each[0])
