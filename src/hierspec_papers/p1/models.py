"""P1 on the models at hand: hierarchies of K models, predicted and measured [P1 §4, §5].

Two pools, as in the paper: early exits of the target (§4) and separate models (§5; for the shipped
family its n-gram table joins them, as P1's statistical drafter does). Of a shallow target every
layer is a candidate, as in the paper; where exits have trained heads, those exits alone are. Each
pool is profiled on every other prompt; the best plan for each number of models is then measured on
the prompts between, with the horizontal heuristic (tokens of the smallest model after everything
that a level hands up) and with drafters at temperatures of their own. What each needs in memory
beyond the target is computed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from hierspec.bench.memory import level_parameters
from hierspec.bench.methods.base import Unavailable
from hierspec.bench.methods.ours import HierarchyMethod
from hierspec.bench.records import LevelCounters
from hierspec.bench.summary import (
    by_level,
    level_summaries,
    standardized_walltime_improvement,
)
from hierspec.errors import HierspecError
from hierspec.planner.corollary import corollary
from hierspec.planner.estimates import Chain, Estimates
from hierspec.planner.latency import latency
from hierspec.planner.plan import Choice
from hierspec.planner.search import plan
from hierspec.presets.registry import trained_exits
from hierspec.presets.systems import at_shares
from hierspec.profiling.candidates import parse
from hierspec.profiling.measure import measure as measured_profile
from hierspec.profiling.profile import Profile, from_dict
from hierspec.profiling.settings import ProfileSettings
from hierspec_papers.lab import Lab
from hierspec_papers.measured import (
    INTERVAL,
    Measured,
    method_of,
    notes,
    own_table,
    side_by_side,
    written,
)
from hierspec_papers.p3.systems import cache_bytes, head_bytes
from hierspec_papers.tables import Reproduction, Table

EXITS = (1 / 8, 1 / 4, 1 / 2)  # of the depth: candidates of the self-speculative pool
# Of a target of at most so many layers every layer is one, as in P1; 0: of none. The number of
# pairs that are timed grows with the square.
EVERY_LAYER = 12
MOST_MODELS = 6  # in a hierarchy, the target included: P1's Table 1 goes no further
LARGEST_BUDGET = 12
SETTINGS = ProfileSettings(max_speculative_tokens=LARGEST_BUDGET, places=4, repeats=3, prompts=8)
TAILS = (1, 2, 3, 5, 10)  # tokens of the smallest model after every level; P1 Table 4: 10
WARMTHS = (0.0, 0.5, 0.75, 1.25)  # drafters' temperatures, in units of the request's

# P1 Table 3: model → (speed-up of HSD, of a single draft); early exits, CNN-DM unless named
TABLE_3 = {
    "LayerSkip2-7B": (1.76, 1.62),
    "LayerSkip2-13B": (1.41, 1.20),
    "LayerSkip2-70B": (1.77, 1.58),
    "Gemma2-9B": (1.06, 1.03),
    "Gemma2-9B (XSUM)": (1.15, 1.08),
}
# P1 Table 4: temperature → method → standardized walltime improvement on GSM8K, on MMLU
TABLE_4 = {
    1.0: {"single draft": (3.44, 3.61), "HSD": (3.68, 4.06), "HSD + HH": (3.70, 4.16)},
    0.6: {"single draft": (3.44, 3.67), "HSD": (3.67, 4.10), "HSD + HH": (3.69, 4.17)},
    0.0: {"single draft": (3.38, 3.68), "HSD": (3.76, 4.10), "HSD + HH": (3.79, 4.13)},
}


@dataclass(frozen=True, slots=True)
class Candidates:
    """A pool of drafters and what was measured of it.

    Attributes:
        heads: trained for the exits in it, if any.
    """

    title: str
    profile: Profile
    heads: str | None = None

    def shown(self, name: str) -> str:
        """Return a candidate's name without the file of heads, which is the same for all exits."""
        return name.removesuffix(f",head={self.heads}")


