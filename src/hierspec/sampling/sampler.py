"""Sampling one token from a row of scores: temperature, truncation, and the draw itself.

Temperature, then top-k, top-p, min-p, in transformers' order. A sampler is a value: rows with equal
samplers become distributions together, and one of them picks all tokens of a draft.

Shapes: R rows over V scored ids.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from hierspec.core.distributions import (
    DenseDistributions,
    Distributions,
    OneHotDistributions,
    Uniforms,
    UnreadOneHot,
    draw,
    locate,
    row_sums,
)
from hierspec.core.windows import Signal
from hierspec.errors import HierspecError
from hierspec.utils.reads import Reads
from hierspec.utils.threads import OneThread

_ONE_THREAD_NUMEL = 1 << 17  # for up to so many scores one thread is faster than several
_BLOCK = 64  # scores whose largest says whether the best may be among them


class NoDistributionError(Exception):
    """A row of scores has NaN, or no token left.

    Attributes:
        scores: the rows, [R, V], where they can still be looked at.
    """

    def __init__(self, scores: torch.Tensor | None = None) -> None:
        super().__init__("scores that are no distribution")
        self.scores = scores


class PickedTokens(NamedTuple):
    """Tokens drawn on a device that has not been waited for.

    Attributes:
        tokens: [R] int64.
        probs: [R, V] what they were drawn from, cut to the sampler's vocabulary; ``None`` where
            that is one-hot.
        ok: [R] bool: false where the row was no distribution (NaN, or every token forbidden), and
            its token is meaningless.
        signals: [R] float64 what a window reads, where the sampler names it.
    """

    tokens: torch.Tensor
    probs: torch.Tensor | None
    ok: torch.Tensor
    signals: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class Sampler:
    """What turns scores into tokens; rows that share one are a batch.

    Attributes:
        vocab_size: ids past it get no mass.
        temperature: 0 is greedy, and then no filter matters.
        signal: what a window reads off every row, for :meth:`pick_on_device`.
        races: whether that draws by races (:func:`hierspec.core.distributions.race`); rows are
            one-hot then.
    """

    vocab_size: int
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    signal: Signal | None = None
    races: bool = False

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    def distributions(
        self, scores: torch.Tensor, reads: Reads | None = None
    ) -> OneHotDistributions | DenseDistributions:
        """Return the next-token distributions of the rows ``scores`` [R, V].

        Args:
            reads: what greedy choices on an accelerator are read with; ``None``: alone.

        Raises:
            NoDistributionError: a row has NaN or no token left. On an accelerator it is raised when
                a token is first looked at, or drawn.
        """
        scores = self._without_padding(scores)
        if self.greedy and scores.is_cpu:
            return OneHotDistributions(_choices(scores, *_row_maxima(scores)))
        if self.greedy:
            best, ids = scores.max(-1)
            read = (reads or Reads()).add(torch.stack((best.double(), ids.double())))
            return UnreadOneHot(ids, scores.shape[1], lambda: _choices(scores, *read.look()))
        with _few_threads(scores):
            probs = self.probabilities(scores)
        # A row with NaN or without a finite score is NaN in every column.
        # A list, since a forward has displaced the code of a sum from the core's caches.
        if probs.is_cpu and not all(p >= 0.0 for p in probs.numpy()[:, 0].tolist()):
            raise NoDistributionError(scores)
        return DenseDistributions(probs)

    def pick(self, scores: torch.Tensor, uniforms: Uniforms) -> tuple[list[int], Distributions]:
        """Draw a token from every row [R, V] (greedy: without uniforms); return the rows, too."""
        if self.greedy:
            choices = self.distributions(scores)
            assert isinstance(choices, OneHotDistributions)
            return list(choices.ids), choices
        scores = self._without_padding(scores)
        try:
            with _few_threads(scores):
                probs = self.probabilities(scores)
                return draw(probs, uniforms), DenseDistributions(probs)
        except HierspecError:  # the draw found what `distributions` would have checked for
            raise NoDistributionError(scores) from None

    def pick_on_device(self, scores: torch.Tensor, random: torch.Tensor) -> PickedTokens:
        """Draw as :meth:`pick`, but on the device, without a wait.

        ``random``: uniforms [R] float64; where tokens race, the noise of their positions [R, V].
        """
        rows, probs = self._without_padding(scores), None
        if self.greedy:
            best, tokens = rows.max(-1)
            ok = best > -math.inf
        elif self.races:
            best, tokens = (self.probabilities(rows).double() / random).max(-1)
            ok = (best > 0.0) & (best < math.inf)
        else:
            probs = self.probabilities(rows)
            ids, total = locate(probs, random.unsqueeze(-1))
            ok = ((total > 0.0) & (total < math.inf)).squeeze(-1)
            # Past the end where the row was no distribution: what reads the token needs a valid id.
            tokens = ids.squeeze(-1).long().clamp(max=probs.shape[1] - 1)
        values = None if self.signal is None else signal_of(scores, tokens, self.signal)
        return PickedTokens(tokens, probs, ok, values)

    def _without_padding(self, scores: torch.Tensor) -> torch.Tensor:
        fits = scores.shape[1] <= self.vocab_size
        return scores if fits else scores[:, : self.vocab_size]

    def probabilities(self, scores: torch.Tensor) -> torch.Tensor:
        """Return probabilities [R, V]; all NaN where a row of ``scores`` gives no distribution."""
        scaled = scores if self.temperature == 1.0 else scores / self.temperature
        probs = scaled.softmax(-1)
        if self.top_k is not None and self.top_k < scores.shape[1]:
            probs = _apply_mask(probs, _mask(scaled, _best(scaled, self.top_k)[:, -1:]))
        if self.top_p is not None and self.top_p < 1.0:
            probs = _apply_mask(probs, _nucleus(probs, self.top_p))
        if self.min_p is not None and self.min_p > 0.0:
            probs = _apply_mask(probs, _mask(probs, probs.amax(-1, keepdim=True) * self.min_p))
        return probs


def _few_threads(scores: torch.Tensor) -> OneThread:
    """Use one thread for a few rows: others that sleep take longer to wake than these take, and
    then spin where the next forward needs a processor."""
    return OneThread(scores.is_cpu and scores.numel() <= _ONE_THREAD_NUMEL)


def signal_of(scores: torch.Tensor, tokens: torch.Tensor, kind: Signal) -> torch.Tensor:
    """Compute what windows read, [R] float64, from untempered ``scores`` [R, V].

    ``"entropy"``: of each row, in nats; a score of −inf has probability 0. ``"confidence"``: the
    probability of ``tokens[r]``, which is below V.
    """
    surprise = scores.log_softmax(-1)
    if kind == "confidence":
        return surprise.gather(1, tokens.unsqueeze(1)).squeeze(1).double().exp()
    # Clamped so that 0 · -inf is 0; exp(-1000) is 0 even in float64, so nothing else changes.
    surprise.clamp_(min=-1000.0)
    return row_sums(scores.softmax(-1) * surprise).neg_().double()


def _row_maxima(scores: torch.Tensor) -> tuple[list[float], list[int]]:
    """Return each row's largest score and its id: the first of equals; a NaN is the largest."""
    rows = scores.numpy()  # its argmax is vectorised: a tenth of what torch's takes
    if len(rows) == 1:
        best = int(rows.argmax())
        return [float(rows[0, best])], [best]
    ids = rows.argmax(-1)
    return rows[np.arange(len(ids)), ids].tolist(), ids.tolist()


