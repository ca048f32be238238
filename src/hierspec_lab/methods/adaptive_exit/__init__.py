"""The first exit of the target that is sure of a token drafts it [AdaDecode].

:mod:`.model` is the model; :mod:`.declining` ends drafts.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, Strict, field_validator

from hierspec.config.fields import HeadsPath, Layers
from hierspec.config.levels import Capabilities, LevelConfig, TargetInfo
from hierspec.config.methods import register_level
from hierspec.methods.early_exit import exit_model, heads_files
from hierspec.utils.schema import Expected, checked_dataclass

if TYPE_CHECKING:
    from hierspec.lm.backend import Backend


@register_level
@checked_dataclass
class AdaptiveExitConfig(LevelConfig):
    """Drafts each token with the first exit of the target that is sure of it [AdaDecode].

    Attributes:
        exit_layers: layer counts as in ``early_exit``, shallowest first.
        confidence: an exit is sure if its likeliest token has at least this probability.
        unsure: which model writes a token that no exit is sure of: the last ``exit``, or the
            ``target``, before whose token the draft ends.
        head: for all exits, as in ``early_exit``.
    """

    capabilities = Capabilities(cache="layers", cost=1)
    only_first = {  # noqa: RUF012
        "unsure": (
            "exit",
            "a level that ends its draft where no exit is sure only drafts: put it first, or "
            "remove unsure",
        )
    }

    method: Literal["adaptive_exit"] = "adaptive_exit"
    exit_layers: Layers
    unsure: Literal["exit", "target"] = "exit"
    head: HeadsPath | None = None
    confidence: Annotated[
        float, Strict(), Field(gt=0, le=1), Expected("a number above 0 and at most 1")
    ] = 0.75

    @field_validator("exit_layers")
    @classmethod
    def _ascend(cls, layers: tuple[int, ...]) -> tuple[int, ...]:
        if len(layers) < 2 or min(layers) < 1 or layers != tuple(sorted(set(layers))):
            raise ValueError(
                "it must be two or more layer counts from 1 on, shallowest first, not "
                f"{list(layers)}; a single exit is early_exit"
            )
        return layers

    def make(self, target: TargetInfo) -> Any:
        from .declining import DecliningExit
        from .model import AdaptiveExit

        exits = [exit_model(target, layer, self.head) for layer in self.exit_layers]
        kind = DecliningExit if self.unsure == "target" else AdaptiveExit
        layers = "|".join(map(str, self.exit_layers))
        name = f"{target.name}@{layers}" + ("+head" if self.head else "")
        return kind(exits, self.confidence, name)

    def name_on(self, target: str, model: Any) -> str:
        return model.name

    def read_layers(self, target: str, backend: Backend) -> Iterable[int]:
        return self.exit_layers

    @property
    def further_files(self) -> tuple[str, ...]:
        return heads_files(self.head)
