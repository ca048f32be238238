"""The papers' systems by name, each with its citation; :mod:`hierspec.presets.systems` builds them.

Defaults use the shipped family, so every preset runs on a fresh machine. Citations are keys of
``PAPERS``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hierspec.config import arguments
from hierspec.config.schema import HierarchyConfig, TargetConfig
from hierspec.config.target import target_config
from hierspec.errors import HierspecError
from hierspec.zoo.registry import DEFAULT_DRAFTS, DEFAULT_TARGET

from . import systems
from .systems import Models

AUTO = "auto"  # no fixed configuration: measured and planned on the machine at hand

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
    "SWIFT": "SWIFT: on-the-fly self-speculative decoding (Xia et al., 2024, arXiv 2410.06916)",
    "AdaDecode": "AdaDecode: adaptive layer parallelism (Wei et al., 2025, arXiv 2506.03700)",
    "Lookahead": "Lookahead decoding: breaking the sequential dependency of inference "
    "(Fu et al., 2024, arXiv 2402.02057)",
}


@dataclass(frozen=True, slots=True)
class Preset:
    """A named configuration: what it is, where it comes from, and how to build it."""

    name: str
    summary: str
    source: str
    make: Callable[[Models], HierarchyConfig]
    max_drafts: int | None = None  # how many draft models it uses; None: all there are


_ALL = (
    Preset("autoregressive", "plain decoding, one token a call", "", systems.autoregressive, 0),
    Preset(
        "speculative",
        "one draft model, tokenwise verification",
        "Speculative",
        systems.speculative,
        1,
    ),
    Preset("hierarchy", "a chain of draft models, block verification", "P1", systems.hierarchy),
    Preset(
        "self-speculative",
        "two early exits of the target as a chain, block verification",
        "P1",
        systems.self_speculative,
        0,
    ),
    Preset(
        "horizontal-tail",
        "as hierarchy; every level appends tokens of the smallest model",
        "P1",
        systems.horizontal_tail,
    ),
    Preset(
        "tempered",
        "as hierarchy, drafters at temperature 0.5; for requests at 0.6",
        "P1",
        systems.tempered,
    ),
    Preset("hispec", "two early exits of the target draft and pre-verify", "P3", systems.hispec, 0),
    Preset("layerskip", "one early exit of the target drafts", "LayerSkip", systems.layerskip, 0),
    Preset(
        "branch", "one draft model, capped branch resampling (= block)", "P4", systems.branch, 1
    ),
    Preset(
        "naive",
        "one draft model, naive branch resampling with its extra calls",
        "P4",
        systems.naive,
        1,
    ),
    Preset(
        "multi-draft",
        "several drafts of one model a round, block verification of one after another",
        "P4",
        systems.multi_draft,
        1,
    ),
    Preset(
        "multi-draft-tokenwise",
        "several drafts of one model a round, recursive rejection sampling",
        "P4",
        systems.multi_draft_tokenwise,
        1,
    ),
    Preset(
        "dynamic-windows",
        "entropy decides when a level hands up, thresholds adapt",
        "P5",
        systems.dynamic_windows,
    ),
    Preset(
        "self-verify", "one draft model that stops by its own entropy", "P5", systems.self_verify, 1
    ),
    Preset("pre-verify", "two draft models, fixed windows, tokenwise", "P5", systems.pre_verify, 2),
    Preset(
        "pre-self-verify",
        "as pre-verify, the smaller model stops by its own entropy",
        "P5",
        systems.pre_self_verify,
        2,
    ),
    Preset(
        "interleaved",
        "small and mid draft in turn, one verification",
        "P2",
        systems.interleaved,
        2,
    ),
    Preset(
        "horizontal", "mid drafts first, then small, one verification", "P2", systems.horizontal, 2
    ),
    Preset(
        "prompt-lookup", "copies from the context, no draft model", "", systems.prompt_lookup, 0
    ),
    Preset(
        "swift", "the target drafts without 45 % of its layers, evenly", "SWIFT", systems.swift, 0
    ),
    Preset(
        "adadecode",
        "each token drafted by the first sure one of three exits",
        "AdaDecode",
        systems.adadecode,
        0,
    ),
    Preset(
        "lookahead",
        "drafts from a pool of n-grams, without Jacobi iterations",
        "Lookahead",
        systems.lookahead,
        0,
    ),
)
PRESETS = {preset.name: preset for preset in _ALL}


def preset(
    name: str, target: TargetConfig | str | None = None, drafts: str | Sequence[str] = ()
) -> HierarchyConfig:
    """The preset of that name, on the given models or on the shipped family.

    Args:
        target: a configuration, or a model's name or path.
        drafts: names or paths, smallest first; a preset takes of them what it uses.

    Raises:
        ValueError: no such preset (the message lists those there are), or it needs other models.
    """
    target, drafts = arguments.target(target), arguments.model_names(drafts, "drafts")
    if name == AUTO:
        from hierspec.profiling.auto import choose

        return choose(target, drafts).config
    if name not in PRESETS:
        raise HierspecError(f"no preset called {name!r}; there are: {', '.join([*PRESETS, AUTO])}")
    shipped = target is None or target.model.startswith("zoo:")
    if not drafts and not shipped and PRESETS[name].max_drafts != 0:
        raise HierspecError(
            f"preset {name!r} needs a draft model of the target's family: add --draft"
        )
    chosen = target or TargetConfig(model=DEFAULT_TARGET)

    def num_layers() -> int:
        return target_config(chosen.model).num_hidden_layers

    models = Models(chosen, tuple(drafts) or DEFAULT_DRAFTS, num_layers)
    return PRESETS[name].make(models)
