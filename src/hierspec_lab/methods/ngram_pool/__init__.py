"""Copies from a pool of n-grams: :mod:`.pool` [after Lookahead]."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from hierspec.config.levels import LookUpConfig, TargetInfo
from hierspec.config.methods import register_level
from hierspec.utils.schema import Boolean, Count, checked_dataclass

if TYPE_CHECKING:
    from hierspec.drafters.base import LookUp


@register_level
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
        self._validate_range("ngram_min", "ngram_max")

    def make(self, target: TargetInfo) -> LookUp:
        from .pool import NgramPool

        return NgramPool(self.ngram_min, self.ngram_max, self.shared)