def _choices(
    scores: torch.Tensor, values: Iterable[float], ids: Iterable[float]
) -> tuple[int, ...]:
    """Return ``ids`` as integers if all rows of ``scores`` have a best token, whose score is in
    ``values``."""
    if not all(value > -math.inf for value in values):
        raise NoDistributionError(scores)
    return tuple(map(int, ids))


def _mask(values: torch.Tensor, threshold: torch.Tensor) -> torch.Tensor:
    """Return 1.0 where ``values`` [R, V] reach ``threshold`` [R, 1], else 0.0.

    Numbers rather than booleans: on CPU the comparison and the product are both several times
    faster.
    """
    return values.clone().ge_(threshold)


def _best(values: torch.Tensor, k: int) -> torch.Tensor:
    """Return the ``k`` largest numbers of each row of [R, V], in order, [R, k].

    They lie in the ``k`` blocks of the largest maxima, which is a small part of a long row.
    """
    num_blocks = values.shape[1] // _BLOCK
    if values.device.type != "cpu" or num_blocks < 4 * k:
        return values.topk(k)[0]
    blocks = values[:, : num_blocks * _BLOCK].unflatten(1, (num_blocks, _BLOCK))
    places = blocks.amax(-1).topk(k)[1].unsqueeze(-1).expand(-1, -1, _BLOCK)
    rest = values[:, num_blocks * _BLOCK :]
    return torch.cat([blocks.gather(1, places).flatten(1), rest], 1).topk(k)[0]


