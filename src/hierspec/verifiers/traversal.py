"""Traversal verification: the trie of several drafts, verified from its leaves up.

After Weng et al. 2025 (arXiv 2505.12398). A node of the trie is a prefix shared by some drafts, and
is accepted with a weight w that its parent gives it; before that is decided, its children are
tested, in the order in which their drafts were drawn. A child that fails is subtracted from the
residual that the node may emit, and so is every later draft that repeats it: *at its own position
in the order*. (A trie that counts repeats and subtracts them together is lossy.) With one draft
this is block verification. [MATH §3]
"""

from __future__ import annotations

from collections.abc import Generator, Sequence

from hierspec.core.distributions import Distributions
from hierspec.core.proposals import Proposal
from hierspec.core.rules import Choice, Stop

from .block import Block
from .formulas import capped_ratio, pass_chance
from .multi_draft import target_row
from .rows import mass, normalised, residual_row, token_prob


class Traversal(Block):
    """All drafts as one trie, leaves first. With one draft: ``block``."""

    name = "traversal"
    multi_draft = True

    def choose(self, drafts: Sequence[Proposal], p: Sequence[Distributions]) -> Choice:
        stop = yield from _test_node(drafts, p, range(len(drafts)), 0, 1.0)
        assert stop is not None, "the root is accepted in any case"
        return stop


def _test_node(
    drafts: Sequence[Proposal],
    p: Sequence[Distributions],
    sharing: Sequence[int],
    depth: int,
    w: float,
) -> Generator[float, bool, Stop | None]:
    """Test the node that the drafts ``sharing`` share after ``depth`` tokens; None if rejected."""
    longer = [j for j in sharing if len(drafts[j]) > depth]
    f, tried = target_row(p[sharing[0]], depth), set[int]()
    for j in longer:
        token, q = drafts[j].tokens[depth], drafts[j].distributions
        if token not in tried:
            tried.add(token)
            agreeing = [i for i in longer if drafts[i].tokens[depth] == token]
            chance = capped_ratio(w * token_prob(f, token), q.prob(depth, token))
            stop = yield from _test_node(drafts, p, agreeing, depth + 1, chance)
            if stop is not None:
                return stop
        rest = residual_row(f, q, depth, w)
        total, f = mass(rest), normalised(rest, f)
        if w < 1.0:  # else it stays: D/D, or f = q, whose token is always accepted
            w = pass_chance(total, w)
    if depth and not (yield w):
        return None
    return Stop(sharing[0], depth, f)
