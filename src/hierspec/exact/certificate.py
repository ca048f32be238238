"""Certificates: the exact output law of a tabular hierarchy, compared with its target's.

``hierspec certify CASE.json``. A case holds small models as tables and the levels between them;
:mod:`hierspec.exact` enumerates the output. So exactness of a rule, a window or a tree is a number
that anyone can compute, not a claim.

A law of H tokens shows a loss, but cannot show that there is none: windows with a memory, plans
and contexts that come late may hide it from any H. So losslessness is proved instead, by comparing
one round from every state that a generation can be in (:mod:`hierspec.exact.proof`).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from hierspec.core.nodes import Verify
from hierspec.core.proposals import States
from hierspec.engine.control import Controller, initial_window_states
from hierspec.errors import HierspecError

from .bounds import UNLIMITED, longest_proposal
from .cases import load_case, parse_case, parse_control
from .interpreter import ExactInterpreter
from .output import Rounds, join_rounds, model_law
from .proof import Examination, LossyRound, prove, search_reachable
from .round_law import Continuation

__all__ = ["Certificate", "certify", "certify_tree", "load_case", "parse_case"]

TOLERANCE = 1e-9  # of a total variation distance, against rounding
_MAX_CELLS = 2**24  # V^H entries of a law: 128 MiB
_MAX_SHOWN = 2**18  # entries of a law that is made longer to show a loss
_TRIES = 5  # such laws, each a token longer
_MAX_STATES = 2**15  # from which one round is compared
_MAX_REACHED = 2**12  # states looked at on the way to a round that is lossy


@dataclass(frozen=True)
class Certificate:
    """The exact output law of a hierarchy, compared with its target's.

    Attributes:
        tv: total variation distance between the law of the first ``horizon`` tokens and the
            target's own.
        conclusive: the horizon exceeds the longest proposal by two, and the loss is in ``tv`` or
            there is none: every state was looked at.
        expected_accepted: draft tokens kept in the target's first verification.
        expected_tokens_per_target_call: E[tokens] / E[calls] of the first round.
        paths: branches enumerated for the law.
        horizon: tokens compared.
        longest_proposal: the most tokens the target can be handed.
        seconds: spent.
        worst_round_tv: the same distance for one round, continued by the target: the largest from
            any state looked at. The search ends soon after a round that is lossy.
        states: from which one round was compared: last tokens, window states, plan, tokens wanted.
        complete: there are no other states.
        lossy_round: the first lossy round that was reached: its ``tv``, the text it comes
            ``after``, ``tokens_wanted`` (``None``: as many as it emits), and the ``state`` of
            windows and controller.
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
    worst_round_tv: float
    states: int
    complete: bool
    lossy_round: dict[str, Any] | None
    output: np.ndarray = field(repr=False, compare=False)

    @property
    def lossy(self) -> bool:
        """Whether the output was seen not to keep the target's law."""
        return self.tv > TOLERANCE or self.lossy_round is not None

    def passed(self, allow_inconclusive: bool = False) -> bool:
        """Return whether losslessness is proved, or at least no loss seen where that is allowed."""
        spotless = not self.lossy and self.worst_round_tv <= TOLERANCE
        return spotless and (self.conclusive or allow_inconclusive)

    @property
    def law(self) -> dict[tuple[int, ...], float]:
        """Probability of every text of ``horizon`` tokens that can come out."""
        return {
            tuple(map(int, tokens)): float(self.output[tuple(tokens)])
            for tokens in np.argwhere(self.output > 0.0)
        }

    def to_dict(self, law: bool = False) -> dict[str, Any]:
        """Return the certificate as JSON; ``law`` adds the law, texts as comma-separated ids."""
        names = [f.name for f in fields(self) if f.name not in ("complete", "output")]
        out = {"tv": self.tv, "conclusive": self.conclusive, "lossless": self.passed()}
        out |= {name: getattr(self, name) for name in names}
        if law:
            out["law"] = {",".join(map(str, text)): p for text, p in self.law.items()}
        return out


