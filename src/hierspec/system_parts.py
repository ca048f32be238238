"""What the systems of :mod:`hierspec.systems` are put together from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .config import AnyLevelConfig, DraftModelConfig, HierarchyConfig, TargetConfig
from .exit_layers import one_each
from .windows import FixedWindow, Window


@dataclass(frozen=True, slots=True)
class Models:
    """What a preset is built from.

    Attributes:
        target: the model whose law is kept.
        drafts: smaller models, smallest first.
        num_layers: of the target; early-exit presets place their exits by it.
    """

    target: TargetConfig
    drafts: tuple[str, ...]
    num_layers: Callable[[], int]

    def under(self, *levels: AnyLevelConfig, verify: str = "tokenwise") -> HierarchyConfig:
        """These levels below the target."""
        return HierarchyConfig(target=self.target, levels=levels, verify=verify)

    def pair(self, name: str) -> tuple[str, str]:
        """The smallest and the largest draft model.

        Raises:
            ValueError: there is one only.
        """
        if len(self.drafts) < 2:
            raise ValueError(f"{name} needs two draft models: give --draft twice, smallest first")
        return self.drafts[0], self.drafts[-1]

    def exits(self, name: str, *shares: float) -> tuple[int, ...]:
        """Exits at about these shares of the depth, each above the one before it.

        Raises:
            ValueError: the target is too shallow.
        """
        depth = self.num_layers()
        layers = one_each(depth, shares)
        if layers[-1] >= depth:
            raise ValueError(
                f"{name} needs a target of at least {len(shares) + 1} layers, this one has {depth}"
            )
        return layers


def draft(model: str, num_tokens: int, window: Window | None = None) -> DraftModelConfig:
    """A first level."""
    return DraftModelConfig(
        model=model, num_speculative_tokens=num_tokens, window=window or FixedWindow()
    )


def over(model: str, num_tokens: int, verify: str, window: Window | None = None) -> AnyLevelConfig:
    """A level that verifies the one below."""
    return DraftModelConfig(
        model=model,
        num_speculative_tokens=num_tokens,
        verify=verify,
        window=window or FixedWindow(),
    )
