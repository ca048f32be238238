"""Certificates: the exact output law of a tabular hierarchy, compared with its target's.

``hierspec certify CASE.json``. A case holds small models as tables and the levels between them;
:mod:`hierspec.exact` enumerates what comes out. Exactness of a rule, a window or a tree is thereby
a number anyone can compute, not a claim. Short horizons hide lossy rules, so a certificate says
whether its horizon was long enough to be conclusive.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hierspec.core.nodes import Verify
from hierspec.engine.control import Controller, initial_window_states
from hierspec.errors import HierspecError

from . import UNLIMITED, ExactInterpreter, longest, model_law, output_law
from .cases import load_case, parse_case, parse_control

__all__ = ["Certificate", "certify", "certify_tree", "load_case", "parse_case"]

TOLERANCE = 1e-9  # of a total variation distance, against rounding
_MAX_CELLS = 2**24  # V^H entries of a law: 128 MiB


@dataclass(frozen=True)
class Certificate:
    """What enumeration found.

    Attributes:
        tv: total variation distance between the law of the first ``horizon`` tokens and the
            target's own.
        conclusive: the horizon exceeds the longest proposal by two, so that what a round does to
            the next one is seen.
        expected_accepted: draft tokens kept in the target's first verification.
        expected_tokens_per_target_call: E[tokens] / E[calls] of the first round.
        paths: branches enumerated.
        horizon: tokens compared.
        longest_proposal: the most tokens the target can be handed.
        seconds: spent.
        output: the law found, [V] · horizon.
    """

    tv: float
    conclusive: bool
    expected_accepted: float
    expected_tokens_per_target_call: float
    paths: int
    horizon: int
    longest_proposal: int
    seconds: float
    output: np.ndarray = field(repr=False, compare=False)

    def passed(self, allow_inconclusive: bool = False) -> bool:
        """Lossless, and seen to be."""
        return self.tv <= TOLERANCE and (self.conclusive or allow_inconclusive)

    @property
    def law(self) -> dict[tuple[int, ...], float]:
        """Probability of every text of ``horizon`` tokens that can come out."""
        return {
            tuple(map(int, tokens)): float(self.output[tuple(tokens)])
            for tokens in np.argwhere(self.output > 0.0)
        }

    def to_dict(self, law: bool = False) -> dict[str, Any]:
        """For JSON; with ``law``, texts are comma-separated token ids, as in a case's tables."""
        out: dict[str, Any] = {
            "tv": self.tv,
            "conclusive": self.conclusive,
            "expected_accepted": self.expected_accepted,
            "expected_tokens_per_target_call": self.expected_tokens_per_target_call,
            "paths": self.paths,
            "horizon": self.horizon,
            "longest_proposal": self.longest_proposal,
            "seconds": self.seconds,
        }
        if law:
            out["law"] = {",".join(map(str, text)): p for text, p in self.law.items()}
        return out


def certify(case: Mapping[str, Any]) -> Certificate:
    """Enumerate a case (:mod:`hierspec.exact.cases` says what one looks like).

    Raises:
        ValueError: the case is malformed, or its hierarchy is unsound for a reason that no
            enumeration is needed to see (then the message says which, and the fix).
    """
    root, vocab, horizon = parse_case(case)
    return certify_tree(root, vocab, horizon, controller=parse_control(case, root))


def certify_tree(
    root: Verify,
    vocab_size: int,
    horizon: int | None = None,
    cut_at_horizon: bool = False,
    controller: Controller | None = None,
) -> Certificate:
    """The same for nodes whose models have ``law(context)``, ``order`` and ``vocab_size``.

    Args:
        horizon: tokens to compare; ``None``: the longest proposal + 2.
        cut_at_horizon: limit rounds to the tokens still wanted, as the end of a generation does.
        controller: chooses the plan of every round; ``expected_*`` are then of its first.
    """
    began = time.perf_counter()
    plans = [root] if controller is None else controller.plans
    most = max(longest(plan.below) for plan in plans)
    horizon = most + 2 if horizon is None else horizon
    if vocab_size**horizon > _MAX_CELLS:
        raise HierspecError(
            f"a law over {vocab_size}^{horizon} texts is too large to enumerate: lower the "
            f"budgets (the longest proposal is {most} tokens), the vocabulary or the horizon"
        )
    if controller is not None:
        root = controller.plan(controller.initial(0, horizon))
    interpreter = ExactInterpreter(root, vocab_size)
    states = initial_window_states(root, controller)
    first = interpreter.round((), UNLIMITED, states)
    output = output_law(interpreter, states, horizon, cut_at_horizon, controller)
    tokens = sum(o.probability * len(o.value[0].emitted) for o in first)
    calls = sum(o.probability * o.calls for o in first)
    return Certificate(
        tv=float(np.abs(output - model_law(root.model, horizon)).sum() / 2.0),
        conclusive=horizon >= most + 2,
        expected_accepted=float(sum(o.probability * o.value[0].num_accepted for o in first)),
        expected_tokens_per_target_call=float(tokens / calls),
        paths=interpreter.paths,
        horizon=horizon,
        longest_proposal=most,
        seconds=time.perf_counter() - began,
        output=output,
    )
