"""Branches of the exact interpreter at a check, and at a leaf that makes several drafts.

Single drafts that wait for one verifier are verified as one batch, with the rule's own tensor code;
a multi-draft rule is enumerated by following both results of each of its tests.
"""

from __future__ import annotations

import dataclasses
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from hierspec.core.distributions import DenseDistributions
from hierspec.core.nodes import Draft, Verify
from hierspec.core.proposals import Proposal, Verdict
from hierspec.core.requests import Check
from hierspec.core.rules import Batch, Stop, Verifier, tau_probabilities
from hierspec.errors import HierspecError
from hierspec.utils import plugins
from hierspec.verifiers.acceptance import acceptance_of, correction_of, is_checked
from hierspec.verifiers.multi_draft import outcomes

from .tables import ModelRows, Rows, TableDistributions, normalise, row_ids

Verdicts = list[tuple[float, Verdict]]
_ROUNDING = 1e-9
_FLOAT32_ROUNDING = 1e-5  # of a probability


def verdicts(node: Verify, checks: Sequence[Check], models: ModelRows) -> list[Verdicts]:
    """Return the possible verdicts of every check that waits for ``node``."""
    single = [check for check in checks if not check.draft.alternatives]
    single_verdicts = iter(_single_draft_verdicts(node, single, models) if single else ())
    return [
        _multi_draft_verdicts(node, check, models)
        if check.draft.alternatives
        else next(single_verdicts)
        for check in checks
    ]


def _multi_draft_verdicts(node: Verify, check: Check, models: ModelRows) -> Verdicts:
    drafts = check.draft.drafts
    ids = [
        tuple(models.row_id(node, check.pending + d.tokens[:i]) for i in range(len(d) + 1))
        for d in drafts
    ]
    p = [TableDistributions(models.rows, model_ids) for model_ids in ids]
    stops = outcomes(node.rule, drafts, p)
    result = []
    for stop_probability, stop in stops:
        model_ids, next_row = ids[stop.draft], normalise(stop.distribution.numpy())
        for probability, verdict in _verdicts_with_next_token(
            node, models, drafts[stop.draft], stop.num_accepted, next_row, model_ids, model_ids
        ):
            result.append((stop_probability * probability, verdict))
    if is_checked(node.rule):
        if models.rows.is_changed():
            raise _writes(node.rule, "a row of p, or of a draft")
        _check_drafts_in_float32(node.rule, drafts, p, stops)
    return result


def _single_draft_verdicts(
    node: Verify, checks: Sequence[Check], models: ModelRows
) -> list[Verdicts]:
    rule, rows = node.rule, models.rows
    lengths = [len(check.draft) for check in checks]
    n = max(lengths)
    p_ids = np.zeros((len(checks), n + 1), dtype=int)
    q_ids = np.zeros((len(checks), n), dtype=int)
    tokens = np.zeros((len(checks), n), dtype=int)
    for b, (check, length) in enumerate(zip(checks, lengths, strict=True)):
        draft = check.draft
        for i in range(length + 1):
            p_ids[b, i] = models.row_id(node, check.pending + draft.tokens[:i])
        q_ids[b, :length] = row_ids(draft)
        tokens[b, :length] = draft.tokens
    table = torch.from_numpy(rows.matrix())
    p = table[torch.from_numpy(p_ids)]
    # Scores are untempered where p is not, so they must not be read as its logarithms.
    scores = 2.0 * p.log() if rule.reads_scores else None
    batch = Batch(
        p,
        table[torch.from_numpy(q_ids.ravel())].reshape(len(checks), n, rows.vocab_size),
        torch.from_numpy(tokens),
        torch.tensor(lengths),
        scores,
    )
    tau_probs, next_rows, reported_rows = decided = _decide(rule, batch)
    if is_checked(rule):
        _check_alone(rule, batch, decided)
        _check_in_float32(rule, batch, decided)
    reported = p_ids
    if reported_rows is not None:
        reported = np.array([list(map(rows.intern, draft_rows)) for draft_rows in reported_rows])
    result = []
    for b, (check, length) in enumerate(zip(checks, lengths, strict=True)):
        model_ids, ids = tuple(p_ids[b].tolist()), tuple(reported[b].tolist())
        check_verdicts: Verdicts = []
        for tau in range(length + 1):
            if (tau_prob := float(tau_probs[b, tau])) > 0.0:
                check_verdicts += [
                    (tau_prob * probability, verdict)
                    for probability, verdict in _verdicts_with_next_token(
                        node, models, check.draft, tau, next_rows[b, tau], ids, model_ids
                    )
                ]
        result.append(check_verdicts)
    return result


