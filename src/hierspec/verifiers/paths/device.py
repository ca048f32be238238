"""The general way: a padded batch through acceptance, scan and residual; a CUDA graph if possible.

It works for every rule and is used for all on an accelerator: one call, one wait for its result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from hierspec.core.distributions import (
    DenseDistributions,
    Distributions,
    OneHotDistributions,
    UnreadOneHot,
    checked_token,
    locate,
    parts,
)
from hierspec.core.proposals import Verdict
from hierspec.core.rules import Batch, Verifier, scan
from hierspec.utils.graphs import Graphs, upload
from hierspec.utils.reads import Reads, sent
from hierspec.verifiers.acceptance import acceptance_of, correction_of, is_checked

from .case import DraftCase

_MAX_KEPT_BYTES = 1 << 27  # of a shape's tensors; larger ones are not kept between calls
_FEW_TOKENS = 8


class _Decision(NamedTuple):
    """Tensors of a decision.

    Attributes:
        stops: [B, 3] float64: τ, the token that follows, the mass of the row it was drawn from;
            one tensor, so that an accelerator is waited for once.
        reported: [B, n + 1, V] where the rule reports distributions other than the verifier's.
    """

    stops: torch.Tensor
    reported: torch.Tensor | None


def verdicts(cases: Sequence[DraftCase]) -> list[Verdict]:
    _, finish = start(cases, Reads())
    return finish()


def start(
    cases: Sequence[DraftCase], reads: Reads, graphs: Graphs | None = None
) -> tuple[torch.Tensor, Callable[[], list[Verdict]]]:
    """Begin to decide all drafts, of one rule, as one batch.

    Args:
        reads: what the outcome is read with.
        graphs: of the rows' device, if given; decisions are recorded as one CUDA graph a shape,
            except those of a user's rule, which the host checks.

    Returns:
        The tokens that follow the accepted ones, [B] int64, on the device; and what waits and gives
        the verdicts.
    """
    rule, shape = cases[0].rule, BatchShape.of_cases(cases)
    uniforms = [case.rng.take(len(case.draft) + 1).tolist() for case in cases]
    if is_checked(rule):
        graphs = None
    if graphs is not None and graphs.device.type == shape.device.type and shape.bucket().small:
        decision = _decide_recorded(graphs, rule, shape.bucket(), cases, uniforms)
    else:
        padded = sent(_pad_rows(uniforms, shape), torch.float64, shape.device)
        decision = _decide(rule, pad_cases(cases, shape), padded)
    stops = decision.stops[: len(cases)]  # a recorded batch has spare rows
    read = reads.add(stops)

    def finish() -> list[Verdict]:
        out: list[Verdict] = []
        for b, (case, (tau, token, mass)) in enumerate(zip(cases, read.look(), strict=True)):
            next_token = checked_token(token, mass)
            rows = decision.reported
            distributions = case.p if rows is None else DenseDistributions(rows[b])
            num_accepted = int(tau)
            token = None if case.drops_bonus(num_accepted) else next_token
            out.append(case.verdict(num_accepted, token, distributions))
        return out

    return stops[:, 1].long(), finish


def _decide(rule: Verifier, batch: Batch, uniforms: torch.Tensor) -> _Decision:
    accepted = acceptance_of(rule, batch)
    tau = scan(rule.order, accepted.h, uniforms[:, :-1])
    ids, mass = locate(correction_of(rule, batch, accepted, tau), uniforms[:, -1:])
    # On accelerators nothing has checked the scores before: a NaN must not pass for a number.
    is_read = torch.arange(batch.p.shape[1], device=tau.device) <= tau.unsqueeze(1)
    sound = ((batch.p[..., 0] >= 0.0) | ~is_read).all(1, keepdim=True)
    mass = torch.where(sound, mass, torch.nan)
    stops = torch.cat((tau.double().unsqueeze(1), ids, mass), 1)
    reports_p = type(rule).reported is Verifier.reported
    return _Decision(stops, None if reports_p else rule.reported(batch))


def _decide_recorded(
    graphs: Graphs,
    rule: Verifier,
    shape: BatchShape,
    cases: Sequence[DraftCase],
    uniforms: Sequence[list[float]],
) -> _Decision:
    """Decide on static tensors of that shape, by a recorded CUDA graph where possible."""

    def make() -> tuple[tuple[Batch, torch.Tensor, _Decision], Callable[[], None]]:
        batch = shape.empty(graphs)
        size = (shape.rows, shape.tokens + 1)
        padded = torch.zeros(size, dtype=torch.float64, device=shape.device)
        out = _decide(rule, batch, padded)
        if out.reported is not None:
            reported = out.reported
            kept = graphs.buffer("reported", reported.shape, reported.dtype, reported.device)
            out = out._replace(reported=kept)

        def body() -> None:
            fresh = _decide(rule, batch, padded)
            out.stops.copy_(fresh.stops)
            if out.reported is not None and fresh.reported is not None:
                out.reported.copy_(fresh.reported)

        return (batch, padded, out), body

    with torch.inference_mode():  # always, as static tensors outlive the first call
        call = graphs.get((rule, shape), make)
        batch, padded, out = call.tensors
        fill_batch(batch, cases)
        upload(padded, _pad_rows(uniforms, shape))
        call.run()
    # A copy, because the next decision of this shape writes there.
    return _Decision(out.stops, None if out.reported is None else out.reported.clone())


def _pad_rows(uniforms: Sequence[list[float]], shape: BatchShape) -> list[list[float]]:
    """Return [B, n + 1]: each draft's n for the scan, padded with 0, then its last uniform."""
    rows = [us[:-1] + [0.0] * (shape.tokens + 1 - len(us)) + us[-1:] for us in uniforms]
    return rows + [[0.0] * (shape.tokens + 1)] * (shape.rows - len(rows))


