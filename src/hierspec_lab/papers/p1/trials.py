"""Hierarchies to try for P1: pools of candidates, profiled, and their best plans by size."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from hierspec.errors import HierspecError
from hierspec.methods.early_exit import trained_exits
from hierspec.planner.estimates import Chain, Estimates
from hierspec.planner.latency import latency
from hierspec.planner.plan import PricedChain
from hierspec.presets.systems import layers_at_shares
from hierspec.profiling.candidates import parse
from hierspec.profiling.profile import Profile, from_dict
from hierspec.profiling.settings import ProfileSettings
from hierspec_lab.bench.memory import level_parameters
from hierspec_lab.bench.methods.base import Unavailable
from hierspec_lab.bench.methods.ours import HierarchyMethod
from hierspec_lab.bench.summary import (
    group_by_level,
    level_summaries,
    num_tokens_after_first,
    standardized_walltime_improvement,
)
from hierspec_lab.papers.lab import Lab
from hierspec_lab.papers.measured import Measured, method_of
from hierspec_lab.papers.p3.systems import cache_bytes, head_bytes
from hierspec_lab.planning.search import plan
from hierspec_lab.planning.thorough import in_context
from hierspec_lab.planning.thorough import measure as measured_profile

EXITS = (1 / 8, 1 / 4, 1 / 2)  # of the depth: candidates of the self-speculative pool
# Of a target of at most so many layers every layer is a candidate, as in P1. The number of pairs
# that are timed grows with the square.
EVERY_LAYER = 12
MAX_MODELS = 6  # in a hierarchy, the target included: P1's Table 1 goes no further
LARGEST_BUDGET = 12
SETTINGS = ProfileSettings(max_speculative_tokens=LARGEST_BUDGET, places=4, repeats=3, prompts=8)


@dataclass(frozen=True, slots=True)
class ProfiledPool:
    """Candidate drafters of one kind and their profile.

    Attributes:
        heads: the file of heads trained for its exits, if any.
    """

    title: str
    profile: Profile
    heads: str | None = None

    def label(self, name: str) -> str:
        """Return a candidate's name without the file of heads, which all exits share."""
        return name.removesuffix(f",head={self.heads}")


@dataclass(slots=True)
class Trial:
    """A hierarchy to run, with its predicted latency and, once it has run, its measurement."""

    pool: ProfiledPool
    choice: PricedChain
    estimates: Estimates
    hierarchy: dict[str, Any]
    method: HierarchyMethod
    measured: Measured | None = None

    @property
    def names(self) -> str:
        """The levels with their budgets: ``exit:1 4 > exit:3 8 > target``."""
        chain, models = self.choice.chain, self.estimates.names
        parts = [
            f"{self.pool.label(models[i])} {n}"
            for i, n in zip(chain.models, chain.budgets, strict=False)
        ]
        return " > ".join((*parts, "target"))

    @property
    def memory(self) -> tuple[int, int] | None:
        """Computed bytes beyond the target's: weights, and caches per token.

        ``None`` where the models cannot form the hierarchy.
        """
        models, plain = self.choice.chain.models, HierarchyMethod("plain", self.method.models)
        model_bytes = self.estimates.bytes(models) - self.estimates.bytes(models[-1:])
        try:
            # A profile counts weights by model: for it an exit's head is the target's.
            weights = model_bytes + head_bytes(self.method)
            return weights, cache_bytes(self.method) - cache_bytes(plain)
        except Unavailable:
            return None

    @property
    def improvement(self) -> float | None:
        """P1's standardized walltime improvement; ``None`` before it has run."""
        if self.measured is None or not self.measured.runs:
            return None
        runs = self.measured.runs
        tokens = num_tokens_after_first(runs)
        summaries = level_summaries(tokens, group_by_level(runs))
        return standardized_walltime_improvement(tokens, summaries, level_parameters(self.method))


def candidate_names(lab: Lab) -> dict[str, list[str]]:
    """Return by title of a pool its candidates, named as for ``hierspec profile --candidates``."""
    depth = lab.models.num_layers
    heads, layers = trained_exits(lab.target)
    if not heads:
        layers = range(1, depth) if depth <= EVERY_LAYER else layers_at_shares(depth, EXITS)
    suffix = f",head={heads}" if heads else ""
    table = ["ngram"] if lab.models.drafts and lab.target.startswith("zoo:") else []
    return {
        "early exits": [f"exit:{layer}{suffix}" for layer in layers],
        "separate models": [*table, *lab.models.drafts],
    }