@dataclass(slots=True)
class Trial:
    """A hierarchy to run: what it is, what it should cost, and what was measured."""

    pool: Candidates
    choice: Choice
    estimates: Estimates
    hierarchy: dict[str, Any]
    method: HierarchyMethod
    found: Measured | None = None

    @property
    def names(self) -> str:
        chain, models = self.choice.chain, self.estimates.names
        parts = [
            f"{self.pool.shown(models[i])} {n}"
            for i, n in zip(chain.levels, chain.budgets, strict=False)
        ]
        return " > ".join((*parts, "target"))

    @property
    def memory(self) -> tuple[int, int] | None:
        """Bytes beyond the target's, computed: of weights, and of caches for each token.

        ``None`` where the models cannot form the hierarchy.
        """
        levels, plain = self.choice.chain.levels, HierarchyMethod("plain", self.method.models)
        models = self.estimates.bytes(levels) - self.estimates.bytes(levels[-1:])
        try:
            # a profile counts weights by model, and to it the head of an exit is the target's
            weights = models + head_bytes(self.method)
            return weights, cache_bytes(self.method) - cache_bytes(plain)
        except Unavailable:
            return None

    @property
    def improvement(self) -> float | None:
        """P1's standardized walltime improvement."""
        if self.found is None or not self.found.runs:
            return None
        runs = [
            ([LevelCounters(**part) for part in run.levels], LevelCounters(**run.target))
            for run in self.found.runs
        ]
        tokens = written(self.found.runs)
        prices = level_parameters(self.method)
        return standardized_walltime_improvement(
            tokens, level_summaries(tokens, by_level(runs)), prices
        )


def split(lab: Lab) -> tuple[list[Sequence[int]], Lab]:
    """Return prompts to profile on, and the lab with those to measure on: every other one each.

    A single prompt serves for both.
    """
    planned_on = list(lab.prompts[1::2]) or list(lab.prompts)
    return planned_on, dataclasses.replace(lab, prompts=lab.prompts[::2])


def candidates(lab: Lab) -> dict[str, list[str]]:
    """Return pool → names, as ``hierspec profile --candidates`` takes them."""
    depth = lab.models.num_layers
    heads, layers = trained_exits(lab.target)
    if not heads:
        layers = range(1, depth) if depth <= EVERY_LAYER else at_shares(depth, EXITS)
    suffix = f",head={heads}" if heads else ""
    table = ["ngram"] if lab.models.drafts and lab.target.startswith("zoo:") else []
    return {
        "early exits": [f"exit:{layer}{suffix}" for layer in layers],
        "separate models": [*table, *lab.models.drafts],
    }


def best_of_each_size(estimates: Estimates) -> list[Choice]:
    """Return the best chain of exactly 1, 2, … models, as far as they can be stacked.

    Of no more than :data:`MOST_MODELS`.
    """
    out = []
    for count in range(1, min(len(estimates.names), MOST_MODELS) + 1):
        found = plan(estimates, max_models=count, top=64)
        choices = [c for c in (found.best, *found.runners_up) if len(c.chain.levels) == count]
        if choices:
            out.append(min(choices, key=lambda choice: choice.ms))
    return out


def warmed(hierarchy: dict[str, Any], temperature: float) -> dict[str, Any]:
    """Return the same with every level's model at this temperature; tables keep theirs."""
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
        raise HierspecError(
            f"p1-models profiles on texts, and {lab.target!r} has no tokenizer beside "
            "it: put its tokenizer.json there"
        )

    def measured() -> Any:
        return measured_profile(
            lab.models.target,
            [parse(name) for name in names],
            [tokenizer.decode(list(prompt), skip_special_tokens=True) for prompt in prompts],
            lab.temperatures,
            dataclasses.replace(SETTINGS, tokens=lab.max_new_tokens, seed=lab.seed),
            loaded=lab.models.loaded,
            report=lambda stage, share: lab.report(f"profile of {title}: {stage}", share),
        )

    return from_dict(lab.once(f"profile of {title}", measured))


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
    """Return the one that the planner expects most of, among those of so many models."""
    fit = [t for t in trials if least <= len(t.choice.chain.levels) <= (most or 1 << 30)]
    return min(fit, key=lambda t: t.choice.ms, default=None)


def measure(lab: Lab) -> Reproduction:
    """Profiles, plans and measurements at each of the lab's temperatures.

    Raises:
        HierspecError: no prompt, no tokenizer, or nothing that could draft.
    """
    lab.require("p1-models")
    planned_on, lab = split(lab)
    heads, _ = trained_exits(lab.target)
    pools = [
        Candidates(title, profiled(lab, planned_on, title, names), heads)
        for title, names in candidates(lab).items()
        if names
    ]
    if not pools:
        raise HierspecError(
            "p1-models needs something that drafts: give --draft, or a target of two layers or more"
        )
    tables: list[Table] = []
    for temperature in lab.temperatures:
        tables += _at(lab, pools, temperature)
    return Reproduction("p1-models", tuple(tables), (), lab.to_dict())


