"""Presets of one drafter that is no draft model: look-ups, a copy of the target, EAGLE-3.

Each is a function, as in :mod:`.systems`; ``docs/presets.md`` lists how they differ from what their
authors describe.
"""

from __future__ import annotations

from hierspec.config.schema import HierarchyConfig
from hierspec.methods.eagle3 import Eagle3LevelConfig
from hierspec.methods.prompt_lookup import PromptLookupConfig
from hierspec.methods.quantized import QuantizedConfig
from hierspec.methods.suffix import SuffixConfig
from hierspec.zoo.registry import SMOLLM2_EAGLE3, SMOLLM2_NAME

from .systems import DRAFT_BUDGET, PresetModels, register_preset


@register_preset("prompt-lookup", "copies from the context, no draft model", max_drafts=0)
def prompt_lookup(models: PresetModels) -> HierarchyConfig:
    """Copy from the context, without a draft model."""
    return models.with_levels(PromptLookupConfig(num_speculative_tokens=DRAFT_BUDGET))


@register_preset(
    "suffix", "copies what followed most often in the text", "SuffixDecoding", max_drafts=0
)
def suffix(models: PresetModels) -> HierarchyConfig:
    """Copy the most frequent continuation in the text (Oliaro et al., 2024), without a draft model.

    :mod:`hierspec.drafters.suffix` says what differs: one draft instead of a tree, and no store of
    earlier outputs unless the level asks for one.
    """
    return models.with_levels(SuffixConfig(num_speculative_tokens=16))


@register_preset(
    "quantized", "the target in int8 drafts on its own cache", "QuantSpec", max_drafts=0
)
def quantized(models: PresetModels) -> HierarchyConfig:
    """Draft with an int8 copy of the target (after Tiwari et al., 2025).

    QuantSpec drafts with 4-bit weights and keeps a 4-bit copy of the keys and values; here weights
    are int8 and the cache is the target's own.
    """
    return models.with_levels(QuantizedConfig(num_speculative_tokens=10))


@register_preset(
    "eagle3",
    "a network that reads the target's hidden states",
    "EAGLE-3",
    max_drafts=1,
    target=SMOLLM2_NAME,
    drafts=(SMOLLM2_EAGLE3,),
    needs="an EAGLE-3 drafter (hierspec heads train --kind eagle3 makes one)",
)
def eagle3(models: PresetModels) -> HierarchyConfig:
    """Draft a chain with an EAGLE-3 network (Li et al., 2025, draft a tree); verify it by block.

    The draft model is the folder of a network, as ``hierspec heads train --kind eagle3`` writes it.
    """
    drafter = Eagle3LevelConfig(model=models.drafts[-1], num_speculative_tokens=4)
    return models.with_levels(drafter, verify="block")
