"""Measure one temperature, stage by stage; each stage's result can be kept in a file."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar

import numpy as np

from hierspec.config.in_memory import ModelInMemory
from hierspec.errors import HierspecError
from hierspec.utils import machine
from hierspec.zoo.gguf.files import is_gguf

from . import agreement, costs, curves, rates
from .candidates import CandidatePool
from .noise import noise
from .schema import (
    AtTemperature,
    CallSamples,
    ContextSlope,
    CostNoise,
    FollowedPair,
    MeasuredContext,
    MeasuredCost,
    MeasuredPair,
    PairAgreement,
)
from .settings import ProfileSettings, ReportProgress

LONG_CONTEXT = 1024  # tokens; costs are timed there too, to see what the context costs
MIN_CONTEXT = 96
MAX_PROMPT = 256  # tokens of a text that are used: its end
MAX_CHAT = 1024  # of a prompt in token ids; its end, too, so longer: a chat needs its beginning
_MIN_REPEATS = 2  # of costs, even beyond the time limit
_SLOW_MS = 30.0  # a call of a target on which half the texts must do
_READING_MS = 2000.0  # a long context of each model may take to read, unless all is thorough
_CHECKED = 8  # length of the drafts whose checks are timed in a long context

T = TypeVar("T")


class RunStage(Protocol):
    """Runs the work of a stage, or reads its result, of type ``shape``, from an earlier run."""

    def __call__(self, name: str, shape: type[T], work: Callable[[], T], /) -> T: ...


class Stages:
    """The measurements on one set of models and prompts.

    Attributes:
        pool: members (the loaded candidates, then the target), cheapest first.
        call_ms: [K+1] milliseconds of a single call of each.
        share: start and length of this temperature's part of all work, for progress.

    Raises:
        HierspecError: no prompt, or no room in the models' contexts.
    """

    def __init__(
        self,
        pool: CandidatePool,
        prompts: Sequence[str | Sequence[int]],
        settings: ProfileSettings,
        report: ReportProgress,
    ) -> None:
        self.pool, self.settings, self.report = pool, settings, report
        encoded = (_ids(pool, text) for text in prompts)
        self.prompts = [ids for ids in encoded if ids][: settings.prompts]
        if not self.prompts:
            raise HierspecError("there is no prompt to measure on: those of --prompts are empty")
        self.longest = min(member.model.max_length for member in pool.members if member.scores)
        # Fewer tokens are generated where drafts after them would not fit.
        spare = (settings.rounds + 2) * (settings.max_speculative_tokens + 1)
        fitting = self.longest - spare - settings.tokens
        self.prompts = [ids for ids in self.prompts if len(ids) <= fitting] or self.prompts
        room = self.longest - spare - max(map(len, self.prompts))
        if room < 1:
            raise HierspecError(
                f"contexts of {self.longest} tokens have no room for prompts and drafts: give "
                "shorter prompts, or lower --max-speculative-tokens"
            )
        self.tokens = min(settings.tokens, room)
        self.share = (0.0, 1.0)
        self.load_before = machine.load_average()
        self.call_ms: list[float] = []

    def report_share(self, stage: str, part: float) -> None:
        """Report progress, given the share of this temperature's work that is done."""
        start, length = self.share
        self.report(stage, start + length * part)

    def measure(self, temperature: float, stage: RunStage) -> AtTemperature:
        """Measure everything at one temperature."""
        members, settings = self.pool.members, self.settings
        target = len(members) - 1
        if not settings.thorough and self.call_ms[target] > _SLOW_MS:
            self.prompts = self.prompts[: -(-len(self.prompts) // 2)]
        drafting = rates.DraftingSettings(
            settings.places,
            settings.rounds,
            settings.max_speculative_tokens,
            temperature,
            settings.seed,
            frozenset() if settings.ignore_eos else self.pool.eos_ids,
        )
        self.report_share("the target writes", 0.01)
        texts = stage(
            "texts",
            list[list[int]],
            lambda: rates.continuations(self.pool, self.prompts, self.tokens, drafting),
        )
        starts = [len(prompt) for prompt in self.prompts]
        self.report_share("agreement", 0.05)
        agreed, classes, followed = stage(
            "agreement",
            tuple[dict[str, PairAgreement], list[list[int]], list[FollowedPair]],
            lambda: self.agreements(texts, drafting),
        )
        allowed = self.pairs(agreed)
        pairs: list[MeasuredPair] = []
        for i in sorted({i for i, _ in allowed}):
            self.report_share(f"drafts of {members[i].name}", 0.07 + 0.45 * i / target)

            def follow(i: int = i) -> list[FollowedPair]:
                above = [k for j, k in allowed if j == i and k < target]
                drafts = rates.follow_drafts(self.pool, i, above, texts, starts, drafting)
                return curves.pairs(i, self.pool, drafts, classes, settings.seed)

            own = [pair for pair in followed if pair.drafter == i]
            for pair in own or stage(f"drafts {i}", list[FollowedPair], follow):
                alike = agreed.get(f"{i} {pair.verifier}", PairAgreement())
                pairs.append(MeasuredPair(**(pair.to_dict() | alike.to_dict())))
        joined = [token for text in texts for token in text]
        room = self.longest - _max_tokens_of_turn(settings.max_speculative_tokens)
        short = min(max(MIN_CONTEXT, len(texts[0])), room)
        self.report_share("costs", 0.55)
        text = _repeat_to(joined, short)
        timed = self.time_calls(allowed, text, temperature, stage)
        self.report_share("costs in a long context", 0.9)
        return AtTemperature(
            pairs=pairs,
            costs=timed,
            context=stage(
                "context",
                MeasuredContext,
                lambda: self.time_long_context(joined, short, allowed, timed, temperature),
            ),
            token_ms=stage(
                "token", float, lambda: costs.token_ms(self.pool, self.prompts[0], temperature)
            ),
            noise=stage("noise", CostNoise, lambda: noise(timed, self.load_before)),
        )

    def pairs(self, agreed: Mapping[str, PairAgreement]) -> list[tuple[int, int]]:
        """Return (drafter, verifier) pairs: all with the target, cheap models with expensive ones.

        A maker of several drafts is paired with the target alone. Unless all is measured
        thoroughly, drafters are left out that cannot pay even if checks of drafts were free:
        where the share in which a pair agrees is below the drafter's cost in its verifier's calls,
        and where a cheaper one agrees as much with the target.
        """
        members, ratio, ms = self.pool.members, self.settings.min_ratio, self.call_ms
        target = len(members) - 1
        allowed = [
            (i, k)
            for k in range(1, target + 1)
            for i in range(k)
            if k == target
            or (members[k].can_verify and members[i].num_drafts == 1 and ms[k] >= ratio * ms[i])
        ]
        if self.settings.thorough:
            return allowed

        def share(i: int, k: int) -> float | None:
            found = agreed.get(f"{i} {k}") if members[i].survives_on_texts else None
            return found.acceptance if found else None

        def pays(i: int, k: int) -> bool:
            own = share(i, k)
            return own is None or own > ms[i] / ms[k]

        def is_surpassed(i: int) -> bool:
            own = share(i, target)
            others = (share(j, target) for j in range(i))
            return own is not None and any(other is not None and other >= own for other in others)

        used = {i for i, _ in allowed if not is_surpassed(i)} | {target}
        return [(i, k) for i, k in allowed if i in used and k in used and pays(i, k)]

    def agreements(
        self, texts: list[list[int]], drafting: rates.DraftingSettings
    ) -> tuple[dict[str, PairAgreement], list[list[int]], list[FollowedPair]]:
        """Return each pair's agreement by ``"drafter verifier"``, the class of every place, and
        the pairs whose survival follows from the scores of the texts.

        Always that of look-ups: drafts from all tokens of a text cost them nothing, and what they
        find is too uneven for a few places.
        """
        begins, ends = [len(prompt) for prompt in self.prompts], [len(text) for text in texts]
        on_outputs, ease, scores = agreement.agreements(self.pool, texts, begins, ends, drafting)
        on_prompts = on_outputs
        if self.settings.thorough:
            ones = [1] * len(texts)
            on_prompts, *_ = agreement.agreements(self.pool, texts, ones, begins, drafting)
        # Small classes would differ by chance alone.
        max_classes = max(len(texts) * drafting.places // self.settings.places_per_class, 1)
        classes = agreement.classes(ease, drafting, min(self.settings.classes, max_classes))
        entries = {
            f"{i} {k}": PairAgreement(
                acceptance=total.acceptance,
                equal_argmax=total.equal_argmax,
                acceptance_on_prompts=(
                    on_prompts[i, k].acceptance if self.settings.thorough else None
                ),
                positions=total.positions,
            )
            for (i, k), total in on_outputs.items()
        }
        followed: list[FollowedPair] = []
        allowed, target = self.pairs(entries), len(self.pool.members) - 1
        for i in sorted({i for i, _ in allowed}):
            member = self.pool.members[i]
            if member.survives_on_texts and not (self.settings.thorough and member.scores):
                above = [k for j, k in allowed if j == i and k < target]
                drafts = rates.follow_texts(self.pool, i, above, texts, scores, drafting)
                if drafts.lengths:
                    followed += curves.pairs(i, self.pool, drafts, classes, self.settings.seed)
        return entries, classes, followed

    def time_calls(
        self,
        pairs: Sequence[tuple[int, int]],
        text: list[int],
        temperature: float,
        stage: RunStage,
    ) -> list[MeasuredCost]:
        """Time every model alone and every pair at every length; each repetition is a stage.

        Unless all is measured thoroughly, a verifier below the target is timed above one drafter.
        """
        settings, members = self.settings, self.pool.members
        if not settings.thorough:
            lowest: dict[int, int] = {}  # by verifier; one that scores, which drafts all lengths
            for i, k in pairs:
                if k not in lowest or members[i].scores > members[lowest[k]].scores:
                    lowest[k] = i
            pairs = [(i, k) for i, k in pairs if k == len(members) - 1 or lowest[k] == i]
        all_pairs: list[costs.ModelPair] = [*self._single_calls(pairs), *pairs]
        total = settings.repeats * len(costs.timed_calls(all_pairs, settings.budgets()))
        num_calls, samples, began = 0, list[CallSamples](), time.perf_counter()

        def advance() -> None:
            nonlocal num_calls
            num_calls += 1
            self.report_share("costs", 0.55 + 0.35 * num_calls / total)

        def repeat(number: int, known: list[CallSamples]) -> list[CallSamples]:
            times = costs.time_pairs(
                self.pool,
                all_pairs,
                text,
                budgets=settings.budgets(),
                repeats=1,
                temperature=temperature,
                seed=settings.seed + number,
                known=known,
                on_call=advance,
            )
            return [pair_times.samples(*pair) for pair, pair_times in times.items()]

        for number in range(settings.repeats):
            if number >= _MIN_REPEATS and time.perf_counter() - began > settings.cost_seconds:
                break
            samples = stage(f"costs {number}", list[CallSamples], partial(repeat, number, samples))
        return [costs.entry(found) for found in samples]

    def time_long_context(
        self,
        text: list[int],
        short: int,
        pairs: Sequence[tuple[int, int]],
        timed: Sequence[MeasuredCost],
        temperature: float,
    ) -> MeasuredContext:
        """Measure what calls cost in a long context, as a slope in the tokens before them."""
        members, single = self.pool.members, self._single_calls(pairs)
        long = min(LONG_CONTEXT, self.longest - _max_tokens_of_turn(_CHECKED))
        if not self.settings.thorough:
            long = min(long, int(_READING_MS / self._row_ms(timed)))
        if long < 2 * short:
            return MeasuredContext(tokens=short, long=long, slopes=[])
        first = next((k for _, k in single if members[k].num_drafts == 1), single[0][1])
        later = [pair for pair in single if pair[1] > first]
        wanted = [*single, *((first, k) for _, k in later if members[k].can_verify)]
        measure = partial(
            costs.time_pairs, self.pool, wanted, budgets=(_CHECKED,), temperature=temperature
        )
        before = {(cost.drafter, cost.verifier): cost.check for cost in timed}
        low = {
            pair: {n: [times.median] for n, times in before.get(pair, {}).items()}
            for pair in wanted
        }
        if not all((0 if pair[0] is None else _CHECKED) in low[pair] for pair in wanted):
            low = _checks(measure(_repeat_to(text, short), repeats=3))
        repeats = 3 if self.settings.thorough else 1
        high = _checks(measure(_repeat_to(text, long), repeats=repeats))

        def slope(pair: costs.ModelPair, tokens: int) -> float:
            short_ms, long_ms = (np.median(times[pair][tokens]) for times in (low, high))
            return float(long_ms - short_ms) / (long - short)

        slopes: list[ContextSlope] = []
        for _, k in single:
            plain = slope((None, k), 0)
            checked = slope((first, k), _CHECKED) if (first, k) in low else plain
            slopes.append(ContextSlope(model=k, ms_per_token_0=plain, ms_per_token_8=checked))
        return MeasuredContext(tokens=short, long=long, slopes=slopes)

    def _row_ms(self, timed: Sequence[MeasuredCost]) -> float:
        """Return about what a further row adds to a call of the target."""
        target = len(self.pool.members) - 1
        checks = [
            (n, times.median)
            for cost in timed
            if cost.verifier == target
            for n, times in cost.check.items()
        ]
        n, ms = max(checks)
        plain = next(ms for length, ms in checks if length == 0)
        return max(ms - plain, 1e-3 * plain) / max(n, 1)

    def _single_calls(self, pairs: Sequence[tuple[int, int]]) -> list[costs.ModelPair]:
        used = {model for pair in pairs for model in pair} | {len(self.pool.members) - 1}
        return [(None, k) for k, e in enumerate(self.pool.members) if e.scores and k in used]


def _checks(times: Mapping[costs.ModelPair, costs.PairTimes]) -> dict[costs.ModelPair, Any]:
    return {pair: found.check for pair, found in times.items()}


def _max_tokens_of_turn(budget: int) -> int:
    """Return how many tokens a turn of timed rounds may add to its text."""
    return (costs.WARM + costs.TIMED) * (budget + 1)


def _ids(pool: CandidatePool, text: str | Sequence[int]) -> list[int]:
    if not isinstance(text, str):
        return list(text)[-MAX_CHAT:]
    if pool.tokenizer is None:
        fix = "put its tokenizer.json there"
        if isinstance(pool.target.model, ModelInMemory):
            fix = "save it in a folder, and set model.config.name_or_path to that"
        elif is_gguf(pool.target.model):
            fix = "with --tokenizer FOLDER it runs in a --hierarchy of your choice, not in auto"
        raise HierspecError(
            f"{pool.target.model!r} has no tokenizer beside it, so prompts cannot be read: {fix}"
        )
    return pool.tokenizer(text, verbose=False)["input_ids"][-MAX_PROMPT:]


def _repeat_to(tokens: list[int], length: int) -> list[int]:
    return (tokens * -(-length // len(tokens)))[:length]