def _at(lab: Lab, pools: Sequence[Candidates], temperature: float) -> list[Table]:
    """Return all tables at one temperature, from one interleaved measurement."""
    by_pool = [trials_of(lab, pool, temperature) for pool in pools]
    extra: list[list[Trial]] = []
    warmed: list[list[Trial]] = []
    for trials in by_pool:
        best = planned(trials, 3)
        extra.append([tailed(lab, best, tail) for tail in TAILS] if best else [])
        bases = [t for t in (planned(trials, 2, 2), best) if t] if temperature else []
        warmed.append([warm(lab, base, share, temperature) for base in bases for share in WARMTHS])
    every = [t for group in (*by_pool, *extra, *warmed) for t in group]
    stacked = [t for t in every if not t.choice.chain.plain]
    plain, *found = side_by_side(lab, [t.method for t in stacked], temperature, "p1-models")
    for trial in every:
        trial.found = plain
    for trial, measured in zip(stacked, found, strict=True):
        trial.found = measured
    tables = []
    for pool, trials, tails, warmer in zip(pools, by_pool, extra, warmed, strict=True):
        tables += [
            _rates(pool, temperature),
            _sizes(lab, pool, trials, temperature),
            _memory(pool, trials, temperature),
        ]
        if tails:
            tables.append(_heuristic(pool, planned(trials, 3), tails, temperature))
        tables.append(_improvements(pool, trials, tails, temperature))
        if warmer:
            tables.append(_warmths(pool, trials, warmer, temperature))
    return tables


def _rates(pool: Candidates, temperature: float) -> Table:
    """Return rates and costs in the shape of P1's Tables 6 and 7."""
    names = [model["name"] for model in pool.profile.models]
    shown = [pool.shown(name) for name in names]
    greedy = temperature == 0
    found = {
        (pair["drafter"], pair["verifier"]): pair.get("equal_argmax" if greedy else "acceptance")
        for pair in pool.profile.measured(temperature)["pairs"]
    }
    rows = []
    for i, model in enumerate(pool.profile.models[:-1]):
        rates = (found.get((i, k)) for k in range(1, len(names)))
        cells = ("" if rate is None else rate for rate in rates)
        rows.append((shown[i], (model["call_ms"], *cells)))
    rows.append(("target", (pool.profile.models[-1]["call_ms"], *[""] * (len(names) - 1))))
    return own_table(
        f"Acceptance rates, {pool.title}, temperature {temperature:g}",
        "of each model's tokens by each larger one, and milliseconds of a call (P1 Tables 6, 7)",
        "model",
        rows,
        ("ms a call", *shown[1:-1], "target"),
        notes=(
            "Along the target's own texts; greedy: the share of equal choices, else 1 − TV. Empty: "
            "not measured, since the one model's call is no cheaper, or a look-up has no law.",
        ),
    )


def _sizes(lab: Lab, pool: Candidates, trials: Sequence[Trial], temperature: float) -> Table:
    """Return predicted and measured speeds in the shape of P1's Tables 1 and 3."""
    best = planned(trials, 1)
    rows = []
    for trial in trials:
        chain = trial.choice.chain
        plain = trial.estimates.plain_ms
        predicted = (trial.choice.ms, corollary(trial.estimates, chain).ms_per_token)
        expected = (*predicted, plain / predicted[0])
        star = " (planned)" if trial is best else ""
        ours = _ours(trial, temperature)
        rows.append((f"{len(chain.levels)}{star}", (trial.names, *expected, *ours)))
    compared = _against_single(trials)
    return own_table(
        f"Number of models, {pool.title}, temperature {temperature:g}",
        "the best plan of each number of models, predicted and measured (P1 Tables 1 and 3)",
        "models",
        rows,
        ("hierarchy", "predicted ms", "by formula", "predicted speed-up", *_OURS),
        notes=(
            "predicted: the general model with measured curves and costs; by formula: P1's "
            "Corollary 3.1; measured: milliseconds a token after the first, mean over prompts. "
            "Calls were timed minutes before the runs; where the machine has other work, compare "
            "the speed-ups.",
            *compared,
            *(
                (f"Exits score with heads trained for them ({pool.heads}).",)
                if pool.heads and pool.title == "early exits"
                else ()
            ),
            *(_table_3() if pool.title == "early exits" else ()),
            "Profiled on every other prompt, measured on those between.",
            *notes(lab),
        ),
    )


def _memory(pool: Candidates, trials: Sequence[Trial], temperature: float) -> Table:
    """Return the bytes that each hierarchy needs beyond plain decoding's."""
    plain, *_ = trials
    weights = plain.estimates.bytes(plain.choice.chain.levels)
    caches = cache_bytes(plain.method)
    rows = [
        (str(len(trial.choice.chain.levels)), (trial.names, *(trial.memory or ("", ""))))
        for trial in trials
    ]
    return own_table(
        f"Memory, {pool.title}, temperature {temperature:g}",
        "bytes that each hierarchy needs beyond the target's, computed from the models",
        "models",
        rows,
        ("hierarchy", "weights", "caches per token"),
        {"target weights": weights, "target caches per token": caches},
        notes=(
            "weights: of other models, of tables as their files, and of trained exit heads; exits "
            "share the target's. caches: keys and values of other models, and hidden states at "
            "each exit.",
            f"The target's own: {weights:,} bytes of weights, {caches:,} of caches per token.",
        ),
    )


