"""An EAGLE-3 network that drafts from the target's hidden states [Li et al. 2025].

:mod:`hierspec.lm.eagle3` is the network.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from hierspec.config.fields import ModelName
from hierspec.config.levels import Capabilities, LevelConfig, OwnPreset, TargetInfo
from hierspec.config.methods import register_level
from hierspec.config.schema import TargetConfig
from hierspec.utils.schema import checked_dataclass
from hierspec.zoo import registry, trained

if TYPE_CHECKING:
    from hierspec.lm.backend import Backend


@register_level
@checked_dataclass
class Eagle3LevelConfig(LevelConfig):
    """An EAGLE-3 network that reads the target's hidden states [Li et al. 2025]; it only drafts.

    Attributes:
        model: the folder of its checkpoint, or ``zoo:NAME``.
    """

    capabilities = Capabilities(
        verifies=False,
        drafts_as_it_scores=False,  # its drafts also depend on its own states of their tokens
        planned=True,
        cost=1,
        acceptance=(0.33, 0.32),
        trees=True,
    )
    short_forms = ("eagle3:FOLDER",)
    preset = OwnPreset(  # the paper drafts a tree, this a chain
        "eagle3",
        "a network that reads the target's hidden states",
        4,
        "EAGLE-3",
        "EAGLE-3: scaling up inference acceleration of large language models via training-time "
        "test (Li et al., 2025, arXiv 2503.01840)",
        verify="block",
        models={
            "target": registry.SMOLLM2_NAME,
            "drafts": (registry.SMOLLM2_EAGLE3,),
            "needs": "an EAGLE-3 drafter (hierspec heads train --kind eagle3 makes one)",
        },
    )

    method: Literal["eagle3"] = "eagle3"
    model: ModelName

    def make(self, target: TargetInfo) -> Any:
        """Return a network over the target's trunk; levels that name the same one share it."""
        from hierspec.lm.eagle3.checkpoint import read_network
        from hierspec.lm.eagle3.config import validate_fits
        from hierspec.lm.eagle3.model import Eagle3Model

        def make() -> Eagle3Model:
            network, trunk = read_network(trained.locate(self.model)), target.trunk
            if target.name == registry.SMOLLM2_16BIT and trained.is_for_smollm2(self.model):
                from hierspec.zoo.rotated import fold_eagle3

                network = replace(network, tensors=fold_eagle3(network.tensors))
            layers = validate_fits(self.model, network.config, target.name, trunk.backend)
            return Eagle3Model(trunk, network, layers, self.model)

        return target.share((Eagle3LevelConfig, self.model), make)

    def read_layers(self, target: str, backend: Backend) -> Iterable[int]:
        from hierspec.lm.eagle3.checkpoint import read_folder
        from hierspec.lm.eagle3.config import validate_fits

        return validate_fits(self.model, read_folder(trained.locate(self.model)), target, backend)

    def name_on(self, target: str, model: Any) -> str:
        return self.model

    @property
    def files(self) -> str:
        return self.model

    def weight_bytes(self, model: Any) -> int:
        return model.layer.num_bytes

    @property
    def only_drafts(self) -> str:
        return (
            "eagle3 cannot verify: each of its steps reads the one before, so it cannot check a "
            "draft in one call; put it first (an early exit or a draft model may verify it)"
        )

    @classmethod
    def from_short(cls, draft: str) -> Mapping[str, Any] | None:
        if trained.kind(draft) == trained.EAGLE3_KIND:
            return {"model": draft}
        kind, _, folder = draft.partition(":")
        return {"model": folder or registry.SMOLLM2_EAGLE3} if kind == "eagle3" else None

    @classmethod
    def default_levels(cls, target: TargetConfig) -> Sequence[Eagle3LevelConfig]:
        names = trained.of_kind(trained.EAGLE3_KIND, target.model)
        return [cls(model=name, num_speculative_tokens=5) for name in names]

    @classmethod
    def names_for_auto(cls, target: TargetConfig) -> Sequence[str]:
        return trained.of_kind(trained.EAGLE3_KIND, target.model)
