"""Token trees: continuations of one text that share beginnings, checked in one forward.

A node is a token after its parent. Nodes are stored behind the text in the order in which they
came, so that a parent precedes its children; a node stands at the position of its depth and attends
to the text and to its ancestors, not to what happens to be stored before it. A path's keys and
values are then those of the same tokens as plain text, and what is accepted is moved together.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

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
        return Tree(tuple(nodes.tokens), tuple(nodes.parents)), paths


@dataclass(slots=True, eq=False)
class Branches:
    """The nodes that are stored behind a text, in storage order: it grows at its end.

    Attributes:
        base: the length of the text; node i is stored at ``base + i``.
        depths: of the nodes; 1 for a node right behind the text.
    """

    base: int
    tokens: list[int] = field(default_factory=list[int])
    parents: list[int] = field(default_factory=list[int])
    depths: list[int] = field(default_factory=list[int])
    _children: dict[tuple[int, int], int] = field(default_factory=dict[tuple[int, int], int])

    def __len__(self) -> int:
        return len(self.tokens)

    def find(self, parent: int, token: int) -> int | None:
        """The node of ``token`` after ``parent``, if it is held."""
        return self._children.get((parent, token))

    def child(self, parent: int, token: int) -> int:
        """The same; it is added where it is missing."""
        key = (parent, token)
        if key not in self._children:
            self._children[key] = len(self.tokens)
            self.tokens.append(token)
            self.parents.append(parent)
            self.depths.append(1 if parent < 0 else self.depths[parent] + 1)
        return self._children[key]

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
        base = self.base
        return [
            i if i < base else base + self.depths[i - base] - 1 for i in range(start, start + n)
        ]

    def seen(self, start: int, n: int, window: int | None = None) -> torch.Tensor:
        """[n, start + n] bool: which stored tokens each of those attends to.

        ``window``: only to so many last positions, its own among them.
        """
        end, base = start + n, self.base
        seen = torch.zeros(n, end, dtype=torch.bool)
        for row in range(n):
            node = start + row - base
            seen[row, : min(base, start + row + 1)] = True
            while node >= 0:
                seen[row, base + node] = True
                node = self.parents[node]
        if window is not None:
            at = torch.tensor(self.positions(0, end))
            seen &= at[None] > at[start:, None] - window
        return seen
