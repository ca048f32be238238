"""The target on chosen parts of its cache: :mod:`.model` [TriForce]."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, Strict

from hierspec.config.levels import Capabilities, LevelConfig, TargetInfo
from hierspec.config.methods import register_level
from hierspec.utils.schema import Count, Expected, checked_dataclass


@register_level
@checked_dataclass
class RetrievalConfig(LevelConfig):
    """The target on chosen parts of its own cache, for long texts [TriForce].

    Attributes:
        budget: how many tokens of the text it attends to, in addition to the latest.
        chunk_size: how many adjacent tokens are chosen together.
        refresh: the number of new tokens after which it chooses again.
    """

    capabilities = Capabilities(cache="target", cost=3)

    method: Literal["retrieval"] = "retrieval"
    budget: Annotated[int, Strict(), Field(ge=16), Expected("an integer, at least 16")] = 512
    chunk_size: Count = 8
    refresh: Count = 32

    def make(self, target: TargetInfo) -> Any:
        """Return the target on parts of its cache; levels of equal choices share it."""
        from hierspec.lm.encoder_decoder import validate_decoder_only

        from .model import RetrievalModel

        view = target.trunk.view()
        validate_decoder_only(view, "retrieval", "draft with early_exit or a smaller model")
        key = (self.budget, self.chunk_size, self.refresh)
        return target.share((RetrievalConfig, key), lambda: RetrievalModel(target.trunk, *key))

    def name_on(self, target: str, model: Any) -> str:
        return f"{target}~{self.budget}"
