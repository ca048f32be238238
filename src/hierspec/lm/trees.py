"""Token trees: continuations of one text that share prefixes, checked in one forward.

A node is a token after its parent. Nodes are stored behind the text in the order in which they
were added, so that a parent precedes its children. A node's position follows from its depth, and it
attends to the text and to its ancestors, not to whatever else is stored before it. A path's keys
and values are then those of the same tokens as plain text, and accepted nodes are moved together.
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
        tokens: the token of each of n nodes.
        parents: for each, the index of its parent, a node before it; −1 for the text itself.
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
        """Return for each node the tokens from the text to it."""
        paths: list[tuple[int, ...]] = []
        for token, parent in zip(self.tokens, self.parents, strict=True):
            paths.append((*(paths[parent] if parent >= 0 else ()), token))
        return paths

    @staticmethod
    def merge(drafts: Iterable[Sequence[int]]) -> tuple[Tree, list[list[int]]]:
        """Merge drafts into one tree; return it, and the nodes along each draft.

        Nodes are sorted by depth, and within a depth in the order of the drafts.
        """
        drafts = [tuple(draft) for draft in drafts]
        branches, paths = Branches(0), [list[int]() for _ in drafts]
        for depth in range(max(map(len, drafts), default=0)):
            for draft, path in zip(drafts, paths, strict=True):
                if depth < len(draft):
                    path.append(branches.add_child(path[-1] if path else -1, draft[depth]))
        parents = tuple(node.parent for node in branches.nodes)
        return Tree(tuple(branches.tokens), parents), paths


class TreeNode(NamedTuple):
    """A token of a tree that is stored.

    Attributes:
        parent: the index of its parent; −1: the text.
        depth: 1 for a child of the text.
    """

    token: int
    parent: int
    depth: int


@dataclass(slots=True, eq=False)
class Branches:
    """The nodes that are stored behind a text, in the order of storage; only ever appended to.

    Nodes of one path may be stored several times; the first of them stands for all.

    Attributes:
        base: the length of the text; node i is stored at ``base + i``.
    """

    base: int
    nodes: list[TreeNode] = field(default_factory=list[TreeNode])
    _children: dict[tuple[int, int], int] = field(default_factory=dict[tuple[int, int], int])

    def __len__(self) -> int:
        return len(self.nodes)

    @property
    def tokens(self) -> list[int]:
        return [node.token for node in self.nodes]

    def add_child(self, parent: int, token: int) -> int:
        """Return the node of ``token`` after ``parent``, added if there was none."""
        node = self._children.get((parent, token))
        return self.store_child(parent, token) if node is None else node

    def store_child(self, parent: int, token: int) -> int:
        """Add a node of ``token`` after ``parent``; return the first node of that token there."""
        node = len(self.nodes)
        depth = 1 if parent < 0 else self.nodes[parent].depth + 1
        self.nodes.append(TreeNode(token, parent, depth))
        # Last: an interruption leaves no wrong entry.
        return self._children.setdefault((parent, token), node)

    def longest_path(self, tokens: Iterable[int]) -> list[int]:
        """Return the nodes along the longest prefix of ``tokens`` that is in the tree."""
        path: list[int] = []
        for token in tokens:
            node = self._children.get((path[-1] if path else -1, token))
            if node is None:
                break
            path.append(node)
        return path

    def add(self, tree: Tree) -> list[int]:
        """Add all nodes of ``tree``, and return the node of each."""
        nodes: list[int] = []
        for token, parent in zip(tree.tokens, tree.parents, strict=True):
            nodes.append(self.add_child(parent if parent < 0 else nodes[parent], token))
        return nodes

    def positions(self, start: int, n: int) -> list[int]:
        """Return the positions in the text of the tokens stored at ``start … start + n − 1``."""
        base, nodes, end = self.base, self.nodes, start + n
        return [i if i < base else base + nodes[i - base].depth - 1 for i in range(start, end)]

    def path_to(self, index: int) -> tuple[int, list[int]]:
        """Return what the token stored at ``index`` attends to, in the order of the text: how many
        of the first stored tokens, then the indices of further ones, its own last."""
        base, path = self.base, list[int]()
        node = index - base
        while node >= 0:
            path.append(base + node)
            node = self.nodes[node].parent
        return min(base, index + 1), path[::-1]

    def attention_mask(self, start: int, n: int, window: int | None = None) -> torch.Tensor:
        """Return [n, start + n] bool: which stored tokens those from ``start`` on attend to.

        ``window``: how many positions a token attends to, its own among them; ``None``: all.
        """
        end = start + n
        mask = torch.zeros(n, end, dtype=torch.bool, device="cpu")
        for row in range(n):
            text_len, path = self.path_to(start + row)
            mask[row, :text_len] = True
            mask[row, path] = True
        if window is not None:
            positions = torch.tensor(self.positions(0, end), device="cpu")
            mask &= positions[None] > positions[start:, None] - window
        return mask
