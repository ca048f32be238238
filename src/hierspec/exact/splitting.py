"""An rng that splits: a program is run once for every box of uniforms that it distinguishes.

A uniform is a number in an interval. Where a program compares it with something inside that
interval, the run continues with the side that the number lies on, and the other side is left for
another run. In the end each run represents a box of uniforms that all lead to its outcome, and the
box's volume is its probability. Nothing is sampled, and no threshold is needed in advance: the
comparisons that the program makes give them.

Comparisons are observed in two ways. :class:`Uniform`, a float, sees those of Python, as in
``bisect``; :class:`_ComparisonMode` sees those of torch, call by call. Neither sees into compiled
code and CUDA graphs, so recorded calls are enumerated as replayed tapes of operations. A tensor
keeps no objects, so a uniform in a tensor is recognised by its value. A comparison that is not
observed leaves its box undivided, which gives a wrong law: tests find such a fault.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar, cast

import torch
from torch.overrides import TorchFunctionMode

from hierspec.errors import HierspecError

Interval = tuple[float, float]
T = TypeVar("T", bound=Hashable)

_MIN_WIDTH = 1e-14  # of an interval: narrower ones come from rounding, not from the program
_GOLDEN = (math.sqrt(5.0) - 1.0) / 2.0
_MAX_NUMBERS = 256  # numbers in a tensor of uniforms, or made from one


class _Origin(NamedTuple):
    """How a number was made: ``scale`` · (uniform ``number``) + ``shift``."""

    number: int
    scale: float = 1.0
    shift: float = 0.0


class SplittingRng:
    """One run's uniforms, each known to lie in an interval.

    Args:
        intervals: of the first uniforms; those that follow may be anywhere in [0, 1).
        share: where in its interval a uniform lies, in (0, 1); default: well inside.

    Attributes:
        num_taken: how many uniforms were taken.
        remaining: after the run, the intervals of the runs that remain: together with this run's
            they fill the box that it began with.
    """

    def __init__(self, intervals: Sequence[Interval] = (), share: float | None = None) -> None:
        self._intervals = list(intervals)
        self._share = share
        self.num_taken = 0
        self.origins: dict[float, _Origin] = {}
        self.remaining: list[list[Interval]] = []

    @property
    def box(self) -> tuple[Interval, ...]:
        """The intervals of the uniforms, in the order they were drawn."""
        return tuple(self._intervals)

    @property
    def probability(self) -> float:
        """The volume of the box that this run represents."""
        return math.prod(high - low for low, high in self._intervals)

    def take(self, n: int) -> UniformList:
        """Return n uniforms, as :meth:`hierspec.core.rng.Rng.take` does."""
        uniforms = UniformList()
        for number in range(self.num_taken, self.num_taken + n):
            if number == len(self._intervals):
                self._intervals.append((0.0, 1.0))
            low, high = self._intervals[number]
            # Anywhere inside, but a value unlike other uniforms and the round numbers of tables.
            part = (number + 1) * _GOLDEN % 1.0
            share = 0.25 + 0.5 * part if self._share is None else self._share + 0.01 * part
            value = low + (high - low) * share
            uniforms.append(Uniform.with_origin(self, value, _Origin(number)))
        self.num_taken += n
        return uniforms

    def rewind(self, num_taken: int) -> None:
        """Take the uniforms since an earlier count again."""
        self.num_taken = num_taken

    def register(self, value: float, origin: _Origin) -> None:
        """Remember how a number was made from a uniform."""
        if origin.scale != 0.0:
            self.origins[value] = origin

    def split_at(self, value: float, threshold: float) -> None:
        """Split the box where a number made from a uniform is compared with ``threshold``.

        The side that the number lies on is this run's; the other is left for another run.

        Raises:
            HierspecError: both were made from uniforms, so the sides are no boxes.
        """
        if value not in self.origins:
            return
        if threshold in self.origins:
            raise HierspecError("two uniforms were compared with each other")
        number, scale, shift = self.origins[value]
        low, high = self._intervals[number]
        edge = (threshold - shift) / scale
        if not low + _MIN_WIDTH < edge < high - _MIN_WIDTH:  # infinite and NaN ones, too
            return
        own_side, other_side = (low, edge), (edge, high)
        if (value < threshold) != (scale > 0.0):
            own_side, other_side = other_side, own_side
        self._intervals[number] = other_side
        self.remaining.append(list(self._intervals))
        self._intervals[number] = own_side


class UniformList(list["Uniform"]):
    """A list of uniforms with the methods of an array that the engine calls."""

    def tolist(self) -> list[Uniform]:
        return list(self)

    def item(self) -> Uniform:
        (uniform,) = self
        return uniform


class Uniform(float):
    """A number made from a uniform, which reports to its rng what it is compared with."""

    __slots__ = ("origin", "rng")
    rng: SplittingRng
    origin: _Origin

    @classmethod
    def with_origin(cls, rng: SplittingRng, value: float, origin: _Origin) -> Uniform:
        uniform = cls(value)
        uniform.rng, uniform.origin = rng, origin
        rng.register(value, origin)
        return uniform

    def _report_comparison(self, other: float) -> float:
        self.rng.split_at(float(self), float(other))
        return float(self)

    def __lt__(self, other: float) -> bool:
        return self._report_comparison(other) < float(other)

    def __le__(self, other: float) -> bool:
        return self._report_comparison(other) <= float(other)

    def __gt__(self, other: float) -> bool:
        return self._report_comparison(other) > float(other)

    def __ge__(self, other: float) -> bool:
        return self._report_comparison(other) >= float(other)

    def __mul__(self, other: float) -> Uniform:
        number, scale, shift = self.origin
        origin = _Origin(number, scale * float(other), shift * float(other))
        return Uniform.with_origin(self.rng, float(self) * float(other), origin)

    __rmul__ = __mul__

    def __sub__(self, other: float) -> Uniform:
        if isinstance(other, Uniform):
            raise HierspecError("one uniform was taken from another")
        number, scale, shift = self.origin
        origin = _Origin(number, scale, shift - float(other))
        return Uniform.with_origin(self.rng, float(self) - float(other), origin)


class _ComparisonMode(TorchFunctionMode):
    """A mode that reports comparisons of uniforms in tensors to their rng.

    It sees functions, not operations: what a model computes with its own numbers does not matter.
    """

    def __init__(self, rng: SplittingRng) -> None:
        super().__init__()
        self._rng = rng

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **kwargs) if kwargs else func(*args)
        if (name := WATCHED.get(func.__name__)) is not None:  # most calls are none of these
            named = _OPERANDS.get(name, ("input", "other"))[len(args) :]
            self._watch(name, result, *args[:2], *(kwargs[key] for key in named))
        elif func.__name__ in ("item", "tolist") and self._holds_uniforms(args[0]):
            return self._uniforms(result)
        return result

    def _uniforms(self, numbers: Any) -> Any:
        """Return Python's numbers, in nested lists too, that report what they are compared with."""
        if isinstance(numbers, list):
            return [self._uniforms(number) for number in cast("list[Any]", numbers)]
        origin = self._rng.origins.get(numbers)
        return numbers if origin is None else Uniform.with_origin(self._rng, numbers, origin)

    def _watch(self, name: str, result: torch.Tensor, x: Any, y: Any) -> None:
        if name in ("searchsorted", "bucketize"):
            self._split_at_steps(*((x, y) if name == "searchsorted" else (y, x)))
        elif self._holds_uniforms(x) or self._holds_uniforms(y):
            operands = [torch.as_tensor(operand, dtype=torch.float64) for operand in (x, y)]
            left, right = map(_numbers, torch.broadcast_tensors(*operands))
            if name not in _ORIGIN_AFTER:
                for x, y in zip(left, right, strict=True):
                    self._rng.split_at(x, y)
                    self._rng.split_at(y, x)
                return
            for x, y, value in zip(left, right, _numbers(result), strict=True):
                if (origin := self._rng.origins.get(x)) is not None:
                    self._rng.register(value, _ORIGIN_AFTER[name](*origin, y))

    def _holds_uniforms(self, tensor: Any) -> bool:
        return (
            isinstance(tensor, torch.Tensor)
            and tensor.dtype == torch.float64
            and tensor.numel() <= _MAX_NUMBERS
            and not self._rng.origins.keys().isdisjoint(_numbers(tensor))
        )

    def _split_at_steps(self, rows: torch.Tensor, searched: torch.Tensor | float) -> None:
        """Report a search of values [..., n] in sorted ``rows`` [..., V], or of any in one [V]."""
        if isinstance(searched, torch.Tensor):
            values = searched
        else:
            values = torch.tensor(float(searched), dtype=torch.float64)
        if not self._holds_uniforms(values):
            return
        if rows.ndim == 1:
            rows, values = rows[None], values.reshape(1, -1)
        steps, row_values = (tensor.flatten(0, -2).tolist() for tensor in (rows, values))
        for row, numbers in zip(steps, row_values, strict=True):
            for value in numbers:
                for step in row:
                    self._rng.split_at(value, step)


