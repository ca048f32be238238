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


def levels_by_system(
    small: str, large: str, window: int = WINDOW
) -> dict[str, list[dict[str, Any]]]:
    """Return every system's levels, by its name in P5's tables."""
    return stacked(draft_level(small, window), draft_level(large, window))


def stacked(small: dict[str, Any], large: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Return every system's levels from those of M1 and M2, which draft K tokens.

    Where a level stops by its entropy, it does so after a token of too high entropy. In the full
    system M2 does so, too, and K is M1's alone.

    Source: P5 Algorithm 1 (self-verify), Figures 5a and 5b (pre-verify), Algorithm 2 (full).
    """
    entropy, rule = {"window": {"kind": "entropy"}}, {"verify": RULE}
    return {
        "vanilla M1": [small],
        "vanilla M2": [large],
        "self-verify M1": [{**small, **entropy}],
        "self-verify M2": [{**large, **entropy}],
        "pre-verify": [small, {**large, **rule}],
        "pre-verify + self-verify": [{**small, **entropy}, {**large, **rule}],
        "full": [
            {**small, **entropy},
            {**large, "num_speculative_tokens": CAP, **entropy, **rule},
        ],
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