class _Decided(NamedTuple):
    """What a rule decides of a batch, as arrays.

    Attributes:
        tau_probs: [B, n + 1] of each τ.
        next_rows: [B, n + 1, V] of the token that follows it, where that has a chance.
        reported: [B, n + 1, V] where the rule reports other distributions than p.
    """

    tau_probs: np.ndarray
    next_rows: np.ndarray
    reported: np.ndarray | None


def _decide(rule: Verifier, batch: Batch) -> _Decided:
    given = _contents(batch) if is_checked(rule) else {}
    accepted = acceptance_of(rule, batch)
    chances = tau_probabilities(rule.order, accepted.h)
    rows = [
        normalise(correction_of(rule, batch, accepted, tau, chances[:, t] > 0.0).numpy())
        for t in range(batch.p.shape[1])
        for tau in (batch.lengths.clamp(max=t),)
    ]
    reports_p = type(rule).reported is Verifier.reported
    reported = None if reports_p else rule.reported(batch).numpy()
    for name, contents in (_contents(batch) if given else {}).items():
        if contents != given[name]:
            raise _writes(rule, f"batch.{name}")
    return _Decided(chances.numpy(), np.stack(rows, axis=1), reported)


def _contents(batch: Batch) -> dict[str, tuple[int, bytes]]:
    """Return how often torch has written into a batch's tensors, and what they hold."""
    tensors = ((f.name, getattr(batch, f.name)) for f in dataclasses.fields(batch))
    return {name: (t._version, t.numpy().tobytes()) for name, t in tensors if t is not None}


def _writes(rule: Verifier, what: str) -> HierspecError:
    where = f"{plugins.where(type(rule))}: rule {rule.name!r} writes into {what}"
    return HierspecError(f"{where}, which the engine goes on to use: compute with a .clone() of it")


def _check_alone(rule: Verifier, batch: Batch, together: _Decided) -> None:
    """Refuse a rule that decides a draft otherwise alone: an engine's batches are others."""
    for b, n in enumerate(batch.lengths.tolist()):
        one = slice(b, b + 1)
        scores = None if batch.scores is None else batch.scores[one, : n + 1]
        alone = Batch(
            batch.p[one, : n + 1],
            batch.q[one, :n],
            batch.tokens[one, :n],
            batch.lengths[one],
            scores,
        )
        own, rows = _decide(rule, alone), slice(n + 1)
        possible = np.flatnonzero(own.tau_probs[0])
        pairs = [
            (together.tau_probs[b, rows], own.tau_probs[0]),
            (together.next_rows[b, possible], own.next_rows[0, possible]),
        ]
        if together.reported is not None and own.reported is not None:
            pairs.append((together.reported[b, rows], own.reported[0]))
        if not all(np.allclose(first, second, 0.0, _ROUNDING, True) for first, second in pairs):
            place = plugins.where(type(rule))
            raise HierspecError(
                f"{place}: rule {rule.name!r} decides a draft otherwise alone than beside others: "
                "let each row of a batch depend on that row, and nothing on earlier calls"
            )


def _check_in_float32(rule: Verifier, batch: Batch, in_float64: _Decided) -> None:
    """Refuse a rule that decides otherwise in float32, in which the rows of most models are."""
    scores = None if batch.scores is None else batch.scores.float()
    rows = dataclasses.replace(batch, p=batch.p.float(), q=batch.q.float(), scores=scores)
    drafted = batch.q.gather(-1, batch.tokens.unsqueeze(-1)).squeeze(-1)
    padding = torch.arange(drafted.shape[1]) >= batch.lengths.unsqueeze(-1)
    chances = drafted.masked_fill(padding, 1.0).prod(-1)[:, None, None].numpy()
    first, second = (
        # Of all together: what follows a τ without a chance is NaN, or made of rounding alone.
        np.nan_to_num(chances * decided.tau_probs[..., None] * decided.next_rows)
        for decided in (in_float64, _decide(rule, rows))
    )
    if not np.allclose(first, second, 0.0, _FLOAT32_ROUNDING):
        raise _decides_otherwise(rule, "batch.p.double() and batch.q.double()")


