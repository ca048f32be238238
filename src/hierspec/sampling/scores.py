"""From scores to laws: penalties, processors, temperature and truncation, at every row of a draft.

A row in the middle of a draft has a history of its own: the context, then the drafted tokens
before it. Whatever depends on history (penalties, a grammar, a third party's logits processor)
sees that history, so a request with penalties keeps its exact law under speculation.

Order, as in transformers: logit bias, repetition penalty (prompt and output), frequency and
presence penalties (output only, as in vLLM), processors; then temperature, top-k, top-p, min-p.

Shapes: R rows over V scored ids.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from hierspec.core.context import Context
from hierspec.core.distributions import Distributions
from hierspec.errors import HierspecError

from .parameters import SamplingParams
from .penalties import History, penalise
from .sampler import NoLawError, Sampler, signal_of

__all__ = ["History", "Job", "SamplingParams", "distributions", "logprobs", "signals"]


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """The rows of one query (:class:`hierspec.lm.base.Query`) and how to read them.

    Row j (of ``num_rows``) scores the token after ``context[: start + j]``.

    Attributes:
        params: of the request.
        context: committed and pending tokens, the draft included.
        start: length of row 0's history.
        prompt_length: where the output begins in ``context``.
        vocab_size: of the target; ids past it get no mass, at any level.
        temperature: the level's own; ``None`` for the request's, ignored when that is greedy.
        history: see :class:`History`; ``None`` counts afresh.
        model: name, for messages.
    """

    params: SamplingParams
    context: Context
    start: int
    num_rows: int
    prompt_length: int
    vocab_size: int
    temperature: float | None = None
    history: History | None = None
    model: str = "model"


def distributions(jobs: Sequence[Job], logits: torch.Tensor) -> list[Distributions]:
    """The law of every row of every job.

    Args:
        jobs: in the order their rows are packed.
        logits: raw scores [Σ num_rows, V]; not modified. V may be below a job's ``vocab_size``
            (laws are then narrower, unless processors edit them) or above it (a padded embedding:
            the rest is cut off).

    Returns:
        one value per job: :class:`OneHotDistributions` where greedy, else
        :class:`DenseDistributions` (float64 for float64 scores, float32 otherwise).

    Raises:
        ValueError: NaN scores, or a row whose every token is forbidden.
    """
    if logits.dtype not in (torch.float32, torch.float64):
        logits = logits.float()
    raw = logits
    widths = [_width(job, raw.shape[1]) for job in jobs]
    if any(job.params.edits_scores for job in jobs):
        logits = _edited(jobs, logits, widths)
    readings = [sampler_of(job, width) for job, width in zip(jobs, widths, strict=True)]
    out: list[Distributions] = []
    first = row = 0
    while first < len(jobs):
        sampler, last, stop = readings[first], first + 1, row + jobs[first].num_rows
        while last < len(jobs) and readings[last] == sampler:
            stop += jobs[last].num_rows
            last += 1
        scores = logits if stop - row == logits.shape[0] else logits[row:stop]
        if scores.shape[1] > sampler.vocab_size:
            scores = scores[:, : sampler.vocab_size]
        try:
            batch = sampler.distributions(scores)
        except NoLawError:
            raise unusable(jobs[first:last], scores, raw[row:stop]) from None
        if last - first == 1:
            out.append(batch)
        else:
            at = 0
            for job in jobs[first:last]:
                out.append(batch.rows(at, at + job.num_rows))
                at += job.num_rows
        first, row = last, stop
    return out


def signals(
    logits: torch.Tensor, tokens: Sequence[int], kind: Literal["entropy", "confidence"]
) -> list[float]:
    """What windows read, from untempered scores [R, V]; scores of -inf have probability 0.

    ``"entropy"``: of each row, in nats. ``"confidence"``: the probability of ``tokens[r]``.
    """
    if not logits.shape[0]:
        return []
    if kind == "confidence":
        return [math.exp(value) for value in logprobs(logits, tokens)]
    return signal_of(logits, torch.empty(0), kind).tolist()


def logprobs(logits: torch.Tensor, tokens: Sequence[int]) -> list[float]:
    """Log-probability (nats) of ``tokens[r]`` under row r of raw scores [R, V].

    An id past V (a padded embedding above) has -inf.
    """
    if not logits.shape[0]:
        return []
    width = logits.shape[1]
    rows = logits.log_softmax(-1)
    if len(tokens) == 1 and tokens[0] < width:
        return [float(rows[0, tokens[0]])]
    inside = torch.tensor([min(t, width - 1) for t in tokens], device=logits.device)
    values = rows.gather(1, inside.unsqueeze(1)).squeeze(1).tolist()
    return [v if t < width else -math.inf for t, v in zip(tokens, values, strict=True)]


def sampler_of(job: Job, width: int | None = None) -> Sampler:
    """Equal for jobs whose (edited) rows, ``width`` columns of them, may become laws in one batch.

    ``width``: at most the job's ``vocab_size``, which it is by default.
    """
    params = job.params
    width = job.vocab_size if width is None else width
    temperature = params.temperature
    if temperature != 0.0 and job.temperature is not None:
        temperature = job.temperature
    if temperature == 0.0:
        return _reading(width, 0.0, None, None, None)
    return _reading(width, temperature, params.top_k, params.top_p, params.min_p)


_reading = functools.lru_cache(maxsize=64)(Sampler)


def _width(job: Job, width: int) -> int:
    """How many columns a job's rows have once edited, from ``width`` that its model scores.

    The target's vocabulary, also where a narrower model is edited by processors (their masks and
    tables are made for the target) or by biases that may ban all it can say.
    """
    params = job.params
    if width < job.vocab_size and (params.logits_processors or len(params.logit_bias) >= width):
        return job.vocab_size
    return min(width, job.vocab_size)


def _edited(jobs: Sequence[Job], logits: torch.Tensor, widths: Sequence[int]) -> torch.Tensor:
    """A copy of ``logits`` [Σ num_rows, V] with every job's edits, each in its own width."""
    known = logits.shape[1]
    missing = max(widths) - known
    if missing > 0:
        logits = torch.nn.functional.pad(logits, (0, missing), value=-math.inf)
    else:
        logits = logits.clone()
    row = 0
    for job, width in zip(jobs, widths, strict=True):
        scores = logits[row : row + job.num_rows, :width]
        row += job.num_rows
        if width > known:
            _edit_padded(job, scores, known)
        else:
            _edit(job, scores)
    return logits


