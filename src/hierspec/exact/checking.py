"""Checks of the exact interpreter: every verdict that a draft may get, with its probability.

Single drafts that await one verifier are checked as one batch, by the rule's own batched laws.
Where there are several drafts of one place, the rule's tests are followed both ways.

Several drafts of one place, enumerated.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from hierspec.core.nodes import Draft, Verify
from hierspec.core.proposals import Proposal, Verdict
from hierspec.core.requests import Check
from hierspec.core.rules import Batch, Verifier, law_of_tau
from hierspec.verifiers.multi_draft import outcomes

from .tables import Models, Rows, TableDistributions, normalised

Verdicts = list[tuple[float, Verdict]]


def verdicts(node: Verify, checks: Sequence[Check], models: Models) -> list[Verdicts]:
    """For every check that awaits ``node``, its verdicts."""
    out = [_of_several(node, check, models) if check.draft.alternatives else [] for check in checks]
    single = [i for i, check in enumerate(checks) if not check.draft.alternatives]
    if single:
        found = _of_single(node, [checks[i] for i in single], models)
        for i, one in zip(single, found, strict=True):
            out[i] = one
    return out


def _of_several(node: Verify, check: Check, models: Models) -> Verdicts:
    drafts = check.draft.drafts
    ids = [
        tuple(models.law(node, check.pending + d.tokens[:i]) for i in range(len(d) + 1))
        for d in drafts
    ]
    p: Any = [TableDistributions(models.rows, own) for own in ids]
    out = []
    for chance, stop in outcomes(node.rule, drafts, p):
        own, tau = ids[stop.draft], stop.num_accepted
        draft, law = drafts[stop.draft], normalised(stop.law.numpy())
        nexts: list[tuple[float, tuple[int, ...]]] = [(1.0, ())]
        if node.bonus or not 0 < len(draft) == tau:
            nexts = [(float(law[y]), (y,)) for y in np.flatnonzero(law).tolist()]
        for share, extra in nexts:
            kept = own[: tau + len(extra)]
            emitted = models.tokens(node, draft.tokens[:tau] + extra, kept, kept)
            out.append((chance * share, Verdict(tau, emitted)))
    return out


def _of_single(node: Verify, checks: Sequence[Check], models: Models) -> list[Verdicts]:
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
    return [
        _spread(node, check, models, stops[b], followers[b], p_ids[b], reported[b])
        for b, check in enumerate(checks)
    ]


def _spread(
    node: Verify,
    check: Check,
    models: Models,
    stops: np.ndarray,
    followers: np.ndarray,
    own: np.ndarray,
    reported: np.ndarray,
) -> Verdicts:
    """Every (τ, next token) of one draft."""
    out = []
    own_ids, ids = own.tolist(), reported.tolist()
    for tau in range(len(check.draft) + 1):
        if stops[tau] <= 0.0:
            continue
        kept = check.draft.tokens[:tau]
        nexts: list[tuple[float, tuple[int, ...]]] = [(1.0, ())]
        if node.bonus or tau < len(check.draft) or tau == 0:
            row = followers[tau]
            nexts = [(float(row[y]), (y,)) for y in np.flatnonzero(row).tolist()]
        for chance, extra in nexts:
            m = tau + len(extra)
            emitted = models.tokens(node, kept + extra, tuple(ids[:m]), tuple(own_ids[:m]))
            out.append((float(stops[tau]) * chance, Verdict(tau, emitted)))
    return out


Drafts = list[tuple[float, Proposal]]  # with their probabilities


def several(node: Draft, single: Drafts, rows: Rows) -> Drafts:
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