# --- drafts padded to one shape; no padding reaches a result


class BatchShape(NamedTuple):
    """The shape of a batch: B rows of n tokens over V ids; hashable."""

    rows: int
    tokens: int
    width: int
    scores: bool
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of_cases(cls, cases: Sequence[DraftCase]) -> BatchShape:
        width = max(max(case.p.width, case.draft.distributions.width) for case in cases)
        scores = cases[0].rule.reads_scores and cases[0].scores is not None
        if scores:  # one-hot rows are as wide as their ids, which the draft's tokens may decide
            width = max(
                width, *(case.scores.shape[-1] for case in cases if case.scores is not None)
            )
        tokens = max(len(case.draft) for case in cases)
        return cls(len(cases), tokens, width, scores, *_dense_type(cases))

    def bucket(self) -> BatchShape:
        """Return the shape of static tensors for it: counts rounded up to powers of two.

        Tokens are at least a few, so that budgets that change need few shapes.
        """
        counts = (self.rows, max(_FEW_TOKENS, self.tokens))
        rows, tokens = (1 << (n - 1).bit_length() for n in counts)
        return self._replace(rows=rows, tokens=tokens)

    @property
    def small(self) -> bool:
        rows = self.rows * ((3 if self.scores else 2) * self.tokens + 2)
        return rows * self.width * self.dtype.itemsize <= _MAX_KEPT_BYTES

    def empty(self, graphs: Graphs | None = None) -> Batch:
        """Make rows with all mass on token 0; every row is a draft of no tokens.

        With ``graphs`` they are in memory that batches of other shapes use as well.
        """
        rows, n, width, scores, dtype, device = self

        def one_hot(name: str, length: int) -> torch.Tensor:
            size = (rows, length, width)
            if graphs is None:
                out = torch.zeros(size, dtype=dtype, device=device)
            else:
                out = graphs.buffer(name, size, dtype, device).zero_()
            out[..., 0] = 1.0
            return out

        tokens = torch.zeros(rows, n, dtype=torch.long, device=device)
        lengths = torch.zeros(rows, dtype=torch.long, device=device)
        ranked = one_hot("ranked", n + 1) if scores else None
        return Batch(one_hot("p", n + 1), one_hot("q", n), tokens, lengths, ranked)


