"""Certificates: the exact output law of a tabular hierarchy, compared with its target's.

``hierspec certify CASE.json``. A case holds small models as tables and the levels between them;
:mod:`hierspec.exact` enumerates the output. So the exactness of a rule, a window or a tree is a
number that anyone can compute, not a claim.

The law of H tokens can show a loss, but not that there is none: with windows that have a memory, or
with plans or contexts that occur late, a loss may show only after any given H. So losslessness is
proved by comparing one round from every state that a generation can be in
(:mod:`hierspec.exact.proof`); of a user's rule those of the engine itself are compared, too
(:mod:`hierspec.exact.engine_rounds`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import numpy as np
import torch

from hierspec.core.nodes import Verify, initial_states
from hierspec.core.proposals import States
from hierspec.engine.control import Controller
from hierspec.errors import HierspecError
from hierspec.verifiers.formulas import total_variation

from .cases import load_case, parse_case
from .engine_rounds import EngineComparison, compare_with_engine, users_rules
from .interpreter import UNLIMITED, ExactInterpreter, longest_proposal
from .output import Rounds, join_rounds, model_law
from .proof import Examination, LossyRound, prove, search_reachable
from .round_law import Continuation

__all__ = ["Certificate", "certify", "certify_tree", "load_case", "parse_case", "rounding_note"]

TOLERANCE = 1e-9  # of a total variation distance, against rounding
_FLOAT32_ROUNDING = 1e-6  # at most
_MAX_CELLS = 2**24  # V^H entries of a law: 128 MiB
_MAX_EXTENDED_CELLS = 2**18  # entries of a law that is extended to show a known loss
_MAX_EXTENSIONS = 5  # such laws, each a token longer
_MAX_PROOF_STATES = 2**15  # states from which one round is compared
_MAX_SEARCH_STATES = 2**12  # states compared in the search for a lossy round
_ENGINE_RUNS = 5000  # at most, where a rule is a user's


def rounding_note(tv: float) -> str:
    """Return what to say after a loss of that size: float32's rounding, if it is no larger."""
    is_tiny = tv < _FLOAT32_ROUNDING
    return " (as far as float32 rounds: compute in the float64 that is given)" if is_tiny else ""


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
        engine: what the engine's own rounds were like; ``None``: it was not run.
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
    engine: EngineComparison | None = None

    @property
    def lossy(self) -> bool:
        """Whether the output law was found to differ from the target's."""
        engine_tv = 0.0 if self.engine is None else self.engine.tv
        return max(self.tv, engine_tv) > TOLERANCE or self.lossy_round is not None

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
        out = {"tv": self.tv, "conclusive": self.conclusive, "lossless": self.passed()}
        out |= {name: getattr(self, name) for name in names}
        out["engine"] = self.engine and asdict(self.engine)
        if law:
            out["law"] = {",".join(map(str, text)): p for text, p in self.law.items()}
        return out


def certify(
    case: Mapping[str, Any],
    engine_runs: int | None = None,
    report: Callable[[str, float], None] = lambda runs, share: None,
) -> Certificate:
    """Enumerate a case (:mod:`hierspec.exact.cases` describes the format).

    Args:
        engine_runs: how often the engine itself may run it; ``None``: 5,000 times where a rule is
            a user's, else never.
        report: is told of these runs after two seconds, in words, and the share of them made.

    Raises:
        HierspecError: the case is malformed, or its hierarchy is unsound for a reason that is
            clear without enumeration; the message names it and the fix. Or a user's rule fails,
            or writes into what it is given.
    """
    root, vocab, horizon, controller = parse_case(case)
    if engine_runs is None:
        engine_runs = _ENGINE_RUNS if users_rules(root) else 0
    return certify_tree(
        root, vocab, horizon, controller=controller, engine_runs=engine_runs, report=report
    )


