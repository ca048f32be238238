"""The models of a hierarchy's levels, which share trunks and caches where they can.

One checkpoint has one trunk, however often a hierarchy names it: every early exit is a view of the
target's trunk, and levels that leave out the same layers share a cache.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hierspec.core.windows import AcceptanceWindow
from hierspec.drafters.declining import DecliningExit
from hierspec.drafters.ngram_table import NgramModel
from hierspec.drafters.skip_search import SearchedSkip, SkipSearches
from hierspec.errors import HierspecError, HierspecWarning
from hierspec.lm.adaptive_exit import AdaptiveExit
from hierspec.lm.backend import Backend
from hierspec.lm.base import LevelModel
from hierspec.lm.eagle3 import checkpoint as eagle3
from hierspec.lm.eagle3.config import check_fits
from hierspec.lm.eagle3.model import Eagle3Model
from hierspec.lm.eagle3.network import Eagle3Network
from hierspec.lm.encoder_decoder import EncoderDecoder, check_decoder_only
from hierspec.lm.layer_skip import Skip, SkippingBackend, evenly_spaced_layers
from hierspec.lm.trunk.cuda_graph_copy import self_draft_for
from hierspec.lm.trunk.cuda_graphs import trunk_for
from hierspec.lm.trunk.retrieval import RetrievalModel
from hierspec.lm.trunk.self_draft import SelfDraft
from hierspec.lm.trunk.trunk import ExitModel, Trunk
from hierspec.zoo import registry, trained

from .chains import AnyLevelConfig, ConcatenateConfig, find_levels
from .checkpoints import Key, Loaded, key_of, load_tokenizer
from .levels import (
    AdaptiveExitConfig,
    DraftModelConfig,
    Eagle3LevelConfig,
    EarlyExitConfig,
    LayerSkipConfig,
    MadeLevel,
    NgramTableConfig,
    QuantizedConfig,
    RetrievalConfig,
    TargetInfo,
)
from .schema import TargetConfig
from .vocabulary import check_same_vocabulary, check_sizes, check_table, vocabulary_key


class LargerDraftWarning(HierspecWarning, UserWarning):
    """A draft model has more weights than its target."""


@dataclass(slots=True)
class LevelModels:
    """Makes the models of one hierarchy.

    Args:
        levels: all levels of the hierarchy; a trunk is made for their exits.
        loaded: checkpoints to share; missing ones are loaded and added.
    """

    target: TargetConfig
    levels: Sequence[AnyLevelConfig]
    loaded: Loaded
    trunks: dict[Key, Trunk] = field(default_factory=dict)
    skip_models: dict[Skip, SelfDraft] = field(default_factory=dict)
    quantized_models: dict[int, SelfDraft] = field(default_factory=dict)  # by number of bits
    retrieval_models: dict[tuple[int, int, int], RetrievalModel] = field(default_factory=dict)
    vocabulary_parts: dict[Any, Any] = field(default_factory=dict)  # by file of heads
    eagle3_networks: dict[str, Eagle3Network] = field(default_factory=dict)
    eagle3_models: dict[str, Eagle3Model] = field(default_factory=dict)

    def target_view(self) -> ExitModel:
        """Return the target's model.

        Raises:
            HierspecError: it cannot be read, or an exit is out of range.
        """
        return self._trunk(self.target).view()

    def model(self, level: AnyLevelConfig) -> tuple[LevelModel | None, str]:
        """Return a level's model and its name; a concatenation has no model.

        Raises:
            HierspecError: it cannot be read, or its vocabulary is not the target's.
        """
        target = self.target.model
        match level:
            case ConcatenateConfig():
                return None, level.method
            case MadeLevel():
                return level.make(self._target_info()), level.method
            case NgramTableConfig():
                return self._table(level), level.method
            case EarlyExitConfig():
                name = f"{target}@{level.exit_layer}" + ("+head" if level.head else "")
                return self._exit_model(level.exit_layer, level.head), name
            case AdaptiveExitConfig():
                exits = [self._exit_model(layer, level.head) for layer in level.exit_layers]
                name = f"{target}@{'|'.join(map(str, level.exit_layers))}"
                name += "+head" if level.head else ""
                kind = DecliningExit if level.unsure == "target" else AdaptiveExit
                return kind(exits, level.confidence, name), name
            case LayerSkipConfig():
                return self._skip_model(level)
            case QuantizedConfig():
                return self._quantized_model(level.bits), f"{target}:int{level.bits}"
            case RetrievalConfig():
                return self._retrieval_model(level), f"{target}~{level.budget}"
            case Eagle3LevelConfig():
                return self._eagle3_model(level.model), level.model
            case DraftModelConfig():
                return self._draft_model(level), level.model
            case _:
                raise AssertionError(f"no model of method {level.method}")

    def _table(self, level: NgramTableConfig) -> NgramModel:
        table = NgramModel.load(registry.ngram_path(level.table), max_order=level.max_order)
        key = table.vocabulary or self._table_key(level.table)
        check_table(level.table, table.vocab_size, key, *self._target_vocabulary())
        return table

    def _quantized_model(self, bits: int) -> SelfDraft:
        """Return a copy of the target in so many bits; levels of equal bits share it."""
        from hierspec.lm.lean.quantized import quantize

        trunk = self._trunk(self.target)
        if bits not in self.quantized_models:
            self.quantized_models[bits] = self_draft_for(trunk, quantize(trunk.backend, bits))
        return self.quantized_models[bits]

    def _retrieval_model(self, level: RetrievalConfig) -> RetrievalModel:
        """Return the target on parts of its cache; levels of equal choices share it."""
        check_decoder_only(
            self.target_view(), "retrieval", "draft with early_exit or a smaller model"
        )
        key = (level.budget, level.chunk_size, level.refresh)
        if key not in self.retrieval_models:
            self.retrieval_models[key] = RetrievalModel(self._trunk(self.target), *key)
        return self.retrieval_models[key]

    def _draft_model(self, level: DraftModelConfig) -> ExitModel:
        target = self.target
        draft = dataclasses.replace(
            target,
            model=level.model,
            dtype=level.dtype or target.dtype,
            backend=level.backend,
        )
        trunk = self._trunk(draft)
        view, tokenizer = trunk.view(), self.loaded.tokenizers.get(level.model)
        name, target_tokenizer, vocab_size = self._target_vocabulary()
        check_same_vocabulary(name, target_tokenizer, level.model, tokenizer)
        if tokenizer is None or target_tokenizer is None:
            check_sizes(name, vocab_size, level.model, view.vocab_size)
        if not isinstance(self.target_view(), EncoderDecoder):
            check_decoder_only(view, f"the decoder-only {name}", "draft with a decoder-only model")
        self._warn_if_larger(level.model, trunk.backend)
        return self._with_acceptance_head(level, view)

    def _warn_if_larger(self, name: str, draft: Backend) -> None:
        """Warn if a draft model is larger than its target, by layers times width squared."""
        target = self._trunk(self.target).backend
        backends = (draft, target)
        sizes = [backend.num_layers * backend.hidden_size**2 for backend in backends]
        if sizes[0] > sizes[1]:
            shapes = [
                f"{backend.num_layers} layers of {backend.hidden_size}" for backend in backends
            ]
            warnings.warn(
                f"the draft {name} ({shapes[0]}) is larger than its target {self.target.model} "
                f"({shapes[1]}): output stays exact, and nothing gets faster; were they exchanged?",
                LargerDraftWarning,
                stacklevel=2,
            )

    def _with_acceptance_head(self, level: DraftModelConfig, view: Any) -> Any:
        """Return the draft model with the head that its window reads, if it reads one."""
        if not isinstance(level.window, AcceptanceWindow):
            return view
        if not level.window.head:
            raise HierspecError(
                f"the acceptance window of {level.model} needs a trained head: add "
                '"head": "FILE" to the window (hierspec heads train --kind acceptance makes one)'
            )
        from .acceptance_head import attach

        return attach(level.window.head, view, level.model)

    def _exit_model(self, layer: int, heads: str | None) -> ExitModel:
        """Return the target's exit after ``layer`` layers, with a trained head if one is given."""
        trunk, name = self._trunk(self.target), self.target.model
        if heads is None:
            return trunk.view(layer)
        from .exit_heads import load_head

        head = load_head(heads, layer, trunk.backend, name, self.vocabulary_parts)
        return trunk.view(layer, head)

    def _skip_model(self, level: LayerSkipConfig) -> tuple[Any, str]:
        """Return the target without some layers or parts, and its name; equal skips share it."""
        check_decoder_only(
            self.target_view(), "layer_skip", "draft with early_exit or a smaller model"
        )
        trunk = self._trunk(self.target)
        depth = trunk.backend.num_layers
        if level.search is not None:
            assert level.skip is not None
            settings = level.search.settings(level.skip)
            searches = SkipSearches(settings, depth, level.search.shared)
            name = f"{self.target.model}~{level.skip:g}"
            return SearchedSkip(trunk, searches, name), name
        if level.skip is not None:
            skip = Skip.whole_layers(evenly_spaced_layers(level.skip, depth))
        else:
            layers = level.skip_layers or ()
            skip = Skip(
                tuple(sorted((*layers, *(level.skip_attention or ())))),
                tuple(sorted((*layers, *(level.skip_mlp or ())))),
            )
        if skip not in self.skip_models:
            self.skip_models[skip] = SelfDraft(trunk, SkippingBackend(trunk.backend, skip))
        model = self.skip_models[skip]
        return model, model.name.replace(trunk.backend.name, self.target.model, 1)

    def _table_key(self, table: str) -> str:
        """Return the vocabulary key of a table without one of its own; empty if it is unknown."""
        is_known = registry.is_ngram(table) and not registry.is_shipped(self.target.model)
        return vocabulary_key(load_tokenizer(registry.resolve("zoo:trunk"))) if is_known else ""

    def _eagle3_model(self, name: str) -> Eagle3Model:
        """Return a network over the target's trunk; levels that name the same one share it."""
        if name not in self.eagle3_models:
            trunk, network = self._trunk(self.target), self._eagle3_network(name)
            layers = check_fits(name, network.config, self.target.model, trunk.backend)
            self.eagle3_models[name] = Eagle3Model(trunk, network, layers, name)
        return self.eagle3_models[name]

    def _eagle3_network(self, name: str) -> Eagle3Network:
        if name not in self.eagle3_networks:
            self.eagle3_networks[name] = eagle3.read_network(trained.locate(name))
        return self.eagle3_networks[name]

    def _target_vocabulary(self) -> tuple[str, Any, int]:
        """Return the target's name, tokenizer and number of scored ids."""
        target = self.target
        return (
            target.model,
            self.loaded.tokenizers.get(target.model),
            self._trunk(target).backend.vocab_size,
        )

    def _target_info(self) -> TargetInfo:
        name, tokenizer, vocab_size = self._target_vocabulary()
        return TargetInfo(name, vocab_size, tokenizer, self._trunk(self.target).backend.device)

    def _trunk(self, model: TargetConfig) -> Trunk:
        key = key_of(model)
        if key not in self.trunks:
            backend = self.loaded.backend(model)
            exits = self._exit_layers(backend) if key == key_of(self.target) else ()
            self.trunks[key] = trunk_for(backend, exits, graphs=model.cuda_graphs)
        return self.trunks[key]

    def _exit_layers(self, backend: Backend) -> list[int]:
        """Return the layer counts of the target after which a level exits, or reads its states."""
        exits = {level.exit_layer for level in find_levels(self.levels, EarlyExitConfig)}
        for level in find_levels(self.levels, AdaptiveExitConfig):
            exits.update(level.exit_layers)
        for level in find_levels(self.levels, Eagle3LevelConfig):
            config = self._eagle3_network(level.model).config
            exits.update(check_fits(level.model, config, self.target.model, backend))
        return sorted(exits)
