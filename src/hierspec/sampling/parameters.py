"""Sampling options of a request: temperature, truncation, penalties, biases, processors."""

from __future__ import annotations

import math
import numbers
import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeGuard

from hierspec.errors import HierspecError
from hierspec.utils.validation import MIN_TEMPERATURE

if TYPE_CHECKING:
    import torch

Processor = Callable[["torch.Tensor", "torch.Tensor"], "torch.Tensor"]
_RANGES: dict[str, tuple[Callable[[float], bool], str]] = {
    "temperature": (lambda t: 0 <= t < math.inf, "a finite number of at least 0 (greedy)"),
    "top_p": (lambda p: 0 < p <= 1, "a number in (0, 1]"),
    "min_p": (lambda p: 0 <= p <= 1, "a number in [0, 1]"),
    "repetition_penalty": (lambda x: 0 < x < math.inf, "a finite number above 0 (1 is none)"),
    "frequency_penalty": (math.isfinite, "a finite number"),
    "presence_penalty": (math.isfinite, "a finite number"),
}
_OPTIONAL = ("top_p", "min_p")


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How a request's scores become distributions; equal parameters are batched together.

    Attributes:
        temperature: 0, or below 1e-5, is greedy decoding, for which truncation is irrelevant.
        top_k: keep the k best tokens and their ties; ``None`` (also 0 or -1) keeps all.
        top_p: keep the smallest set of best tokens with at least this mass, in (0, 1].
        min_p: keep tokens at least this fraction as likely as the best, in [0, 1].
        repetition_penalty: divides positive and multiplies negative scores of tokens in the
            prompt or output; 1 is none.
        frequency_penalty: subtracted per occurrence in the output.
        presence_penalty: subtracted once from tokens that occur in the output.
        logit_bias: pairs (token id, what to add); ``-inf`` bans a token. See :meth:`make`.
        logits_processors: called ``processor(input_ids [1, L], scores [1, V])``, as
            transformers' are. They must be functions of their arguments: a draft calls them for
            continuations that are later rejected.
    """

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    logits_processors: tuple[Processor, ...] = ()

    def __post_init__(self) -> None:
        for name, (is_valid, meaning) in _RANGES.items():
            value = getattr(self, name)
            if value is None and name in _OPTIONAL:
                continue
            if not (_is_number(value) and is_valid(value)):
                raise HierspecError(f"{name} must be {meaning}, got {value!r}")
        if self.temperature < MIN_TEMPERATURE:  # as in vLLM
            object.__setattr__(self, "temperature", 0.0)
        if self.top_k is not None:
            if not _is_integer(self.top_k, -1):
                raise HierspecError(f"top_k must be an integer ≥ 1 or None, got {self.top_k}")
            # 0 and -1 are how transformers and vLLM spell "off"; kernels take no number of NumPy.
            object.__setattr__(self, "top_k", int(self.top_k) if self.top_k > 0 else None)
        for token, bias in self.logit_bias:
            if not _is_integer(token, 0):
                raise HierspecError(f"logit_bias: {token!r} is not a token id")
            if not (_is_number(bias) and bias < math.inf):
                raise HierspecError(
                    f"logit_bias of token {token} must be a number below +inf, got {bias!r}"
                )
        if self.logits_processors:
            from .processors import validate_processors

            validate_processors(self.logits_processors)
        for processor in self.logits_processors:
            if not callable(processor):
                raise HierspecError(
                    f"logits_processors: {processor!r} is not callable; "
                    "pass functions of (input_ids [1, L], scores [1, V])"
                )

    @classmethod
    def make(
        cls,
        logit_bias: Mapping[int, float] | Iterable[tuple[int, float]] = (),
        logits_processors: Iterable[Processor] = (),
        **options: Any,
    ) -> SamplingParams:
        try:
            bias = tuple(
                (_token_id(token), float(value)) for token, value in dict(logit_bias).items()
            )
        except (TypeError, ValueError):
            raise HierspecError(
                f"logit_bias must map token ids to numbers, as in {{42: -1.5}}, not {logit_bias!r}"
            ) from None
        if not isinstance(logits_processors, Iterable):
            hint = ": write [processor]" if callable(logits_processors) else ""
            raise HierspecError(
                f"logits_processors must be a list of functions, not {logits_processors!r}{hint}"
            )
        return cls(logit_bias=bias, logits_processors=tuple(logits_processors), **options)

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def has_penalties(self) -> bool:
        return (
            self.repetition_penalty != 1.0
            or self.frequency_penalty != 0.0
            or self.presence_penalty != 0.0
        )

    @property
    def edits_scores(self) -> bool:
        return bool(self.logit_bias or self.logits_processors) or self.has_penalties


def _token_id(value: Any) -> int:
    return int(value) if isinstance(value, str) else operator.index(value)


def _is_integer(value: Any, minimum: int) -> bool:
    is_integer = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    return is_integer and int(value) >= minimum


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, numbers.Real) and not isinstance(value, bool) and value == value
