"""Branches of the exact interpreter at a check, and at a leaf that makes several drafts.

Single drafts that await one verifier are checked as one batch, by the rule's own tensors; the tests
of a multi-draft rule are followed both ways.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from hierspec.core.nodes import Draft, Verify
from hierspec.core.proposals import Proposal, Verdict
from hierspec.core.requests import Check
from hierspec.core.rules import Batch, Verifier, law_of_tau
from hierspec.verifiers.multi_draft import outcomes

from .tables import ModelRows, Rows, TableDistributions, normalised

Verdicts = list[tuple[float, Verdict]]


def verdicts(node: Verify, checks: Sequence[Check], models: ModelRows) -> list[Verdicts]:
    """For every check that awaits ``node``, its verdicts."""
    many = [bool(check.draft.alternatives) for check in checks]
    out = [_of_multi_draft(node, c, models) if m else [] for c, m in zip(checks, many, strict=True)]
    single = [i for i, m in enumerate(many) if not m]
    if single:
        found = _of_single(node, [checks[i] for i in single], models)
        for i, one in zip(single, found, strict=True):
            out[i] = one
    return out


def _of_multi_draft(node: Verify, check: Check, models: ModelRows) -> Verdicts:
    drafts = check.draft.drafts
    ids = [
        tuple(models.law(node, check.pending + d.tokens[:i]) for i in range(len(d) + 1))
        for d in drafts
    ]
    p: Any = [TableDistributions(models.rows, own) for own in ids]
    out = []
    for chance, stop in outcomes(node.rule, drafts, p):
        own, follower = ids[stop.draft], normalised(stop.distribution.numpy())
        for share, verdict in _followed(
            node, models, drafts[stop.draft], stop.num_accepted, follower, own, own
        ):
            out.append((chance * share, verdict))
    return out


def _of_single(node: Verify, checks: Sequence[Check], models: ModelRows) -> list[Verdicts]:
    rule, rows = node.rule, models.rows
    lengths = [len(check.draft) for check in checks]
    n = max(lengths)
    p_ids = np.zeros((len(checks), n + 1), dtype=int)
    q_ids = np.zeros((len(checks), n), dtype=int)
    tokens = np.zeros((len(checks), n), dtype=int)
    for b, (check, length) in enumerate(zip(checks, lengths, strict=True)):
        draft = check.draft
        for i in range(length + 1):
            p_ids[b, i] = models.law(node, check.pending + draft.tokens[:i])
        if length:
            q_ids[b, :length] = draft.distributions.ids  # type: ignore[union-attr]
            tokens[b, :length] = draft.tokens
    table = torch.from_numpy(rows.matrix())
    batch = Batch(
        table[torch.from_numpy(p_ids)],
        table[torch.from_numpy(q_ids.ravel())].reshape(len(checks), n, rows.vocab_size),
        torch.from_numpy(tokens),
        torch.tensor(lengths),
    )
    accepted = rule.acceptance(batch)
    stops = law_of_tau(rule.order, accepted.h).numpy()
    followers = np.stack(
        [
            normalised(rule.correction(batch, accepted, batch.lengths.clamp(max=t)).numpy())
            for t in range(n + 1)
        ],
        axis=1,
    )
    reported = p_ids
    if type(rule).reported is not Verifier.reported:
        given = rule.reported(batch).numpy()
        reported = np.array(
            [[rows.intern(row) for row in distributions] for distributions in given]
        )
    out = []
    for b, (check, length) in enumerate(zip(checks, lengths, strict=True)):
        own, ids = tuple(p_ids[b].tolist()), tuple(reported[b].tolist())
        found: Verdicts = []
        for tau in range(length + 1):
            if (chance := float(stops[b, tau])) > 0.0:
                follow = _followed(node, models, check.draft, tau, followers[b, tau], ids, own)
                found += [(chance * share, verdict) for share, verdict in follow]
        out.append(found)
    return out


def _followed(
    node: Verify,
    models: ModelRows,
    draft: Proposal,
    tau: int,
    follower: np.ndarray,
    ids: tuple[int, ...],
    own: tuple[int, ...],
) -> Iterator[tuple[float, Verdict]]:
    """Verdicts with τ kept tokens, one for each token that ``follower`` [V] may add.

    ``ids`` are the rows reported, ``own`` those of the node's model; at least τ + 1 of either.
    """
    nexts: list[tuple[float, tuple[int, ...]]] = [(1.0, ())]
    if node.bonus or not 0 < tau == len(draft):
        nexts = [(float(follower[y]), (y,)) for y in np.flatnonzero(follower).tolist()]
    for chance, extra in nexts:
        n = tau + len(extra)
        yield (
            chance,
            Verdict(tau, models.tokens(node, draft.tokens[:tau] + extra, ids[:n], own[:n])),
        )


Drafts = list[tuple[float, Proposal]]  # with their probabilities


def multi_drafts(node: Draft, single: Drafts, rows: Rows) -> Drafts:
    """All lists of ``node.num_drafts`` drafts from one place, given what one draft may be."""
    lists: list[tuple[float, tuple[Proposal, ...]]] = [(1.0, ())]
    for _ in range(node.num_drafts):
        longer = []
        for probability, drafts in lists:
            tried = {draft.tokens[0] for draft in drafts} if node.distinct else set()
            fresh = without(single, tried, rows) if tried else single
            if not fresh:  # its law ran out of tokens
                longer.append((probability, drafts))
            longer += [(probability * chance, (*drafts, one)) for chance, one in fresh]
        lists = longer
    return [
        (probability, dataclasses.replace(drafts[0], alternatives=drafts[1:]))
        for probability, drafts in lists
    ]


def without(single: Drafts, tried: set[int], rows: Rows) -> Drafts:
    """The same draft, drawn on condition that its first token is none of ``tried``."""
    rest = [(chance, draft) for chance, draft in single if draft.tokens[0] not in tried]
    total = sum(chance for chance, _ in rest)
    out = []
    for chance, draft in rest:
        first, *ids = draft.distributions.ids  # type: ignore[union-attr]
        row = rows.rows[first].copy()
        row[list(tried)] = 0.0
        distributions: Any = TableDistributions(rows, (rows.intern(normalised(row)), *ids))
        out.append((chance / total, dataclasses.replace(draft, distributions=distributions)))
    return out