_OPERANDS = {
    "searchsorted": ("sorted_sequence", "input"),
    "bucketize": ("input", "boundaries"),
}
# The origin of the result of an operation of x, given x's origin, with y.
_ORIGIN_AFTER: dict[str, Callable[[int, float, float, float], _Origin]] = {
    "mul": lambda number, scale, shift, y: _Origin(number, scale * y, shift * y),
    "sub": lambda number, scale, shift, y: _Origin(number, scale, shift - y),
}
# What is reported, by the names of functions and of the operations that a tape replays, such as
# ``lt.Tensor``; a tape may hide all others.
WATCHED = {
    full_name: name
    for name in ("lt", "le", "gt", "ge", "searchsorted", "bucketize", *_ORIGIN_AFTER)
    for full_name in (
        name,
        *(f"{name}.{kind}" for kind in getattr(torch.ops.aten, name).overloads()),
    )
}


def _numbers(tensor: torch.Tensor) -> list[float]:
    return tensor.flatten().tolist()


def outcomes(program: Callable[[Any], T]) -> Iterator[tuple[SplittingRng, T]]:
    """Yield every box of uniforms that a program distinguishes, as its rng, with the outcome."""
    boxes: list[list[Interval]] = [[]]
    while boxes:
        rng = SplittingRng(boxes.pop())
        yield rng, run(program, rng)
        boxes += rng.remaining


def run(program: Callable[[Any], T], rng: SplittingRng) -> T:
    """Run a program once, with comparisons in torch reported to its rng."""
    with _ComparisonMode(rng):
        return program(rng)
