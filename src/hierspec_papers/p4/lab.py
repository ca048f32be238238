"""What the measured reproductions of P4 share: one draft model, sampling, ratios of speed."""

from __future__ import annotations

from collections.abc import Sequence

from hierspec.bench.methods.base import Method, Run, Unavailable
from hierspec.bench.records import PairedRatio
from hierspec.bench.summary import ratio
from hierspec.errors import HierspecError
from hierspec_papers.lab import Lab

DRAFT_LENGTH = 10  # P4's default is lost in the text at hand; its cost estimate fits 10 [App. G]


def temperatures(lab: Lab, what: str) -> list[float]:
    """Those of the lab that sample: greedy decoding makes all rules one.

    Raises:
        ValueError: there is none, no prompt, or too few tokens for a draft to be verified.
    """
    if not lab.prompts:
        raise HierspecError(f"{what} needs prompts: give --prompts a file with one or more")
    found = [value for value in lab.temperatures if value > 0.0]
    if not found:
        raise HierspecError(
            f"{what} is about sampling, where verification rules differ: give a temperature above 0"
        )
    if lab.max_new_tokens < 3:
        raise HierspecError(f"{what} verifies drafts: write at least 3 tokens (--max-new-tokens 3)")
    return found


def drafter(lab: Lab, what: str) -> str:
    """The smallest draft model; P4 drafts with the smallest of its family as well [§6.1]."""
    if not lab.models.drafts:
        raise HierspecError(f"{what} needs a draft model: name one with --draft")
    return lab.models.drafts[0]


def measured(lab: Lab, methods: Sequence[Method], temperature: float, what: str) -> list[list[Run]]:
    """Every method's runs, one a prompt.

    Raises:
        ValueError: a method cannot run.
    """
    out = []
    found = lab.measure(methods, temperature, f"{what}, temperature {temperature:g}")
    for method, runs in zip(methods, found, strict=True):
        if isinstance(runs, Unavailable):
            raise HierspecError(f"{what}: {method.name} cannot run: {runs}")
        out.append(runs)
    return out


def faster(runs: Sequence[Run], than: Sequence[Run]) -> PairedRatio:
    """Decoding speed over that of other runs, paired per prompt: median and 95 % interval."""
    mine, theirs = ([run.decode_ms_per_token or 0.0 for run in some] for some in (runs, than))
    return ratio(theirs, mine)
