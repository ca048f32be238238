"""The hierarchies that ``p1-models`` runs: profiled, planned, and built for every variation."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from ..bench.floor import level_parameters
from ..bench.ours import HierarchyMethod
from ..bench.summary import levels, standardized_walltime_improvement
from ..exit_layers import at_shares
from ..planner.chain import Chain
from ..planner.estimates import Estimates
from ..planner.latency import latency
from ..planner.plan import Choice
from ..planner.search import plan
from ..profiling.candidates import parse
from ..profiling.measure import Settings
from ..profiling.measure import measure as measured_profile
from ..profiling.profile import Profile, from_dict
from .lab import Lab
from .measured import Measured, method_of

EXITS = (1 / 8, 1 / 4, 1 / 2)  # of the depth: candidates of the self-speculative pool
LARGEST_BUDGET = 12
SETTINGS = Settings(max_speculative_tokens=LARGEST_BUDGET, places=4, repeats=3, prompts=8)


@dataclass(frozen=True, slots=True)
class Candidates:
    """A pool of drafters and what was measured of it."""

    title: str
    profile: Profile


@dataclass(slots=True)
class Trial:
    """A hierarchy to run: what it is, what it should cost, and what it came to."""

    pool: Candidates
    choice: Choice
    estimates: Estimates
    hierarchy: dict[str, Any]
    method: HierarchyMethod
    found: Measured | None = None

    @property
    def names(self) -> str:
        chain, models = self.choice.chain, self.estimates.names
        parts = [f"{models[i]} {n}" for i, n in zip(chain.levels, chain.budgets, strict=False)]
        return " > ".join((*parts, "target"))

    @property
    def improvement(self) -> float | None:
        """P1's standardized walltime improvement."""
        if self.found is None or not self.found.runs:
            return None
        runs = [
            {"levels": run.levels, "target": run.target, "num_tokens": run.num_tokens}
            for run in self.found.runs
        ]
        tokens = sum(run["num_tokens"] - 1 for run in runs)
        prices = level_parameters(self.method)
        return standardized_walltime_improvement(tokens, levels(runs), prices)


def split(lab: Lab) -> tuple[list[Sequence[int]], Lab]:
    """Prompts to profile on, and the lab with those to measure on: every other one each.

    A single prompt serves for both.
    """
    planned_on = list(lab.prompts[1::2]) or list(lab.prompts)
    return planned_on, dataclasses.replace(lab, prompts=lab.prompts[::2])


def candidates(lab: Lab) -> dict[str, list[str]]:
    """Pool → names as ``hierspec profile --candidates`` takes them."""
    exits = at_shares(lab.models.num_layers, EXITS)
    table = ["ngram"] if lab.models.drafts and lab.models.target.model.startswith("zoo:") else []
    return {
        "early exits": [f"exit:{layer}" for layer in exits],
        "separate models": [*table, *lab.models.drafts],
    }


def best_of_each_size(estimates: Estimates) -> list[Choice]:
    """The best chain of exactly 1, 2, … models, as far as they can be stacked."""
    out = []
    for count in range(1, len(estimates.names) + 1):
        found = plan(estimates, max_models=count, top=64)
        choices = [c for c in (found.best, *found.runners_up) if len(c.chain.levels) == count]
        if choices:
            out.append(min(choices, key=lambda choice: choice.ms))
    return out


def warmed(hierarchy: dict[str, Any], temperature: float) -> dict[str, Any]:
    """The same with every level's model at this temperature; tables and look-ups keep theirs."""
    out = [
        {**level, "temperature": temperature}
        if level["method"] in ("draft_model", "early_exit")
        else level
        for level in hierarchy["levels"]
    ]
    return {**hierarchy, "levels": out}


def profiled(
    lab: Lab, prompts: Sequence[Sequence[int]], title: str, names: Sequence[str]
) -> Profile:
    tokenizer = lab.models.tokenizer
    if tokenizer is None:
        raise ValueError(
            f"p1-models profiles on texts, and {lab.models.target.model!r} has no tokenizer beside "
            "it: put its tokenizer.json there"
        )
    data = measured_profile(
        lab.models.target,
        [parse(name) for name in names],
        [tokenizer.decode(list(prompt), skip_special_tokens=True) for prompt in prompts],
        lab.temperatures,
        dataclasses.replace(SETTINGS, tokens=lab.max_new_tokens, seed=lab.seed),
        loaded=lab.models.loaded,
        report=lambda stage, share: lab.report(f"profile of {title}: {stage}", share),
    )
    return from_dict(data)


def trials_of(lab: Lab, pool: Candidates, temperature: float) -> list[Trial]:
    context = fmean(len(prompt) for prompt in lab.prompts) + lab.max_new_tokens / 2
    estimates = pool.profile.estimates(temperature, context=context)
    return [
        trial_of(lab, pool, estimates, choice.chain, f"{pool.title} {len(choice.chain.levels)}")
        for choice in best_of_each_size(estimates)
    ]


def trial_of(lab: Lab, pool: Candidates, estimates: Estimates, chain: Chain, name: str) -> Trial:
    hierarchy = pool.profile.hierarchy(chain)
    choice = Choice(chain, latency(estimates, chain))
    return Trial(pool, choice, estimates, hierarchy, method_of(name, lab, hierarchy))


def tailed(lab: Lab, base: Trial, tail: int) -> Trial:
    chain = dataclasses.replace(base.choice.chain, tail=tail)
    return trial_of(lab, base.pool, base.estimates, chain, f"{base.method.name} tail {tail}")


def warm(lab: Lab, base: Trial, share: float, temperature: float) -> Trial:
    own = share * temperature
    hierarchy = warmed(base.hierarchy, own)
    method = method_of(f"{base.method.name} drafts at {own:g}", lab, hierarchy)
    return dataclasses.replace(base, hierarchy=hierarchy, method=method, found=None)


def planned(trials: Sequence[Trial], least: int, most: int | None = None) -> Trial | None:
    """The one that the planner expects most of, among those of so many models."""
    fit = [t for t in trials if least <= len(t.choice.chain.levels) <= (most or 1 << 30)]
    return min(fit, key=lambda t: t.choice.ms, default=None)
