"""The levels of a hierarchy in numbers: acceptance rates, calls and costs, counted or simulated."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

from hierspec.engine.observers import Checks, Observer
from hierspec.planner.estimates import Chain, ideal
from hierspec.planner.latency import latency
from hierspec_lab.bench.methods.base import Run
from hierspec_lab.bench.summary import num_tokens_after_first
from hierspec_lab.planning.corollary import corollary
from hierspec_lab.planning.simulated import build_root
from hierspec_lab.simulation import CoinFlips, simulate

TEXTS = 400  # of a simulation


@dataclass(slots=True)
class AcceptanceCounts:
    """How many tokens of one level the level above it accepted.

    A draft's tokens are tested one by one up to the first that fails, so as many tests fail as
    drafts are rejected in part.

    Attributes:
        drafts: verified drafts.
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
        """The share of tests that passed, the maximum-likelihood estimate; NaN without a test."""
        tested = self.kept + self.failed
        return self.kept / tested if tested else math.nan

    def __add__(self, other: AcceptanceCounts) -> AcceptanceCounts:
        pairs = zip(dataclasses.astuple(self), dataclasses.astuple(other), strict=True)
        return AcceptanceCounts(*(mine + theirs for mine, theirs in pairs))


class AcceptanceCounter(Observer):
    """Adds up :class:`AcceptanceCounts` of a generation, by drafting level."""

    def __init__(self, levels: int) -> None:
        self.counts = [AcceptanceCounts() for _ in range(levels)]

    def on_verify(self, checks: Checks) -> None:
        for draft, verdict in zip(checks.drafts, checks.verdicts, strict=True):
            if draft.tokens:
                kept, offered = verdict.num_accepted, len(draft)
                counts = AcceptanceCounts(1, offered, kept, int(kept < offered))
                self.counts[draft.owners[0]] += counts


@dataclass(frozen=True, slots=True)
class Levels:
    """A chain of levels with rates and costs, smallest first, the target last.

    Attributes:
        budgets: ``num_speculative_tokens`` of the levels below the target.
        rates: the share of each such level's tokens that the level above it accepts.
        costs: milliseconds: a token of the smallest level, a call of each other.
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
        """The rates as a square matrix: [i][j] of level i's tokens by level j; only j = i + 1."""
        indices = range(len(self.names))
        return [[self.rates[i] if j == i + 1 else None for j in indices] for i in indices]

    def exact_ms(self) -> float:
        """Return milliseconds a token by the exact latency model."""
        return latency(ideal(self.costs, self.acceptance, self.names), self.chain).ms_per_token

    def formula_ms(self) -> float:
        """Return milliseconds a token by P1's Corollary 3.1: each level hands up its budget."""
        return corollary(ideal(self.costs, self.acceptance, self.names), self.chain).ms_per_token

    def counted_ms(self, runs: Sequence[Run]) -> float:
        """Return milliseconds a token of the runs' counted calls, each at its level's cost."""
        total_ms = sum(
            sum(calls * ms for calls, ms in zip(level_calls(run), self.costs, strict=True))
            for run in runs
        )
        return total_ms / num_tokens_after_first(runs)


@dataclass(frozen=True, slots=True)
class SimulatedLatency:
    """Simulated texts: independent acceptances at constant costs, without models.

    Attributes:
        ms: milliseconds a token.
        standard_error: of ``ms``.
        text_deviation: standard deviation of one text's ``ms``.
        calls: each level's calls for a token of the text; of the smallest level, drafted tokens.
        tokens_per_call: tokens for a call of the target.
    """

    ms: float
    standard_error: float
    text_deviation: float
    calls: tuple[float, ...]
    tokens_per_call: float


def level_calls(run: Run) -> list[float]:
    """Return each level's calls, smallest first, the target last; for the smallest, its tokens.

    P1 charges the smallest level for its tokens, and a look-up has no calls.
    """
    smallest, *verifiers = run.counters
    return [smallest.num_draft_tokens, *(level.calls for level in verifiers)]


def level_seconds(run: Run) -> list[float]:
    """Return seconds of each level; the target's include the time spent outside all levels."""
    drafting = [level.seconds for level in run.levels]
    return [*drafting, (run.decode_seconds or 0.0) - sum(drafting)]


def level_costs(runs: Sequence[Run]) -> tuple[float, ...]:
    """Return milliseconds a call of each level, the mean over all calls in all runs."""
    calls = [sum(column) for column in zip(*map(level_calls, runs), strict=True)]
    seconds = [sum(column) for column in zip(*map(level_seconds, runs), strict=True)]
    return tuple(1e3 * s / n if n else 0.0 for s, n in zip(seconds, calls, strict=True))


def decode_ms(runs: Sequence[Run]) -> float:
    """Return milliseconds a token after the first, all prompts together."""
    return 1e3 * sum(run.decode_seconds or 0.0 for run in runs) / num_tokens_after_first(runs)


def simulate_levels(levels: Levels, lengths: Sequence[int], seed: int) -> SimulatedLatency:
    """Simulate :data:`TEXTS` texts with coins at constant costs.

    Args:
        lengths: tokens of the texts, used again and again: where a text ends, drafts are cut short,
            here as in the engine.
    """
    root = build_root(levels.chain, levels.names)
    rates = [[rate or 0.0 for rate in row] for row in levels.acceptance]
    coins = CoinFlips(rates, seed)
    texts = [
        simulate(root, coins, levels.costs, tokens=lengths[i % len(lengths)]) for i in range(TEXTS)
    ]
    tokens = sum(text.num_tokens for text in texts)
    ms = sum(text.ms_per_token * text.num_tokens for text in texts) / tokens
    squares = sum(((text.ms_per_token - ms) * text.num_tokens) ** 2 for text in texts)
    error = math.sqrt(squares) / tokens
    by_level = zip(*(text.levels for text in texts), strict=True)
    return SimulatedLatency(
        ms,
        error,
        error * math.sqrt(TEXTS),
        tuple(sum(counters.calls for counters in level) / tokens for level in by_level),
        tokens / sum(text.target_calls for text in texts),
    )