def certify(case: Mapping[str, Any]) -> Certificate:
    """Enumerate a case (:mod:`hierspec.exact.cases` says what one looks like).

    Raises:
        HierspecError: the case is malformed, or its hierarchy is unsound for a reason that no
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
    """Enumerate nodes whose models have ``law(context)``, ``order`` and ``vocab_size``.

    Args:
        horizon: tokens to compare; ``None``: the longest proposal + 2, and more where they are
            needed to show a loss that is known to be there.
        cut_at_horizon: limit rounds to the tokens still wanted, as the end of a generation does.
        controller: chooses the plan of every round; ``expected_*`` are then of its first.
    """
    began = time.perf_counter()
    plans = [root] if controller is None else controller.plans
    longest = max(longest_proposal(plan.below) for plan in plans)
    tokens = longest + 2 if horizon is None else horizon
    if vocab_size**tokens > _MAX_CELLS:
        raise HierspecError(
            f"a law over {vocab_size}^{tokens} texts is too large to enumerate: lower the "
            f"budgets (the longest proposal is {longest} tokens), the vocabulary or the horizon"
        )
    states = initial_window_states(root, controller)
    if controller is not None:
        root = controller.plan(controller.initial(0, tokens))
    interpreter = ExactInterpreter(root, vocab_size)
    first = interpreter.round((), UNLIMITED, states)
    rounds = Rounds(interpreter, controller)
    initial = rounds.initial(states, tokens)
    output = join_rounds(rounds, initial, tokens, cut_at_horizon)
    tv, paths = _distance(output, root.model), rounds.paths
    found = _examine(rounds, states, initial, tv > TOLERANCE)
    if found.lossy and tv <= TOLERANCE and horizon is None:
        longer = max(tokens + 1, found.lossy.shown)
        for tokens in range(longer, longer + _TRIES):
            if tv > TOLERANCE or vocab_size**tokens > _MAX_SHOWN:
                break
            output = join_rounds(rounds, initial, tokens, cut_at_horizon)
            tv = _distance(output, root.model)
    proved = found.complete and found.worst_tv <= TOLERANCE
    emitted = sum(o.probability * len(o.value[0].emitted) for o in first)
    calls = sum(o.probability * o.calls for o in first)
    return Certificate(
        tv=tv,
        conclusive=output.ndim >= longest + 2 and (tv > TOLERANCE or proved),
        expected_accepted=float(sum(o.probability * o.value[0].num_accepted for o in first)),
        expected_tokens_per_target_call=float(emitted / calls),
        paths=paths,
        horizon=output.ndim,
        longest_proposal=longest,
        seconds=time.perf_counter() - began,
        worst_round_tv=found.worst_tv,
        states=found.states,
        complete=found.complete,
        lossy_round=None if found.lossy is None else _lossy_round_to_dict(found.lossy, rounds),
        output=output,
    )


def _examine(rounds: Rounds, states: States, initial: Any, known_lossy: bool) -> Examination:
    """Try to prove losslessness; where that fails, look for the nearest lossy round."""
    target = Continuation(rounds.root.model)
    proof = Examination(0, False, 0.0)
    if not known_lossy:
        proof = prove(rounds, states, target, TOLERANCE, _MAX_STATES)
        if proof.complete:
            return proof
    search = search_reachable(rounds, initial, target, TOLERANCE, _MAX_REACHED)
    if search.lossy or search.complete:
        return search
    return Examination(proof.states + search.states, False, max(proof.worst_tv, search.worst_tv))


def _distance(output: np.ndarray, model: Any) -> float:
    return float(np.abs(output - model_law(model, output.ndim)).sum() / 2.0)


def _lossy_round_to_dict(lossy: LossyRound, rounds: Rounds) -> dict[str, Any]:
    return {
        "tv": lossy.tv,
        "after": ",".join(map(str, lossy.text)),
        "tokens_wanted": None if lossy.limit == UNLIMITED else lossy.limit,
        "state": rounds.describe(lossy.state),
    }