def pad_cases(cases: Sequence[DraftCase], shape: BatchShape) -> Batch:
    if len(cases) > 1:
        batch = shape.empty()
        fill_batch(batch, cases)
        return batch
    (case,) = cases  # nothing to pad, so nothing to copy
    p = case.p.dense(shape.width).to(shape.device, shape.dtype)
    return Batch(
        p.unsqueeze(0),
        case.draft.distributions.dense(shape.width).to(p).unsqueeze(0),
        sent([case.draft.tokens], torch.long, shape.device),
        sent([shape.tokens], torch.long, shape.device),
        widen_scores(case.scores, shape.width).to(p.device).unsqueeze(0)
        if shape.scores and case.scores is not None
        else None,
    )


def fill_batch(batch: Batch, cases: Sequence[DraftCase]) -> None:
    (rows, n), width = batch.tokens.shape, batch.p.shape[-1]
    drafts = [case.draft for case in cases]
    spare = rows - len(cases)
    upload(batch.lengths, [len(draft) for draft in drafts] + [0] * spare)
    upload(batch.tokens, [[*d.tokens] + [0] * (n - len(d)) for d in drafts] + [[0] * n] * spare)
    for b, (case, draft) in enumerate(zip(cases, drafts, strict=True)):
        _write(batch.p[b, : len(draft) + 1], case.p)
        _write(batch.q[b, : len(draft)], draft.distributions)
        if batch.scores is not None:
            assert case.scores is not None, "scores for all drafts of a batch, or for none"
            batch.scores[b, : len(draft) + 1] = widen_scores(case.scores, width)


def _write(out: torch.Tensor, distributions: Distributions) -> None:
    """Copy into as many rows ``out`` [n, V], without waiting for the device they are on."""
    row = 0
    for part in parts(distributions):
        rows = out[row : row + len(part)]
        row += len(part)
        if not len(part):
            continue
        if isinstance(part, OneHotDistributions):  # `dense` would make them on the CPU
            if isinstance(part, UnreadOneHot) and part.tokens.device == out.device:
                ids = part.tokens
            else:
                ids = sent(part.ids, torch.long, out.device)
            rows.zero_().scatter_(1, ids.unsqueeze(1), 1.0)
        else:
            rows.copy_(part.dense(out.shape[1]), non_blocking=True)


def widen_scores(scores: torch.Tensor, width: int) -> torch.Tensor:
    """Pad scores to a larger vocabulary; ids that the model lacks score −inf."""
    missing = width - scores.shape[-1]
    return torch.nn.functional.pad(scores, (0, missing), value=-torch.inf) if missing else scores


def _dense_type(cases: Sequence[DraftCase]) -> tuple[torch.dtype, torch.device]:
    """Return dtype and device that rows of p have once they are dense.

    One-hot rows become dense where the drafts' rows are: a greedy level above one that samples on
    an accelerator must not bring those to the host.
    """
    rows = [case.p for case in cases] + [case.draft.distributions for case in cases]
    dense = [p for row in rows for p in parts(row) if isinstance(p, DenseDistributions)]
    far = [p.probs for p in dense if p.probs.device.type != "cpu"]
    own = [p for p in parts(cases[0].p) if isinstance(p, DenseDistributions)]
    if not own:
        unread = [p.tokens for row in rows for p in parts(row) if isinstance(p, UnreadOneHot)]
        devices = [tensor.device for tensor in (*far, *unread)]
        return far[0].dtype if far else torch.float64, devices[0] if devices else _CPU
    return own[0].probs.dtype, far[0].device if far else own[0].probs.device


_CPU = torch.device("cpu")
