"""P1's Table 5 on the models at hand: real or independent acceptances, real or constant costs.

One hierarchy, four levels where the target is a shipped one, decodes the prompts with P1's
Algorithm 2. Of its tests a first, untimed pass gives the *rate* of each pair: tokens kept over
tokens tested. Then plain decoding, the hierarchy and the hierarchy with coins take turns on the
clock. With coins every model runs as it does otherwise, but each test is a coin of the pair's rate
(:class:`Coins`), so their difference is what the first assumption of P1's latency formula,
independent acceptances, does to the clock.

The *cost* of a level is the mean of its calls in the hierarchy's timed runs, and a call of the
target also bears what a round spends outside all calls. Calls that the engine counted times these
costs are the third cell; coins and costs without any model, the fourth
(:mod:`hierspec.simulation`).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch

from hierspec.api import Hierarchy
from hierspec.bench.methods.base import Request, Run
from hierspec.bench.methods.ours import HierarchyMethod
from hierspec.bench.summary import ratio
from hierspec.core.nodes import Node, Verify
from hierspec.core.rng import PhiloxRng, Rng
from hierspec.core.rules import Acceptance, Batch
from hierspec.engine.observers import Checks, Observer
from hierspec.errors import HierspecError
from hierspec.planner.corollary import formula
from hierspec.planner.estimates import Chain, ideal
from hierspec.planner.latency import latency
from hierspec.planner.simulated import root_of
from hierspec.presets.systems import at_shares
from hierspec.simulation import CoinFlips, simulate
from hierspec.verifiers.formulas import Excess, in_draft
from hierspec.verifiers.tokenwise import Tokenwise
from hierspec.zoo.registry import is_shipped
from hierspec_papers.lab import Lab
from hierspec_papers.measured import (
    Measured,
    all_ran,
    method_of,
    model_notes,
    own_table,
    side_by_side,
    tokens_per_call,
    written,
)
from hierspec_papers.tables import Cell, Reproduction, Table, TableRow

from .simulation import TABLE_5

NAME = "p1-coin-flips"
STEP = 2  # each level holds so many tokens more than the one below it, the smallest so many
EXITS = (1 / 8, 1 / 4, 1 / 2)  # of the depth: they draft where no draft model is given
TEXTS = 400  # of the simulation, as long as those that were measured
LEAST = 8  # new tokens: a shorter text may leave a level without a single test


@dataclass(frozen=True)
class Coins(Tokenwise):
    """Keeps a token with a fixed probability, whatever it is: for timing, never for a text.

    It is not registered, and :class:`CoinMethod` alone makes it. The token after the kept ones is
    drawn as ``tokenwise`` draws it, which takes as long.

    Attributes:
        rate: the probability.
        rng: of greedy decoding, where a rule is given no uniforms. Rules of one rate are equal, so
            that they share what an accelerator has recorded for them.
    """

    rate: float
    rng: Rng = field(compare=False)
    name: ClassVar[str] = "coins"
    exact: ClassVar[bool] = False
    exact_when: ClassVar[str] = "never: it does not look at the tokens"
    sound_below: ClassVar[bool] = False
    laws_of_context: ClassVar[bool] = False

    def acceptance(self, batch: Batch) -> Acceptance:
        h = in_draft(batch).double() * self.rate
        return Acceptance(h, h.new_ones(h.shape[0], h.shape[1] + 1))

    def decide(
        self,
        p_x: Sequence[float],
        q_x: Sequence[float],
        uniforms: Sequence[float],
        excess: Excess,
    ) -> tuple[int, float]:
        return self._kept(uniforms[: len(p_x)]), 1.0

    def greedy(
        self, draft: tuple[int, ...], choices: tuple[int, ...], scores: torch.Tensor | None
    ) -> int:
        return self._kept(self.rng.take(len(draft)).tolist())

    def _kept(self, uniforms: Sequence[float]) -> int:
        return next((i for i, u in enumerate(uniforms) if not u < self.rate), len(uniforms))


class CoinMethod(HierarchyMethod):
    """A hierarchy whose every level flips coins, as a method.

    Args:
        hierarchy: as in a hierarchy file.
        rates: of the levels' tokens, smallest level first.
    """

    def __init__(
        self, name: str, lab: Lab, hierarchy: dict[str, Any], rates: Sequence[float]
    ) -> None:
        super().__init__(name, lab.models, **{**hierarchy, "allow_lossy": True})
        self.rates, self.seed = tuple(rates), 0

    @property
    def hierarchy(self) -> Hierarchy:
        return _WithCoins(super().hierarchy, self.rates, self.seed)

    def run(self, prompt: Sequence[int], request: Request, tracer: Any = None) -> Run:
        """Continue the prompt with coins of the request's seed."""
        self.seed = request.seed
        return super().run(prompt, request, tracer)


