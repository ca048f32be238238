"""Bounds of a tree of nodes: how many tokens it looks back at, hands up, and asks for.

With them the interpreter knows when two contexts, or two limits, have the same future.
"""

from __future__ import annotations

from hierspec.core.nodes import Concatenate, Draft, Node, walk

UNLIMITED = 1 << 30  # a limit that no proposal reaches


def max_order(node: Node) -> int:
    """Return the largest Markov order of the models at and below ``node``."""
    return max(n.model.order for n in walk(node) if not isinstance(n, Concatenate))


def longest_proposal(node: Node | None) -> int:
    """Return the most tokens that ``node`` can hand up in one proposal."""
    if node is None:
        return 0
    if isinstance(node, Draft):
        return node.budget
    if isinstance(node, Concatenate):
        return node.repeat * sum(longest_proposal(part) for part in node.parts)
    if node.exact_length:
        return node.budget
    below = longest_proposal(node.below)
    return node.budget - 1 + (below + 1 if node.bonus else max(below, 1))


def sufficient_limit(node: Node | None) -> int:
    """Return a limit on tokens large enough that it never changes a proposal of ``node``."""
    if node is None:
        return 0
    if isinstance(node, Draft):
        return node.budget
    if isinstance(node, Concatenate):
        return node.repeat * sum(sufficient_limit(part) for part in node.parts)
    # The last round of a verifier starts from budget − 1 tokens.
    return node.budget + sufficient_limit(node.below)
