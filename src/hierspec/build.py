"""From a configuration to nodes: load the models, share what can be shared, refuse what is unsound.

One checkpoint is loaded once, however often a hierarchy names it, and every early exit is a view
of the target's own trunk.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

import torch

from .config import (
    AdaptiveExitConfig,
    AnyLevelConfig,
    ConcatenateConfig,
    DraftModelConfig,
    EarlyExitConfig,
    HierarchyConfig,
    LayerSkipConfig,
    LevelConfig,
    NgramPoolConfig,
    NgramTableConfig,
    PromptLookupConfig,
    TargetConfig,
)
from .drafters.ngram import NgramModel
from .drafters.ngram_pool import NgramPool
from .drafters.prompt_lookup import PromptLookup
from .hierarchy import Concatenate, Draft, Node, Verify, walk
from .lm.adaptive_exit import AdaptiveExit
from .lm.backend import Backend
from .lm.fixed_trunk import trunk_for
from .lm.layer_skip import SkippingBackend, evenly
from .lm.load import DTYPES, load
from .lm.trunk import Trunk
from .lm.weights import WeightSource
from .verifiers import base as verifiers
from .verifiers.leading import Leading
from .verifiers.soundness import check as check_soundness
from .vocabulary import check_same_vocabulary, check_sizes, check_table
from .zoo import registry


@dataclass(frozen=True, slots=True, eq=False)
class Built:
    """A hierarchy ready to run.

    Attributes:
        root: the target's node.
        tokenizer: the target's, or ``None`` where it has none.
    """

    root: Verify
    tokenizer: Any
    config: HierarchyConfig


@dataclass(slots=True, eq=False)
class Loaded:
    """Checkpoints in memory, by name, dtype and backend: any number of hierarchies share them."""

    backends: dict[tuple[str, str, str], Backend] = field(default_factory=dict)
    tokenizers: dict[str, Any] = field(default_factory=dict)

    def put(self, target: TargetConfig, backend: Backend, tokenizer: Any) -> None:
        """Add a model that is in memory already; ``target.model`` is its name."""
        self.backends[_key(target)] = backend
        self.tokenizers[target.model] = tokenizer


def build(config: HierarchyConfig, loaded: Loaded | None = None) -> Built:
    """Load the models of ``config`` and wire them.

    Args:
        loaded: checkpoints to share; what is missing there is loaded and added.

    Raises:
        ValueError: a model cannot be read, an exit is out of range, vocabularies differ, or a rule
            is unsound where it stands and ``allow_lossy`` is off.
    """
    builder = _Builder(config, loaded or Loaded())
    root = builder.root()
    check_soundness(root, greedy=True, allow_lossy=config.allow_lossy)
    return Built(root, builder.loaded.tokenizers.get(config.target.model), config)


def models(
    target: TargetConfig, levels: tuple[LevelConfig, ...], loaded: Loaded
) -> tuple[Any, list[tuple[Any, str]]]:
    """The target's model, and each level's with its name: views that share what can be shared."""
    builder = _Builder(HierarchyConfig(target=target, levels=levels), loaded)
    top = builder.trunk(target, _exits(levels)).view()
    return top, [builder.model(level) for level in levels]


@dataclass(slots=True)
class _Builder:
    config: HierarchyConfig
    loaded: Loaded
    trunks: dict[tuple[str, str, str], Trunk] = field(default_factory=dict)
    skipping: dict[tuple[int, ...], Trunk] = field(default_factory=dict)
    nodes: int = 0
    names: set[str] = field(default_factory=set)

    def root(self) -> Verify:
        config = self.config
        target = self.trunk(config.target, _exits(config.levels))
        top = rule(config.verify, config.top_m)
        below = self._chain(config.levels, fixed=top.fixed_length)
        return Verify(
            index=self._index(),
            name=self._name(config.target.model),
            model=target.view(),
            budget=1,
            rule=top,
            below=below.under(top) if isinstance(below, Draft) else below,
        )

    def _chain(self, levels: tuple[AnyLevelConfig, ...], fixed: bool) -> Node | None:
        """The levels as nested nodes; ``fixed``: the rule above needs a fixed length."""
        below: Node | None = None
        for i, level in enumerate(levels):
            above = levels[i + 1] if i + 1 < len(levels) else None
            needs_fixed = fixed
            if isinstance(above, LevelConfig):
                needs_fixed = verifiers.get(above.verify or "tokenwise").fixed_length
            below = self._node(level, below, needs_fixed)
        return below

    def _node(self, level: AnyLevelConfig, below: Node | None, fixed: bool) -> Node:
        if isinstance(level, ConcatenateConfig):
            parts = tuple(self._chain(part, fixed) for part in level.parts)
            return Concatenate(
                index=self._index(),
                name=self._name("concatenate"),
                parts=tuple(part for part in parts if part is not None),
                repeat=level.repeat,
            )
        model, name = self.model(level)
        common: dict[str, Any] = {
            "index": self._index(),
            "name": self._name(name),
            "model": model,
            "budget": level.num_speculative_tokens,
            "window": level.window,
            "temperature": level.temperature,
        }
        if below is None:
            return Draft(**common, num_drafts=level.num_drafts)
        own = rule(level.verify or "tokenwise", level.top_m)
        return Verify(
            **common,
            rule=own,
            below=below.under(own) if isinstance(below, Draft) else below,
            bonus=level.bonus,
            exact_length=fixed,
        )

    def model(self, level: LevelConfig) -> tuple[Any, str]:
        target = self.config.target
        if isinstance(level, EarlyExitConfig):
            trunk, layer = self.trunk(target, ()), level.exit_layer
            if level.head is None:
                return trunk.view(layer), f"{target.model}@{layer}"
            from .heads import attach

            head = attach(level.head, layer, trunk.backend, target.model)
            return trunk.view(layer, head), f"{target.model}@{layer}+head"
        if isinstance(level, NgramTableConfig):
            path = registry.ngram_path(level.table)
            table = NgramModel.load(path, max_order=level.max_order)
            check_table(level.table, table.vocab_size, *self._target_vocabulary())
            return table, "ngram_table"
        if isinstance(level, PromptLookupConfig):
            finder = PromptLookup(level.prompt_lookup_min, level.prompt_lookup_max)
            return finder, "prompt_lookup"
        if isinstance(level, NgramPoolConfig):
            return NgramPool(level.ngram_min, level.ngram_max, level.shared), "ngram_pool"
        if isinstance(level, AdaptiveExitConfig):
            trunk, layers = self.trunk(target, ()), level.exit_layers
            name = f"{target.model}@{'|'.join(map(str, layers))}"
            exits = [trunk.view(layer) for layer in layers]
            return AdaptiveExit(exits, level.confidence, name), name
        if isinstance(level, LayerSkipConfig):
            return self._skipping(level)
        assert isinstance(level, DraftModelConfig)
        same = TargetConfig(
            model=level.model,
            dtype=level.dtype or target.dtype,
            backend=level.backend,
            device=target.device,
            cuda_graphs=target.cuda_graphs,
        )
        trunk = self.trunk(same, ())
        view, tokenizer = trunk.view(), self.loaded.tokenizers.get(level.model)
        name, theirs, size = self._target_vocabulary()
        check_same_vocabulary(name, theirs, level.model, tokenizer)
        if tokenizer is None or theirs is None:
            check_sizes(name, size, level.model, view.vocab_size)
        return view, level.model

    def _skipping(self, level: LayerSkipConfig) -> tuple[Any, str]:
        """The target without some layers; levels that leave out the same ones share a cache."""
        backend = self.trunk(self.config.target, ()).backend
        skip = level.skip_layers
        if skip is None:
            assert level.skip is not None
            skip = evenly(level.skip, backend.num_layers)
        skip = tuple(sorted(skip))
        if skip not in self.skipping:
            self.skipping[skip] = Trunk(SkippingBackend(backend, skip))
        view = self.skipping[skip].view()
        return view, view.name.replace(backend.name, self.config.target.model, 1)

    def _target_vocabulary(self) -> tuple[str, Any, int]:
        """The target's name, tokenizer and number of scored ids."""
        target = self.config.target
        return (
            target.model,
            self.loaded.tokenizers.get(target.model),
            self.trunk(target, ()).backend.vocab_size,
        )

    def trunk(self, model: TargetConfig, exits: list[int] | tuple[int, ...]) -> Trunk:
        key = _key(model)
        if key not in self.trunks:
            self.trunks[key] = trunk_for(self._backend(key, model), exits, graphs=model.cuda_graphs)
        return self.trunks[key]

    def _backend(self, key: tuple[str, str, str], model: TargetConfig) -> Backend:
        loaded = self.loaded
        if key not in loaded.backends:
            source: str | WeightSource = model.model
            if model.model.startswith("zoo:"):
                source = registry.resolve(model.model)
            loaded.backends[key] = load(
                source,
                dtype=_dtype(model.dtype),
                device=_device(model.device),
                backend=model.backend,
            )
            loaded.tokenizers[model.model] = load_tokenizer(source)
        return loaded.backends[key]

    def _index(self) -> int:
        self.nodes += 1
        return self.nodes - 1

    def _name(self, name: str) -> str:
        unique, i = name, 2
        while unique in self.names:
            unique, i = f"{name}#{i}", i + 1
        self.names.add(unique)
        return unique


