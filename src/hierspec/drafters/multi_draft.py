"""Drafting several times from one place, for the runtime.

Drafts that agree so far share a query; one that parts from the others goes on in its own slot
(:meth:`hierspec.engine.sequences.Sequence.slot`), so that no two of a call share one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from hierspec.core.distributions import (
    DenseDistributions,
    Distributions,
    OneHotDistributions,
    concatenate,
    draw,
)
from hierspec.core.proposals import Proposal

if TYPE_CHECKING:
    from hierspec.core.nodes import Draft
    from hierspec.core.rng import Rng
    from hierspec.engine.sequences import Task

# (tasks, drafted so far, slot numbers) → the next token's law, each
Score = Callable[[list["Task"], list[tuple[int, ...]], list[int]], list[Distributions]]


def first_tokens(
    law: Distributions, num_drafts: int, distinct: bool, rng: Rng
) -> tuple[list[int], list[Distributions]]:
    """The drafts' first tokens, and the law each was drawn from given those before it.

    Distinct tokens are drawn from the law without those drawn already; there are fewer than
    ``num_drafts`` where the law runs out of tokens. A law that says one token only is asked once:
    the same token again could not be kept.
    """
    if isinstance(law, OneHotDistributions):
        return list(law.ids), [law]
    if not distinct:
        row = law.dense(law.width).expand(num_drafts, -1)
        return draw(row, rng.take(num_drafts)), [law] * num_drafts
    tokens: list[int] = []
    distributions: list[Distributions] = []
    left = law.dense(law.width)[0].double()
    while len(tokens) < num_drafts and (total := float(left.sum())) != 0.0:
        left = left / total  # of NaN, which drawing refuses, where the law was none
        token = draw(left.unsqueeze(0), rng.take(1))[0]
        tokens.append(token)
        distributions.append(DenseDistributions(left.unsqueeze(0)))
        left = left.clone()
        left[token] = 0.0
    return tokens, distributions


def draft_several(node: Draft, group: Sequence[Task], score: Score) -> list[Proposal]:
    """``node.num_drafts`` drafts of every task; one where its law is one-hot (greedy).

    Args:
        score: laws of the next tokens; each task's queries of a call have slots of their own.

    Returns:
        one proposal a task, the further drafts as its ``others``.
    """
    numbers = [0] * len(group)
    roots = score(list(group), [()] * len(group), numbers)
    drafts: list[tuple[Task, int, list[int], list[Distributions]]] = []
    for task, law in zip(group, roots, strict=True):
        rng = task.sequence.rng
        tokens, distributions = first_tokens(law, node.num_drafts, node.distinct, rng)
        for j, (token, own) in enumerate(zip(tokens, distributions, strict=True)):
            drafts.append((task, j, [token], [own]))
    for step in range(1, node.budget):
        going = [d for d in drafts if step < _limit(d[0])]
        asked: dict[tuple[int, tuple[int, ...]], int] = {}
        queries: list[tuple[Task, tuple[int, ...], int]] = []
        for task, j, tokens, _ in going:
            key = (id(task), tuple(tokens))
            if key not in asked:
                asked[key] = len(queries)
                queries.append((task, key[1], j))
        if not queries:
            break
        step_laws = score([q[0] for q in queries], [q[1] for q in queries], [q[2] for q in queries])
        for task, _, tokens, distributions in going:
            law = step_laws[asked[(id(task), tuple(tokens))]]
            tokens += next_token(law, task.sequence.rng)
            distributions.append(law)
    return [_proposal(node, [d for d in drafts if d[0] is task]) for task in group]


def next_token(law: Distributions, rng: Rng) -> list[int]:
    """One token of a one-row law; a law that says one token only costs no dice."""
    if isinstance(law, OneHotDistributions):
        return list(law.ids)
    return draw(law.dense(law.width), rng.take(1))


def _limit(task: Task) -> int:
    request: Any = task.request
    return request.limit


def _proposal(
    node: Draft, drafts: list[tuple[Task, int, list[int], list[Distributions]]]
) -> Proposal:
    made = [
        proposal_of(node, tuple(tokens), concatenate(distributions))
        for _, _, tokens, distributions in drafts
    ]
    return together(made)


def proposal_of(node: Draft, tokens: tuple[int, ...], distributions: Distributions) -> Proposal:
    """One draft of a leaf."""
    whose = (node.index,) * len(tokens)
    return Proposal(tokens, distributions, whose, whose, (float("nan"),) * len(tokens))


def together(drafts: Sequence[Proposal]) -> Proposal:
    """Several drafts as one proposal."""
    first = drafts[0]
    return Proposal(
        first.tokens,
        first.distributions,
        first.owners,
        first.origins,
        first.signals,
        others=tuple(drafts[1:]),
    )
