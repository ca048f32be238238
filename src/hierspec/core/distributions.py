"""Next-token distributions as opaque rows: dense, or one-hot where the choice was deterministic.

A distribution stays on the device its scores came from. Callers read rows by index and need not
know how they are stored. Greedy decoding is not a special case of the engine but of the
representation: its distributions are one-hot and cost nothing to keep.

Shapes: n rows over a vocabulary of V tokens.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import starmap
from typing import Any, Protocol

import numpy as np
import torch

from hierspec.errors import HierspecError
from hierspec.utils.reads import pick, sent

from .rng import Noise, Rng


class Distributions(Protocol):
    """n distributions of next tokens; callers read rows by index, however they are stored."""

    def __len__(self) -> int: ...

    @property
    def width(self) -> int:
        """One more than the highest token id it can name."""
        ...

    def row(self, index: int) -> torch.Tensor:
        """Return one row, [at most V]; it is not to be written to."""
        ...

    def rows(self, start: int, stop: int) -> Distributions: ...

    def select(self, rows: Sequence[int]) -> Distributions: ...

    def dense(self, vocab_size: int) -> torch.Tensor:
        """Return [n, V]; ids past this vocabulary (a padded embedding above it) get 0."""
        ...

    def prob(self, row: int, token: int) -> float: ...


@dataclass(frozen=True, slots=True, eq=False)
class DenseDistributions:
    """n distributions as a matrix ``probs`` [n, V], float32 or float64; rows sum to 1."""

    probs: torch.Tensor

    def __len__(self) -> int:
        return self.probs.shape[0]

    @property
    def width(self) -> int:
        return self.probs.shape[1]

    @staticmethod
    def merged(parts: Sequence[Any]) -> DenseDistributions:
        width = max(part.width for part in parts)
        return DenseDistributions(torch.cat([part.dense(width) for part in parts]))

    def row(self, index: int) -> torch.Tensor:
        return self.probs[index]

    def rows(self, start: int, stop: int) -> DenseDistributions:
        return DenseDistributions(self.probs[start:stop])

    def select(self, rows: Sequence[int]) -> DenseDistributions:
        if rows == range(len(self)):
            return self
        return DenseDistributions(pick(self.probs, rows))

    def dense(self, vocab_size: int) -> torch.Tensor:
        missing = vocab_size - self.probs.shape[1]
        return self.probs if missing == 0 else torch.nn.functional.pad(self.probs, (0, missing))

    def prob(self, row: int, token: int) -> float:
        return float(self.probs[row, token]) if token < self.probs.shape[1] else 0.0


@dataclass(frozen=True, slots=True, eq=False)
class OneHotDistributions:
    """n distributions with all their mass on one token each: greedy choices, look-ups."""

    ids: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def width(self) -> int:
        return max(self.ids, default=-1) + 1

    @staticmethod
    def merged(parts: Sequence[Any]) -> OneHotDistributions:
        return OneHotDistributions(tuple(i for part in parts for i in part.ids))

    def row(self, index: int) -> torch.Tensor:
        """Return one row, which ends at its token."""
        row = torch.zeros(self.ids[index] + 1, dtype=torch.float64, device="cpu")
        row[-1] = 1.0
        return row

    def rows(self, start: int, stop: int) -> OneHotDistributions:
        return OneHotDistributions(self.ids[start:stop])

    def select(self, rows: Sequence[int]) -> OneHotDistributions:
        return OneHotDistributions(tuple(self.ids[row] for row in rows))

    def dense(self, vocab_size: int) -> torch.Tensor:
        out = torch.zeros(len(self.ids), vocab_size, dtype=torch.float64, device="cpu")
        out[range(len(self.ids)), self.ids] = 1.0
        return out

    def prob(self, row: int, token: int) -> float:
        return float(self.ids[row] == token)


class UnreadOneHot(OneHotDistributions):
    """One-hot rows whose tokens have been chosen where their scores are, and not been looked at.

    The host waits for them when it first asks for their ``ids``; whatever may be wrong with the
    rows is found there.

    Attributes:
        tokens: [n] int64, on their device.
        vocab_size: V.
    """

    __slots__ = ("_look", "tokens", "vocab_size")
    tokens: torch.Tensor
    vocab_size: int
    _look: Callable[[], tuple[int, ...]]

    def __init__(
        self, tokens: torch.Tensor, vocab_size: int, look: Callable[[], tuple[int, ...]]
    ) -> None:
        values = {"tokens": tokens, "vocab_size": vocab_size, "_look": look}
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def __getattr__(self, name: str) -> tuple[int, ...]:
        """Look at the tokens, once; anything else that is asked for here does not exist."""
        if name != "ids":
            raise AttributeError(name)
        ids: tuple[int, ...] = self._look()
        object.__setattr__(self, "ids", ids)
        return ids

    def __len__(self) -> int:
        return self.tokens.shape[0]

    @property
    def width(self) -> int:
        return self.vocab_size

    def rows(self, start: int, stop: int) -> OneHotDistributions:
        return UnreadOneHot(self.tokens[start:stop], self.vocab_size, lambda: self.ids[start:stop])


@dataclass(frozen=True, slots=True, eq=False)
class MixedDistributions:
    """Rows in several parts, as a draft made in steps or by several levels leaves them."""

    parts: tuple[Distributions, ...]

    def __len__(self) -> int:
        return sum(len(part) for part in self.parts)

    @property
    def width(self) -> int:
        return max(part.width for part in self.parts)

    def part_at(self, row: int) -> tuple[Distributions, int]:
        """Return the part that holds a row, and the row's index in that part."""
        for part in self.parts:
            if row < len(part):
                return part, row
            row -= len(part)
        raise IndexError(row)

    def row(self, index: int) -> torch.Tensor:
        part, index = self.part_at(index)
        return part.row(index)

    def rows(self, start: int, stop: int) -> Distributions:
        kept: list[Distributions] = []
        base = 0
        for part in self.parts:
            lo, hi = max(start - base, 0), min(stop - base, len(part))
            if lo < hi:
                kept.append(part.rows(lo, hi))
            base += len(part)
        return concatenate(kept)

    def select(self, rows: Sequence[int]) -> Distributions:
        return concatenate([self.rows(row, row + 1) for row in rows])

    def dense(self, vocab_size: int) -> torch.Tensor:
        rows = [part.dense(vocab_size) for part in self.parts]
        dense = [part.probs for part in self.parts if isinstance(part, DenseDistributions)]
        return torch.cat([row.to(dense[0]) for row in rows] if dense else rows)

    def prob(self, row: int, token: int) -> float:
        part, row = self.part_at(row)
        return part.prob(row, token)


