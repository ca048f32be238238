"""P1's Table 5 on the models at hand: real or independent acceptances, real or constant costs.

One hierarchy, four levels where the target is a shipped one, decodes the prompts with P1's
Algorithm 2. A first, untimed pass gives the acceptance *rate* of each pair: tokens accepted over
tokens tested. Then plain decoding, the hierarchy and the hierarchy with coins (:mod:`.coins`) are
timed alternately. With coins every model runs as it does otherwise, but a coin of the pair's rate
decides each test: the difference shows how the first assumption of P1's latency formula,
independent acceptances, changes the time.

The *cost* of a level is the mean over its calls in the hierarchy's timed runs; to a call of the
target is added what a round spends outside all calls. Counted calls times these costs are the
table's third cell; coins and costs without any model, the fourth (:mod:`hierspec_lab.simulation`).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from hierspec.errors import HierspecError
from hierspec.presets.systems import layers_at_shares
from hierspec.zoo.registry import family
from hierspec_lab.bench.methods.ours import HierarchyMethod
from hierspec_lab.bench.summary import num_tokens_after_first, ratio
from hierspec_lab.families.code import FAMILY
from hierspec_lab.papers.lab import Lab
from hierspec_lab.papers.measured import (
    Measured,
    method_of,
    model_notes,
    require_all,
    side_by_side,
    tokens_per_call,
    uncompared_table,
)
from hierspec_lab.papers.tables import Cell, Reproduction, Table, TableRow

from .coins import CoinMethod
from .levels import (
    TEXTS,
    AcceptanceCounter,
    AcceptanceCounts,
    Levels,
    SimulatedLatency,
    decode_ms,
    level_calls,
    level_costs,
    simulate_levels,
)
from .simulation import TABLE_5

NAME = "p1-coin-flips"
STEP = 2  # budget of the smallest level, and how much larger each further level's is
EXITS = (1 / 8, 1 / 4, 1 / 2)  # of the depth: they draft where no draft model is given
MIN_TOKENS = 8  # new ones: in a shorter text some level's drafts may never be tested


def drafters(lab: Lab) -> list[str]:
    """Return the drafters' names, smallest first: n-gram table, then draft models or early exits.

    The shipped n-gram table is for targets of the shipped family; early exits draft where no draft
    model is given. Above the smallest, drafters that cannot verify are left out.
    """
    table = ["ngram"] if family(lab.target) == FAMILY else []
    exits = [f"exit:{layer}" for layer in layers_at_shares(lab.models.num_layers, EXITS)]
    names = dict.fromkeys([*table, *(lab.models.drafts or exits)])
    return [name for i, name in enumerate(names) if not i or lab.models.can_verify(name)]


def build_hierarchy(lab: Lab, names: Sequence[str]) -> dict[str, Any]:
    """Return a hierarchy file's content: the chain of these drafters, verified by Algorithm 2.

    Budgets grow by :data:`STEP` from level to level. They are fixed, so as not to depend on a
    measurement that another machine would not repeat.
    """
    levels = [
        lab.models.level(name, STEP * number, **({"verify": "tokenwise"} if number > 1 else {}))
        for number, name in enumerate(names, 1)
    ]
    return {"levels": levels, "verify": "tokenwise"}


def count_acceptances(
    lab: Lab, method: HierarchyMethod, levels: int, temperature: float
) -> list[list[AcceptanceCounts]]:
    """Decode every prompt, untimed, and return its counts by drafting level.

    Seeds are those of the timed runs, which therefore write the same texts and make the same tests.
    """
    key = f"{NAME}: tests at temperature {temperature:g}"

    def observe() -> list[list[dict[str, int]]]:
        by_prompt = []
        for i, prompt in enumerate(lab.prompts):
            lab.report(key, i / len(lab.prompts))
            counter = AcceptanceCounter(levels)
            method.hierarchy.generate(
                prompt,
                max_new_tokens=lab.max_new_tokens,
                temperature=temperature,
                seed=lab.seed + i,
                ignore_eos=True,
                observers=[counter],
            )
            by_prompt.append([dataclasses.asdict(counts) for counts in counter.counts])
        return by_prompt

    return [[AcceptanceCounts(**counts) for counts in prompt] for prompt in lab.once(key, observe)]


def measure(lab: Lab) -> Reproduction:
    """Measure Table 5 and the rates, costs and calls behind it, at each of the lab's temperatures.

    Raises:
        HierspecError: no prompt, too few new tokens, nothing that drafts, or a level whose drafts
            were never tested.
    """
    lab.require(NAME, tokens=MIN_TOKENS)
    names = drafters(lab)
    if not names:
        raise HierspecError(
            f"{NAME} needs something that drafts: give --draft, or a target of two layers or more"
        )
    tables = [
        table for temperature in lab.temperatures for table in _tables_at(lab, names, temperature)
    ]
    return Reproduction(NAME, tuple(tables), measured_on=lab.to_dict())


def _tables_at(lab: Lab, names: Sequence[str], temperature: float) -> list[Table]:
    hierarchy = build_hierarchy(lab, names)
    method = method_of("hierarchy", lab, hierarchy)
    by_prompt = count_acceptances(lab, method, len(names), temperature)
    by_level = [sum(counts, AcceptanceCounts()) for counts in zip(*by_prompt, strict=True)]
    rates = tuple(counts.rate for counts in by_level)
    for name, rate in zip(names, rates, strict=True):
        if math.isnan(rate):
            raise HierspecError(
                f"{NAME}: no token of {name} was ever tested: raise --max-new-tokens"
            )
    methods = [method, CoinMethod("coins", lab, hierarchy, rates)]
    plain, real, coins = require_all(side_by_side(lab, methods, temperature, NAME))
    levels = Levels(
        (*names, lab.target),
        tuple(level["num_speculative_tokens"] for level in hierarchy["levels"]),
        rates,
        level_costs(real.runs),
    )
    simulation = simulate_levels(levels, [run.num_tokens - 1 for run in real.runs], lab.seed)
    return [
        _table_5(lab, temperature, levels, real, coins, simulation),
        _other_latencies(temperature, levels, plain, real, coins),
        _levels(temperature, levels, by_level, real, coins, simulation),
    ]


def _table_5(
    lab: Lab,
    temperature: float,
    levels: Levels,
    real: Measured,
    coins: Measured,
    simulation: SimulatedLatency,
) -> Table:
    real_ms = decode_ms(real.runs)
    deviation_share = simulation.text_deviation / math.sqrt(len(coins.runs)) / simulation.ms
    numbers = {
        ("real", "real"): (real_ms, tokens_per_call(real.runs), ("", "", "")),
        ("iid", "real"): (
            decode_ms(coins.runs),
            tokens_per_call(coins.runs),
            _over_real([decode_ms([run]) for run in coins.runs], real),
        ),
        ("real", "artificial"): (
            levels.counted_ms(real.runs),
            tokens_per_call(real.runs),
            _over_real([levels.counted_ms([run]) for run in real.runs], real),
        ),
        ("iid", "artificial"): (simulation.ms, simulation.tokens_per_call, ("", "", "")),
    }
    printed_real = float(TABLE_5[0][2])
    rows = []
    for acceptances, costs, printed, _ in TABLE_5:
        ms, per_call, by_prompt = numbers[acceptances, costs]
        ratios = (float(printed) / printed_real, ms / real_ms)
        extra = (*ratios, *by_prompt, per_call)
        rows.append(TableRow(f"{acceptances}, {costs}", (Cell(printed, ms / 1e3),), extra))
    drafting = zip(levels.names, levels.budgets, strict=False)
    chain = " > ".join((*(f"{name} {budget}" for name, budget in drafting), "target"))
    return Table(
        f"Table 5, temperature {temperature:g}",
        f"seconds a token of {chain}, acceptances and costs real or not",
        "acceptances, costs",
        ("seconds a token",),
        tuple(rows),
        ("printed ratio", "ratio", "median", "low 95", "high 95", "tokens a call"),
        {
            "costs": list(levels.costs),
            "acceptance": levels.acceptance,
            "budgets": list(levels.budgets),
            "texts": TEXTS,
        },
        compared=False,
        notes=(
            "Ratio: over real, real, all prompts together. Median, low, high: of the ratios prompt "
            "by prompt, with a 95 % bootstrap interval from five prompts on.",
            "iid, real: the engine runs the same models on drafts of the same budgets, and a coin "
            "of the pair's rate decides every test. Its text is of no use, and differs from the "
            "real one's. The luck of the coins alone moves the latency of so many texts by "
            f"{100 * deviation_share:.1f} % (one standard deviation, simulated).",
            "real, artificial: counted calls at the mean cost of a call in the same runs, so the "
            "ratio of all prompts together is 1 by construction; prompt by prompt it says how far "
            "costs are from constant.",
            f"iid, artificial: {TEXTS} texts of the same lengths, simulated; its standard error is "
            f"{100 * simulation.standard_error / simulation.ms:.2f} %, without that of rates and "
            "costs.",
            "P1 prints neither levels, budgets, rates and costs of its hierarchy (Gemma2 9B, four "
            "levels), nor data set and temperature, nor what its rate is a mean of (here: tokens "
            "kept over tokens tested) and where its fixed costs come from (here: the timed runs).",
            *model_notes(lab),
        ),
    )


def _over_real(ms: Sequence[float], real: Measured) -> tuple[Any, ...]:
    """Return the ratio of ``ms``, one a prompt, to the real runs': median and its 95 % interval."""
    ratios = ratio(ms, [decode_ms([run]) for run in real.runs])
    return (ratios.median, *ratios.bounds)


