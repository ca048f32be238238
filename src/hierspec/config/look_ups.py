"""The levels of a hierarchy file that copy text: one declared class for each look-up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic import ValidationInfo, field_validator

from hierspec.core.windows import FixedWindow
from hierspec.errors import HierspecError
from hierspec.utils.schema import (
    Boolean,
    Count,
    Natural,
    PositiveInteger,
    checked_dataclass,
    error_at,
)

from .levels import LevelConfig, MadeLevel, TargetInfo

if TYPE_CHECKING:
    from hierspec.drafters.base import LookUp

# Fields that mean nothing for a level that copies: field → the value that is allowed, and why.
_NOT_OF_LOOK_UPS = {
    "temperature": (None, "copies tokens and scores none, so temperature has no use; remove it"),
    "window": (
        FixedWindow(),
        "copies tokens and has no scores for a window to read; remove it "
        "(num_speculative_tokens limits a draft)",
    ),
    "num_drafts": (1, "makes only one draft; remove num_drafts"),
}


@checked_dataclass
class LookUpConfig(MadeLevel):
    """A level that copies tokens: it has no scores for a temperature or a window."""

    @field_validator(*_NOT_OF_LOOK_UPS)
    @classmethod
    def _check_unused(cls, value: Any, info: ValidationInfo) -> Any:
        allowed, message = _NOT_OF_LOOK_UPS[info.field_name or ""]
        if value != allowed:
            raise ValueError(f"{info.data['method']} {message}")
        return value

    @property
    def only_drafts(self) -> str:
        return f"{self.method} has no distribution to verify with; put it first"

    def _check_range(self, low: str, high: str) -> None:
        if getattr(self, high) < getattr(self, low):
            raise error_at([high], f"{high} must not be below {low}")


def check_not_of_look_ups(level: LevelConfig) -> None:
    """Refuse what only levels that score may have, of one that turned out to copy.

    Raises:
        HierspecError: names the field.
    """
    for name, (allowed, message) in _NOT_OF_LOOK_UPS.items():
        if getattr(level, name) != allowed:
            raise HierspecError(f"{name}: {level.method} {message}")
    if level.verify is not None:
        raise HierspecError(f"{level.method} has no distribution to verify with; put it first")


@checked_dataclass
class PromptLookupConfig(LookUpConfig):
    """Copies what followed the last occurrence of the latest n-gram in the context."""

    method: Literal["prompt_lookup"] = "prompt_lookup"
    prompt_lookup_min: Count = 2
    prompt_lookup_max: Count = 4

    def __post_init__(self) -> None:
        self._check_range("prompt_lookup_min", "prompt_lookup_max")

    def make(self, target: TargetInfo) -> LookUp:
        from hierspec.drafters.prompt_lookup import PromptLookup

        return PromptLookup(self.prompt_lookup_min, self.prompt_lookup_max)


@checked_dataclass
class NgramPoolConfig(LookUpConfig):
    """Copies what followed the latest tokens earlier in this text or in any [after Lookahead].

    Attributes:
        shared: use one pool for all sequences of a hierarchy, earlier ones included.
    """

    method: Literal["ngram_pool"] = "ngram_pool"
    ngram_min: Count = 1
    ngram_max: Count = 4
    shared: Boolean = False

    def __post_init__(self) -> None:
        self._check_range("ngram_min", "ngram_max")

    def make(self, target: TargetInfo) -> LookUp:
        from hierspec.drafters.ngram_pool import NgramPool

        return NgramPool(self.ngram_min, self.ngram_max, self.shared)


@checked_dataclass
class LookaheadConfig(LookUpConfig):
    """Copies n-grams that the target writes beside its checks, by Jacobi iterations [Lookahead].

    The only level of a hierarchy, verified by ``rrs`` or another rule for several drafts.

    Attributes:
        num_speculative_tokens: tokens of an n-gram after its first one (their N − 1).
        window_size: columns of guesses (their W).
        max_candidates: n-grams checked in a call (their G).
    """

    method: Literal["lookahead"] = "lookahead"
    window_size: Count = 7
    max_candidates: Count = 7

    @property
    def max_tokens(self) -> int:
        """The largest number of tokens of one draft; the window's paths are longer than n-grams."""
        return self.num_speculative_tokens + max(0, self.window_size - 2)

    @property
    def max_drafts(self) -> int:
        """Columns and candidates; until the window is full it has one more column in each call."""
        return self.window_size + self.num_speculative_tokens - 1 + self.max_candidates

    def make(self, target: TargetInfo) -> LookUp:
        from hierspec.drafters.lookahead import Lookahead

        return Lookahead(self.num_speculative_tokens + 1, self.window_size, self.max_candidates)


@checked_dataclass
class SuffixConfig(LookUpConfig):
    """Copies the most frequent continuation of the text's longest repeated suffix [SuffixDecoding].

    Attributes:
        max_order: the longest context, in tokens.
        store: how many tokens of this hierarchy's earlier greedy outputs are kept and copied from.
    """

    method: Literal["suffix"] = "suffix"
    max_order: PositiveInteger = 32
    store: Natural = 0

    def make(self, target: TargetInfo) -> LookUp:
        from hierspec.drafters.suffix import Suffix

        return Suffix(self.max_order, self.store)


AnyLookUpConfig = PromptLookupConfig | NgramPoolConfig | LookaheadConfig | SuffixConfig
