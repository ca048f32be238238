"""The target without some of its layers drafts, on its own cache [SWIFT].

:mod:`.skipping` leaves them out; :mod:`.search` searches for them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import Field, Strict

from hierspec.config.fields import Layers
from hierspec.config.levels import Capabilities, LevelConfig, TargetInfo
from hierspec.config.methods import register_level
from hierspec.errors import HierspecError
from hierspec.utils.schema import (
    Boolean,
    Count,
    Expected,
    Natural,
    NonNegativeNumber,
    ReadAs,
    checked_dataclass,
    error_at,
)

from .search import SearchSettings
from .skipping import Skip, SkippingBackend, evenly_spaced_layers

_SWIFT = SearchSettings()


@checked_dataclass
class SkipSearchConfig:
    """The fields of :class:`~.search.SearchSettings` except the share.

    Attributes:
        shared: one search for all greedy texts of a hierarchy, earlier ones included.
    """

    kind: Literal["bayesian", "random"] = _SWIFT.kind
    context_window: Count = _SWIFT.context_window
    interval: Count = _SWIFT.interval
    bayes_interval: Count = _SWIFT.bayes_interval
    max_candidates: Count = _SWIFT.max_candidates
    patience: Count = _SWIFT.patience
    enough: NonNegativeNumber = _SWIFT.enough
    seed: Natural = _SWIFT.seed
    shared: Boolean = False

    def settings(self, share: float) -> SearchSettings:
        """Return the settings of a search for this share of all parts."""
        values = dataclasses.asdict(self)
        del values["shared"]
        return SearchSettings(share, **values)


def _parse_search(value: Any, validate_form: Callable[[Any], Any]) -> SkipSearchConfig:
    """Parse a search from ``{"kind": "random", …}``, its kind alone, or a configuration."""
    if isinstance(value, SkipSearchConfig):
        return value
    return validate_form({"kind": value} if isinstance(value, str) else value)


Search = Annotated[SkipSearchConfig, ReadAs(SkipSearchConfig, _parse_search)]
_Share = Annotated[float, Strict(), Field(gt=0, lt=1), Expected("a number between 0 and 1")]


@register_level
@checked_dataclass
class LayerSkipConfig(LevelConfig):
    """The target without some of its layers, or parts of them, on its own cache [SWIFT].

    Attributes:
        skip_layers: the layers to leave out, counted from 0.
        skip_attention, skip_mlp: further layers of which only the attention or the MLP is left out.
        skip: instead of these, the share of layers to leave out, evenly spaced; the first and the
            last layer are kept.
        search: with ``skip``, search while drafting for attentions and MLPs to leave out; ``skip``
            is then their share of those between the first and the last layer.
    """

    capabilities = Capabilities(cache="target", cost=3)
    only_first = {  # noqa: RUF012
        "search": (
            None,
            "a level that searches for what to leave out only drafts: put it first, or remove the "
            "search",
        )
    }

    method: Literal["layer_skip"] = "layer_skip"
    skip_layers: Layers | None = None
    skip_attention: Layers | None = None
    skip_mlp: Layers | None = None
    skip: _Share | None = None
    search: Search | None = None

    def __post_init__(self) -> None:
        lists_layers = any((self.skip_layers, self.skip_attention, self.skip_mlp))
        if (self.skip is not None) == lists_layers:
            raise HierspecError(
                "layer_skip needs either skip_layers (a list of layers; skip_attention and "
                "skip_mlp: of parts of them) or skip (the share of layers to leave out)"
            )
        if self.search is not None and lists_layers:
            raise error_at(
                ["search"], "a search needs skip, the share to leave out, in place of lists"
            )
        if self.search is not None and self.num_drafts > 1:
            raise error_at(["num_drafts"], "a search chooses for one draft a round: remove it")

    def make(self, target: TargetInfo) -> Any:
        """Return the target without some layers or parts; equal skips share it."""
        from hierspec.lm.encoder_decoder import validate_decoder_only
        from hierspec.lm.trunk.self_draft import SelfDraft

        from .drafter import SearchedSkip, SkipSearches

        trunk = target.trunk
        validate_decoder_only(
            trunk.view(), "layer_skip", "draft with early_exit or a smaller model"
        )
        depth = trunk.backend.num_layers
        if self.search is not None:
            assert self.skip is not None
            searches = SkipSearches(self.search.settings(self.skip), depth, self.search.shared)
            return SearchedSkip(trunk, searches, f"{target.name}~{self.skip:g}")
        if self.skip is not None:
            skip = Skip.whole_layers(evenly_spaced_layers(self.skip, depth))
        else:
            layers = self.skip_layers or ()
            skip = Skip(
                tuple(sorted((*layers, *(self.skip_attention or ())))),
                tuple(sorted((*layers, *(self.skip_mlp or ())))),
            )
        return target.share(
            (LayerSkipConfig, skip), lambda: SelfDraft(trunk, SkippingBackend(trunk.backend, skip))
        )

    def name_on(self, target: str, model: Any) -> str:
        return f"{target}~{model.name.rpartition('~')[2]}"
