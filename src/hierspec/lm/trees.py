"""Token trees: continuations of one text that share beginnings, checked in one forward.

A node is a token after its parent. Nodes are stored behind the text in the order in which they
came, so that a parent precedes its children; a node stands at the position of its depth and attends
to the text and to its ancestors, not to what happens to be stored before it. A path's keys and
values are then those of the same tokens as plain text, and what is accepted is moved together.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch


@dataclass(frozen=True, slots=True)
class Tree:
    """Continuations of a text.

    Attributes:
        tokens: of the n nodes.
        parents: of each, the index of a node before it; −1 for the text itself.
    """

    tokens: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def depth(self) -> int:
        """The length of the longest continuation."""
        return max(map(len, self.paths()), default=0)

    def first(self, count: int) -> Tree:
        """Its first nodes, none where ``count`` is negative."""
        count = max(count, 0)
        return Tree(self.tokens[:count], self.parents[:count])

    def paths(self) -> list[tuple[int, ...]]:
        """The tokens from the text to each node."""
        found: list[tuple[int, ...]] = []
        for token, parent in zip(self.tokens, self.parents, strict=True):
            found.append((*(found[parent] if parent >= 0 else ()), token))
        return found

    @staticmethod
    def of(drafts: Iterable[Sequence[int]]) -> tuple[Tree, list[list[int]]]:
        """The tree of several drafts, and the nodes along each of them.

        Nodes of one depth stand together, those of a depth in the order of the drafts.
        """
        drafts = [tuple(draft) for draft in drafts]
        nodes, paths = Branches(0), [list[int]() for _ in drafts]
        for depth in range(max(map(len, drafts), default=0)):
            for draft, path in zip(drafts, paths, strict=True):
                if depth < len(draft):
                    path.append(nodes.child(path[-1] if path else -1, draft[depth]))
        tokens, parents = ([node[i] for node in nodes.nodes] for i in (0, 1))
        return Tree(tuple(tokens), tuple(parents)), paths


class Node(NamedTuple):
    """A token of a tree that is stored.

    Attributes:
        parent: the number of the node before it; −1: the text.
        depth: 1 right behind the text.
    """

    token: int
    parent: int
    depth: int


@dataclass(slots=True, eq=False)
class Branches:
    """The nodes that are stored behind a text, in storage order: it grows at its end.

    Attributes:
        base: the length of the text; node i is stored at ``base + i``.
    """

    base: int
    nodes: list[Node] = field(default_factory=list[Node])
    _children: dict[tuple[int, int], int] = field(default_factory=dict[tuple[int, int], int])

    def __len__(self) -> int:
        return len(self.nodes)

    @property
    def tokens(self) -> list[int]:
        """Of all nodes."""
        return [node.token for node in self.nodes]

    def find(self, parent: int, token: int) -> int | None:
        """The node of ``token`` after ``parent``, if it is held."""
        return self._children.get((parent, token))

    def child(self, parent: int, token: int) -> int:
        """The same; it is added where it is missing."""
        found = self.find(parent, token)
        if found is None:
            found = len(self.nodes)
            depth = 1 if parent < 0 else self.nodes[parent].depth + 1
            self.nodes.append(Node(token, parent, depth))
            self._children[parent, token] = found  # last: an interruption leaves no wrong entry
        return found

    def path(self, tokens: Iterable[int]) -> list[int]:
        """The nodes along the longest beginning of ``tokens`` that is held."""
        found: list[int] = []
        for token in tokens:
            node = self.find(found[-1] if found else -1, token)
            if node is None:
                break
            found.append(node)
        return found

    def add(self, tree: Tree) -> list[int]:
        """Hold all nodes of ``tree`` → where each of them is."""
        at: list[int] = []
        for token, parent in zip(tree.tokens, tree.parents, strict=True):
            at.append(self.child(parent if parent < 0 else at[parent], token))
        return at

    def positions(self, start: int, n: int) -> list[int]:
        """Positions in the text of what is stored at ``start … start + n − 1``."""
        base, nodes = self.base, self.nodes
        places = range(start, start + n)
        return [i if i < base else base + nodes[i - base].depth - 1 for i in places]

    def path_to(self, place: int) -> tuple[int, list[int]]:
        """What is stored at ``place`` attends to, in the order of the text: the first so many
        stored tokens, then those at these places, itself the last."""
        base, path = self.base, list[int]()
        node = place - base
        while node >= 0:
            path.append(base + node)
            node = self.nodes[node].parent
        return min(base, place + 1), path[::-1]

    def seen(self, start: int, n: int, window: int | None = None) -> torch.Tensor:
        """[n, start + n] bool: which stored tokens each of those attends to.

        ``window``: only to so many last positions, its own among them.
        """
        end = start + n
        seen = torch.zeros(n, end, dtype=torch.bool)
        for row in range(n):
            text, path = self.path_to(start + row)
            seen[row, :text] = True
            seen[row, path] = True
        if window is not None:
            at = torch.tensor(self.positions(0, end))
            seen &= at[None] > at[start:, None] - window
        return seen
