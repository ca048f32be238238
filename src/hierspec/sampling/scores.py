"""From scores to distributions: penalties, processors, temperature and truncation, at every row.

A row in the middle of a draft has a history of its own: the context, then the drafted tokens
before it. Whatever depends on history (penalties, a grammar, a third party's logits processor)
sees that history, so a request with penalties keeps its exact distribution under speculation.

Order, as in transformers: logit bias, repetition penalty (prompt and output), frequency and
presence penalties (output only, as in vLLM), processors; then what
:class:`~hierspec.sampling.sampler.Sampler` does: temperature, top-k, top-p, min-p.

Shapes: R rows over V scored ids.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby, starmap

import torch

from hierspec.core.context import Context
from hierspec.core.distributions import (
    DenseDistributions,
    Distributions,
    OneHotDistributions,
    UnreadOneHot,
    checked_token,
    race,
    race_on_device,
)
from hierspec.core.rng import Noise
from hierspec.core.windows import Signal
from hierspec.errors import HierspecError
from hierspec.utils.reads import Read, Reads, sent

from . import processors as processors_of
from .parameters import SamplingParams
from .penalties import History, penalise
from .sampler import NoDistributionError, Sampler, signal_of


@dataclass(frozen=True, slots=True, eq=False)
class ScoreRows:
    """The rows of one query (:class:`hierspec.lm.base.Query`), and how they become distributions.

    Row j (of ``num_rows``) scores the token after ``context[: start + j]``.

    Attributes:
        context: committed and pending tokens, the draft included.
        start: length of row 0's history.
        prompt_length: where the output begins in ``context``.
        vocab_size: of the target; ids past it get no mass, at any level.
        temperature: the level's own, ignored where the request's is 0; ``None``: the request's.
        history: see :class:`History`; ``None`` counts afresh.
        model: name, for messages.
        noise: of the text's positions, where tokens are drawn by a race; rows are one-hot then.
        partial: whether its model scores some ids only, and gives −∞ to the others.
        end_ids: ids that end the text.
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
    noise: Noise | None = None
    partial: bool = False
    end_ids: frozenset[int] = frozenset()

    def sampler(self, width: int | None = None) -> Sampler:
        """Return the sampler of these rows, of ``width`` columns once edited."""
        params = self.params
        width = self.vocab_size if width is None else width
        temperature = params.temperature
        if temperature != 0.0 and self.temperature is not None:
            temperature = self.temperature
        if temperature == 0.0:
            return _sampler(width, 0.0, None, None, None)
        return _sampler(width, temperature, params.top_k, params.top_p, params.min_p)

    def edited_width(self, width: int) -> int:
        """Return how many columns the rows have once edited, of ``width`` that their model scores.

        The target's vocabulary, also where a narrower model is edited by processors (their masks
        and tables are made for the target) or by biases that may ban all ids it knows.
        """
        params = self.params
        if width < self.vocab_size and (
            params.logits_processors or len(params.logit_bias) >= width
        ):
            return self.vocab_size
        return min(width, self.vocab_size)

    def edit(self, scores: torch.Tensor) -> None:
        """Apply bias, penalties and processors to ``scores`` [num_rows, V], in place."""
        params = self.params
        for token, bias in params.logit_bias:
            if token < scores.shape[1]:
                scores[:, token] += bias
        if params.has_penalties:
            penalise(scores, self.context, self.start, self.prompt_length, params, self.history)
        if params.logits_processors:
            self._process(scores)

    def edit_incomplete(self, scores: torch.Tensor) -> None:
        """Apply :meth:`edit` to scores of a model that knows some ids only (−∞ for the others).

        Where no id that the model knows is allowed, the other allowed ids become equally likely, so
        that a draft goes on where only the target has a token. To the rules above any distribution
        of a draft is as good as another.
        """
        unknown = scores == -math.inf
        equal = scores.masked_fill(unknown, 0.0)
        self.edit(scores)
        scores.masked_fill_(unknown & scores.isnan(), -math.inf)  # sums of ±inf: no token
        banned = scores.amax(-1) == -math.inf
        if bool(banned.any()):
            self.edit(equal)
            if self.params.logits_processors:  # not asked about what follows such a row
                banned = banned.cumsum(0) > 0
            scores[banned] = equal[banned]

    @torch.no_grad()
    def _process(self, scores: torch.Tensor) -> None:
        tokens, width = self.context.tokens(), scores.shape[1]
        takes_any_text = all(map(processors_of.takes_any_text, self.params.logits_processors))
        ended = not self.end_ids.isdisjoint(tokens[self.prompt_length : self.start])
        if ended and not takes_any_text:
            return
        ids = torch.tensor([tokens], device=scores.device)
        processors = self.params.logits_processors
        if self.temperature is not None:  # the level's own, in place of the request's
            processors = tuple(one for one in processors if not processors_of.is_temperature(one))
        for row in range(self.num_rows):
            # A processor may know no text that goes on after its end, or after a token that it
            # has forbidden. Nobody reads such rows: what is before ends the text, or is rejected.
            if row and not takes_any_text:
                last = tokens[self.start + row - 1]
                if last in self.end_ids or last >= width or scores[row - 1, last] == -math.inf:
                    return
            history, edited = ids[:, : self.start + row], scores[row : row + 1]
            for processor in processors:
                edited = processor(history, edited)
                if not isinstance(edited, torch.Tensor) or edited.shape != (1, scores.shape[1]):
                    is_tensor = isinstance(edited, torch.Tensor)
                    raise HierspecError(
                        f"logits processor {processor!r} returned "
                        f"{f'shape {tuple(edited.shape)}' if is_tensor else repr(edited)}, "
                        f"expected shape (1, {scores.shape[1]})"
                    )
            scores[row] = edited[0]


