"""Measure one temperature, stage by stage; each stage's result can be kept in a file."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar

import numpy as np

from hierspec.config.in_memory import ModelInMemory
from hierspec.errors import HierspecError
from hierspec.utils import machine
from hierspec.zoo.gguf.files import is_gguf

from . import agreement, costs, curves, priors, rates
from .candidates import CandidatePool, possible_pairs
from .noise import noise
from .schema import (
    AtTemperature,
    CallSamples,
    ContextSlope,
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
_MIN_REPEATS = 2  # of costs, even beyond the time limit, where all is measured thoroughly
_SLOW_MS = 30.0  # a call of a target on which half the texts must do
_SHORT = (1, 4)  # lengths at which further drafters of a verifier are timed
_ROWS_OF_MANY = 5  # further tokens, of many texts, that cost about as much as a call on one
_CHECKED = 8  # length of the drafts whose checks are timed in a long context
_WRITING, _AGREEMENT, _COSTS = "the target writes", "agreement", "costs"  # stages, as reported
_LONG = "costs in a long context"

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
        self._expected: dict[str, float] = {}
        self._reported = 0.0

    def report_share(self, stage: str, part: float = 0.0) -> None:
        """Report that a stage has begun, or what part of it is done."""
        start, length = self.share
        names, ms = list(self._expected), list(self._expected.values())
        number = names.index(stage)
        done = (sum(ms[:number]) + part * ms[number]) / sum(ms)
        self._reported = max(self._reported, start + length * done)
        self.report(stage, self._reported)

    def expect(self, allowed: Sequence[tuple[int, int]], calls: Sequence[costs.TimedCall]) -> None:
        """Estimate how long the stages take, from single calls, if these pairs are measured."""
        members, settings, ms = self.pool.members, self.settings, self.call_ms
        scoring = [k for k, member in enumerate(members) if member.scores]
        target, texts = len(members) - 1, len(self.prompts)
        longest, long = settings.max_speculative_tokens, min(LONG_CONTEXT, self.longest)

        def call(k: int, rows: float) -> float:
            return ms[k] * (1 + (rows - 1) / _ROWS_OF_MANY)

        def drafts(i: int) -> float:
            above = [k for j, k in allowed if j == i]
            drafting = longest * call(i, texts)
            return drafting + sum(call(k, texts * (longest + 1)) for k in above)

        rounds = settings.places * (settings.rounds + 1)
        self._expected = {
            _WRITING: self.tokens * call(target, texts),
            _AGREEMENT: self.tokens / _CHECKED * sum(call(k, texts * _CHECKED) for k in scoring),
            **{
                _drafts_of(members[i].name): 0.0 if self._on_texts(i) else rounds * drafts(i)
                for i in sorted({i for i, _ in allowed})
            },
            _COSTS: self._num_repeats(calls) * sum(map(self.turn_ms, calls)),
            _LONG: sum(call(k, long) for k in scoring) if settings.thorough else 0.0,
        }

    def _num_repeats(self, calls: Sequence[costs.TimedCall]) -> int:
        """Estimate how often the calls will be timed."""
        settings, each = self.settings, max(sum(map(self.turn_ms, calls)), 1e-3)
        in_time = 1 + int(1e3 * settings.cost_seconds / each)
        return min(max(in_time, self._least_repeats), settings.repeats)

    @property
    def _least_repeats(self) -> int:
        return _MIN_REPEATS if self.settings.thorough else 1

    def _on_texts(self, i: int) -> bool:
        """Return whether a drafter is followed along the texts, without drafts of its own.

        Look-ups always are: drafts from all tokens of a text cost them nothing, and what they find
        is too uneven for a few places.
        """
        member = self.pool.members[i]
        return member.survives_on_texts and not (self.settings.thorough and member.scores)

    def turn_ms(self, call: costs.TimedCall) -> float:
        """Estimate how long a turn of timed rounds takes."""
        drafter, verifier, n = call
        drafting = 0.0 if drafter is None else n * self.call_ms[drafter]
        check = self.call_ms[verifier] * (1 + n / priors.ROWS)
        return (costs.WARM + costs.TIMED) * (drafting + check)

    def measure(self, temperature: float, stage: RunStage) -> Iterator[AtTemperature]:
        """Measure everything at one temperature.

        This yields at once what is assumed until it is measured, and again whenever more of it is
        known; unless all is measured thoroughly, also as soon as everything was measured once, and
        whenever costs are known better. ``priors`` of what it yields say what is missing.
        """
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

        def so_far(allowed: Sequence[tuple[int, int]]) -> AtTemperature:
            return priors.complete(
                self.pool.candidates,
                self.call_ms,
                allowed,
                temperature,
                settings.max_speculative_tokens,
                followed=pairs,
            )

        pairs: list[MeasuredPair] = []
        allowed = self.pairs({})
        yield so_far(allowed)
        self.expect(allowed, self.timed_calls(allowed))
        self.report_share(_WRITING)
        texts = stage(
            "texts",
            list[list[int]],
            lambda: rates.continuations(
                self.pool,
                self.prompts,
                self.tokens,
                drafting,
                partial(self.report_share, _WRITING),
            ),
        )
        starts = [len(prompt) for prompt in self.prompts]
        self.report_share(_AGREEMENT)
        agreed, classes, followed = stage(
            "agreement",
            tuple[dict[str, PairAgreement], list[list[int]], list[FollowedPair]],
            lambda: self.agreements(texts, drafting),
        )
        allowed = self.pairs(agreed)
        calls = self.timed_calls(allowed)
        self.expect(allowed, calls)
        for i in sorted({i for i, _ in allowed}):

            def follow(i: int = i) -> list[FollowedPair]:
                self.report_share(_drafts_of(members[i].name))
                above = [k for j, k in allowed if j == i and k < target]
                drafts = rates.follow_drafts(self.pool, i, above, texts, starts, drafting)
                return curves.pairs(i, self.pool, drafts, classes, settings.seed)

            own = [pair for pair in followed if pair.drafter == i]
            for pair in own or stage(f"drafts {i}", list[FollowedPair], follow):
                alike = agreed.get(f"{i} {pair.verifier}", PairAgreement())
                pairs.append(MeasuredPair(**(pair.to_dict() | alike.to_dict())))
        yield so_far(allowed)
        joined = [token for text in texts for token in text]
        room = self.longest - _max_tokens_of_turn(settings.max_speculative_tokens)
        short = min(max(MIN_CONTEXT, len(texts[0])), room)
        text = _repeat_to(joined, short)

        def whole(timed: Sequence[MeasuredCost]) -> AtTemperature:
            return AtTemperature(
                pairs=pairs,
                costs=list(timed),
                context=stage(
                    "context",
                    MeasuredContext,
                    lambda: self.time_long_context(joined, short, allowed, timed, temperature),
                ),
                token_ms=stage(
                    "token", float, lambda: costs.token_ms(self.pool, self.prompts[0], temperature)
                ),
                noise=noise(timed, self.load_before),
            )

        self.report_share(_COSTS)
        timed: list[MeasuredCost] = []
        for timed in self.time_calls(calls, text, temperature, stage):
            if not settings.thorough:
                yield whole(timed)
        if settings.thorough:
            yield whole(timed)

    def pairs(self, agreed: Mapping[str, PairAgreement]) -> list[tuple[int, int]]:
        """Return the (drafter, verifier) pairs that are measured.

        Unless all is measured thoroughly, drafters are left out that cannot pay even if checks of
        drafts were free: where the share in which a pair agrees is below the drafter's cost in its
        verifier's calls, and where a cheaper one agrees as much with the target.
        """
        members, ms = self.pool.members, self.call_ms
        target = len(members) - 1
        allowed = possible_pairs(self.pool.candidates, ms, self.settings.min_ratio)
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
        """
        begins, ends = [len(prompt) for prompt in self.prompts], [len(text) for text in texts]
        on_outputs, ease, scores = agreement.agreements(
            self.pool, texts, begins, ends, drafting, partial(self.report_share, _AGREEMENT)
        )
        on_prompts = dict.fromkeys(on_outputs)
        if self.settings.thorough:
            ones = [1] * len(texts)
            found, *_ = agreement.agreements(self.pool, texts, ones, begins, drafting)
            on_prompts = {pair: alike.acceptance for pair, alike in found.items()}
        # Small classes would differ by chance alone.
        max_classes = max(len(texts) * drafting.places // self.settings.places_per_class, 1)
        classes = agreement.classes(ease, drafting, min(self.settings.classes, max_classes))
        entries = {
            f"{i} {k}": alike.model_copy(update={"acceptance_on_prompts": on_prompts[i, k]})
            for (i, k), alike in on_outputs.items()
        }
        followed: list[FollowedPair] = []
        allowed, target = self.pairs(entries), len(self.pool.members) - 1
        for i in sorted({i for i, _ in allowed}):
            if self._on_texts(i):
                above = [k for j, k in allowed if j == i and k < target]
                drafts = rates.follow_texts(self.pool, i, above, texts, scores, drafting)
                if drafts.lengths:
                    followed += curves.pairs(i, self.pool, drafts, classes, self.settings.seed)
        return entries, classes, followed

    def timed_calls(self, pairs: Sequence[tuple[int, int]]) -> list[costs.TimedCall]:
        """Return the calls whose costs are timed: every model alone, every pair at every length.

        Unless all is measured thoroughly, a verifier below the target is timed above one drafter,
        and lengths that take long to draft above one: further drafters, whose times differ by a
        constant from that one's, are timed at short lengths.
        """
        members, budgets = self.pool.members, self.settings.budgets()
        target = len(members) - 1
        single = costs.timed_calls(self._single_calls(pairs), ())
        if self.settings.thorough:
            return [*single, *costs.timed_calls(pairs, budgets)]
        first: dict[int, int] = {}  # by verifier; one that scores, which drafts all lengths
        for i, k in pairs:
            if k not in first or members[i].scores > members[first[k]].scores:
                first[k] = i
        for i, k in pairs:
            if first[k] == i:
                single += costs.timed_calls([(i, k)], budgets)
            elif k == target:
                single += costs.timed_calls([(i, k)], [n for n in _SHORT if n <= budgets[-1]])
        return single

    def time_calls(
        self, calls: Sequence[costs.TimedCall], text: list[int], temperature: float, stage: RunStage
    ) -> Iterator[list[MeasuredCost]]:
        """Time calls, and yield their costs after each repetition, which is a stage."""
        settings, repeats = self.settings, self._num_repeats(calls)
        expected, done = repeats * sum(map(self.turn_ms, calls)), 0.0
        samples, began = list[CallSamples](), time.perf_counter()

        def repeat(number: int, known: list[CallSamples]) -> list[CallSamples]:
            def advance(call: costs.TimedCall) -> None:
                nonlocal done
                done += self.turn_ms(call)
                self.report_share(_COSTS, min(done / expected, 1.0))

            times = costs.time_calls(
                self.pool,
                calls,
                text,
                repeats=1,
                temperature=temperature,
                seed=settings.seed + number,
                known=known,
                on_call=advance,
            )
            return list(times.values())

        for number in range(settings.repeats):
            spent = time.perf_counter() - began
            if number >= self._least_repeats and spent > settings.cost_seconds:
                break
            samples = stage(f"costs {number}", list[CallSamples], partial(repeat, number, samples))
            yield [costs.entry(found) for found in samples]

    def time_long_context(
        self,
        text: list[int],
        short: int,
        pairs: Sequence[tuple[int, int]],
        timed: Sequence[MeasuredCost],
        temperature: float,
    ) -> MeasuredContext:
        """Measure what calls cost in a long context, as a slope in the tokens before them.

        Only where all is measured thoroughly: a plan for a context of no given length needs none.
        """
        members, single = self.pool.members, self._single_calls(pairs)
        long = min(LONG_CONTEXT, self.longest - _max_tokens_of_turn(_CHECKED))
        if long < 2 * short or not self.settings.thorough:
            return MeasuredContext(tokens=short, long=short, slopes=[])
        self.report_share(_LONG)
        first = next((k for _, k in single if members[k].num_drafts == 1), single[0][1])
        later = [pair for pair in single if pair[1] > first]
        wanted = [*single, *((first, k) for _, k in later if members[k].can_verify)]
        calls = costs.timed_calls(wanted, (_CHECKED,))
        measure = partial(costs.time_calls, self.pool, calls, temperature=temperature, repeats=3)
        before = {(cost.drafter, cost.verifier): cost.check for cost in timed}
        low = {
            pair: {n: [times.median] for n, times in before.get(pair, {}).items()}
            for pair in wanted
        }
        if not all((0 if pair[0] is None else _CHECKED) in low[pair] for pair in wanted):
            low = _checks(measure(_repeat_to(text, short)))
        high = _checks(measure(_repeat_to(text, long)))

        def slope(pair: costs.ModelPair, tokens: int) -> float:
            short_ms, long_ms = (np.median(times[pair][tokens]) for times in (low, high))
            return float(long_ms - short_ms) / (long - short)

        slopes: list[ContextSlope] = []
        for _, k in single:
            plain = slope((None, k), 0)
            checked = slope((first, k), _CHECKED) if (first, k) in low else plain
            slopes.append(ContextSlope(model=k, ms_per_token_0=plain, ms_per_token_8=checked))
        return MeasuredContext(tokens=short, long=long, slopes=slopes)

    def _single_calls(self, pairs: Sequence[tuple[int, int]]) -> list[costs.ModelPair]:
        used = {model for pair in pairs for model in pair} | {len(self.pool.members) - 1}
        return [(None, k) for k, e in enumerate(self.pool.members) if e.scores and k in used]


def _drafts_of(name: str) -> str:
    return f"drafts of {name}"


def _checks(times: Mapping[costs.ModelPair, CallSamples]) -> dict[costs.ModelPair, Any]:
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
