"""Our own hierarchies as methods, all on checkpoints that are loaded once."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hierspec.api import Hierarchy
from hierspec.config.build import build
from hierspec.config.checkpoints import Loaded
from hierspec.config.schema import HierarchyConfig, TargetConfig
from hierspec.engine.observers import Observer
from hierspec.errors import HierspecError
from hierspec.presets.registry import fitting_drafts
from hierspec.presets.systems import PRESETS
from hierspec.profiling.candidates import parse
from hierspec_lab.bench.method_records import LevelCounters

from .base import Run, RunRequest, Unavailable


def shipped_drafts(target: str) -> tuple[str, ...]:
    """Return the default drafts smaller than a target of the shipped family; none for others."""
    return fitting_drafts(target, PRESETS["hierarchy"])


@dataclass(slots=True, eq=False)
class BenchModels:
    """The models of a bench: one target, drafters smallest first, checkpoints shared by all.

    Attributes:
        target: its dtype, device and backend hold for drafters too.
        drafts: as :func:`hierspec.profiling.candidates.parse` takes them: models by name or path,
            and drafters that are no models (``ngram``, ``prompt-lookup``).
        planning: how planned methods measure these models; ``None``: as ``auto`` does
            (:class:`hierspec_lab.bench.methods.planned.Planning`).
    """

    target: TargetConfig
    drafts: tuple[str, ...] = ()
    loaded: Loaded = field(default_factory=Loaded)
    hierarchies: dict[str, Hierarchy] = field(default_factory=dict)
    planning: Any = None

    def hierarchy(self, levels: Sequence[dict[str, Any]] = (), **top: Any) -> Hierarchy:
        """Build the hierarchy of these levels (as in a hierarchy file) below the target.

        Args:
            top: further keys of the file: ``verify``, ``top_m``, ``allow_lossy``.

        Raises:
            Unavailable: the models cannot form it.
        """
        key = repr((list(levels), sorted(top.items())))
        if key not in self.hierarchies:
            try:
                config = HierarchyConfig.from_dict(
                    {"target": self._target(), "levels": list(levels), **top}
                )
                self.hierarchies[key] = Hierarchy(build(config, self.loaded))
            except HierspecError as error:
                raise Unavailable(str(error)) from None
        return self.hierarchies[key]

    def load_drafts(self) -> None:
        """Load every draft model.

        Raises:
            HierspecError: names the first that cannot be loaded, or cannot draft for this target.
        """
        for name in self.drafts:
            try:
                self.hierarchy([self.level(name, 1)])
            except Exception as error:  # libraries raise what they like over damaged files
                raise HierspecError(f"--draft {name}: {error}") from error

    def level(self, draft: str, budget: int, **options: Any) -> dict[str, Any]:
        """Return a draft as a level of a hierarchy file.

        Raises:
            HierspecError: nothing drafts by this name.
        """
        return {**parse(draft).level_dict(self.target), "num_speculative_tokens": budget, **options}

    @property
    def draft_models(self) -> tuple[str, ...]:
        """The drafts that are models by name or path, which other engines can load."""
        return tuple(
            name
            for name in self.drafts
            if parse(name).level_dict(self.target) == {"method": "draft_model", "model": name}
        )

    def can_verify(self, draft: str) -> bool:
        """Return whether this draft may also verify another's drafts."""
        return parse(draft).can_verify

    @property
    def plain(self) -> Hierarchy:
        return self.hierarchy()

    @property
    def tokenizer(self) -> Any:
        return self.plain.tokenizer

    @property
    def num_layers(self) -> int:
        """Layers of the target."""
        from hierspec.config.target import model_config

        return int(model_config(self.target.model).num_hidden_layers)

    def _target(self) -> dict[str, Any]:
        target = self.target
        return {
            "model": target.model,
            "dtype": target.dtype,
            "device": target.device,
            "backend": target.backend,
        }


class HierarchyMethod:
    """A hierarchy of ours, by its levels and its top-level keys (``verify``, …)."""

    def __init__(
        self, name: str, models: BenchModels, levels: Sequence[dict[str, Any]] = (), **top: Any
    ) -> None:
        self.name = name
        self.models = models
        self.configuration: dict[str, Any] = {"levels": list(levels), **top}

    @property
    def hierarchy(self) -> Hierarchy:
        return self.models.hierarchy(**self.configuration)

    def run(self, prompt: Sequence[int], request: RunRequest, tracer: Any = None) -> Run:
        return self.run_batch([prompt], request, tracer)[0]

    def run_batch(
        self,
        prompts: Sequence[Sequence[int]],
        request: RunRequest,
        tracer: Any = None,
        observers: Sequence[Observer] = (),
    ) -> list[Run]:
        """Continue prompts together; return a run per prompt.

        Each has its share, by tokens, of the batch's times and counters, which runs add up to.
        """
        hierarchy = self.hierarchy
        try:
            began = time.perf_counter()
            generation = hierarchy.start(
                prompts,
                max_new_tokens=request.max_new_tokens,
                temperature=request.temperature,
                seed=request.seed,
                ignore_eos=not request.eos_token_ids,
                eos_token_id=sorted(request.eos_token_ids) or None,
                tracer=tracer,
                observers=observers,
            )
            for _ in generation:
                pass
            seconds = time.perf_counter() - began
        except HierspecError as error:  # a rule this request makes unsound, a prompt too long
            raise Unavailable(str(error)) from None
        results = generation.results()
        total = sum(result.num_tokens for result in results)
        decode = max(result.decode_seconds for result in results)
        out = []
        for result in results:
            share = result.num_tokens / total
            out.append(
                Run(
                    token_ids=result.token_ids,
                    seconds=seconds * share,
                    decode_seconds=decode * share,
                    target_calls=result.target_calls,
                    levels=tuple(_share(part, share) for part in result.levels),
                    target=_share(result.target, share),
                )
            )
        return out


def _share(counts: dict[str, Any], share: float) -> LevelCounters:
    """Return a batch's counters scaled by ``share``; the name and the rate stay."""
    out: dict[str, Any] = dict(counts)
    if share < 1.0:  # else whole numbers stay whole
        for key, value in counts.items():
            if isinstance(value, list):
                out[key] = [x * share for x in value]
            elif key not in ("name", "acceptance_rate"):
                out[key] *= share
    return LevelCounters(**out)