def _key(model: TargetConfig) -> tuple[str, str, str]:
    return (model.model, model.dtype, model.backend)


def rule(name: str, top_m: int = 1) -> verifiers.Verifier:
    """A rule by name, with its parameter."""
    found = verifiers.get(name)
    return dataclasses.replace(found, top_m=top_m) if isinstance(found, Leading) else found


def load_tokenizer(source: str | WeightSource) -> Any:
    """The tokenizer beside a model; ``None`` where there is none (ids in, ids out)."""
    from transformers import AutoTokenizer

    path = source if isinstance(source, str) else source.tokenizer_path
    if path is None:
        return None
    try:
        return AutoTokenizer.from_pretrained(path)
    except (OSError, ValueError, KeyError):
        return None


def flat(levels: tuple[AnyLevelConfig, ...], kind: type | tuple[type, ...]) -> list[Any]:
    """The levels of a kind, those inside concatenations too."""
    out = []
    for level in levels:
        if isinstance(level, ConcatenateConfig):
            for part in level.parts:
                out += flat(part, kind)
        elif isinstance(level, kind):
            out.append(level)
    return out


def _exits(levels: tuple[AnyLevelConfig, ...]) -> list[int]:
    """Every layer count after which some level ends."""
    exits = {level.exit_layer for level in flat(levels, EarlyExitConfig)}
    for level in flat(levels, AdaptiveExitConfig):
        exits.update(level.exit_layers)
    return sorted(exits)


def _dtype(name: str) -> torch.dtype | None:
    if name == "auto":
        return None
    dtype = getattr(torch, name.removeprefix("torch."), None)
    if dtype not in DTYPES:
        raise ValueError(
            f"dtype {name!r} is none that models run in; use auto, float32, bfloat16, float16 or "
            "float64"
        )
    return dtype


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
        if device.type != "meta":  # it holds no weights to run
            return device
    except (RuntimeError, AssertionError):
        pass
    raise ValueError(f"device {name!r} is not available here; try --device cpu")


def levels_of(root: Verify) -> list[Node]:
    """The nodes below the target, lowest first."""
    return [node for node in walk(root) if node is not root]
