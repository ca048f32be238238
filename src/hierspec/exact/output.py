"""Laws of texts: rounds of the target joined to the first H tokens, and a model's own.

Texts of length H over V tokens are numbers in base V, so a law is an array of V^H entries and
joining a round to what came before is an outer product per context.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hierspec.core.proposals import States
from hierspec.engine.control import Controller, label, round_report

from .bounds import UNLIMITED, max_order, sufficient_limit
from .interpreter import ExactInterpreter
from .round_law import by_length, to_digits
from .tables import next_token_law


def output_law(
    interpreter: ExactInterpreter,
    states: States,
    horizon: int,
    cut_at_horizon: bool = False,
    controller: Controller | None = None,
) -> np.ndarray:
    """Return the law of the first ``horizon`` tokens, rounds repeated → [V, …, V] float64.

    Args:
        states: of the windows at the start (:func:`hierspec.core.nodes.initial_states`).
        cut_at_horizon: limit every round to the tokens still wanted, as a generation of
            ``horizon`` new tokens does, instead of letting it run over the end.
        controller: chooses each round's plan; ``states`` are then of its root, and
            ``interpreter`` says how its plans are interpreted.
    """
    rounds = Rounds(interpreter, controller)
    return join_rounds(rounds, rounds.initial(states, horizon), horizon, cut_at_horizon)


def join_rounds(
    rounds: Rounds, start: Any, horizon: int, cut_at_horizon: bool = False
) -> np.ndarray:
    """Compute :func:`output_law` of these rounds from the state ``start``."""
    V, H = rounds.vocab_size, horizon
    max_order = rounds.max_order
    out = np.zeros(V**H)
    # Per length and state: the probability that some round ends with exactly this text.
    ended: list[dict[Any, np.ndarray]] = [{} for _ in range(H)]
    ended[0][start] = np.ones(1)
    for length in range(H):
        limit = H - length if cut_at_horizon else UNLIMITED
        width = V ** min(length, max_order)  # contexts that can be told apart
        for before, mass in ended[length].items():
            for c in range(width):
                column = mass.reshape(-1, width)[:, c]
                if not column.any():
                    continue
                context = to_digits(c, min(length, max_order), V)
                for (m, after), step in rounds.round(context, limit, before).items():
                    kept = min(m, H - length)
                    step = step.reshape(V**kept, -1).sum(-1)
                    if length + m < H:
                        target = ended[length + m].setdefault(after, np.zeros(V ** (length + m)))
                    else:
                        target = out
                    target.reshape(-1, width, V**kept)[:, c] += np.outer(column, step)
        ended[length].clear()
    return out.reshape((V,) * H)


class Rounds:
    """Rounds of one hierarchy, or of a controller's plans interpreted the same way.

    The state between rounds is (window states, state of the controller or ``None``).

    Attributes:
        root: all levels that rounds are made of.
        reach: how many of the last tokens can matter.
        ample: tokens wanted from which on no round is limited.
        interpreters: of each plan; without a controller there is one.
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
        self.max_order = max_order(self.root)
        self.sufficient_limit = max(sufficient_limit(plan.below) for plan in self.interpreters)

    @property
    def paths(self) -> int:
        """Branches followed so far."""
        return sum(interpreter.paths for interpreter in self.interpreters.values())

    def initial(self, states: States, horizon: int) -> Any:
        """Return the state before the first round."""
        return states, self.controller and self.controller.initial(0, horizon)

    def round(self, context: tuple[int, ...], limit: int, state: Any) -> dict[Any, np.ndarray]:
        """Return one round's output: per number of tokens and state after it, their law [V^m]."""
        states, control = state
        plan = self.root if self.controller is None else self.controller.plan(control)
        outcomes = self.interpreters[plan].round(context, limit, states)
        out: dict[Any, np.ndarray] = {}
        for (m, after), law in by_length(outcomes, self.vocab_size).items():
            if self.controller is not None:
                seen, after = round_report(self.root, m, after)
                control = self.controller.update(state[1], seen)
            key = (m, (after, control))
            out[key] = out[key] + law if key in out else law
        return out

    def describe(self, state: Any) -> str:
        """Return a state in words."""
        states, control = state
        known = [f"level {i} {list(own)}" for i, own in enumerate(states) if any(own)]
        parts = ["window states: " + ", ".join(known)] if known else []
        if self.controller is not None:
            parts.append(f"plan {label(self.controller.plan(control))!r}")
        return "; ".join(parts)


def model_law(model: Any, horizon: int) -> np.ndarray:
    """Return the law of a model's own first ``horizon`` tokens → [V, …, V] float64."""
    V = model.vocab_size
    out = np.ones(1)
    for length in range(horizon):
        known = min(length, model.order)
        rows = np.stack([next_token_law(model, to_digits(c, known, V)) for c in range(V**known)])
        out = (out.reshape(-1, V**known, 1) * rows).ravel()
    return out.reshape((V,) * horizon)
