"""Token trees drafted on a device: as drafts are (:mod:`.device_drafts`), K nodes at every depth.

The host does not see the tokens, so it cannot merge nodes of one path while a tree grows: each
draft has nodes of its own. That changes no law, since drafts draw for themselves in any case.
Nodes of likeliest continuations are always different; where there are fewer than K, the others
have chance 0, and so has what follows them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from hierspec.core.distributions import DenseDistributions, concatenate, locate_several
from hierspec.lm.base import DeviceTrees, SampledDraft, TreeDepth
from hierspec.lm.lean.fused import NodePlaces
from hierspec.sampling.sampler import NoDistributionError, Sampler

from .device_drafts import DeviceLoop, DeviceStep, Memory

_ROOM = 8  # depths that memory is kept for, at least
Nodes = list[list[tuple[int, int]]]  # [n][K]: the parent in the depth above, and the token


def draft_trees(
    loop: DeviceLoop,
    counts: Sequence[int],
    width: int,
    uniforms: Sequence[np.ndarray] | None,
    distinct: bool,
) -> tuple[DeviceTrees, list[Nodes]]:
    """Draft trees of ``counts[b]`` depths in row ``loop.rows[b]``; return also all of their nodes.

    The other arguments are those of :meth:`hierspec.lm.base.DeviceTreeModel.draft_trees`.

    Raises:
        NoDistributionError: some row of scores has NaN or forbids every token.
    """
    longest, sampled = max(counts), uniforms is not None
    room = max(_ROOM, 1 << (longest - 1).bit_length())
    make = partial(_TreeMemory.of, loop, room, width, sampled, distinct)
    memory = loop.run(make, (width, sampled, distinct, room), longest, uniforms or ())
    depths = memory.results[:longest].tolist()  # the one wait
    out, nodes = DeviceTrees([], [], longest), list[Nodes]()
    for row, count in zip(loop.rows, counts, strict=True):
        own = [depth[row] for depth in depths[:count]]
        nodes.append([[(int(node[0]), int(node[1])) for node in depth] for depth in own])
        if sampled:
            out.drafts.append(memory.sampled(row, own))
        else:
            out.depths.append(_likeliest(own))
    return out, nodes


@dataclass(frozen=True, slots=True, eq=False)
class _TreeMemory(Memory):
    """That of trees of up to n depths of K nodes, drawn with uniforms [n, B, K], or of likeliest
    continuations.

    Attributes:
        results: [n, B, K, …] float64, of every node: its parent in the depth above, its token and,
            where tokens are drawn, the mass that was left to draw from and its total after that.
            Otherwise its chance, and of the likeliest tokens after its number in the depth above:
            their chances and ids.
        ancestors: [n, B, K, n K] bool: which of a tree's nodes each node attends to.
        first_probs: [B, K, V] float64, of distinct tokens, or [B, 1, V]; ``None`` where not drawn.
        probs: [n, B, K, V] of later tokens; ``None`` where not drawn.
    """

    results: Tensor
    ancestors: Tensor
    first_probs: Tensor | None
    probs: Tensor | None

    @classmethod
    def of(
        cls, loop: DeviceLoop, room: int, width: int, sampled: bool, distinct: bool
    ) -> _TreeMemory:
        batch, buffer = loop.batch, partial(loop.graphs.buffer, device=loop.device)
        vocab, size = min(loop.sampler.vocab_size, loop.width), (room, batch, width)
        num_results = 4 if sampled else 3 + 2 * min(width, vocab)
        first, dtype = (width, torch.float64) if distinct else (1, loop.dtype)
        return cls(
            buffer("number", (1,), torch.long),
            buffer("last", (batch, 1), torch.long),
            buffer("random", size, torch.float64) if sampled else None,
            buffer("results", (*size, num_results), torch.float64),
            buffer("ancestors", (*size, room * width), torch.bool),
            buffer("first_probs", (batch, first, vocab), dtype) if sampled else None,
            buffer("probs", (*size, vocab), loop.dtype) if sampled else None,
        )

    def begin(self, sampler: Sampler, scores: Tensor) -> None:
        width = self.results.shape[2]
        before = torch.zeros_like(self.ancestors[0])
        if self.random is None:
            chances = scores.new_zeros(len(scores), width, dtype=torch.float64)
            chances[:, 0] = 1.0  # the text
            self._keep_likeliest(
                sampler, scores.unsqueeze(1).expand(-1, width, -1), chances, before
            )
            return
        assert self.first_probs is not None
        probs = sampler.probabilities(scores[:, : sampler.vocab_size])
        distinct = self.first_probs.shape[1] > 1
        numbers, own = locate_several(probs, self.random[0], distinct)
        self.first_probs.copy_(own if distinct else probs.unsqueeze(1))
        numbers[..., 1].clamp_(max=probs.shape[1] - 1)  # past the end where nothing was left
        left, tokens, mass = numbers.unbind(2)
        self._store(tokens, None, [left, mass], before)

    def go_on(self, sampler: Sampler, scratch: int, step: DeviceStep) -> None:
        last, above = self.last, self.number - 1
        nodes = self.results.index_select(0, above).squeeze(0)
        ancestors = self.ancestors.index_select(0, above).squeeze(0)
        columns = (
            last + 1 + above * nodes.shape[1] + torch.arange(nodes.shape[1], device=last.device)
        )
        # A tree that only fills the shape up has a text that ends there.
        positions = torch.where(last < scratch, last + self.number, scratch).expand_as(columns)
        columns = torch.where(last < scratch, columns, scratch)
        scores = step(nodes[..., 1].long(), positions, NodePlaces(last + 1, columns, ancestors))
        if self.random is None:
            self._keep_likeliest(sampler, scores, nodes[..., 2], ancestors)
            return
        assert self.probs is not None
        uniforms = self.random.index_select(0, self.number).flatten()
        picked = sampler.pick_on_device(scores.flatten(0, 1), uniforms)
        assert picked.probs is not None
        self.probs.index_copy_(0, self.number, picked.probs.view(1, *self.probs.shape[1:]))
        ok = picked.ok.double().view_as(columns)
        tokens = picked.tokens.double().view_as(columns)
        self._store(tokens, None, [torch.ones_like(ok), ok], ancestors)

    def _keep_likeliest(
        self, sampler: Sampler, scores: Tensor, above: Tensor, ancestors: Tensor
    ) -> None:
        """Keep the likeliest of all continuations of nodes with chances ``above`` [B, K], scored
        [B, K, V]."""
        batch, width = above.shape
        probs = sampler.probabilities(scores.flatten(0, 1)[:, : sampler.vocab_size])
        values, ids = probs.topk(min(width, probs.shape[1]))
        values, ids = (part.double().unflatten(0, (batch, width)) for part in (values, ids))
        above = above.unsqueeze(2)
        # Not by the product alone: what follows a node of chance 0 may be NaN.
        children = torch.where(above > 0.0, above * values, 0.0).flatten(1)
        chances, best = children.topk(width)
        parents = best // values.shape[2]
        self._store(ids.flatten(1).gather(1, best), parents, [chances, values, ids], ancestors)

    def _store(
        self, tokens: Tensor, parents: Tensor | None, parts: list[Tensor], before: Tensor
    ) -> None:
        """Store the nodes of a depth: tokens [B, K], their parents, by default those of their
        numbers, and what else is read of them. ``before``: what the depth above attends to."""
        width, num_nodes = before.shape[1:]
        own = torch.arange(width, device=tokens.device)
        if parents is None:
            parents = own.expand_as(tokens)
        else:
            before = before.gather(1, parents.unsqueeze(2).expand_as(before))
        columns = torch.arange(num_nodes, device=tokens.device)
        itself = columns == (self.number * width + own).unsqueeze(1)
        self.ancestors.index_copy_(0, self.number, (before | itself).unsqueeze(0))
        parts = [part if part.dim() == 3 else part.unsqueeze(2) for part in parts]
        numbers = [parents.double().unsqueeze(2), tokens.unsqueeze(2), *parts]
        self.results.index_copy_(0, self.number, torch.cat(numbers, 2).unsqueeze(0))

    def sampled(self, row: int, depths: Sequence[Sequence[Sequence[float]]]) -> list[SampledDraft]:
        """Return the drafts of a row, of which the host has read the results."""
        assert self.first_probs is not None
        assert self.probs is not None
        out: list[SampledDraft] = []
        with torch.no_grad(), torch.inference_mode(False):
            # Copies, because the next draft writes there.
            first, later = self.first_probs[row].clone(), self.probs[1 : len(depths), row].clone()
            for number, (_, _, left, _) in enumerate(depths[0]):
                if left == 0.0:
                    break
                nodes = [depth[number] for depth in depths]
                if not all(0.0 < mass < np.inf for *_, mass in nodes):
                    raise NoDistributionError
                own = first[number % len(first)].unsqueeze(0)
                rows = [DenseDistributions(own), DenseDistributions(later[:, number])]
                out.append(([int(token) for _, token, _, _ in nodes], concatenate(rows)))
        return out


def _likeliest(depths: Sequence[Sequence[Sequence[float]]]) -> list[TreeDepth]:
    out: list[TreeDepth] = []
    alive: set[int] = {0}  # the text
    for depth in depths:
        num = (len(depth[0]) - 3) // 2
        found = TreeDepth({}, {})
        for number in alive:
            chances, tokens = [*depth[number][3 : 3 + num]], depth[number][3 + num :]
            if not chances[0] > 0.0:  # NaN compares as false, and is the largest
                raise NoDistributionError
            found.continuations[number] = chances, [*map(int, tokens)]
        for number, (parent, token, chance, *_) in enumerate(depth):
            if chance > 0.0:
                found.kept[number] = int(parent), int(token)
        alive = {*found.kept}
        out.append(found)
    return out