class _WithCoins(Hierarchy):
    """A hierarchy with coins for rules; it shares models and lock."""

    def __init__(self, hierarchy: Hierarchy, rates: Sequence[float], seed: int) -> None:
        self.__dict__.update(vars(hierarchy))
        self.root = with_coins(hierarchy.root, rates, seed)


def with_coins(root: Verify, rates: Sequence[float], seed: int) -> Verify:
    """Return the same chain of levels with a coin for each rule, of the rate for its drafts."""

    def level(node: Node | None) -> Node | None:
        if not isinstance(node, Verify):
            return node
        below = level(node.below)
        if below is None:  # nothing to test: the rule is never asked
            return node
        rule = Coins(rates[below.index], PhiloxRng(seed, node.index))
        return dataclasses.replace(node, rule=rule, below=below)

    found = level(root)
    assert isinstance(found, Verify)
    return found


@dataclass(slots=True)
class Tests:
    """What became of the tokens of one level at the level above it.

    A draft's tokens are tested one by one up to the first that fails, so there are as many failed
    tests as drafts that were not kept whole.

    Attributes:
        drafts: how many were verified.
        offered: tokens in them.
        kept: tests that passed.
        failed: tests that did not.
    """

    drafts: int = 0
    offered: int = 0
    kept: int = 0
    failed: int = 0

    @property
    def rate(self) -> float:
        """Passed over all tests: the coin under which what was seen is likeliest."""
        tested = self.kept + self.failed
        return self.kept / tested if tested else math.nan

    def __add__(self, other: Tests) -> Tests:
        mine, theirs = dataclasses.astuple(self), dataclasses.astuple(other)
        return Tests(*(a + b for a, b in zip(mine, theirs, strict=True)))


class _Counting(Observer):
    """Counts tests by drafting level."""

    def __init__(self, levels: int) -> None:
        self.tests = [Tests() for _ in range(levels)]

    def verified(self, checks: Checks) -> None:
        for draft, verdict in zip(checks.drafts, checks.verdicts, strict=True):
            if draft.tokens:
                kept, offered = verdict.num_accepted, len(draft)
                self.tests[draft.owners[0]] += Tests(1, offered, kept, int(kept < offered))


@dataclass(frozen=True, slots=True)
class Levels:
    """A chain of levels with rates and costs, smallest first, the target last.

    Attributes:
        budgets: of the levels below the target.
        rates: of their tokens at the level above each, as many.
        costs: milliseconds; of the smallest level a token, of the others a call.
    """

    names: tuple[str, ...]
    budgets: tuple[int, ...]
    rates: tuple[float, ...]
    costs: tuple[float, ...]

    @property
    def chain(self) -> Chain:
        """The levels as the planner numbers them."""
        return Chain(tuple(range(len(self.names))), self.budgets)

    @property
    def acceptance(self) -> list[list[float | None]]:
        """The rates as a square: [i][j] of level i's tokens by level j, j = i + 1 alone."""
        places = range(len(self.names))
        return [[self.rates[i] if j == i + 1 else None for j in places] for i in places]

    def exact_ms(self) -> float:
        """Return the exact latency model's milliseconds a token."""
        return latency(ideal(self.costs, self.acceptance, self.names), self.chain).ms_per_token

    def formula_ms(self) -> float:
        """Return those of P1's Corollary 3.1, which takes exactly the budget to be handed up."""
        return formula(self.costs, self.rates, self.budgets)

    def counted_ms(self, runs: Sequence[Run]) -> float:
        """Return milliseconds a token of the calls in some runs, each at its level's cost."""
        spent = sum(
            sum(calls * ms for calls, ms in zip(calls_of(run), self.costs, strict=True))
            for run in runs
        )
        return spent / written(runs)


