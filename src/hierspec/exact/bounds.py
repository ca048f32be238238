"""Bounds on what a tree of nodes does: tokens it looks back at, hands up, and asks for.

By them the interpreter tells that two contexts, or two limits, have the same future.
"""

from __future__ import annotations

from hierspec.core.nodes import Concatenate, Draft, Node, walk

UNLIMITED = 1 << 30  # a limit that no proposal reaches


def reach(node: Node) -> int:
    """How many of the last tokens can matter to ``node`` and all below it."""
    return max(n.model.order for n in walk(node) if not isinstance(n, Concatenate))


def longest(node: Node | None) -> int:
    """The most tokens ``node`` can hand up in one proposal."""
    if node is None:
        return 0
    if isinstance(node, Draft):
        return node.budget
    if isinstance(node, Concatenate):
        return node.repeat * sum(longest(part) for part in node.parts)
    if node.exact_length:
        return node.budget
    below = longest(node.below)
    return node.budget - 1 + (below + 1 if node.bonus else max(below, 1))


def ample(node: Node | None) -> int:
    """A limit from which on ``node`` and all below it act as if there were none."""
    if node is None:
        return 0
    if isinstance(node, Draft):
        return node.budget
    if isinstance(node, Concatenate):
        return node.repeat * sum(ample(part) for part in node.parts)
    return node.budget + ample(node.below)  # its last round starts from budget − 1 tokens