EMPTY = OneHotDistributions(())
Uniforms = np.ndarray | Sequence[float]
_CPU = torch.device("cpu")


def parts(distributions: Distributions) -> tuple[Distributions, ...]:
    if isinstance(distributions, MixedDistributions):
        return distributions.parts
    return (distributions,)


def likeliest(rows: Distributions) -> list[int]:
    """Return the token of the largest probability of every row."""
    if isinstance(rows, OneHotDistributions):
        return list(rows.ids)
    return rows.dense(rows.width).argmax(-1).tolist()  # pyright: ignore


def concatenate(distributions: Sequence[Distributions]) -> Distributions:
    """Join the rows of several, in order; on an accelerator, rows of one kind become one part.

    Dense rows on a CPU stay where they are: copying them takes longer than looking for the part
    that holds a row. On an accelerator every part would need a launch of its own.
    """
    flat: list[Distributions] = []
    for rows in distributions:
        flat.extend(parts(rows))
    flat = [part for part in flat if len(part)]
    if not flat:
        return EMPTY
    if len(flat) == 1:
        return flat[0]
    kind: Any = type(flat[0])  # every kind but the mixed one merges its own
    devices = {part.probs.device for part in flat if isinstance(part, DenseDistributions)}
    if len(devices) < 2 and _CPU not in devices and all(type(part) is kind for part in flat):
        return kind.merged(flat)
    return MixedDistributions(tuple(flat))


def draw(
    probs: torch.Tensor,
    uniforms: Uniforms,
    fallback: Callable[[int], torch.Tensor] | None = None,
) -> list[int]:
    """Draw one token per row by inverse CDF.

    Args:
        probs: [n, V], non-negative; rows need not be normalised.
        uniforms: n numbers in [0, 1).
        fallback: maps i to the row [V] to draw from instead, where row i has no mass.

    Returns:
        n token ids. A token of probability 0 is never drawn, whatever the rounding.

    Raises:
        HierspecError: a row holds NaN, or has no mass and no replacement.
    """
    tokens: list[int] = []
    for row, (token, mass) in enumerate(_search_any(probs, uniforms)):
        if mass == 0.0 and fallback is not None:
            tokens += draw(fallback(row).unsqueeze(0), uniforms[row : row + 1])
        else:
            tokens.append(checked_token(token, mass))
    return tokens