def _table_3() -> tuple[str, ...]:
    cells = (
        f"{name} {hsd} against {single} ({hsd / single:.2f})"
        for name, (hsd, single) in TABLE_3.items()
    )
    return (f"P1 Table 3 prints, three models against a single draft: {'; '.join(cells)}.",)


def _against_single(trials: Sequence[Trial]) -> tuple[str, ...]:
    single, deep = planned(trials, 2, 2), planned(trials, 3)
    if not (single and deep and single.found and deep.found):
        return ()
    if not (single.found.runs and deep.found.runs):
        return ()
    gap = deep.found.over(single.found.runs)
    return (
        f"Best of three models or more over the best single draft: "
        f"{gap.said(unit='')}, per prompt; P1 reports up to 1.2.",
    )


def _heuristic(
    pool: Candidates, base: Trial | None, tails: Sequence[Trial], temperature: float
) -> Table:
    """P1's horizontal heuristic (Chen et al., 2023b): h more tokens of the smallest model."""
    assert base is not None
    rows = [
        (str(one.choice.chain.tail), (one.choice.ms, *_ours(one, temperature), _plainly(one)))
        for one in (base, *tails)
    ]
    return own_table(
        f"Horizontal heuristic, {pool.title}, temperature {temperature:g}",
        f"{base.names}, with h tokens of the smallest model after all that a level hands up",
        "h",
        rows,
        ("predicted ms", *_OURS, "walltime improvement"),
        notes=(
            "P1 Table 4 finds half a per cent to 2.5 per cent in it, with h = 10 and a bigram "
            "table as the smallest model (Appendix D); budgets are not planned again for it here, "
            "so that only h differs.",
        ),
    )


def _improvements(
    pool: Candidates, trials: Sequence[Trial], tails: Sequence[Trial], temperature: float
) -> Table:
    """Return walltime improvements in the shape of P1's Table 4."""
    ours = {
        "single draft": planned(trials, 2, 2),
        "HSD": planned(trials, 3),
        "HSD + HH": min(tails, key=lambda t: t.choice.ms, default=None),
    }
    printed = TABLE_4.get(temperature, {})
    rows = [
        (
            name,
            (
                _plainly(trial),
                trial.found.speedup.median if trial.found and trial.found.runs else "",
                *(printed.get(name) or ("", "")),
            ),
        )
        for name, trial in ours.items()
        if trial is not None
    ]
    return own_table(
        f"Table 4, {pool.title}, temperature {temperature:g}",
        "standardized walltime improvement: every call charged by the weights it runs through",
        "method",
        rows,
        ("improvement", "measured speed-up", "printed GSM8K", "printed MMLU"),
        notes=(
            "P1 refers to Chen et al. (2023b) for it: tokens · c_target over the sum of calls · c, "
            "tables free. Printed: T5-XXL (11 B) with smaller T5 models and a table. It leaves out "
            "that small calls cost more than their share, so it lies above what a clock says.",
            "The hierarchies are those the planner expects most of; h of HH as well.",
        ),
    )


def _warmths(
    pool: Candidates, trials: Sequence[Trial], warmer: Sequence[Trial], temperature: float
) -> Table:
    """P1 §5: drafters at temperatures of their own."""
    rows = []
    for base in (planned(trials, 2, 2), planned(trials, 3)):
        mine = [t for t in warmer if base and t.choice.chain == base.choice.chain]
        if not mine or base is None:
            continue
        every = sorted(((1.0, base), *zip(WARMTHS, mine, strict=True)), key=lambda item: item[0])
        for share, trial in every:
            kept = trial.found.acceptance() if trial.found and trial.found.runs else ""
            rows.append(
                (f"{share * temperature:g}", (base.names, kept, *_ours(trial, temperature)[1:-1]))
            )
    return own_table(
        f"Drafters' temperature, {pool.title}, request at {temperature:g}",
        "all levels below the target at this temperature; the output's law stays the request's",
        "temperature",
        rows,
        ("hierarchy", "kept by target", *INTERVAL, "tokens a call"),
        notes=("P1 finds .5 best for drafters of a request at .6, and 1 for one at 1 (Table 10).",),
    )


_OURS = ("measured ms", *INTERVAL, "tokens a call", "same as plain")


def _ours(trial: Trial, temperature: float) -> tuple:
    """Return ms, interval, tokens a call and equality; the reason where it could not run."""
    found = trial.found
    if found is None or not found.runs:
        return (*[""] * 5, found.why if found else "")
    return (found.decode_ms, *found.numbers(temperature))


def _plainly(trial: Trial) -> float | str:
    return "" if trial.improvement is None else trial.improvement
