"""What the measured reproductions of P4 share: one draft model, sampling, ratios of speed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hierspec.bench.methods.base import Method, Run, Unavailable
from hierspec.bench.records import PairedRatio
from hierspec.bench.summary import ratio
from hierspec.errors import HierspecError
from hierspec_papers.lab import Lab

DRAFT_LENGTH = 10  # P4's default is lost in the text at hand; its cost estimate fits 10 [App. G]


def sampling(lab: Lab, what: str) -> tuple[list[float], str, dict[str, Any]]:
    """Return the lab's temperatures that sample, the smallest draft model, and a record of both.

    Greedy decoding makes all rules one. P4 drafts with the smallest of its family as well [§6.1].

    Raises:
        HierspecError: no such temperature, no draft model, no prompt, or too few tokens for a
            draft to be verified.
    """
    temperatures = [value for value in lab.temperatures if value > 0.0]
    if not temperatures:
        raise HierspecError(
            f"{what} is about sampling, where verification rules differ: give a temperature above 0"
        )
    lab.require(what, drafts=1, tokens=3)
    model = lab.models.drafts[0]
    return temperatures, model, {**lab.to_dict(), "draft": model, "temperatures": temperatures}


def measured(lab: Lab, methods: Sequence[Method], temperature: float, what: str) -> list[list[Run]]:
    """Return every method's runs, one a prompt.

    Raises:
        HierspecError: a method cannot run.
    """
    out = []
    found = lab.measure(methods, temperature, f"{what}, temperature {temperature:g}")
    for method, runs in zip(methods, found, strict=True):
        if isinstance(runs, Unavailable):
            raise HierspecError(f"{what}: {method.name} cannot run: {runs}")
        out.append(runs)
    return out


def faster(runs: Sequence[Run], than: Sequence[Run]) -> PairedRatio:
    """Return decoding speed over that of other runs, paired per prompt, with a 95 % interval."""
    mine, theirs = ([run.decode_ms_per_token or 0.0 for run in some] for some in (runs, than))
    return ratio(theirs, mine)
