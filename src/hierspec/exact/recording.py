"""The windows of a hierarchy, and the exact interpreter with a record of what they wrote down."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

from hierspec.core.nodes import Concatenate, LevelNode, Node, Verify, replace_fields, walk
from hierspec.core.proposals import States
from hierspec.core.windows import Counting, EntropyWindow

from .interpreter import ExactInterpreter, Outcome

Items = tuple[Any, ...]


def windows(root: Node) -> dict[int, Any]:
    """Return the windows of a hierarchy by node index."""
    return {n.index: n.window for n in walk(root) if not isinstance(n, Concatenate)}


def is_running(window: Any) -> bool:
    """Return whether a window's threshold is a running mean."""
    inner = window.inner if isinstance(window, Counting) else window
    return isinstance(inner, EntropyWindow) and inner.threshold is None


def replace_windows(root: Verify, replace: Callable[[LevelNode], Any]) -> Verify:
    """Rebuild a hierarchy with the windows that ``replace`` returns for its nodes."""
    return replace_fields(
        root, lambda node: {} if isinstance(node, Concatenate) else {"window": replace(node)}
    )


@dataclass(slots=True)
class WindowRecord:
    """What windows have written down for the outcomes that are being enumerated, in order."""

    current: dict[Hashable, None] = field(default_factory=dict[Hashable, None])

    def add(self, item: Hashable) -> None:
        self.current[item] = None


class RecordingInterpreter(ExactInterpreter):
    """The exact interpreter; it keeps what the windows of ``root`` wrote into ``record``."""

    def __init__(self, root: Verify, vocab_size: int, record: WindowRecord) -> None:
        super().__init__(root, vocab_size)
        self._record = record
        self._items: dict[int, Items] = {}  # by the id of a list of memoised outcomes

    def recorded_round(
        self, context: tuple[int, ...], limit: int, states: States
    ) -> tuple[list[Outcome], Items]:
        """Return the outcomes of :meth:`round`, and what was written down for them."""
        return self._run_recorded(lambda: self.round(context, limit, states))

    def proposals(
        self, node: Node, context: tuple[int, ...], limit: int, states: States
    ) -> list[Outcome]:
        if limit <= 0:  # nothing is drafted, and the result is not memoised
            return super().proposals(node, context, limit, states)
        proposals = super().proposals
        return self._run_recorded(lambda: proposals(node, context, limit, states))[0]

    def _run_recorded(self, run: Callable[[], list[Outcome]]) -> tuple[list[Outcome], Items]:
        outer, self._record.current = self._record.current, {}
        outcomes = run()
        # Memoised outcomes stay one list, and only the first run of it writes something down.
        items = self._items.setdefault(id(outcomes), tuple(self._record.current))
        self._record.current = outer
        outer.update(dict.fromkeys(items))
        return outcomes, items
