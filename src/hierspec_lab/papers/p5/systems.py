"""P5's systems as hierarchies, in the sound reading of its algorithms [MATH §2].

M1 is the lab's smallest draft, M2 its largest; the target verifies token by token, as in P5. With
:data:`WINDOW` they are the presets ``self-verify``, ``pre-verify``, ``pre-self-verify`` and
``dynamic-windows``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hierspec_lab.bench.methods.ours import HierarchyMethod
from hierspec_lab.papers.lab import Lab, draft_level

WINDOW = 10  # K [P5 Appendix A.1]
# Tokens that M2 holds at most while its entropy is low: P5 has no such limit, only on the text.
CAP = 15
RULE = "tokenwise"
DATASETS = ("MT-Bench", "HumanEval", "GSM8K", "Alpaca")  # columns of P5's tables

NOT_AS_PRINTED = (
    "Algorithms 1 and 2 are run in their sound reading. As printed, p_i is read one token late; "
    "the set that decides whether the target's turn has come contains 0, so its minimum is 0 and "
    "it never comes; recovered tokens are missing from the count of pending ones; after the "
    "target's turn neither that count nor the two models are set back.",
    "Two more differences, lossless both: a draft that is kept whole earns a bonus token, and a "
    "threshold averages entropies at the rejected tokens (section 4.4's formula), where the "
    "algorithms print those at the last accepted ones.",
    f"M2 hands up at {CAP} tokens even while it is sure. Entropies are those of untempered "
    "distributions, so windows work for greedy decoding too.",
)
ELSEWHERE = "Printed numbers are of other models and machines (Llama 70B, 7B and 68M on V100s)."


def vanilla(model: str, window: int = WINDOW) -> list[dict[str, Any]]:
    """Return speculative decoding with drafts of ``window`` tokens."""
    return [_level(model, window)]


def self_verify(model: str, window: int = WINDOW) -> list[dict[str, Any]]:
    """Return a single draft that stops after a token of too high entropy [P5 Algorithm 1]."""
    return [_level(model, window, adaptive=True)]


def pre_verify(small: str, large: str, window: int = WINDOW) -> list[dict[str, Any]]:
    """Return M1 drafting for M2 and M2 for the target, with fixed windows [P5 Figure 5a]."""
    return [_level(small, window), _level(large, window, verify=RULE)]


def pre_self_verify(small: str, large: str, window: int = WINDOW) -> list[dict[str, Any]]:
    """Return :func:`pre_verify` with M1 stopping by its entropy [P5 Figure 5b]."""
    return [_level(small, window, adaptive=True), _level(large, window, verify=RULE)]


def full(small: str, large: str, window: int = WINDOW) -> list[dict[str, Any]]:
    """Return HSDDW: M2, too, stops by its entropy [P5 Algorithm 2]; ``window`` is M1's alone."""
    return [_level(small, window, adaptive=True), _level(large, CAP, adaptive=True, verify=RULE)]


def _level(model: str, tokens: int, *, adaptive: bool = False, **options: Any) -> dict[str, Any]:
    level = draft_level(model, tokens, **options)
    return {**level, "window": {"kind": "entropy"}} if adaptive else level


def levels_by_system(
    small: str, large: str, window: int = WINDOW
) -> dict[str, list[dict[str, Any]]]:
    """Return every system's levels, by its name in P5's tables."""
    return {
        "vanilla M1": vanilla(small, window),
        "vanilla M2": vanilla(large, window),
        "self-verify M1": self_verify(small, window),
        "self-verify M2": self_verify(large, window),
        "pre-verify": pre_verify(small, large, window),
        "pre-verify + self-verify": pre_self_verify(small, large, window),
        "full": full(small, large, window),
    }


def method(lab: Lab, name: str, levels: Sequence[dict[str, Any]] = ()) -> HierarchyMethod:
    """Return these levels below the lab's target, which verifies as in P5."""
    return HierarchyMethod(name, lab.models, levels, verify=RULE)


def drafts(lab: Lab, name: str) -> tuple[str, str]:
    """Return the names of the two draft models, P5's M1 and M2.

    Raises:
        HierspecError: fewer than two draft models, no prompt, or fewer than two new tokens.
    """
    lab.require(name, drafts=2, tokens=2)
    return lab.models.drafts[0], lab.models.drafts[-1]


def roles(lab: Lab) -> dict[str, Any]:
    """Return the models of the three roles and the windows, for a table's inputs."""
    return {
        "M1": lab.models.drafts[0],
        "M2": lab.models.drafts[-1],
        "target": lab.target,
        "K": WINDOW,
        "most tokens of M2": CAP,
    }


def dataset(lab: Lab) -> str:
    """Return the printed data set that the lab's prompts are of.

    HumanEval where their file's name does not tell: the shipped family knows only Python.
    """
    return lab.dataset(DATASETS, "HumanEval")


def paper_temperature(temperatures: Sequence[float]) -> float:
    """Return P5's own temperature, 1 [Appendix A.1], if it is among these; else the last one."""
    return 1.0 if 1.0 in temperatures else temperatures[-1]
