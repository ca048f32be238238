"""Laws of texts: rounds of the target joined to the first H tokens, and a model's own.

Texts of length H over V tokens are numbers in base V, so a law is an array of V^H entries and
joining a round to what came before is an outer product per context.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hierspec.core.proposals import States
from hierspec.engine.control import Controller, report
from hierspec.errors import HierspecError

from .interpreter import ExactInterpreter
from .states import UNLIMITED, reach
from .tables import row_of


def output_law(
    interpreter: ExactInterpreter,
    states: States,
    horizon: int,
    cut_at_horizon: bool = False,
    controller: Controller | None = None,
) -> np.ndarray:
    """The law of the first ``horizon`` tokens, rounds repeated as needed → [V, …, V] float64.

    Args:
        states: of the windows at the start (:func:`hierarchy.initial_states`).
        cut_at_horizon: limit every round to the tokens still wanted, as a generation of
            ``horizon`` new tokens does, instead of letting it run over the end.
        controller: chooses each round's plan; ``states`` are then of its root, and
            ``interpreter`` says how its plans are interpreted.
    """
    V, H = interpreter.vocab_size, horizon
    steps = (
        _Uncontrolled(interpreter) if controller is None else _Controlled(interpreter, controller)
    )
    reached = steps.reach
    out = np.zeros(V**H)
    # Per length and state: the probability that some round ends with exactly this text.
    ended: list[dict[Any, np.ndarray]] = [{} for _ in range(H)]
    ended[0][steps.initial(states, H)] = np.ones(1)
    for length in range(H):
        limit = H - length if cut_at_horizon else UNLIMITED
        width = V ** min(length, reached)  # contexts that can be told apart
        for before, mass in ended[length].items():
            for c in range(width):
                column = mass.reshape(-1, width)[:, c]
                if not column.any():
                    continue
                context = _digits(c, min(length, reached), V)
                for (m, after), step in steps.round(context, limit, before).items():
                    if m == 0:
                        raise HierspecError("a round of the target emitted nothing")
                    room = min(m, H - length)
                    step = step.reshape(V**room, -1).sum(-1)
                    if length + m < H:
                        into = ended[length + m].setdefault(after, np.zeros(V ** (length + m)))
                    else:
                        into = out
                    into.reshape(-1, width, V**room)[:, c] += np.outer(column, step)
        ended[length].clear()
    return out.reshape((V,) * H)


class _Uncontrolled:
    """Rounds of one hierarchy; between them, its window states."""

    def __init__(self, interpreter: ExactInterpreter) -> None:
        self.interpreter = interpreter
        self.reach = reach(interpreter.root)

    def initial(self, states: States, horizon: int) -> Any:
        return states

    def round(self, context: tuple[int, ...], limit: int, state: Any) -> dict[Any, np.ndarray]:
        """One round's output: per number of tokens and state afterwards, their law [V^m]."""
        return _by_length(self.interpreter, context, limit, state)


class _Controlled:
    """Rounds of the plans of a controller; between them, window states and the control state."""

    def __init__(self, interpreter: ExactInterpreter, controller: Controller) -> None:
        self.controller = controller
        self.reach = reach(controller.root)
        make, V = type(interpreter), interpreter.vocab_size
        self.interpreters = {plan: make(plan, V) for plan in controller.plans}

    def initial(self, states: States, horizon: int) -> Any:
        return states, self.controller.initial(0, horizon)

    def round(self, context: tuple[int, ...], limit: int, state: Any) -> dict[Any, np.ndarray]:
        states, control = state
        interpreter = self.interpreters[self.controller.plan(control)]
        out: dict[Any, np.ndarray] = {}
        for (m, after), law in _by_length(interpreter, context, limit, states).items():
            seen, cleared = report(self.controller.root, m, after)
            key = (m, (cleared, self.controller.update(control, [seen])))
            out[key] = out[key] + law if key in out else law
        return out


def _by_length(
    interpreter: ExactInterpreter, context: tuple[int, ...], limit: int, states: States
) -> dict[tuple[int, States], np.ndarray]:
    """One round's output: per number of tokens and states afterwards, their law [V^m]."""
    V = interpreter.vocab_size
    out: dict[tuple[int, States], np.ndarray] = {}
    for outcome in interpreter.round(context, limit, states):
        verdict, after = outcome.value
        tokens = verdict.emitted.tokens
        law = out.setdefault((len(tokens), after), np.zeros(V ** len(tokens)))
        law[_number(tokens, V)] += outcome.probability
    return out


def model_law(model: Any, horizon: int) -> np.ndarray:
    """The law of a model's own first ``horizon`` tokens → [V, …, V] float64."""
    V = model.vocab_size
    out = np.ones(1)
    for length in range(horizon):
        known = min(length, model.order)
        rows = np.stack([row_of(model, _digits(c, known, V)) for c in range(V**known)])
        out = (out.reshape(-1, V**known, 1) * rows).ravel()
    return out.reshape((V,) * horizon)


def _digits(number: int, length: int, base: int) -> tuple[int, ...]:
    return tuple(number // base ** (length - 1 - i) % base for i in range(length))


def _number(digits: tuple[int, ...], base: int) -> int:
    out = 0
    for digit in digits:
        out = out * base + digit
    return out
