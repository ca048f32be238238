"""Rounds from window states that they cannot tell apart, enumerated once.

The sum of a running mean takes many values as a text grows, but coroutines hand window states on
without looking into them: only windows do, in :meth:`stops` and :meth:`observe`. So let windows
write down how they answered in a round from one state, and ask them the same from another: each
state of the first round has its counterpart, the state that the same observations lead to. If every
window stops where it stopped, both rounds go the same way, branch by branch, and the second's
outcomes are the first's with the counterparts of their states. What is asked are the very windows
of the hierarchy, with their real states; nothing is assumed about them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from hierspec.core.nodes import Verify
from hierspec.core.proposals import States
from hierspec.core.windows import Signal, State, Window

from .interpreter import round_numbers
from .recording import RecordingInterpreter, WindowRecord, replace_windows, windows
from .round_law import by_length

Laws = dict[tuple[int, States], np.ndarray]
Counterparts = dict[tuple[int, State], State]  # by node index and rounded state


class WindowAnswer(NamedTuple):
    """How the window of a node answered: whether it stops, or its next state, rounded.

    Attributes:
        state: rounded, as it was when the window was asked.
        num_accepted: what it observed; ``None`` where it was asked whether it stops.
    """

    index: int
    state: State
    signals: tuple[float, ...]
    num_accepted: int | None
    answer: Any


@dataclass(frozen=True, slots=True, eq=False)
class RecordingWindow:
    """A window that writes down its answers."""

    index: int
    inner: Window
    record: WindowRecord

    @property
    def signal(self) -> Signal | None:
        return self.inner.signal

    def init(self) -> State:
        return self.inner.init()

    def stops(self, signals: Sequence[float], state: State) -> bool:
        stops = self.inner.stops(signals, state)
        self.record.add(WindowAnswer(self.index, round_numbers(state), tuple(signals), None, stops))
        return stops

    def observe(self, state: State, signals: Sequence[float], num_accepted: int) -> State:
        after = self.inner.observe(state, signals, num_accepted)
        answer = (tuple(signals), num_accepted, round_numbers(after))
        self.record.add(WindowAnswer(self.index, round_numbers(state), *answer))
        return after


class SharedRounds:
    """The laws of rounds of one hierarchy, shared by the window states that give equal rounds."""

    def __init__(self, root: Verify, vocab_size: int) -> None:
        record = WindowRecord()
        self._windows = windows(root)

        def recording(node: Any) -> Any:
            window = node.window
            return RecordingWindow(node.index, window, record) if window.init() else window

        self.interpreter = RecordingInterpreter(
            replace_windows(root, recording), vocab_size, record
        )
        # By context and limit: states at the start, answers, and laws with rounded states after it.
        self._rounds: dict[Any, list[tuple[States, Any, Laws]]] = {}

    def laws(self, context: tuple[int, ...], limit: int, states: States) -> Laws:
        """Return a round's laws by length and states after it (:func:`.round_law.by_length`)."""
        known = self._rounds.setdefault((context, limit), [])
        for start, answers, laws in known:
            counterparts = self._counterparts(start, answers, states)
            if counterparts is not None:
                return self._with_counterparts(laws, counterparts)
        outcomes, answers = self.interpreter.recorded_round(context, limit, states)
        laws = by_length(outcomes, self.interpreter.vocab_size)
        rounded = {(m, tuple(map(round_numbers, after))): law for (m, after), law in laws.items()}
        known.append((states, answers, rounded))
        return laws

    def _counterparts(
        self, start: States, answers: Sequence[WindowAnswer], states: States
    ) -> Counterparts | None:
        """Return the states of a round from ``states`` by those of a round from ``start``.

        ``answers`` are those of the round from ``start``; the result is ``None`` if a window
        answers otherwise. Every state is the start or was an answer before it is asked about.
        """
        found = {
            (index, round_numbers(old)): new
            for index, (old, new) in enumerate(zip(start, states, strict=True))
        }
        for index, old, signals, num_accepted, answer in answers:
            window, state = self._windows[index], found[index, old]
            if num_accepted is None:
                if window.stops(signals, state) != answer:
                    return None
                continue
            after = window.observe(state, signals, num_accepted)
            known = found.setdefault((index, answer), after)
            if known != after and round_numbers(known) != round_numbers(after):
                return None  # one state there, two here
        return found

    def _with_counterparts(self, laws: Laws, counterparts: Counterparts) -> Laws:
        """Return laws, kept with rounded states, with the counterpart of each state."""
        result: Laws = {}
        for (m, rounded), law in laws.items():
            states = tuple(counterparts[i, state] for i, state in enumerate(rounded))
            key = (m, self.interpreter.canonical(states))
            result[key] = result[key] + law if key in result else law
        return result
