"""The windows of a hierarchy: which there are, and the same hierarchy with others."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from hierspec.core.nodes import Concatenate, Draft, Node, Verify, walk
from hierspec.core.windows import Counting, EntropyWindow


def windows(root: Node) -> dict[int, Any]:
    """Return the windows of a hierarchy by node index."""
    return {n.index: n.window for n in walk(root) if not isinstance(n, Concatenate)}


def is_running(window: Any) -> bool:
    """Return whether a window's threshold is a running mean."""
    inner = window.inner if isinstance(window, Counting) else window
    return isinstance(inner, EntropyWindow) and inner.threshold is None


def replace_windows(node: Any, replace: Callable[[Draft | Verify], Any]) -> Any:
    """Rebuild a hierarchy with the windows that ``replace`` returns for its nodes."""
    if isinstance(node, Concatenate):
        parts = tuple(replace_windows(part, replace) for part in node.parts)
        return dataclasses.replace(node, parts=parts)
    if isinstance(node, Draft) or node.below is None:
        return dataclasses.replace(node, window=replace(node))
    below = replace_windows(node.below, replace)
    return dataclasses.replace(node, window=replace(node), below=below)