@dataclass(frozen=True, slots=True)
class Simulated:
    """Texts written by coins at constant costs, without models.

    Attributes:
        ms: milliseconds a token.
        error: standard error of ``ms``.
        luck: standard deviation of one text's ``ms``, from coin to coin.
        calls: of each level, a token of the text; of the smallest level, tokens drafted.
        tokens_per_call: of the target.
    """

    ms: float
    error: float
    luck: float
    calls: tuple[float, ...]
    tokens_per_call: float


def drafters(lab: Lab) -> list[str]:
    """Return what drafts, smallest first: table, then draft models, or else early exits.

    The shipped n-gram table is for targets of the shipped family. Above the smallest, only what
    can verify has a place.
    """
    table = ["ngram"] if is_shipped(lab.target) else []
    exits = [f"exit:{layer}" for layer in at_shares(lab.models.num_layers, EXITS)]
    names = dict.fromkeys([*table, *(lab.models.drafts or exits)])
    return [name for at, name in enumerate(names) if not at or lab.models.verifies(name)]


def hierarchy_of(lab: Lab, names: Sequence[str]) -> dict[str, Any]:
    """Return the chain of these levels, as in a hierarchy file, verified by Algorithm 2.

    Budgets are fixed, so that they do not depend on a measurement that another machine would not
    repeat: the smallest level drafts :data:`STEP` tokens, each further level holds as many more.
    """
    levels = [
        lab.models.level(name, STEP * place, **({"verify": "tokenwise"} if place > 1 else {}))
        for place, name in enumerate(names, 1)
    ]
    return {"levels": levels, "verify": "tokenwise"}


def tested(lab: Lab, method: HierarchyMethod, levels: int, temperature: float) -> list[list[Tests]]:
    """Return the tests of the hierarchy's own decoding: by prompt, by drafting level.

    Seeds are those of the timed runs, which therefore write the same texts and make the same tests.
    """

    def observe() -> list[list[dict[str, int]]]:
        out = []
        for at, prompt in enumerate(lab.prompts):
            lab.report(f"{NAME}: tests at temperature {temperature:g}", at / len(lab.prompts))
            generation = method.hierarchy.start(
                [prompt],
                max_new_tokens=lab.max_new_tokens,
                temperature=temperature,
                seed=lab.seed + at,
                ignore_eos=True,
            )
            counting = _Counting(levels)
            generation.runtime.observe(counting)
            for _ in generation:
                pass
            out.append([dataclasses.asdict(one) for one in counting.tests])
        return out

    found = lab.once(f"{NAME}: tests at temperature {temperature:g}", observe)
    return [[Tests(**one) for one in prompt] for prompt in found]


def calls_of(run: Run) -> list[float]:
    """Return calls of each level, smallest first, the target last; of the smallest, tokens.

    A look-up has no calls, and a drafted token is what P1 charges the smallest level for.
    """
    smallest, *others = run.levels
    return [smallest["num_draft_tokens"], *(part["calls"] for part in (*others, run.target))]


def seconds_of(run: Run) -> list[float]:
    """Return seconds of each level; the target's include what was spent outside all levels."""
    below = [part["seconds"] for part in run.levels]
    return [*below, (run.decode_seconds or 0.0) - sum(below)]


def costs_of(runs: Sequence[Run]) -> tuple[float, ...]:
    """Return milliseconds a call of each level, means over all calls in all runs."""
    calls = [sum(each) for each in zip(*map(calls_of, runs), strict=True)]
    seconds = [sum(each) for each in zip(*map(seconds_of, runs), strict=True)]
    return tuple(1e3 * s / n if n else 0.0 for s, n in zip(seconds, calls, strict=True))