@torch.inference_mode(False)  # its tensors do not tell when they are written into
@torch.no_grad()
def certify_tree(
    root: Verify,
    vocab_size: int,
    horizon: int | None = None,
    cut_at_horizon: bool = False,
    controller: Controller | None = None,
    engine_runs: int = 0,
    report: Callable[[str, float], None] = lambda runs, share: None,
) -> Certificate:
    """Enumerate nodes whose models have ``distribution(context)``, ``order`` and ``vocab_size``.

    Args:
        horizon: tokens to compare; ``None``: the longest proposal + 2, and more if that is needed
            to show a loss that was found.
        cut_at_horizon: limit rounds to the remaining tokens, as the end of a generation does.
        controller: chooses the plan of every round; ``expected_*`` are then of its first.
        engine_runs, report: as in :func:`certify`; models are tables if it is not 0.
    """
    began = time.perf_counter()
    plans = [root] if controller is None else controller.plans
    longest = max(longest_proposal(plan.below) for plan in plans)
    tokens = longest + 2 if horizon is None else horizon
    if vocab_size ** min(tokens, 64) > _MAX_CELLS:  # the number itself may be too long to compute
        raise HierspecError(
            f"a law over {vocab_size}^{tokens} texts is too large to enumerate: lower the "
            f"budgets (the longest proposal is {longest} tokens), the vocabulary or the horizon"
        )
    states = initial_states(root if controller is None else controller.root)
    if controller is not None:
        root = controller.plan(controller.initial(0, tokens))
    interpreter = ExactInterpreter(root, vocab_size)
    first = interpreter.round((), UNLIMITED, states)
    rounds = Rounds(interpreter, controller)
    initial = rounds.initial(states, tokens)
    output = join_rounds(rounds, initial, tokens, cut_at_horizon)
    tv, paths = _distance(output, root.model), rounds.paths
    examination = _examine(rounds, states, initial, tv > TOLERANCE)
    if examination.lossy and tv <= TOLERANCE and horizon is None:
        longer = max(tokens + 1, examination.lossy.horizon)
        for tokens in range(longer, longer + _MAX_EXTENSIONS):
            if tv > TOLERANCE or vocab_size**tokens > _MAX_EXTENDED_CELLS:
                break
            output = join_rounds(rounds, initial, tokens, cut_at_horizon)
            tv = _distance(output, root.model)
    proved = examination.complete and examination.worst_tv <= TOLERANCE
    lossy = examination.lossy
    emitted = sum(o.probability * len(o.value[0].emitted) for o in first)
    calls = sum(o.probability * o.calls for o in first)
    seconds, engine = time.perf_counter() - began, None
    if engine_runs:
        engine = compare_with_engine(rounds, states, engine_runs, TOLERANCE, report)
    return Certificate(
        tv=tv,
        conclusive=output.ndim >= longest + 2 and (tv > TOLERANCE or proved),
        expected_accepted=float(sum(o.probability * o.value[0].num_accepted for o in first)),
        expected_tokens_per_target_call=float(emitted / calls),
        paths=paths,
        horizon=output.ndim,
        longest_proposal=longest,
        seconds=seconds,
        worst_round_tv=examination.worst_tv,
        states=examination.states,
        complete=examination.complete,
        lossy_round=None if lossy is None else _lossy_round_to_dict(lossy, rounds),
        output=output,
        engine=engine,
    )


def _examine(rounds: Rounds, states: States, initial: Any, known_lossy: bool) -> Examination:
    """Try to prove losslessness; where that fails, look for the nearest lossy round."""
    target = Continuation(rounds.root.model)
    proof = Examination(0, False, 0.0)
    if not known_lossy:
        proof = prove(rounds, states, target, TOLERANCE, _MAX_PROOF_STATES)
        if proof.complete:
            return proof
    search = search_reachable(rounds, initial, target, TOLERANCE, _MAX_SEARCH_STATES)
    if search.lossy or search.complete:
        return search
    return Examination(proof.states + search.states, False, max(proof.worst_tv, search.worst_tv))


def _distance(output: np.ndarray, model: Any) -> float:
    return float(total_variation(output.ravel(), model_law(model, output.ndim).ravel()))


def _lossy_round_to_dict(lossy: LossyRound, rounds: Rounds) -> dict[str, Any]:
    return {
        "tv": lossy.tv,
        "after": ",".join(map(str, lossy.text)),
        "tokens_wanted": None if lossy.limit == UNLIMITED else lossy.limit,
        "state": rounds.describe(lossy.state),
    }
