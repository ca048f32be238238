"""What presets make of models that are named only, and levels in short."""

from __future__ import annotations

from hierspec import TargetConfig
from hierspec.config.chains import ConcatenateConfig
from hierspec.presets.registry import PRESETS
from hierspec.presets.systems import PresetModels


def made(name, num_layers=16, drafts=("small", "mid")):
    models = PresetModels(TargetConfig(model="target"), tuple(drafts), lambda: num_layers)
    return PRESETS[name].make(models)


def shape(level):
    """A level in short: (model, exit or method; tokens; rule)."""
    if isinstance(level, ConcatenateConfig):
        return [[shape(one) for one in part] for part in level.parts], level.repeat
    what = getattr(level, "model", None) or getattr(level, "exit_layer", None) or level.method
    return what, level.num_speculative_tokens, level.verify


def flat(levels):
    for level in levels:
        if isinstance(level, ConcatenateConfig):
            for part in level.parts:
                yield from flat(part)
        else:
            yield level