def decode_ms(runs: Sequence[Run]) -> float:
    """Return milliseconds a token after the first, all prompts together."""
    return 1e3 * sum(run.decode_seconds or 0.0 for run in runs) / written(runs)


def simulated(levels: Levels, lengths: Sequence[int], seed: int) -> Simulated:
    """Return what coins at constant costs make of :data:`TEXTS` texts.

    Args:
        lengths: tokens of texts, in turns: where a text ends, drafts are cut short, here as in the
            engine.
    """
    root = root_of(levels.chain, levels.names)
    rates = [[rate or 0.0 for rate in row] for row in levels.acceptance]
    coins = CoinFlips(rates, seed)
    found = [
        simulate(root, coins, levels.costs, tokens=lengths[at % len(lengths)])
        for at in range(TEXTS)
    ]
    tokens = sum(one.num_tokens for one in found)
    ms = sum(one.ms_per_token * one.num_tokens for one in found) / tokens
    squares = sum(((one.ms_per_token - ms) * one.num_tokens) ** 2 for one in found)
    error = math.sqrt(squares) / tokens
    by_level = zip(*(one.levels for one in found), strict=True)
    return Simulated(
        ms,
        error,
        error * math.sqrt(TEXTS),
        tuple(sum(part.calls for part in same) / tokens for same in by_level),
        tokens / sum(one.target_calls for one in found),
    )


def measure(lab: Lab) -> Reproduction:
    """Return Table 5 at each of the lab's temperatures, and what its cells are made of.

    Raises:
        HierspecError: no prompt, too few new tokens, nothing that drafts, or a level whose drafts
            were never tested.
    """
    lab.require(NAME, tokens=LEAST)
    names = drafters(lab)
    if not names:
        raise HierspecError(
            f"{NAME} needs something that drafts: give --draft, or a target of two layers or more"
        )
    tables = [table for temperature in lab.temperatures for table in _at(lab, names, temperature)]
    return Reproduction(NAME, tuple(tables), measured_on=lab.to_dict())


def _at(lab: Lab, names: Sequence[str], temperature: float) -> list[Table]:
    """Return the tables of one temperature."""
    hierarchy = hierarchy_of(lab, names)
    method = method_of("hierarchy", lab, hierarchy)
    tests = [
        sum(each, Tests())
        for each in zip(*tested(lab, method, len(names), temperature), strict=True)
    ]
    for name, one in zip(names, tests, strict=True):
        if math.isnan(one.rate):
            raise HierspecError(
                f"{NAME}: no token of {name} was ever tested: raise --max-new-tokens"
            )
    rates = tuple(one.rate for one in tests)
    methods = [method, CoinMethod("coins", lab, hierarchy, rates)]
    plain, real, coins = all_ran(side_by_side(lab, methods, temperature, NAME))
    levels = Levels(
        (*names, lab.target),
        tuple(level["num_speculative_tokens"] for level in hierarchy["levels"]),
        rates,
        costs_of(real.runs),
    )
    fourth = simulated(levels, [run.num_tokens - 1 for run in real.runs], lab.seed)
    return [
        _table_5(lab, temperature, levels, real, coins, fourth),
        _beside(temperature, levels, plain, real, coins),
        _levels(temperature, levels, tests, real, coins, fourth),
    ]