_sampler = functools.lru_cache(maxsize=64)(Sampler)


def distributions(
    batch: Sequence[ScoreRows], logits: torch.Tensor, reads: Reads | None = None
) -> list[Distributions]:
    """Return the next-token distribution of every row, in one value for each member of ``batch``.

    Args:
        batch: in the order their rows are packed.
        logits: raw scores [Σ num_rows, V]; not modified. V may be below a member's ``vocab_size``
            (distributions are then narrower, unless processors edit them) or above it (a padded
            embedding: the rest is cut off).
        reads: what greedy and raced tokens on an accelerator are read with.

    Returns:
        :class:`~hierspec.core.distributions.OneHotDistributions` where greedy or raced, else
        :class:`~hierspec.core.distributions.DenseDistributions` (float64 for float64 scores,
        float32 otherwise).

    Raises:
        HierspecError: NaN scores, or a row whose every token is forbidden; on an accelerator only
            when a row's token is first looked at, or drawn.
    """
    if logits.dtype not in (torch.float32, torch.float64):
        logits = logits.float()
    raw = logits
    num_scored = raw.shape[1]
    widths = [rows.edited_width(num_scored) for rows in batch]
    if any(rows.params.edits_scores for rows in batch):
        logits = _apply_edits(batch, logits, widths)
    samplers = [rows.sampler(width) for rows, width in zip(batch, widths, strict=True)]
    far = None if logits.is_cpu else reads or Reads()
    out: list[Distributions] = []
    start = 0
    for sampler, pairs in groupby(zip(samplers, batch, strict=True), key=lambda pair: pair[0]):
        group = [rows for _, rows in pairs]
        stop = start + sum(rows.num_rows for rows in group)
        scores = logits if stop - start == logits.shape[0] else logits[start:stop]
        if scores.shape[1] > sampler.vocab_size:
            scores = scores[:, : sampler.vocab_size]
        # Not a slice: a forward has displaced torch's code from the core's caches, and one more
        # operation takes as long as the largest of a row.
        error = partial(scores_error, group, scores, raw, start)
        try:
            group_rows = sampler.distributions(scores, far)
        except NoDistributionError:
            raise error() from None
        if isinstance(group_rows, UnreadOneHot):
            group_rows = _explained(group_rows, error)
        first = 0
        for rows in group:
            last = first + rows.num_rows
            member_rows = group_rows if len(group) == 1 else group_rows.rows(first, last)
            if rows.noise is not None and isinstance(member_rows, DenseDistributions):
                member_rows = _raced(member_rows.probs, rows.noise, rows.start, far)
            out.append(member_rows)
            first = last
        start = stop
    return out


def _explained(rows: UnreadOneHot, error: Callable[[], HierspecError]) -> UnreadOneHot:
    """Return the same rows, which raise ``error`` where they turn out to be no distributions."""

    def look() -> tuple[int, ...]:
        try:
            return rows.ids
        except NoDistributionError:
            raise error() from None

    return UnreadOneHot(rows.tokens, rows.vocab_size, look)


def _raced(
    probs: torch.Tensor, noise: Noise, position: int, reads: Reads | None
) -> OneHotDistributions:
    """Return the tokens drawn by a race from rows [n, V] of consecutive positions."""
    if reads is None:
        return OneHotDistributions(tuple(race(probs, noise, position)))
    numbers = race_on_device(probs, noise, position)
    read = reads.add(numbers)
    return UnreadOneHot(
        numbers[0].long(),
        probs.shape[1],
        lambda: tuple(starmap(checked_token, zip(*read.look(), strict=True))),
    )


def _apply_edits(
    batch: Sequence[ScoreRows], logits: torch.Tensor, widths: Sequence[int]
) -> torch.Tensor:
    num_scored = logits.shape[1]
    missing = max(widths) - num_scored
    if missing > 0:
        logits = torch.nn.functional.pad(logits, (0, missing), value=-math.inf)
    else:
        logits = logits.clone()
    row = 0
    for rows, width in zip(batch, widths, strict=True):
        scores = logits[row : row + rows.num_rows, :width]
        row += rows.num_rows
        if width > num_scored or rows.partial:
            rows.edit_incomplete(scores)
        else:
            rows.edit(scores)
    return logits


