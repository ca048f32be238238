"""The planner's input: acceptance and costs of a set of models, and how they may be stacked.

:class:`Estimates` hold how often models agree and what their calls cost, from a problem file
(:func:`ideal`) or a measured profile; latency models and search are the same for both. A
:class:`Chain` is one of the hierarchies to choose between.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal, TypeVar

import numpy as np

from hierspec.errors import HierspecError

T = TypeVar("T")

Order = Literal["chain", "interleaved", "horizontal"]


@dataclass(frozen=True, slots=True, order=True)
class Chain:
    """A hierarchy over numbered models, as the planner prices it.

    Attributes:
        models: the number of each level's model, smallest first, the target's last; the target
            alone is plain decoding.
        budgets: one per level below the target (``num_speculative_tokens``).
        order: ``"chain"``: each level verifies the one below. The other two are P2's, over
            ``(small, mid, target)`` with budgets ``(n, m)``, verified by the target alone:
            ``"interleaved"`` is (n of small, then 1 of mid) m times, ``"horizontal"`` is m of mid,
            then n of small.
        tail: in a chain, tokens of the smallest model appended to whatever a middle level hands
            up (P1's horizontal heuristic).
        dropped_bonus: models of the middle levels that hand up no bonus token.
    """

    models: tuple[int, ...]
    budgets: tuple[int, ...] = ()
    order: Order = "chain"
    tail: int = 0
    dropped_bonus: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.models or len(self.budgets) != len(self.models) - 1:
            raise HierspecError("a chain has one budget for each level but the target")
        if any(budget < 1 for budget in self.budgets) or self.tail < 0:
            raise HierspecError("budgets are at least 1, and a tail at least 0")
        if self.order != "chain" and (len(self.models) != 3 or self.tail or self.dropped_bonus):
            raise HierspecError(f"the {self.order} order takes three models and nothing else")

    @property
    def plain(self) -> bool:
        return len(self.models) == 1

    @property
    def pairs(self) -> tuple[tuple[int, int], ...]:
        """(drafter, verifier) whose agreement the chain depends on."""
        *drafters, target = self.models
        if self.order != "chain":
            return tuple((model, target) for model in reversed(drafters))
        tails = [(drafters[0], model) for model in self.models[2:]] if self.tail else []
        return (*pairwise(self.models), *tails)

    @property
    def continues(self) -> bool:
        """Whether the smallest model continues what others have drafted."""
        return self.tail > 0 or self.order == "horizontal"

    @property
    def levels(self) -> tuple[tuple[int, int], ...]:
        """(model, budget) of each level below the target: lowest first, what continues them last.

        Of P2's interleaved order, and of tails within tails, there is no such list.
        """
        levels = tuple(zip(self.models, self.budgets, strict=False))
        if self.order == "horizontal":
            return levels[::-1]
        return (*levels, (self.models[0], self.tail)) if self.tail else levels

    def describe(self, level: Callable[[int, int], str], above: str = " > ") -> str:
        """Return the levels below the target in words: ``a > b + a`` if a continues what b drafts.

        Args:
            level: (model, budget) → its words.
            above: between a level and the one above it.
        """
        texts = [level(model, budget) for model, budget in self.levels]
        continuing = [texts.pop()] if self.continues else []
        return " + ".join([above.join(texts), *continuing])

    def with_budgets(self, budgets: Sequence[int]) -> Chain:
        """Return the chain with other budgets of its :attr:`levels`; 0 leaves a level out."""
        levels = zip(self.levels, budgets, strict=True)
        used = [(model, budget) for (model, _), budget in levels if budget]
        horizontal, tail = False, 0
        if self.continues and budgets[-1] and len(used) > 1:
            if horizontal := used[0][0] != used[-1][0]:
                used.reverse()
            else:
                tail = used.pop()[1]
        models = (*(model for model, _ in used), self.models[-1])
        values = tuple(budget for _, budget in used)
        if horizontal:
            return Chain(models, values, "horizontal")
        dropped_bonus = tuple(model for model in models[1:-1] if model in self.dropped_bonus)
        return Chain(models, values, tail=tail, dropped_bonus=dropped_bonus)

    def levels_below(
        self, level: Callable[[int, int, bool], T], concatenate: Callable[..., T]
    ) -> list[T]:
        """Return the levels below the target, smallest first, as a hierarchy file has them.

        Args:
            level: (model, budget, whether it verifies the level below) → a level.
            concatenate: (parts, which are lists of levels, and ``repeat`` if P2's) → a level.
        """
        *drafters, _ = self.models
        if self.order == "chain":
            levels: list[T] = []
            for number, (model, budget) in enumerate(zip(drafters, self.budgets, strict=True)):
                levels.append(level(model, budget, number > 0))
                if number and self.tail:
                    levels = [concatenate([levels, [level(drafters[0], self.tail, False)]])]
            return levels
        (small, mid), (n, m) = drafters, self.budgets
        if self.order == "interleaved":
            return [concatenate([[level(small, n, False)], [level(mid, 1, False)]], repeat=m)]
        return [concatenate([[level(mid, m, False)], [level(small, n, False)]], repeat=1)]


LONGEST_DRAFT = 64  # tokens a level may hand up; longer hand-ups are priced as this long


@dataclass(frozen=True, slots=True, eq=False)
class Estimates:
    """Survival and costs of K + 1 models, smallest first, the target last.

    Attributes:
        survival: [K+1, K+1, L+1] float64; ``[i, k, m]`` is the probability that model k accepts the
            first m of a draft of model i (1 at m = 0). NaN: i cannot draft for k.
        draft_ms: [K+1, L+1]; milliseconds for n tokens of model i, drafted one by one.
        verify_ms: [K+1, K+1, L+1]; ``[i, k, n]`` is one call of model k on n tokens that model i
            handed up, verification included.
        verify_without_bonus_ms: the same where model k drops its bonus token: the last of the n
            tokens does not go through it, and where an exit of k's own trunk drafted them, nor
            through the layers they share; ``None``: as ``verify_ms``.
        plain_ms: milliseconds a token of plain decoding with the target.
        memory: bytes of each model's own weights, by what owns them (early exits share a trunk);
            ``owners[i]`` says which entry model i needs.
        joint_survival: of drafters that stop by themselves: ``[i][k, n, m]`` [K+1, M+1, M+1] is
            the probability that model i stops after n tokens and model k accepts the first m of
            them; a budget below M cuts it.
        max_budget: largest budget that a search tries.
        classes: of text, easy and hard for each model: estimates of their own for each, which hold
            equally many tokens. Where given, a chain's price is the mean over them: hard text takes
            more rounds a token than easy text, so the price on the mean text is too low.
        multi_drafters: models that make several drafts at once; they draft for the target only.
        on_target_cache: whether each model runs on the target's cache, and so has read what the
            target has; empty: none does.
        priors: which of these are not measured but assumed: acceptance, single calls, checks.
    """

    names: tuple[str, ...]
    survival: np.ndarray
    draft_ms: np.ndarray
    verify_ms: np.ndarray
    plain_ms: float
    max_budget: int = 15
    owners: tuple[str, ...] = ()
    memory: Mapping[str, int] = field(default_factory=dict)
    joint_survival: Mapping[int, np.ndarray] = field(default_factory=dict)
    classes: tuple[Estimates, ...] = ()
    on_target_cache: tuple[bool, ...] = ()
    multi_drafters: frozenset[int] = frozenset()
    verify_without_bonus_ms: np.ndarray | None = None
    priors: tuple[str, ...] = ()

    @property
    def target(self) -> int:
        return len(self.names) - 1

    @property
    def longest(self) -> int:
        """L, the longest draft that the curves cover."""
        return self.survival.shape[2] - 1

    @property
    def budgets(self) -> range:
        """Budgets that a level may have."""
        return range(1, min(self.max_budget, self.longest) + 1)

    def check_ms(self, bonus: bool) -> np.ndarray:
        """Return [K+1, K+1, L+1] milliseconds of calls of levels that keep or drop their bonus."""
        if bonus or self.verify_without_bonus_ms is None:
            return self.verify_ms
        return self.verify_without_bonus_ms

    def can_draft(self, i: int, k: int) -> bool:
        """Return whether model i can draft for model k."""
        return i < k and not np.isnan(self.survival[i, k, 1])

    def stops_by_itself(self, i: int) -> bool:
        """Return whether model i may end a draft before its budget (a window, a look-up)."""
        return i in self.joint_survival

    def allows(self, chain: Chain) -> bool:
        """Return whether a chain can be built.

        Who stops by itself cannot verify, and nothing continues several drafts.
        """
        return (
            all(self.can_draft(i, k) for i, k in chain.pairs)
            and not any(map(self.stops_by_itself, chain.models[1:-1]))
            and (chain.order == "chain" or self.multi_drafters.isdisjoint(chain.models))
        )

    def validate(self, chain: Chain) -> None:
        """Refuse a chain whose levels cannot draft for those that verify them."""
        for i, k in chain.pairs:
            if not self.can_draft(i, k):
                raise HierspecError(
                    f"nothing is known of {self.names[i]}'s drafts for {self.names[k]}"
                )

    def step_ms(self, model: int) -> float:
        """Return the milliseconds a model takes for one token when decoding on its own."""
        return float(self.plain_ms if model == self.target else self.draft_ms[model, 1])

    def bytes(self, models: Sequence[int]) -> int:
        """Return the bytes of some models' weights, shared ones once; 0 if sizes are unknown."""
        if not self.owners:
            return 0
        return sum(self.memory.get(owner, 0) for owner in {self.owners[i] for i in models})


def ideal(
    costs: Sequence[float],
    acceptance: Sequence[Sequence[float | None]],
    names: Sequence[str] | None = None,
    max_budget: int = 15,
    longest: int = LONGEST_DRAFT,
    memory: Sequence[int] | None = None,
) -> Estimates:
    """Return estimates with independent acceptances at fixed rates and a fixed cost per call [P1].

    Args:
        costs: of one call of each model, smallest first.
        acceptance: ``[i][j]``, i < j; ``None`` or NaN where i cannot draft for j.
        longest: L, the longest draft that the curves cover.
        memory: bytes of each model's weights.
    """
    count = len(costs)
    price = np.asarray(costs, dtype=np.float64)
    rates = np.full((count, count), np.nan)
    for i in range(count):
        for j in range(i + 1, count):
            value = acceptance[i][j]
            rates[i, j] = np.nan if value is None else value
    lengths = np.arange(longest + 1)
    survival = np.where(np.isnan(rates)[:, :, None], np.nan, rates[:, :, None] ** lengths)
    model_names = tuple(names) if names else tuple(f"model {i}" for i in range(count))
    return Estimates(
        names=model_names,
        survival=survival,
        draft_ms=price[:, None] * lengths,
        verify_ms=np.broadcast_to(price[None, :, None], (count, count, longest + 1)),
        plain_ms=float(price[-1]),
        max_budget=max_budget,
        owners=model_names if memory is not None else (),
        memory=dict(zip(model_names, memory or (), strict=memory is not None)),
    )
