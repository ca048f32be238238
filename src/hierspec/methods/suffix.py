"""Copies what followed the longest repeated suffix most often: :mod:`hierspec.drafters.suffix`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from hierspec.config.levels import PLANNED_LOOK_UP, LookUpConfig, TargetInfo
from hierspec.config.methods import register_level
from hierspec.utils.schema import Natural, PositiveInteger, checked_dataclass

if TYPE_CHECKING:
    from hierspec.drafters.base import LookUp


@register_level
@checked_dataclass
class SuffixConfig(LookUpConfig):
    """Copies the most frequent continuation of the text's longest repeated suffix [SuffixDecoding].

    Attributes:
        max_order: the longest context, in tokens.
        store: how many tokens of this hierarchy's earlier greedy outputs are kept and copied from.
    """

    capabilities = PLANNED_LOOK_UP
    short_forms = ("suffix",)

    method: Literal["suffix"] = "suffix"
    max_order: PositiveInteger = 32
    store: Natural = 0

    def make(self, target: TargetInfo) -> LookUp:
        from hierspec.drafters.suffix import Suffix

        return Suffix(self.max_order, self.store)

    @classmethod
    def from_short(cls, draft: str) -> Mapping[str, Any] | None:
        return {} if draft == "suffix" else None

    @classmethod
    def names_for_auto(cls, target: str, dtype: str) -> Sequence[str]:
        return ("suffix",)
