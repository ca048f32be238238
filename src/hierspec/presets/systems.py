"""The five papers' systems, and methods that draft alone, as presets.

Each is a function from :class:`PresetModels` to a :class:`HierarchyConfig`. Numbers are the papers'
own where they give any. Two things differ to keep the target's distribution (MATH): recovered and
bonus tokens are handed up with the level's own distribution, and residuals use that of the model
that drafted the token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from hierspec.config import methods
from hierspec.config.chains import AnyLevelConfig, ConcatenateConfig
from hierspec.config.levels import OwnPreset
from hierspec.config.schema import HierarchyConfig, TargetConfig
from hierspec.core.windows import EntropyWindow
from hierspec.errors import HierspecError
from hierspec.methods.draft_model import DraftModelConfig
from hierspec.methods.early_exit import EarlyExitConfig
from hierspec.utils import plugins
from hierspec.zoo.registry import DEFAULT_DRAFTS, DEFAULT_TARGET

DRAFT_BUDGET = 8  # for systems with one drafter whose paper gives no length
NUM_DRAFTS = 4  # P4 uses 11, on an accelerator
MODEL = "a draft model of the target's family"  # what most presets need
WINDOW_SIZE = 10  # P5's K (Appendix A.1)


@dataclass(frozen=True, slots=True)
class PresetModels:
    """What a preset is built from.

    Attributes:
        target: the model whose distribution is kept.
        drafts: smaller models, smallest first.
        num_layers: returns the target's number of layers, by which early exits are placed.
        trained: the layers after which those exits are; exits are placed at the nearest of them.
    """

    target: TargetConfig
    drafts: tuple[str, ...]
    num_layers: Callable[[], int]
    heads: str | None = None
    trained: tuple[int, ...] = ()

    def with_levels(self, *levels: AnyLevelConfig, verify: str = "tokenwise") -> HierarchyConfig:
        return HierarchyConfig(target=self.target, levels=levels, verify=verify)

    def pair(self, name: str) -> tuple[str, str]:
        """Return the smallest and the largest draft model; one alone is refused."""
        if len(self.drafts) < 2:
            raise HierspecError(
                f"{name} needs two draft models: give --draft twice, smallest first"
            )
        return self.drafts[0], self.drafts[-1]

    def exit_layers(self, name: str, *shares: float) -> tuple[int, ...]:
        """Return layer counts at about these shares of the depth, strictly ascending."""
        depth = self.num_layers()
        layers = layer_per_share(depth, shares)
        if len(self.trained) >= len(shares):
            layers = nearest_layers(layers, self.trained)
        if layers[-1] >= depth:
            raise HierspecError(
                f"{name} needs a target of at least {len(shares) + 1} layers, this one has {depth}"
            )
        return layers

    def exit_level(
        self, layer: int, num_tokens: int, verify: str | None = None, **fields: Any
    ) -> EarlyExitConfig:
        """Return an exit as a level, with its trained head if there is one."""
        head = self.heads if layer in self.trained else None
        return EarlyExitConfig(
            exit_layer=layer, num_speculative_tokens=num_tokens, verify=verify, head=head, **fields
        )


@dataclass(frozen=True, slots=True)
class Preset:
    """A named configuration.

    Attributes:
        source: key of ``PAPERS``; empty if there is no paper.
        max_drafts: how many draft models it uses; ``None``: any number.
        target, drafts: the models used if the user names none.
        needs: what its drafts are.
    """

    name: str
    summary: str
    source: str
    make: Callable[[PresetModels], HierarchyConfig]
    max_drafts: int | None
    target: str = DEFAULT_TARGET
    drafts: tuple[str, ...] = DEFAULT_DRAFTS
    needs: str = MODEL


PRESETS: dict[str, Preset] = {}
PAPERS = {
    "P1": "Fast inference via hierarchical speculative decoding",
    "P2": "An exploration of hierarchical speculative decoding (Chen)",
    "P3": "HiSpec: hierarchical speculative decoding for LLMs",
    "P4": "Overcoming joint intractability with lossless hierarchical speculative decoding",
    "P5": "Hierarchical speculative decoding with dynamic windows for efficient language model "
    "inference (Syu and Lee)",
    "Speculative": "Fast inference from transformers via speculative decoding "
    "(Leviathan et al., 2023, arXiv 2211.17192); accelerating large language model decoding with "
    "speculative sampling (Chen et al., 2023, arXiv 2302.01318)",
    "LayerSkip": "LayerSkip: early-exit inference and self-speculative decoding "
    "(Elhoushi et al., 2024, arXiv 2404.16710)",
}


def register_preset(
    name: str, summary: str, source: str = "", max_drafts: int | None = None, **models: Any
) -> Callable[[Callable[[PresetModels], HierarchyConfig]], Any]:
    def register(make: Callable[[PresetModels], HierarchyConfig]) -> Any:
        PRESETS[name] = Preset(name, summary, source, make, max_drafts, **models)
        if plugins.is_users(make):  # ours may be imported by a user's file
            plugins.REGISTERED.append(make)
        return make

    return register


def draft_level(
    model: str, num_tokens: int, verify: str | None = None, **fields: Any
) -> DraftModelConfig:
    return DraftModelConfig(model=model, num_speculative_tokens=num_tokens, verify=verify, **fields)


def layers_at_shares(depth: int, shares: Iterable[float]) -> tuple[int, ...]:
    """Return the layer counts nearest to these shares of ``depth`` layers, ascending and distinct.

    Each lies between 1 and ``depth`` − 1, so a model of one layer has none.
    """
    if depth < 2:
        return ()
    return tuple(sorted({min(max(1, round(share * depth)), depth - 1) for share in shares}))


def layer_per_share(depth: int, shares: Iterable[float]) -> tuple[int, ...]:
    """Return a layer count for each share, strictly ascending; some may exceed ``depth``."""
    layers = [0]
    for share in shares:
        layers.append(max(layers[-1] + 1, round(share * depth)))
    return tuple(layers[1:])


def nearest_layers(layers: Sequence[int], trained: Sequence[int]) -> tuple[int, ...]:
    """Return for each layer the nearest one that is trained, ascending and distinct."""
    chosen: list[int] = []
    candidates = sorted(trained)
    for i, layer in enumerate(layers, 1):
        num_usable = len(candidates) - (len(layers) - i)  # enough must remain for later layers
        chosen.append(min(candidates[:num_usable], key=lambda other: abs(other - layer)))
        candidates = candidates[candidates.index(chosen[-1]) + 1 :]
    return tuple(chosen)


@register_preset("autoregressive", "plain decoding, one token a call", max_drafts=0)
def autoregressive(models: PresetModels) -> HierarchyConfig:
    return HierarchyConfig(target=models.target)


@register_preset(
    "speculative", "one draft model, tokenwise verification", "Speculative", max_drafts=1
)
def speculative(models: PresetModels) -> HierarchyConfig:
    """Draft with one model, verify tokenwise (Leviathan et al., Chen et al., 2023)."""
    return models.with_levels(draft_level(models.drafts[-1], DRAFT_BUDGET))


# --- P1: a hierarchy of models, or of one model's exits


@register_preset("hierarchy", "a chain of draft models, block verification", "P1")
def hierarchy(models: PresetModels) -> HierarchyConfig:
    """Stack all draft models [P1 Algorithm 1], verified by block."""
    small, *larger = models.drafts
    levels = [draft_level(small, 3), *(draft_level(model, 12, "block") for model in larger)]
    return models.with_levels(*levels, verify="block")


@register_preset(
    "self-speculative",
    "two early exits of the target as a chain, block verification",
    "P1",
    max_drafts=0,
)
def self_speculative(models: PresetModels) -> HierarchyConfig:
    """Stack two early exits of the target [P1 §4].

    P1's plans for LayerSkip models exit after 7 and 9 of 32, 7 and 18 of 40, 7 and 23 of 80 layers,
    with budgets of 2 and 5 or 6 (Table 3). Here: an eighth and a quarter, 2 and 6.
    """
    first, second = models.exit_layers("self-speculative", 1 / 8, 1 / 4)
    return models.with_levels(
        models.exit_level(first, 2),
        models.exit_level(second, 6, "block"),
        verify="block",
    )


# --- P3: exits of one model draft and pre-verify


@register_preset("hispec", "two early exits of the target draft and pre-verify", "P3", max_drafts=0)
def hispec(models: PresetModels) -> HierarchyConfig:
    """Draft with an eighth of the layers, pre-verify with a quarter of them [P3 §3, §6].

    N_d = 2 and N_i = 4 are P3's defaults. It keeps a draft token that is among the intermediate
    verifier's "top predictions" and does not say how many those are; with one the same rule is
    exact at the target too, as P3 says of it, so m = 1 here. Under sampling the intermediate level
    reports the mixture that the rule causes, and block at the target keeps the output exact.

    It drops its bonus token: a check with it runs the last drafted token through the eighth of the
    layers that the draft exit shares. By the formula [MATH §4] that saves 1 to 9 % of the layers a
    token where .5 to .8 of the draft exit's tokens are kept, and .6 to .8 of the other's.
    """
    first, second = models.exit_layers("hispec", 1 / 8, 1 / 4)
    return models.with_levels(
        models.exit_level(first, 2),
        models.exit_level(second, 4, "leading", bonus=False),
        verify="block",
    )


@register_preset("layerskip", "one early exit of the target drafts", "LayerSkip", max_drafts=0)
def layerskip(models: PresetModels) -> HierarchyConfig:
    """Draft with one exit after a quarter of the layers (Elhoushi et al., 2024).

    P1's best single exits of such models are 8 of 32, 15 of 40 and 19 of 80 layers (Table 3).
    """
    (layer,) = models.exit_layers("layerskip", 1 / 4)
    return models.with_levels(models.exit_level(layer, 4))


# --- P4: branch resampling


@register_preset(
    "branch", "one draft model, capped branch resampling (= block)", "P4", max_drafts=1
)
def branch(models: PresetModels) -> HierarchyConfig:
    """Verify by capped branch resampling, which is block verification [MATH §1]."""
    return models.with_levels(draft_level(models.drafts[-1], DRAFT_BUDGET), verify="block")


@register_preset(
    "multi-draft",
    "several drafts of one model a round, block verification of one after another",
    "P4",
    max_drafts=1,
)
def multi_draft(models: PresetModels) -> HierarchyConfig:
    """Verify several drafts by block, one after another: P4's Algorithm 3, made lossless."""
    return models.with_levels(
        draft_level(models.drafts[-1], DRAFT_BUDGET, num_drafts=NUM_DRAFTS), verify="block-rrs"
    )