def _other_latencies(
    temperature: float, levels: Levels, plain: Measured, real: Measured, coins: Measured
) -> Table:
    """Return the latency by other formulas and counts, from the same runs, rates and costs."""
    real_ms, coins_ms = decode_ms(real.runs), decode_ms(coins.runs)
    rows = {
        "real, real": real_ms,
        "iid, real": coins_ms,
        "iid in the engine, artificial": levels.counted_ms(coins.runs),
        "exact latency model": levels.exact_ms(),
        "P1's Corollary 3.1": levels.formula_ms(),
        "plain decoding, measured": decode_ms(plain.runs),
    }
    return uncompared_table(
        f"Beside Table 5, temperature {temperature:g}",
        "milliseconds a token of the same hierarchy, asked for in other ways",
        "what",
        [(name, (ms, ms / real_ms, ms / coins_ms)) for name, ms in rows.items()],
        ("ms a token", "over real, real", "over iid, real"),
        notes=(
            "iid in the engine, artificial: calls that the engine counted under coins, at the "
            "costs of the real runs. Against iid, real it tests constant costs on calls that they "
            "were not measured on.",
            "The exact model and P1's formula know no end of a text, where drafts are cut short "
            "and the last round's surplus is lost: short texts cost more than they say.",
        ),
    )


