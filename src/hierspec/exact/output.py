"""Laws of texts of H tokens: of rounds of the target, one after another, and of a model alone.

Texts of length H over V tokens are numbers in base V, so a law is an array of V^H entries, and
appending a round to the text before it is an outer product per context.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hierspec.core.proposals import States
from hierspec.engine.control import Controller, label, round_report

from .interpreter import UNLIMITED, ExactInterpreter, max_order, sufficient_limit
from .recording import is_running, windows
from .round_law import by_length, to_digits
from .shared_rounds import SharedRounds
from .tables import next_token_distribution


def join_rounds(
    rounds: Rounds, start: Any, horizon: int, cut_at_horizon: bool = False
) -> np.ndarray:
    """Return the law of the first ``horizon`` tokens, rounds repeated → [V, …, V] float64.

    Args:
        start: the state before the first round (:meth:`Rounds.initial`).
        cut_at_horizon: limit every round to the remaining tokens, as a generation of ``horizon``
            new tokens does, instead of letting it run over the end.
    """
    V, H = rounds.vocab_size, horizon
    law = np.zeros(V**H)
    # By length and state: for every text, the probability that a round ends with exactly it.
    round_ends: list[dict[Any, np.ndarray]] = [{} for _ in range(H)]
    round_ends[0][start] = np.ones(1)
    for length in range(H):
        limit = H - length if cut_at_horizon else UNLIMITED
        context_length = min(length, rounds.max_order)
        num_contexts = V**context_length
        for state, mass in round_ends[length].items():
            for c in range(num_contexts):
                column = mass.reshape(-1, num_contexts)[:, c]
                if not column.any():
                    continue
                context = to_digits(c, context_length, V)
                for (m, next_state), step in rounds.round(context, limit, state).items():
                    kept = min(m, H - length)
                    step = step.reshape(V**kept, -1).sum(-1)
                    if length + m < H:
                        new_mass = np.zeros(V ** (length + m))
                        target = round_ends[length + m].setdefault(next_state, new_mass)
                    else:
                        target = law
                    target.reshape(-1, num_contexts, V**kept)[:, c] += np.outer(column, step)
        round_ends[length].clear()
    return law.reshape((V,) * H)


class Rounds:
    """Rounds of one hierarchy, or of a controller's plans interpreted the same way.

    The state between rounds is (window states, state of the controller or ``None``).

    Attributes:
        root: all levels of all plans.
        max_order: how many of the last tokens a round depends on.
        sufficient_limit: a limit so large that it changes no round.
        interpreters: one for each plan; without a controller there is one plan.
    """

    def __init__(self, interpreter: ExactInterpreter, controller: Controller | None = None) -> None:
        self.controller = controller
        self.vocab_size = V = interpreter.vocab_size
        if controller is None:
            self.root, self.interpreters = interpreter.root, {interpreter.root: interpreter}
        else:
            make = type(interpreter)
            self.root = controller.root
            self.interpreters = {plan: make(plan, V) for plan in controller.plans}
        # Of the plans with a running mean, whose window states are many.
        self._shared = {
            plan: SharedRounds(plan, V)
            for plan, own in self.interpreters.items()
            if type(own) is ExactInterpreter and any(map(is_running, windows(plan).values()))
        }
        self.max_order = max_order(self.root)
        self.sufficient_limit = max(sufficient_limit(plan.below) for plan in self.interpreters)

    @property
    def paths(self) -> int:
        """Branches followed so far."""
        shared = [rounds.interpreter for rounds in self._shared.values()]
        return sum(interpreter.paths for interpreter in (*self.interpreters.values(), *shared))

    def initial(self, states: States, horizon: int) -> Any:
        """Return the state before the first round."""
        return states, self.controller and self.controller.initial(0, horizon)

    def round(self, context: tuple[int, ...], limit: int, state: Any) -> dict[Any, np.ndarray]:
        """Return the law of one round's texts [V^m], by their length m and the state after it."""
        states, control = state
        plan = self.root if self.controller is None else self.controller.plan(control)
        if plan in self._shared:
            round_laws = self._shared[plan].laws(context, limit, states)
        else:
            outcomes = self.interpreters[plan].round(context, limit, states)
            round_laws = by_length(outcomes, self.vocab_size)
        laws: dict[Any, np.ndarray] = {}
        for (m, next_states), law in round_laws.items():
            if self.controller is not None:
                report, next_states = round_report(self.root, m, next_states)
                control = self.controller.update(state[1], report)
            key = (m, (next_states, control))
            laws[key] = laws[key] + law if key in laws else law
        return laws

    def describe(self, state: Any) -> str:
        states, control = state
        levels = [f"level {i} {list(own)}" for i, own in enumerate(states) if any(own)]
        parts = ["window states: " + ", ".join(levels)] if levels else []
        if self.controller is not None:
            parts.append(f"plan {label(self.controller.plan(control))!r}")
        return "; ".join(parts)


def model_law(model: Any, horizon: int) -> np.ndarray:
    """Return the law of a model's own first ``horizon`` tokens → [V, …, V] float64."""
    V = model.vocab_size
    law = np.ones(1)
    for length in range(horizon):
        context_length = min(length, model.order)
        contexts = (to_digits(c, context_length, V) for c in range(V**context_length))
        rows = np.stack([next_token_distribution(model, context) for context in contexts])
        law = (law.reshape(-1, len(rows), 1) * rows).ravel()
    return law.reshape((V,) * horizon)
