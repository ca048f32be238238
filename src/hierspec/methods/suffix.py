"""Copies what followed the longest repeated suffix most often: :mod:`hierspec.drafters.suffix`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from hierspec.config.levels import LookUpConfig, OwnPreset, TargetInfo
from hierspec.config.methods import register_level
from hierspec.config.schema import TargetConfig
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

    capabilities = replace(LookUpConfig.capabilities, planned=True, acceptance=(0.44, 0.16))
    short_forms = ("suffix",)
    preset = OwnPreset(
        "suffix",
        "copies what followed most often in the text",
        16,
        "SuffixDecoding",
        "SuffixDecoding: extreme speculative decoding for emerging AI applications "
        "(Oliaro et al., 2024, arXiv 2411.04975)",
    )

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
    def default_levels(cls, target: TargetConfig) -> Sequence[SuffixConfig]:
        from hierspec.config.checkpoints import bits_in_kernels

        # A float32 target checks some more tokens at little cost, one in few bits does not.
        return (cls(num_speculative_tokens=8 if bits_in_kernels(target) is None else 3),)

    @classmethod
    def names_for_auto(cls, target: TargetConfig) -> Sequence[str]:
        return ("suffix",)