def _table_5(
    lab: Lab,
    temperature: float,
    levels: Levels,
    real: Measured,
    coins: Measured,
    fourth: Simulated,
) -> Table:
    first = decode_ms(real.runs)
    luck = fourth.luck / math.sqrt(len(coins.runs)) / fourth.ms
    numbers = {
        ("real", "real"): (first, tokens_per_call(real.runs), ("", "", "")),
        ("iid", "real"): (
            decode_ms(coins.runs),
            tokens_per_call(coins.runs),
            _paired([decode_ms([run]) for run in coins.runs], real),
        ),
        ("real", "artificial"): (
            levels.counted_ms(real.runs),
            tokens_per_call(real.runs),
            _paired([levels.counted_ms([run]) for run in real.runs], real),
        ),
        ("iid", "artificial"): (fourth.ms, fourth.tokens_per_call, ("", "", "")),
    }
    printed_first = float(TABLE_5[0][2])
    rows = []
    for acceptances, costs, printed, _ in TABLE_5:
        ms, per_call, paired = numbers[acceptances, costs]
        shares = (float(printed) / printed_first, ms / first)
        rows.append(
            TableRow(
                f"{acceptances}, {costs}",
                (Cell(printed, ms / 1e3),),
                (*shares, *paired, per_call),
            )
        )
    below = zip(levels.names, levels.budgets, strict=False)
    stack = " > ".join((*(f"{name} {budget}" for name, budget in below), "target"))
    return Table(
        f"Table 5, temperature {temperature:g}",
        f"seconds a token of {stack}, acceptances and costs real or not",
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
            f"{100 * luck:.1f} % (one standard deviation, simulated).",
            "real, artificial: counted calls at the mean cost of a call in the same runs, so the "
            "ratio of all prompts together is 1 by construction; prompt by prompt it says how far "
            "costs are from constant.",
            f"iid, artificial: {TEXTS} texts of the same lengths, simulated; its standard error is "
            f"{100 * fourth.error / fourth.ms:.2f} %, without that of rates and costs.",
            "P1 prints neither levels, budgets, rates and costs of its hierarchy (Gemma2 9B, four "
            "levels), nor data set and temperature, nor what its rate is a mean of (here: tokens "
            "kept over tokens tested) and where its fixed costs come from (here: the timed runs).",
            *model_notes(lab),
        ),
    )


def _paired(ms: Sequence[float], real: Measured) -> tuple[Any, ...]:
    """Return the median over prompts of milliseconds over the real ones, and its interval."""
    found = ratio(ms, [decode_ms([run]) for run in real.runs])
    return (found.median, *found.ends)


def _beside(
    temperature: float, levels: Levels, plain: Measured, real: Measured, coins: Measured
) -> Table:
    """Return what else can be asked of the same runs, rates and costs."""
    first, on_the_clock = decode_ms(real.runs), decode_ms(coins.runs)
    rows = {
        "real, real": first,
        "iid, real": on_the_clock,
        "iid in the engine, artificial": levels.counted_ms(coins.runs),
        "exact latency model": levels.exact_ms(),
        "P1's Corollary 3.1": levels.formula_ms(),
        "plain decoding, measured": decode_ms(plain.runs),
    }
    return own_table(
        f"Beside Table 5, temperature {temperature:g}",
        "milliseconds a token of the same hierarchy, asked for in other ways",
        "what",
        [(name, (ms, ms / first, ms / on_the_clock)) for name, ms in rows.items()],
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
    tests: Sequence[Tests],
    real: Measured,
    coins: Measured,
    fourth: Simulated,
) -> Table:
    """Return what the cells are made of: rates, costs and calls of each level."""
    by_engine = [
        [sum(each) / written(one.runs) for each in zip(*map(calls_of, one.runs), strict=True)]
        for one in (real, coins)
    ]
    under_coins = costs_of(coins.runs)
    rows = []
    for at, name in enumerate(levels.names):
        below = at < len(tests)
        mine = tests[at] if below else None
        about = (
            levels.budgets[at] if below else "",
            mine.rate if mine else "",
            mine.kept + mine.failed if mine else "",
        )
        costs = (levels.costs[at], under_coins[at])
        calls = (by_engine[0][at], by_engine[1][at], fourth.calls[at])
        rows.append((name, (*about, *costs, *calls)))
    return own_table(
        f"Levels, temperature {temperature:g}",
        "rates and costs that were measured; calls a token of the text, measured and simulated",
        "level",
        rows,
        (
            "budget",
            "rate",
            "tests",
            "ms a call",
            "with coins",
            "calls, real",
            "coins",
            "simulated",
        ),
        notes=(
            "Rate: of the level's tokens at the level above it. Of the smallest level a call is a "
            "drafted token. The target's call bears what a round spends outside all levels.",
        ),
    )