def scores_error(
    batch: Sequence[ScoreRows], scores: torch.Tensor, raw: torch.Tensor, first: int = 0
) -> HierspecError:
    """Return the error that says why some row, from ``raw[first]`` on before it was edited, is no
    distribution."""
    offset = 0
    for rows in batch:
        end = offset + rows.num_rows
        edited, unedited = scores[offset:end], raw[first + offset : first + end]
        offset = end
        if not bool((edited < math.inf).all()):
            kind = "NaN" if bool(edited.isnan().any()) else "infinite"
            if bool((unedited < math.inf).all()):
                processors = ", ".join(map(repr, rows.params.logits_processors))
                return HierspecError(
                    f"{processors or 'logit_bias or penalties'} made {rows.model}'s scores {kind}: "
                    "change that"
                )
            return HierspecError(f"{rows.model} produced {kind} scores; try --dtype float32")
        if bool((edited == -math.inf).all(-1).any()):
            return HierspecError(
                f"every token is forbidden after {rows.start} or more tokens of {rows.model}'s "
                "context; loosen logit_bias or the logits processors"
            )
    return HierspecError("scores too large for this temperature; raise it, or use 0 for greedy")


class ScoredTokens:
    """What windows and log-probabilities read of rows [n + 1, V] of raw scores, on an accelerator.

    Made before it is known how many of n drafted tokens are accepted: token i < n of what is
    emitted is the drafted one where it is accepted, else the verifier's own.

    Args:
        drafted: n tokens.
        own: [n + 1] int64, what the verifier emits at each row if no longer the draft's token.
        signal: what a window reads.
        top: of how many likeliest tokens log-probabilities are wanted, beside the emitted ones;
            ``None``: of none at all.
    """

    def __init__(
        self,
        scores: torch.Tensor,
        drafted: Sequence[int],
        own: torch.Tensor,
        reads: Reads,
        signal: Signal | None,
        top: int | None,
    ) -> None:
        self._entropies: Read | None = None
        self._surprises: Read | None = None
        self._best: Read | None = None
        if signal == "entropy":
            self._entropies = reads.add(signal_of(scores, own, "entropy"))
        if signal != "confidence" and top is None:
            return
        rows, width = scores.log_softmax(-1), scores.shape[1]
        tokens = own.repeat(2, 1)
        tokens[0, : len(drafted)] = sent(drafted, torch.long, scores.device)
        found = rows.expand(2, -1, -1).gather(2, tokens.clamp(max=width - 1).unsqueeze(2))
        self._surprises = reads.add(found.squeeze(2).where(tokens < width, -math.inf))
        if top:
            values, ids = rows.topk(min(top, width))
            self._best = reads.add(torch.stack((ids.double(), values.double())))

    def signals(self, kind: Signal, num_accepted: int, num_rows: int) -> list[float]:
        """See :func:`compute_signals`, for the tokens of a verdict."""
        if kind == "confidence":
            return [math.exp(value) for value in self.logprobs(num_accepted, num_rows)]
        assert self._entropies is not None
        return self._entropies.look()[:num_rows].tolist()

    def logprobs(self, num_accepted: int, num_rows: int) -> list[float]:
        """See :func:`logprobs`, for the accepted tokens and the verifier's own after them."""
        assert self._surprises is not None
        drafted, own = self._surprises.look()
        return [*drafted[:num_accepted].tolist(), *own[num_accepted:num_rows].tolist()]

    def best(self, num_rows: int) -> list[tuple[tuple[int, float], ...]]:
        """See :func:`top_logprobs`; nothing where none were wanted."""
        if self._best is None:
            return []
        tokens, values = self._best.look()[:, :num_rows].tolist()
        return [
            tuple(zip(map(int, ids), row, strict=True))
            for ids, row in zip(tokens, values, strict=True)
        ]


def compute_signals(logits: torch.Tensor, tokens: Sequence[int], kind: Signal) -> list[float]:
    """Compute what windows read, from untempered scores [R, V]; a score of −inf has probability 0.

    ``"entropy"``: of each row, in nats. ``"confidence"``: the probability of ``tokens[r]``.
    """
    if not logits.shape[0]:
        return []
    if kind == "confidence":
        return [math.exp(value) for value in logprobs(logits, tokens)]
    return signal_of(logits, torch.empty(0), kind).tolist()


def top_logprobs(logits: torch.Tensor, k: int) -> list[tuple[tuple[int, float], ...]]:
    """Return each row's ``k`` likeliest tokens, best first, with log-probabilities in nats.

    ``logits`` are raw scores [R, V]. All V of them are returned where there are no more.
    """
    if not logits.shape[0]:
        return []
    values, tokens = logits.log_softmax(-1).topk(min(k, logits.shape[1]))
    pairs = zip(tokens.tolist(), values.tolist(), strict=True)
    return [tuple(zip(ids, row, strict=True)) for ids, row in pairs]


def logprobs(logits: torch.Tensor, tokens: Sequence[int]) -> list[float]:
    """Return the log-probability (nats) of ``tokens[r]`` under row r of raw scores [R, V].

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