def draw_each(rows: Sequence[Distributions], rngs: Sequence[Rng]) -> list[int]:
    """Draw a token from each of n one-row distributions; one-hot rows cost no uniform."""
    if len(rows) == 1 and isinstance(rows[0], DenseDistributions):
        return draw(rows[0].probs, rngs[0].take(1))
    tokens = [row.ids[0] if isinstance(row, OneHotDistributions) else -1 for row in rows]
    dense = [i for i, token in enumerate(tokens) if token < 0]
    if dense:
        uniforms = [rngs[i].take(1).item() for i in dense]
        width = max(rows[i].width for i in dense)
        probs = torch.cat([rows[i].dense(width) for i in dense])
        for i, token in zip(dense, draw(probs, uniforms), strict=True):
            tokens[i] = token
    return tokens


def race(probs: torch.Tensor, noise: Noise, position: int) -> list[int]:
    """Draw one token per row by a race: argmax_x p(x) / e(x), e the noise of the row's position.

    Exponential numbers e make that a draw from p. It is the argmax of log p(x) + g(x) with Gumbel
    noise g = −log e, so similar rows that race with the same noise mostly draw the same token
    [MATH §3, Match].

    Args:
        probs: [n, V], rows of consecutive positions.
        position: of the first row.

    Raises:
        HierspecError: a row holds NaN, or has no mass.
    """
    numbers = race_on_device(probs, noise, position).numpy()
    return [*starmap(checked_token, zip(*numbers, strict=True))]


def race_on_device(probs: torch.Tensor, noise: Noise, position: int) -> torch.Tensor:
    """Return the tokens that :func:`race` draws, and for :func:`checked_token` the numbers that
    won, [2, n] float64; an accelerator is not waited for."""
    num, width = probs.shape
    noises = np.stack([noise(position + i, width) for i in range(num)])
    best, tokens = (probs.double() / sent(noises, torch.float64, probs.device)).max(-1)
    return torch.stack((tokens.double(), best))


def on_host(distributions: Sequence[Distributions]) -> list[Distributions]:
    """Return the same rows where the host can read them, after one wait for an accelerator."""
    far = [
        part.probs
        for rows in distributions
        for part in parts(rows)
        if isinstance(part, DenseDistributions) and part.probs.device != _CPU
    ]
    if not far:
        return list(distributions)
    numbers = torch.cat([probs.flatten() for probs in far]).cpu()
    near = iter(numbers.split_with_sizes([probs.numel() for probs in far]))

    def moved(rows: Distributions) -> Distributions:
        if isinstance(rows, MixedDistributions):
            return MixedDistributions(tuple(moved(part) for part in rows.parts))
        if isinstance(rows, DenseDistributions) and rows.probs.device != _CPU:
            return DenseDistributions(next(near).view(*rows.probs.shape))
        return rows

    return [moved(rows) for rows in distributions]


