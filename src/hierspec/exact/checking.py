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
from hierspec.core.rules import Batch, Verifier, tau_probabilities
from hierspec.verifiers.multi_draft import outcomes

from .tables import ModelRows, Rows, TableDistributions, normalise

Verdicts = list[tuple[float, Verdict]]


def verdicts(node: Verify, checks: Sequence[Check], models: ModelRows) -> list[Verdicts]:
    """Return the possible verdicts of every check that awaits ``node``."""
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
    p: Any = [TableDistributions(models.rows, model_ids) for model_ids in ids]
    out = []
    for chance, stop in outcomes(node.rule, drafts, p):
        model_ids, follower = ids[stop.draft], normalise(stop.distribution.numpy())
        for share, verdict in _verdicts_at(
            node, models, drafts[stop.draft], stop.num_accepted, follower, model_ids, model_ids
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
    stops = tau_probabilities(rule.order, accepted.h).numpy()
    followers = np.stack(
        [
            normalise(rule.correction(batch, accepted, batch.lengths.clamp(max=t)).numpy())
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
        model_ids, ids = tuple(p_ids[b].tolist()), tuple(reported[b].tolist())
        found: Verdicts = []
        for tau in range(length + 1):
            if (chance := float(stops[b, tau])) > 0.0:
                follower = followers[b, tau]
                each = _verdicts_at(node, models, check.draft, tau, follower, ids, model_ids)
                found += [(chance * share, verdict) for share, verdict in each]
        out.append(found)
    return out


def _verdicts_at(
    node: Verify,
    models: ModelRows,
    draft: Proposal,
    tau: int,
    follower: np.ndarray,
    ids: tuple[int, ...],
    model_ids: tuple[int, ...],
) -> Iterator[tuple[float, Verdict]]:
    """Yield verdicts with τ kept tokens, one for each token that ``follower`` [V] may add.

    ``ids`` are the rows reported, ``model_ids`` those of the node's model; at least τ + 1 of each.
    """
    nexts: list[tuple[float, tuple[int, ...]]] = [(1.0, ())]
    if node.bonus or not 0 < tau == len(draft):
        nexts = [(float(follower[y]), (y,)) for y in np.flatnonzero(follower).tolist()]
    for chance, extra in nexts:
        n = tau + len(extra)
        yield (
            chance,
            Verdict(tau, models.tokens(node, draft.tokens[:tau] + extra, ids[:n], model_ids[:n])),
        )


Drafts = list[tuple[float, Proposal]]  # with their probabilities


def combine_drafts(node: Draft, single: Drafts, rows: Rows) -> Drafts:
    """Return all lists of ``node.num_drafts`` drafts from one place, given the single drafts."""
    lists: list[tuple[float, tuple[Proposal, ...]]] = [(1.0, ())]
    for _ in range(node.num_drafts):
        longer = []
        for probability, drafts in lists:
            tried = {draft.tokens[0] for draft in drafts} if node.distinct else set()
            fresh = exclude_first_tokens(single, tried, rows) if tried else single
            if not fresh:  # its law ran out of tokens
                longer.append((probability, drafts))
            longer += [(probability * chance, (*drafts, one)) for chance, one in fresh]
        lists = longer
    return [
        (probability, dataclasses.replace(drafts[0], alternatives=drafts[1:]))
        for probability, drafts in lists
    ]


def exclude_first_tokens(single: Drafts, tried: set[int], rows: Rows) -> Drafts:
    """Return the single drafts given that their first token is none of ``tried``."""
    rest = [(chance, draft) for chance, draft in single if draft.tokens[0] not in tried]
    total = sum(chance for chance, _ in rest)
    out = []
    for chance, draft in rest:
        first, *ids = draft.distributions.ids  # type: ignore[union-attr]
        row = rows.rows[first].copy()
        row[list(tried)] = 0.0
        distributions: Any = TableDistributions(rows, (rows.intern(normalise(row)), *ids))
        out.append((chance / total, dataclasses.replace(draft, distributions=distributions)))
    return out
