"""What the measured reproductions of P4 share: one draft model, sampling, and two numbers a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..bench.runs import Method, Run, Unavailable
from ..bench.summary import ratio
from .lab import Lab

DRAFT_LENGTH = 10  # P4's default is lost in the text at hand; its cost estimate fits 10 [App. G]


def temperatures(lab: Lab, what: str) -> list[float]:
    """Those of the lab that sample: greedy decoding makes all rules one.

    Raises:
        ValueError: there is none, no prompt, or too few tokens for a draft to be verified.
    """
    if not lab.prompts:
        raise ValueError(f"{what} needs prompts: give --prompts a file with one or more")
    found = [value for value in lab.temperatures if value > 0.0]
    if not found:
        raise ValueError(
            f"{what} is about sampling, where verification rules differ: give a temperature above 0"
        )
    if lab.max_new_tokens < 3:
        raise ValueError(f"{what} verifies drafts: write at least 3 tokens (--max-new-tokens 3)")
    return found


def drafter(lab: Lab, what: str) -> str:
    """The smallest draft model; P4 drafts with the smallest of its family as well [§6.1]."""
    if not lab.models.drafts:
        raise ValueError(f"{what} needs a draft model: name one with --draft")
    return lab.models.drafts[0]


def level(model: str, length: int, **more: Any) -> dict[str, Any]:
    """A draft model's level, as in a hierarchy file."""
    return {"method": "draft_model", "model": model, "num_speculative_tokens": length, **more}


def measured(lab: Lab, methods: Sequence[Method], temperature: float, what: str) -> list[list[Run]]:
    """Every method's runs, one a prompt.

    Raises:
        ValueError: a method cannot run.
    """
    out = []
    found = lab.measure(methods, temperature, f"{what}, temperature {temperature:g}")
    for method, runs in zip(methods, found, strict=True):
        if isinstance(runs, Unavailable):
            raise ValueError(f"{what}: {method.name} cannot run: {runs}")
        out.append(runs)
    return out


def tokens_per_call(runs: Sequence[Run]) -> float:
    """Tokens after the first over target calls, all prompts together: P4's block efficiency.

    Follow-up calls of a rule count as calls, so they are taken from the target's own counter.
    """
    return sum(run.num_tokens - 1 for run in runs) / sum(run.target["calls"] for run in runs)


def tokens_per_second(runs: Sequence[Run]) -> float:
    """Tokens after the first over decoding time, all prompts together."""
    return sum(run.num_tokens - 1 for run in runs) / sum(run.decode_seconds or 0.0 for run in runs)


def faster(runs: Sequence[Run], than: Sequence[Run]) -> dict[str, float]:
    """Decoding speed over that of other runs, paired per prompt: median and 95 % interval."""
    mine, theirs = ([run.decode_ms_per_token or 0.0 for run in some] for some in (runs, than))
    return ratio(theirs, mine)


def dataset(lab: Lab) -> str:
    """Which of P4's data sets the prompts resemble, by their file's name; GSM8K unless told."""
    name = str(lab.source.get("file", "")).lower()
    return "HumanEval" if "humaneval" in name else "GSM8K"