def row_sums(rows: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Sum rows [..., V] over V, with the same bits for a row alone as among others.

    On a CPU torch divides the sum of a single long row among its threads, and of several the rows.
    """
    if rows.device.type != "cpu" or rows.numel() != rows.shape[-1]:
        return rows.sum(-1, dtype=dtype)
    return rows.expand(2, *rows.shape).sum(-1, dtype=dtype)[0]


def checked_token(token: float, mass: float) -> int:
    """Return a token drawn from a row of total mass ``mass``, as an integer.

    Raises:
        HierspecError: the mass is not positive and finite, so the row was no distribution.
    """
    if not 0.0 < mass < math.inf:
        raise HierspecError(
            "a next-token distribution is not finite (NaN scores?): try --dtype float32, "
            "or check the model's weights"
        )
    return int(token)


def _search_any(probs: torch.Tensor, uniforms: Uniforms) -> list[tuple[float, float]]:
    """Return per row the first token whose cumulated mass exceeds u·total, and the total."""
    on_cpu, (num, width) = probs.device.type == "cpu", probs.shape
    if on_cpu and num <= _FEW_ROWS:
        us = uniforms.tolist() if isinstance(uniforms, np.ndarray) else uniforms
        if width < _LARGE_VOCAB:
            cdf = probs.detach().cumsum(-1, dtype=torch.float64).numpy()
            return [_search_row(row, u) for row, u in zip(cdf, us, strict=True)]
        probs = probs.detach() if probs.dtype in _NUMPY_DTYPES else probs.detach().double()
        rows, masses = probs.numpy(), _block_masses(probs).numpy()
        return [_search_row_blocks(*args) for args in zip(rows, masses, us, strict=True)]
    u = sent(uniforms, torch.float64, probs.device).unsqueeze(-1)
    pairs: list[tuple[float, float]] = torch.cat(locate(probs, u), 1).tolist()  # pyright: ignore
    return pairs


def locate_several(
    probs: torch.Tensor, uniforms: torch.Tensor, distinct: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw K tokens from every row of [n, V] by uniforms [n, K], each as :func:`locate`.

    ``distinct``: each from the row without those drawn before.

    Returns:
        For each draw the mass that was left, the token, and the total of what it was drawn from,
        [n, K, 3] float64; and that itself, [n, K, V] float64. A row that has run out leaves 0.
    """
    laws: list[torch.Tensor] = []
    numbers: list[torch.Tensor] = []
    probs = probs.double()
    for number in range(uniforms.shape[1]):
        left = probs.sum(-1, keepdim=True)
        laws.append(probs / left)
        ids, mass = locate(laws[-1], uniforms[:, number : number + 1])
        numbers.append(torch.cat((left, ids, mass), 1))
        if distinct:
            probs = laws[-1].scatter(1, ids.long().clamp(max=probs.shape[1] - 1), 0.0)
    return torch.stack(numbers, 1), torch.stack(laws, 1)


def locate(probs: torch.Tensor, u: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return per row of [n, V] the first token whose cumulated mass exceeds u·total, and the total.

    It does not wait for an accelerator. u and both results are [n, 1] float64.
    """
    search = _search_blocks if probs.shape[1] >= _LARGE_VOCAB else _search
    ids, total = search(probs, u)
    return ids.double(), total


_NUMPY_DTYPES = (torch.float32, torch.float64)  # those that NumPy has too
_FEW_ROWS = 4  # up to so many, NumPy is faster: its overhead per call is a third of torch's


def _search_row(cdf: np.ndarray, u: float) -> tuple[int, float]:
    total = float(cdf[-1])
    goal = min(u * total, math.nextafter(total, 0.0))  # as :func:`_goal`
    return bisect_right(cdf, goal), total  # faster than NumPy's search, below _LARGE_VOCAB


def _search_row_blocks(row: np.ndarray, masses: np.ndarray, u: float) -> tuple[int, float]:
    """Search one row as :func:`_search_blocks` does, with fewer calls of torch.

    It takes half the time right after a forward, whose weights have displaced torch's code from the
    processor's caches.
    """
    cdf = masses.cumsum()
    total = float(cdf[-1])
    goal = min(u * total, math.nextafter(total, 0.0))
    block = min(bisect_right(cdf, goal), len(cdf) - 1)
    inner = row[block * _BLOCK : (block + 1) * _BLOCK].cumsum(dtype=np.float64)
    offset = bisect_right(inner, goal - (float(cdf[block - 1]) if block else 0.0))
    return block * _BLOCK + min(offset, bisect_left(inner, inner[-1])), total


def _search(probs: torch.Tensor, u: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    cdf = probs.cumsum(-1, dtype=torch.float64)
    total = cdf[:, -1:].contiguous()
    return torch.searchsorted(cdf, _goal(u, total), right=True), total


def _goal(u: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
    """Return u·total, kept below the total where rounding would reach it: some token exceeds it."""
    return torch.minimum(u * total, torch.nextafter(total, torch.zeros_like(total)))


# A cumulated sum is serial on a CPU: 1 ms at V = 152k, where sums of blocks take 40 µs. On a GPU
# one block of threads makes it for a row, while all others idle.
_LARGE_VOCAB = 16384
_BLOCK = 128


def _block_masses(probs: torch.Tensor) -> torch.Tensor:
    """Sum blocks of tokens, the last of which may be shorter, to [n, blocks] float64."""
    size = probs.shape[1]
    full = size // _BLOCK * _BLOCK  # tokens in blocks that are not shorter
    blocks = probs[:, :full].view(probs.shape[0], -1, _BLOCK)
    masses = torch.sum(blocks, -1, dtype=torch.float64)
    if full == size:
        return masses
    rest = torch.sum(probs[:, full:], -1, keepdim=True, dtype=torch.float64)
    return torch.cat([masses, rest], 1)


def _search_blocks(probs: torch.Tensor, u: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Search as :func:`_search` does, in two steps: the block of tokens, then the token in it."""
    size = probs.shape[1]
    cdf = torch.nn.functional.pad(_block_masses(probs).cumsum(-1), (1, 0))  # mass before a block
    total = cdf[:, -1:].contiguous()
    goal = _goal(u, total)
    block = (torch.searchsorted(cdf, goal, right=True) - 1).clamp_(max=cdf.shape[1] - 2)
    ids = block * _BLOCK + torch.arange(_BLOCK, device=probs.device)
    inner = probs.gather(1, ids.clamp(max=size - 1)) * (ids < size)
    inner = inner.cumsum(-1, dtype=torch.float64)
    offset = torch.searchsorted(inner, goal - cdf.gather(1, block), right=True)
    # Sums in another order round differently: past the end, take the block's last token with mass.
    last = torch.searchsorted(inner, inner[:, -1:].contiguous())
    return block * _BLOCK + torch.minimum(offset, last), total
