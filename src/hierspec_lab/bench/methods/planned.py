"""Planned methods: the models are profiled here, once per temperature, and the plan is run."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hierspec.api import Hierarchy
from hierspec.config.build import build
from hierspec.config.chains import ConcatenateConfig
from hierspec.config.levels import LevelConfig
from hierspec.config.schema import HierarchyConfig
from hierspec.errors import HierspecError
from hierspec.planner.estimates import Chain
from hierspec.planner.latency import latency
from hierspec.planner.online.controller import OnlineController
from hierspec.planner.plan import Plan
from hierspec.profiling.auto import control_chain, plan_of
from hierspec.profiling.candidates import default_names, parse
from hierspec.profiling.profile import Profile, from_dict
from hierspec.profiling.settings import ProfileSettings, ReportProgress
from hierspec.profiling.texts import builtin
from hierspec.zoo.registry import family
from hierspec_lab.families.code import FAMILY
from hierspec_lab.planning.thorough import in_context, measure, under_tokenwise

from .base import Method
from .ours import BenchModels, HierarchyMethod

_PLACES = 96  # at which drafts are tried, in all: as many as by the profiler's own defaults
_RULES = {"traversal": "block", "rrs": "tokenwise"}  # of several drafts → of one, in profiles
_LONGEST_TEXT = 256  # tokens to profile on at most, however many are measured


@dataclass(slots=True, eq=False)
class Planning:
    """Profiles of a bench's models.

    Attributes:
        prompts: texts or token ids to profile on.
        settings: of the profiler; ``None``: its defaults.
        path: file that keeps the profile; an interrupted one goes on. ``None``: memory alone.
        report: called with the stage of a measurement, and the share that is done.
    """

    models: BenchModels
    prompts: Sequence[str | Sequence[int]]
    settings: ProfileSettings | None = None
    path: Path | None = None
    report: ReportProgress = lambda stage, share: None
    profiles: dict[float, Profile] = field(default_factory=dict)
    plans: dict[float, Plan] = field(default_factory=dict)

    def profile(self, temperature: float) -> Profile:
        """Return the profile of all :func:`candidates`, measured on first use."""
        if temperature not in self.profiles:
            data = measure(
                self.models.target,
                [parse(name) for name in candidates(self.models)],
                self.prompts,
                [temperature],
                self.settings or ProfileSettings(),
                path=self.path,
                loaded=self.models.loaded,
                report=self.report,
            )
            self.profiles[temperature] = from_dict(data)
        return self.profiles[temperature]

    def plan(self, temperature: float) -> Plan:
        """Return the best plan, as ``auto`` does."""
        if temperature not in self.plans:
            self.plans[temperature] = plan_of(self.profile(temperature), temperature)
        return self.plans[temperature]


def settings(prompts: int, tokens: int, until_eos: bool) -> ProfileSettings:
    """Return settings with as many places to draft as the profiler's own, on fewer prompts.

    Args:
        tokens: that the target adds to each prompt, 256 at most.
        until_eos: whether an end of text ends its output.
    """
    tokens = min(tokens, _LONGEST_TEXT)
    places = min(max(6, math.ceil(_PLACES / prompts)), max(1, tokens // 4))
    return ProfileSettings(prompts=prompts, tokens=tokens, places=places, ignore_eos=not until_eos)


def candidates(models: BenchModels) -> list[str]:
    """Name what to profile: a shipped n-gram table, the drafts or default ones, prompt lookup."""
    first: list[str] = []
    if family(models.target.model) == FAMILY:
        first = ["ngram"]
    elif not models.drafts:
        first = default_names(models.target)
    drafts = [name for name in models.drafts if parse(name).level.capabilities.planned]
    return list(dict.fromkeys([*first, *drafts, "prompt-lookup"]))


def planning(models: BenchModels) -> Planning:
    """Return the bench's own planning, or make one on built-in texts, as ``auto`` does."""
    if models.planning is None:
        models.planning = Planning(models, builtin(models.target.model))
    return models.planning


def planned(models: BenchModels, temperature: float) -> list[Method]:
    """Return the plan for this temperature as a method, followed unchanged."""
    return [HierarchyMethod("planned", models, **_levels_and_rule(models, temperature))]


def online(models: BenchModels, temperature: float) -> list[Method]:
    """Return the plan with one more level at hand, adapted while text is written."""
    return [OnlineMethod("online", models, temperature)]