def best_of_each_size(estimates: Estimates) -> list[PricedChain]:
    """Return the best chain of exactly 1, 2, … :data:`MAX_MODELS` models, where there is one."""
    best = []
    for count in range(1, min(len(estimates.names), MAX_MODELS) + 1):
        plans = plan(estimates, max_models=count, top=64)
        choices = [c for c in (plans.best, *plans.runners_up) if len(c.chain.models) == count]
        if choices:
            best.append(min(choices, key=lambda choice: choice.ms))
    return best


def with_draft_temperature(hierarchy: dict[str, Any], temperature: float) -> dict[str, Any]:
    """Return the hierarchy file's content with drafting models, not tables, at a temperature."""
    levels = [
        {**level, "temperature": temperature}
        if level["method"] in ("draft_model", "early_exit")
        else level
        for level in hierarchy["levels"]
    ]
    return {**hierarchy, "levels": levels}


def profile_pool(
    lab: Lab, prompts: Sequence[Sequence[int]], title: str, names: Sequence[str]
) -> Profile:
    """Measure the profile of a pool's candidates on these prompts, or read it from the record."""
    tokenizer = lab.models.tokenizer
    if tokenizer is None:
        raise HierspecError(
            f"p1-models profiles on texts, and {lab.target!r} has no tokenizer beside "
            "it: put its tokenizer.json there"
        )

    def observe() -> Any:
        return measured_profile(
            lab.models.target,
            [parse(name) for name in names],
            [tokenizer.decode(list(prompt), skip_special_tokens=True) for prompt in prompts],
            lab.temperatures,
            dataclasses.replace(SETTINGS, tokens=lab.max_new_tokens, seed=lab.seed),
            loaded=lab.models.loaded,
            report=lambda stage, share: lab.report(f"profile of {title}: {stage}", share),
        )

    return from_dict(lab.once(f"profile of {title}", observe))


def plan_trials(lab: Lab, pool: ProfiledPool, temperature: float) -> list[Trial]:
    """Return a trial of the pool's best chain of each size, planned for the lab's texts."""
    context = fmean(len(prompt) for prompt in lab.prompts) + lab.max_new_tokens / 2
    estimates = in_context(pool.profile, context).estimates(temperature)
    return [
        _build_trial(lab, pool, estimates, choice.chain, f"{pool.title} {len(choice.chain.models)}")
        for choice in best_of_each_size(estimates)
    ]


def _build_trial(
    lab: Lab, pool: ProfiledPool, estimates: Estimates, chain: Chain, name: str
) -> Trial:
    hierarchy = pool.profile.hierarchy(chain)
    choice = PricedChain(chain, latency(estimates, chain))
    return Trial(pool, choice, estimates, hierarchy, method_of(name, lab, hierarchy))


def add_tail(lab: Lab, base: Trial, tail: int) -> Trial:
    """Return ``base`` with ``tail`` tokens of the smallest model after all a level hands up."""
    chain = dataclasses.replace(base.choice.chain, tail=tail)
    return _build_trial(lab, base.pool, base.estimates, chain, f"{base.method.name} tail {tail}")


def set_draft_temperature(lab: Lab, base: Trial, temperature: float) -> Trial:
    """Return ``base`` with its drafting models at a temperature of their own."""
    hierarchy = with_draft_temperature(base.hierarchy, temperature)
    method = method_of(f"{base.method.name} drafts at {temperature:g}", lab, hierarchy)
    return dataclasses.replace(base, hierarchy=hierarchy, method=method, measured=None)


def best_planned(
    trials: Sequence[Trial], min_models: int, max_models: int = MAX_MODELS
) -> Trial | None:
    """Return the trial of lowest predicted latency among those of so many models."""
    allowed = [t for t in trials if min_models <= len(t.choice.chain.models) <= max_models]
    return min(allowed, key=lambda t: t.choice.ms, default=None)