def _check_drafts_in_float32(
    rule: Verifier,
    drafts: Sequence[Proposal],
    p: Sequence[TableDistributions],
    in_float64: Sequence[tuple[float, Stop]],
) -> None:
    """The same of a rule for several drafts."""
    rows = [DenseDistributions(each.dense(each.width).float()) for each in p]
    rounded = []
    for draft in drafts:
        q = draft.distributions.dense(p[0].width).float()
        rounded.append(dataclasses.replace(draft, distributions=DenseDistributions(q)))
    first, second = (
        _law_of_stops(drafts, stops) for stops in (in_float64, outcomes(rule, rounded, rows))
    )
    chance = math.prod(d.distributions.prob(i, x) for d in drafts for i, x in enumerate(d.tokens))
    if any(
        not np.allclose(chance * first[kept], chance * second[kept], 0.0, _FLOAT32_ROUNDING)
        for kept in first.keys() | second.keys()
    ):
        raise _decides_otherwise(rule, "p[j].row(i).double()")


def _law_of_stops(
    drafts: Sequence[Proposal], stops: Sequence[tuple[float, Stop]]
) -> dict[tuple[int, ...], np.ndarray]:
    """Return the chances [V] of the token that follows, by the tokens that are kept."""
    law = defaultdict[tuple[int, ...], Any](float)
    for chance, stop in stops:
        kept = drafts[stop.draft].tokens[: stop.num_accepted]
        law[kept] = law[kept] + chance * normalise(stop.distribution.double().numpy())
    return law


def _decides_otherwise(rule: Verifier, remedy: str) -> HierspecError:
    return HierspecError(
        f"{plugins.where(type(rule))}: rule {rule.name!r} decides otherwise where p and q are "
        f"float32, as a model's are: compute with {remedy}"
    )


def _verdicts_with_next_token(
    node: Verify,
    models: ModelRows,
    draft: Proposal,
    tau: int,
    next_row: np.ndarray,
    ids: tuple[int, ...],
    model_ids: tuple[int, ...],
) -> Iterator[tuple[float, Verdict]]:
    """Yield verdicts that keep τ tokens, one for each next token that ``next_row`` [V] may give.

    ``ids`` are of the rows that are reported, ``model_ids`` of the node's model's rows; at least
    τ + 1 of each.
    """
    endings: list[tuple[float, tuple[int, ...]]] = [(1.0, ())]
    if node.bonus or not 0 < tau == len(draft):
        endings = [(float(next_row[y]), (y,)) for y in np.flatnonzero(next_row).tolist()]
    for probability, ending in endings:
        n = tau + len(ending)
        tokens = draft.tokens[:tau] + ending
        yield probability, models.verdict(node, tau, tokens, ids[:n], model_ids[:n])


WeightedDrafts = list[tuple[float, Proposal]]  # with their probabilities


def combine_drafts(node: Draft, single: WeightedDrafts, rows: Rows) -> WeightedDrafts:
    """Return all lists of ``node.num_drafts`` drafts from one position, given the single drafts."""
    lists: list[tuple[float, tuple[Proposal, ...]]] = [(1.0, ())]
    for _ in range(node.num_drafts):
        longer = []
        for probability, drafts in lists:
            excluded = {draft.tokens[0] for draft in drafts} if node.distinct else set()
            candidates = exclude_first_tokens(single, excluded, rows) if excluded else single
            if not candidates:  # every possible first token is taken
                longer.append((probability, drafts))
            longer += [(probability * share, (*drafts, draft)) for share, draft in candidates]
        lists = longer
    return [
        (probability, dataclasses.replace(drafts[0], alternatives=drafts[1:]))
        for probability, drafts in lists
    ]


def exclude_first_tokens(single: WeightedDrafts, excluded: set[int], rows: Rows) -> WeightedDrafts:
    """Return the single drafts, given that their first token is none of ``excluded``."""
    rest = [(chance, draft) for chance, draft in single if draft.tokens[0] not in excluded]
    total = sum(chance for chance, _ in rest)
    result = []
    for chance, draft in rest:
        first, *ids = row_ids(draft)
        row = rows.rows[first].copy()
        row[list(excluded)] = 0.0
        distributions = TableDistributions(rows, (rows.intern(normalise(row)), *ids))
        result.append((chance / total, dataclasses.replace(draft, distributions=distributions)))
    return result