class OnlineMethod(HierarchyMethod):
    """The planned hierarchy under a controller, as :meth:`hierspec.Hierarchy.auto` builds it."""

    def __init__(self, name: str, models: BenchModels, temperature: float) -> None:
        profile, best = planning(models).profile(temperature), planning(models).plan(temperature)
        chain = control_chain(profile, best)
        content = _levels_and_rule(models, temperature, chain)
        super().__init__(name, models, **content)
        self.configuration["online"] = True
        parsed = HierarchyConfig.from_dict({"target": models.target.model, **content})
        config = dataclasses.replace(parsed, target=models.target)
        built, controller = build(config, models.loaded), None
        if not chain.plain:
            controller = OnlineController(built.root, best.estimates, chain)
        self._hierarchy = Hierarchy(built, controller=controller)

    @property
    def hierarchy(self) -> Hierarchy:
        return self._hierarchy


def _levels_and_rule(
    models: BenchModels, temperature: float, chain: Chain | None = None
) -> dict[str, Any]:
    """Return a chain (default: the planned one) as levels and rule of a hierarchy file."""
    current = planning(models)
    chain = current.plan(temperature).best.chain if chain is None else chain
    content = current.profile(temperature).hierarchy(chain)
    return {"levels": content["levels"], "verify": content["verify"]}


def predicted_ms(
    models: BenchModels, configuration: Mapping[str, Any], temperature: float, context: float
) -> float | None:
    """Predict a hierarchy's milliseconds a token after the first from the profile.

    ``None``: nothing was profiled at this temperature, or the hierarchy is no chain of the
    profile's models under one rule, or its levels change while it runs.

    Args:
        context: mean number of tokens before a call, prompt and output.
    """
    current = models.planning
    if current is None or temperature not in current.profiles or configuration.get("online"):
        return None
    profile = current.profiles[temperature]
    chain_and_rule = chain_of(profile, configuration)
    if chain_and_rule is None:
        return None
    chain, rule = chain_and_rule
    profile = in_context(under_tokenwise(profile) if rule == "tokenwise" else profile, context)
    estimates = profile.estimates(temperature)
    try:
        ms = latency(estimates, chain).ms_per_token
    except (HierspecError, IndexError):  # a pair that was not measured, a budget beyond the curves
        return None
    return ms if math.isfinite(ms) else None


def chain_of(profile: Profile, configuration: Mapping[str, Any]) -> tuple[Chain, str] | None:
    """Read a configuration as a chain of the profile's models and its rule; ``None`` if not one."""
    if "levels" not in configuration:
        return None
    keys = ("levels", "verify", "top_m", "allow_lossy")
    content = {key: configuration[key] for key in keys if key in configuration}
    config = HierarchyConfig.from_dict({"target": "target", **content})
    chain, tail = config.levels, ()
    match chain:
        case (ConcatenateConfig(parts=(chain, (_,) as tail), repeat=1),):
            pass
    every = [level for level in (*chain, *tail) if isinstance(level, LevelConfig)]
    if len(every) < len(chain) + len(tail):  # one is another concatenation
        return None
    levels = every[: len(chain)]
    profiled = [model.config for model in profile.models[:-1]]
    numbers, budgets, dropped = [], [], []
    for level in every:
        unplanned = dataclasses.replace(level, num_speculative_tokens=1, verify=None, bonus=True)
        if unplanned not in profiled:
            return None
        numbers.append(profiled.index(unplanned))
        budgets.append(level.num_speculative_tokens)
        if not level.bonus:
            dropped.append(numbers[-1])
    rule = None  # the rule's name in the profile, where the lowest level proposes several drafts
    if levels and levels[0].num_drafts > 1:
        rule = _RULES.get(config.verify)
    order, appended = "chain", 0
    if tail and len(levels) == 1:  # no level verifies
        order, numbers, budgets = "horizontal", numbers[::-1], budgets[::-1]
    elif tail:
        if len(levels) != 2 or numbers.pop() != numbers[0]:
            return None
        appended = budgets.pop()
    rules = {rule or config.verify, *(level.verify or "tokenwise" for level in levels[1:])}
    if len(rules) > 1 or not rules <= {*_RULES.values()} or numbers != sorted(set(numbers)):
        return None
    models = (*numbers, len(profile.models) - 1)
    return Chain(models, tuple(budgets), order, appended, tuple(dropped)), rule or config.verify