def _edit_padded(job: Job, scores: torch.Tensor, known: int) -> None:
    """Edit ``scores`` [num_rows, V] of a model that scores the first ``known`` ids only, in place.

    Where nothing that the model can say is left, it finds what else is left equally likely: so
    a draft goes on where the target alone has a token, and any law of a draft's is as good to the
    rules above.
    """
    equal = scores.clone()
    equal[:, known:] = 0.0
    _edit(job, scores)
    scores[:, known:].masked_fill_(scores[:, known:].isnan(), -math.inf)  # sums of ±inf: no token
    mute = scores.amax(-1) == -math.inf
    if bool(mute.any()):
        _edit(job, equal)
        scores[mute] = equal[mute]


def _edit(job: Job, scores: torch.Tensor) -> None:
    """Apply a job's bias, penalties and processors to ``scores`` [num_rows, V], in place."""
    for token, bias in job.params.logit_bias:
        if token < scores.shape[1]:
            scores[:, token] += bias
    if job.params.has_penalties:
        penalise(scores, job.context, job.start, job.prompt_length, job.params, job.history)
    if job.params.logits_processors:
        _process(job, scores)


def _process(job: Job, scores: torch.Tensor) -> None:
    """Run the logits processors row by row on ``scores`` [num_rows, V], in place."""
    ids = torch.tensor([job.context.tokens()], device=scores.device)
    for row in range(job.num_rows):
        history, one = ids[:, : job.start + row], scores[row : row + 1]
        for processor in job.params.logits_processors:
            one = processor(history, one)
            if not isinstance(one, torch.Tensor) or one.shape != (1, scores.shape[1]):
                got = f"shape {tuple(one.shape)}" if isinstance(one, torch.Tensor) else repr(one)
                raise HierspecError(
                    f"logits processor {processor!r} returned {got}, "
                    f"expected shape (1, {scores.shape[1]})"
                )
        scores[row] = one[0]


def unusable(jobs: Sequence[Job], scores: torch.Tensor, raw: torch.Tensor) -> ValueError:
    """Why some row is no law, and whose it is; ``raw``: before biases, penalties, processors.

    Jobs and rows side by side, as :func:`laws` takes them.
    """
    at = 0
    for job in jobs:
        rows, own = scores[at : at + job.num_rows], raw[at : at + job.num_rows]
        at += job.num_rows
        if not bool((rows < math.inf).all()):
            kind = "NaN" if bool(rows.isnan().any()) else "infinite"
            if bool((own < math.inf).all()):
                edits = (
                    ", ".join(map(repr, job.params.logits_processors)) or "logit_bias, penalties"
                )
                return HierspecError(
                    f"{job.model}'s scores became {kind} through {edits}: mend that"
                )
            return HierspecError(f"{job.model} produced {kind} scores; try --dtype float32")
        if bool((rows == -math.inf).all(-1).any()):
            return HierspecError(
                f"every token is forbidden after {job.start} or more tokens of {job.model}'s "
                "context; loosen logit_bias or the logits processors"
            )
    return HierspecError("scores too large for this temperature; raise it, or use 0 for greedy")
