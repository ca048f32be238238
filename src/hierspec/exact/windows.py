"""The windows of a hierarchy: which there are, and the same hierarchy with others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hierspec.core.nodes import Concatenate, LevelNode, Node, Verify, replace_fields, walk
from hierspec.core.windows import Counting, EntropyWindow


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
