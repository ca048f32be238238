"""Certificates: what enumeration says of a hierarchy's output law.

Who enumerates is found by an entry point of the group ``hierspec.certificates``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from hierspec.errors import HierspecError
from hierspec.utils import plugins

GROUP = "hierspec.certificates"  # of entry points: ``certify`` is a function of a case
TOLERANCE = 1e-9  # of a total variation distance, against rounding


@dataclass(frozen=True)
class Certificate:
    """The exact output law of a hierarchy, compared with its target's.

    Attributes:
        tv: total variation distance between the law of the first ``horizon`` tokens and the
            target's own.
        conclusive: whether the horizon is at least the longest proposal + 2, and either ``tv``
            shows a loss or all states were compared and there is none.
        expected_accepted: draft tokens accepted in the target's first verification.
        expected_tokens_per_target_call: E[tokens] / E[calls] of the first round.
        paths: branches enumerated for the law.
        horizon: tokens compared.
        longest_proposal: the most draft tokens that the target can get in a round.
        seconds: time of the enumeration.
        worst_round_tv: the largest distance of one round, continued by the target, from any state
            that was compared. The search ends soon after a lossy round.
        states: number of states from which one round was compared; a state is the last tokens,
            window states, plan and number of remaining tokens.
        complete: whether there are no other states.
        lossy_round: the first lossy round that was reached: its ``tv``, the text it comes
            ``after``, ``tokens_wanted`` (the limit of the round; ``None``: unlimited), and the
            ``state`` of windows and controller.
        output: the law as an array, [V] · horizon.
    """

    tv: float
    conclusive: bool
    expected_accepted: float
    expected_tokens_per_target_call: float
    paths: int
    horizon: int
    longest_proposal: int
    seconds: float
    worst_round_tv: float
    states: int
    complete: bool
    lossy_round: dict[str, Any] | None
    output: np.ndarray = field(repr=False, compare=False)

    @property
    def lossy(self) -> bool:
        """Whether the output law was found to differ from the target's."""
        return self.tv > TOLERANCE or self.lossy_round is not None

    def passed(self, allow_inconclusive: bool = False) -> bool:
        """Return whether losslessness is proved, or, if allowed, that no loss was found."""
        no_loss_found = not self.lossy and max(self.tv, self.worst_round_tv) <= TOLERANCE
        return no_loss_found and (self.conclusive or allow_inconclusive)

    @property
    def law(self) -> dict[tuple[int, ...], float]:
        """Probability of every possible text of ``horizon`` tokens."""
        return {
            tuple(map(int, tokens)): float(self.output[tuple(tokens)])
            for tokens in np.argwhere(self.output > 0.0)
        }

    def to_dict(self, law: bool = False) -> dict[str, Any]:
        """Return the certificate as JSON; ``law`` adds the law, keyed by comma-separated ids."""
        names = [f.name for f in fields(self) if f.name not in ("complete", "output")]
        first: dict[str, Any] = {"tv": self.tv, "conclusive": self.conclusive}
        out = {**first, "lossless": self.passed(), **{name: getattr(self, name) for name in names}}
        if law:
            out["law"] = {",".join(map(str, text)): p for text, p in self.law.items()}
        return out


def certify(case: Mapping[str, Any]) -> Certificate:
    """Enumerate a case, as ``hierspec certify`` does (docs/concepts.md describes the format).

    Raises:
        HierspecError: the case is malformed, or its hierarchy is unsound for a reason that is
            clear without enumeration; the message names it and the fix. Or no package that
            enumerates is installed.
    """
    enumerate_case = plugins.load_entry_point(GROUP, "certify")
    if enumerate_case is None:
        raise HierspecError("no package that enumerates hierarchies is installed")
    return enumerate_case(case)