# --- P5: dynamic windows


@register_preset("dynamic-windows", "entropy decides when a level hands up, thresholds adapt", "P5")
def dynamic_windows(models: PresetModels) -> HierarchyConfig:
    """Stop every level by its own entropy [P5 §3.2, Algorithm 2]; Table 2: HSDDW."""
    small, *larger = models.drafts
    levels = [draft_level(model, 15, "tokenwise", window=EntropyWindow()) for model in larger]
    return models.with_levels(draft_level(small, WINDOW_SIZE, window=EntropyWindow()), *levels)


# --- P2: three models, one verification


@register_preset("interleaved", "small and mid draft in turn, one verification", "P2", max_drafts=2)
def interleaved(models: PresetModels) -> HierarchyConfig:
    small, mid = models.pair("interleaved")
    parts = ((draft_level(small, 1),), (draft_level(mid, 1),))
    return models.with_levels(ConcatenateConfig(parts=parts, repeat=4))


@register_preset("horizontal", "mid drafts first, then small, one verification", "P2", max_drafts=2)
def horizontal(models: PresetModels) -> HierarchyConfig:
    """Draft with the larger model first, then with the small one.

    This emits no fewer tokens a call than interleaving if the larger model's are kept at least as
    often as the small one's [MATH §2].
    """
    small, mid = models.pair("horizontal")
    return models.with_levels(
        ConcatenateConfig(parts=((draft_level(mid, 4),), (draft_level(small, 4),)))
    )


# --- a method alone, as its file says


def _register_own(level: type[Any], own: OwnPreset) -> None:
    @register_preset(own.name, own.summary, own.source, int(bool(own.models)), **own.models)
    def make(models: PresetModels) -> HierarchyConfig:  # pyright: ignore[reportUnusedFunction]
        model = {"model": models.drafts[-1]} if own.models else {}
        drafter = level(num_speculative_tokens=own.num_speculative_tokens, **model)
        return models.with_levels(drafter, verify=own.verify)

    PAPERS.update({own.source: own.citation} if own.source else {})


for _level in sorted(methods.built_in(), key=lambda one: bool(one.preset and one.preset.models)):
    if _level.preset is not None:
        _register_own(_level, _level.preset)
