"""Helpers of P4's measured reproductions: one draft model, sampling, ratios of speed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hierspec.errors import HierspecError
from hierspec_lab.bench.method_records import PairedRatio
from hierspec_lab.bench.methods.base import Method, Run, Unavailable
from hierspec_lab.bench.summary import ratio
from hierspec_lab.papers.lab import Lab

DRAFT_LENGTH = 10  # P4's default is lost in the text at hand; its cost estimate fits 10 [App. G]


def sampling_setup(lab: Lab, name: str) -> tuple[list[float], str, dict[str, Any]]:
    """Return the lab's temperatures above 0, its smallest draft model, and a record of both.

    In greedy decoding all rules are equal. P4, too, drafts with the smallest model [§6.1].

    Raises:
        HierspecError: no such temperature, no draft model, no prompt, or too few tokens for a
            draft to be verified.
    """
    temperatures = [value for value in lab.temperatures if value > 0.0]
    if not temperatures:
        raise HierspecError(
            f"{name} is about sampling, where verification rules differ: give a temperature above 0"
        )
    lab.require(name, drafts=1, tokens=3)
    model = lab.models.drafts[0]
    return temperatures, model, {**lab.to_dict(), "draft": model, "temperatures": temperatures}


def measure_methods(
    lab: Lab, methods: Sequence[Method], temperature: float, name: str
) -> list[list[Run]]:
    """Measure and return every method's runs, one a prompt.

    Raises:
        HierspecError: a method cannot run.
    """
    by_method = []
    results = lab.measure(methods, temperature, f"{name}, temperature {temperature:g}")
    for method, runs in zip(methods, results, strict=True):
        if isinstance(runs, Unavailable):
            raise HierspecError(f"{name}: {method.name} cannot run: {runs}")
        by_method.append(runs)
    return by_method


def decoding_speedup(fast: Sequence[Run], slow: Sequence[Run]) -> PairedRatio:
    """Return the ratio of decoding speeds, paired per prompt, with a 95 % interval."""
    return ratio(*([run.decode_ms_per_token or 0.0 for run in runs] for runs in (slow, fast)))
