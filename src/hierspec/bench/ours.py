"""Our own hierarchies as methods, all on checkpoints that are loaded once."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ..build import Loaded, build
from ..config import HierarchyConfig, TargetConfig
from ..engine import Hierarchy
from .runs import Request, Run, Unavailable


@dataclass(slots=True, eq=False)
class Models:
    """The models of a bench: one target, drafters smallest first, checkpoints shared by all.

    Attributes:
        target: its dtype, device and backend hold for drafters too.
        drafts: names or paths.
    """

    target: TargetConfig
    drafts: tuple[str, ...] = ()
    loaded: Loaded = field(default_factory=Loaded)
    hierarchies: dict[str, Hierarchy] = field(default_factory=dict)

    def hierarchy(self, levels: Sequence[dict[str, Any]] = (), **top: Any) -> Hierarchy:
        """The hierarchy of these levels (as in a hierarchy file) below the target.

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
            except ValueError as error:
                raise Unavailable(str(error)) from None
        return self.hierarchies[key]

    @property
    def plain(self) -> Hierarchy:
        return self.hierarchy()

    @property
    def tokenizer(self) -> Any:
        return self.plain.tokenizer

    @property
    def num_layers(self) -> int:
        """Of the target."""
        from ..presets import target_config

        return int(target_config(self.target.model).num_hidden_layers)

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
        self, name: str, models: Models, levels: Sequence[dict[str, Any]] = (), **top: Any
    ) -> None:
        self.name = name
        self.models = models
        self.configuration: dict[str, Any] = {"levels": list(levels), **top}

    @property
    def hierarchy(self) -> Hierarchy:
        return self.models.hierarchy(**self.configuration)

    def run(self, prompt: Sequence[int], request: Request, tracer: Any = None) -> Run:
        hierarchy = self.hierarchy
        try:
            began = time.perf_counter()
            generation = hierarchy.start(
                [prompt],
                max_new_tokens=request.max_new_tokens,
                temperature=request.temperature,
                seed=request.seed,
                ignore_eos=True,
                tracer=tracer,
            )
            for _ in generation:
                pass
            seconds = time.perf_counter() - began
        except ValueError as error:  # a rule this request makes unsound, a prompt too long
            raise Unavailable(str(error)) from None
        result = generation.results()[0]
        return Run(
            token_ids=result.token_ids,
            seconds=seconds,
            decode_seconds=result.decode_seconds,
            target_calls=result.target_calls,
            levels=result.levels,
            target=result.target,
        )
