"""Copies what followed the latest n-gram: :mod:`hierspec.drafters.prompt_lookup`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from hierspec.config.levels import LookUpConfig, OwnPreset, TargetInfo
from hierspec.config.methods import register_level
from hierspec.config.schema import TargetConfig
from hierspec.utils.schema import Count, checked_dataclass

if TYPE_CHECKING:
    from hierspec.drafters.base import LookUp


@register_level
@checked_dataclass
class PromptLookupConfig(LookUpConfig):
    """Copies what followed the last occurrence of the latest n-gram in the context."""

    capabilities = replace(LookUpConfig.capabilities, planned=True, acceptance=(0.36, 0.12))
    short_forms = ("ngram", "prompt-lookup")
    preset = OwnPreset("prompt-lookup", "copies from the context, no draft model", 8)

    method: Literal["prompt_lookup"] = "prompt_lookup"
    prompt_lookup_min: Count = 2
    prompt_lookup_max: Count = 4

    def __post_init__(self) -> None:
        self._validate_range("prompt_lookup_min", "prompt_lookup_max")

    def make(self, target: TargetInfo) -> LookUp:
        from hierspec.drafters.prompt_lookup import PromptLookup

        return PromptLookup(self.prompt_lookup_min, self.prompt_lookup_max)

    @classmethod
    def from_short(cls, draft: str) -> Mapping[str, Any] | None:
        return {} if draft in ("ngram", "prompt-lookup", "prompt_lookup") else None

    @classmethod
    def names_for_auto(cls, target: TargetConfig) -> Sequence[str]:
        return ("prompt-lookup",)
