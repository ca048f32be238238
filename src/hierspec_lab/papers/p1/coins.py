"""A hierarchy whose rejection tests are coin flips: independent acceptances, timed.

All models run as they otherwise do, but whether a token is accepted does not depend on it. The text
is of no use; its latency is that of independent acceptances, the first assumption of P1's formula.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch

from hierspec.api import Hierarchy
from hierspec.config.build import Built
from hierspec.core.nodes import Node, Verify, replace_fields
from hierspec.core.rng import PhiloxRng, Rng
from hierspec.core.rules import Acceptance, Batch
from hierspec.verifiers.formulas import Excess, draft_mask
from hierspec.verifiers.tokenwise import Tokenwise
from hierspec_lab.bench.methods.base import Run, RunRequest
from hierspec_lab.bench.methods.ours import HierarchyMethod
from hierspec_lab.papers.lab import Lab


@dataclass(frozen=True)
class Coins(Tokenwise):
    """A rule that accepts a token with a fixed probability, whatever it is: only for timing.

    It is not registered: :class:`CoinMethod` alone makes it. The token after the accepted ones is
    drawn as ``tokenwise`` draws it, which takes as long.

    Attributes:
        rate: the probability.
        rng: for greedy decoding, where a rule gets no uniforms. Comparisons ignore it: rules of
            equal rate share what an accelerator has recorded for them.
    """

    rate: float
    rng: Rng = field(compare=False)
    name: ClassVar[str] = "coins"
    exact: ClassVar[bool] = False
    exact_when: ClassVar[str] = "never: it does not look at the tokens"
    exact_as_draft: ClassVar[bool] = False
    reports_model_distributions: ClassVar[bool] = False

    def acceptance(self, batch: Batch) -> Acceptance:
        h = draft_mask(batch).double() * self.rate
        return Acceptance(h, h.new_ones(h.shape[0], h.shape[1] + 1))

    def decide(
        self, p_x: Sequence[float], q_x: Sequence[float], uniforms: Sequence[float], excess: Excess
    ) -> tuple[int, float]:
        return self._kept(uniforms[: len(p_x)]), 1.0

    def greedy(
        self, draft: tuple[int, ...], choices: tuple[int, ...], scores: torch.Tensor | None
    ) -> int:
        return self._kept(self.rng.take(len(draft)).tolist())

    def _kept(self, uniforms: Sequence[float]) -> int:
        return next((i for i, u in enumerate(uniforms) if not u < self.rate), len(uniforms))


class CoinMethod(HierarchyMethod):
    """A method: a hierarchy in which every level verifies by :class:`Coins`.

    Args:
        hierarchy: a hierarchy file's content.
        rates: probability of keeping a token of each level, smallest level first.
    """

    def __init__(
        self, name: str, lab: Lab, hierarchy: dict[str, Any], rates: Sequence[float]
    ) -> None:
        super().__init__(name, lab.models, **{**hierarchy, "allow_lossy": True})
        self.rates, self.seed = tuple(rates), 0

    @property
    def hierarchy(self) -> Hierarchy:
        sound = super().hierarchy
        root = with_coins(sound.root, self.rates, self.seed)
        return Hierarchy(Built(root, sound.tokenizer, sound.config, sound.eos_ids))

    def run(self, prompt: Sequence[int], request: RunRequest, tracer: Any = None) -> Run:
        """Continue the prompt; the request's seed also seeds the coins."""
        self.seed = request.seed
        return super().run(prompt, request, tracer)


def with_coins(root: Verify, rates: Sequence[float], seed: int) -> Verify:
    """Return the same chain of levels, each verifying by :class:`Coins` at its drafter's rate."""

    def rule(node: Node) -> dict[str, Any]:
        if not isinstance(node, Verify) or node.below is None:  # it has nothing to verify
            return {}
        return {"rule": Coins(rates[node.below.index], PhiloxRng(seed, node.index))}

    return replace_fields(root, rule)