def _levels(
    temperature: float,
    levels: Levels,
    acceptances: Sequence[AcceptanceCounts],
    real: Measured,
    coins: Measured,
    simulation: SimulatedLatency,
) -> Table:
    """Return rates, costs and calls of each level, from which Table 5 is computed."""
    real_calls, coins_calls = (
        [
            sum(calls) / num_tokens_after_first(runs)
            for calls in zip(*map(level_calls, runs), strict=True)
        ]
        for runs in (real.runs, coins.runs)
    )
    settings = [
        (budget, counts.rate, counts.kept + counts.failed)
        for budget, counts in zip(levels.budgets, acceptances, strict=True)
    ]
    numbers = zip(
        [*settings, ("", "", "")],
        levels.costs,
        level_costs(coins.runs),
        real_calls,
        coins_calls,
        simulation.calls,
        strict=True,
    )
    rows = [
        (name, (*setting, *measured))
        for name, (setting, *measured) in zip(levels.names, numbers, strict=True)
    ]
    return uncompared_table(
        f"Levels, temperature {temperature:g}",
        "rates and costs that were measured; calls a token of the text, measured and simulated",
        "level",
        rows,
        (
            *("budget", "rate", "tests", "ms a call, real", "ms a call, coins"),
            *("calls, real", "calls, coins", "calls, simulated"),
        ),
        notes=(
            "Rate: of the level's tokens at the level above it. For the smallest level every "
            "drafted token counts as one call. The target's call bears what a round spends "
            "outside all levels.",
        ),
    )
