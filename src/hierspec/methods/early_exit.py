"""The target's first layers draft, on its own cache [P3; LayerSkip]; with trained heads [P1]."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from hierspec.config.fields import HeadsPath
from hierspec.config.in_memory import ModelInMemory
from hierspec.config.levels import Capabilities, LevelConfig, TargetInfo
from hierspec.config.methods import register_level
from hierspec.config.schema import TargetConfig
from hierspec.errors import HierspecError
from hierspec.utils.files import expand_user
from hierspec.utils.schema import PositiveInteger, checked_dataclass
from hierspec.zoo import trained

if TYPE_CHECKING:
    from hierspec.lm.backend import Backend
    from hierspec.lm.trunk.trunk import ExitModel


@register_level
@checked_dataclass
class EarlyExitConfig(LevelConfig):
    """The target's first ``exit_layer`` layers and its head, sharing its cache [P3].

    Attributes:
        head: a file of heads trained for its exits, or a folder with ``exit_heads.safetensors``
            [P1 §4.1]; ``None``: the target's own final norm and head.
    """

    capabilities = Capabilities(cache="layers", planned=True, cost=1, acceptance=(0.34, 0.37))
    short_forms = ("exit:LAYER",)

    method: Literal["early_exit"] = "early_exit"
    exit_layer: PositiveInteger
    head: HeadsPath | None = None

    def make(self, target: TargetInfo) -> Any:
        return exit_model(target, self.exit_layer, self.head)

    def name_on(self, target: str, model: Any) -> str:
        return f"{target}@{self.exit_layer}" + ("+head" if self.head else "")

    def read_layers(self, target: str, backend: Backend) -> Iterable[int]:
        return (self.exit_layer,)

    @property
    def further_files(self) -> tuple[str, ...]:
        return heads_files(self.head)

    @classmethod
    def from_short(cls, draft: str) -> Mapping[str, Any] | None:
        kind, _, layer = draft.partition(":")
        if kind not in ("exit", "early_exit") or draft == "exit":
            return None
        if not layer.isdecimal() or int(layer) == 0:
            raise HierspecError(f"draft {draft!r}: write exit:LAYER, as in exit:4")
        return {"exit_layer": int(layer)}

    @classmethod
    def default_levels(cls, target: TargetConfig) -> Sequence[EarlyExitConfig]:
        """Return the two lowest trained exits as levels, or the only one."""
        heads, layers = trained_exits(target.model)
        return [
            cls(exit_layer=layer, head=heads, num_speculative_tokens=budget, verify=rule)
            for layer, budget, rule in zip(layers, (3, 8), (None, "block"), strict=False)
        ]

    @classmethod
    def names_for_auto(cls, target: TargetConfig) -> Sequence[str]:
        """Return the exits that heads are shipped for, unless a copy of the target is better.

        Where its int8 copy runs in the compiled kernels, a few of the target's own layers cost more
        than the whole copy, which agrees far better.
        """
        from hierspec.config import exit_heads
        from hierspec.config.checkpoints import can_be_copied, kernels_take
        from hierspec.lm.native import library

        heads = trained.of_kind(trained.HEADS_KIND, target.model)
        if not heads or (kernels_take(target) and can_be_copied(target) and library.is_expected()):
            return ()
        return [
            f"exit:{layer},head={drafter}"
            for drafter in heads
            for layer in exit_heads.read(drafter).exits
        ]


def exit_model(target: TargetInfo, layer: int, heads: str | None) -> ExitModel:
    """Return the target's exit after ``layer`` layers, with a trained head if one is given."""
    if heads is None:
        return target.trunk.view(layer)
    from hierspec.config.exit_heads import load_head

    parts = target.share("vocabulary parts, by file of heads", dict[Any, Any])
    head = load_head(heads, layer, target.trunk.backend, target.name, parts)
    return target.trunk.view(layer, head)


def trained_exits(target: str) -> tuple[str | None, tuple[int, ...]]:
    """Return the exit heads shipped for a target or in its folder, and the layers of the exits."""
    names = trained.of_kind(trained.HEADS_KIND, target)
    is_name = not isinstance(target, ModelInMemory)
    if is_name and (expand_user(target) / trained.HEADS_FILE).is_file():
        names.append(target)
    if not names:
        return None, ()
    from hierspec.config import exit_heads  # imports torch

    return names[0], exit_heads.read(names[0]).exits


def heads_files(heads: str | None) -> tuple[str, ...]:
    from hierspec.config import exit_heads

    return () if heads is None else (str(exit_heads.locate(heads)),)