def _apply_mask(probs: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Keep ``probs`` where ``mask`` (overwritten) is 1, and normalise them again."""
    kept = mask.mul_(probs)
    return kept.div_(row_sums(kept).unsqueeze(-1))


def _nucleus(probs: torch.Tensor, top_p: float) -> torch.Tensor:
    """Return the mask [R, V] of the smallest sets of best tokens whose mass reaches ``top_p``.

    Of equally likely tokens at the edge the highest ids stay, as in transformers.
    """
    if probs.device.type != "cpu":
        return _nucleus_by_bins(probs, top_p)
    edge, size = _nucleus_edge(probs, top_p, 32)
    mask = _mask(probs, edge)
    excess = mask.sum(-1, keepdim=True).sub_(size).squeeze(1).tolist()
    for row, extra in enumerate(excess):
        if extra:
            tied = (probs[row] == edge[row]).nonzero().flatten()
            mask[row, tied[: int(extra)]] = 0.0
    return mask


def _nucleus_by_bins(probs: torch.Tensor, top_p: float) -> torch.Tensor:
    """Return the same mask without a device synchronisation, and without sorting the vocabulary.

    Numbers that are not negative are in the order of their bits. So the probability of the least
    likely token kept is found digit by digit, from the mass of every bin of equal digits.
    """
    kind, digits = _DIGITS[probs.dtype]
    bits = (probs.view(kind) & torch.iinfo(kind).max).long()  # a NaN may have a sign
    mass, rows = probs.double(), probs.shape[0]
    edge = bits.new_zeros(rows, 1)  # digits found so far
    above = mass.new_zeros(rows, 1)  # mass of tokens with larger digits
    shift = sum(digits)
    for width in digits:
        shift -= width
        last = (1 << width) - 1
        key = bits >> shift
        places = last - (key & last)  # the largest digit first
        inside = torch.where(key >> width == edge, mass, 0.0)
        bins = mass.new_zeros(rows, last + 1).scatter_add_(1, places, inside)
        masses = torch.cat([above, above + bins.cumsum(1)], 1)  # before each bin; the total
        # Where all of it is too little, by rounding, everything is kept.
        place = (masses[:, 1:] < top_p).sum(1, keepdim=True).clamp_(max=last)
        above = masses.gather(1, place)
        edge = (edge << width) | (last - place)
    tied = bits == edge
    num_tied = tied.sum(1, keepdim=True)
    value = edge.to(kind).view(probs.dtype).double()
    num_kept = ((top_p - above) / value).ceil()
    num_dropped = (num_tied - num_kept).clamp_(min=0.0).nan_to_num_(0.0)  # those of lowest ids
    first, _ = locate(tied.to(probs.dtype), (num_dropped + 0.5) / num_tied.clamp(min=1))
    late = torch.arange(probs.shape[1], device=probs.device) >= first
    return ((bits > edge) | (tied & late)).to(probs.dtype)


# How the bits of a number are split into digits, after the sign.
_DIGITS = {
    torch.float32: (torch.int32, (11, 10, 10)),
    torch.float64: (torch.int64, (11, 10, 10, 10, 11, 11)),
}


def _nucleus_edge(probs: torch.Tensor, top_p: float, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the probability of the least likely token kept, and how many are kept, both [R, 1].

    It looks at the best ``k`` tokens, which nearly always have enough mass, and at more only in
    rows where they do not, so that it never sorts the whole vocabulary.
    """
    k = min(k, probs.shape[1])
    best = _best(probs, k)
    mass_before = best.cumsum(-1, dtype=torch.float64).sub_(best)
    kept = mass_before < top_p
    # A row that is no distribution keeps no token: its best one is taken, and it remains NaN.
    size = kept.sum(-1, keepdim=True).clamp_(min=1)
    edge = best.gather(1, size - 1)
    if k < probs.shape[1]:
        short = kept[:, -1].nonzero().flatten()
        if len(short):
            edge[short], size[short] = _nucleus_edge(probs[short], top_p, 8 * k)
    return edge, size
