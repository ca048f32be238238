"""Measure one temperature, stage by stage; each stage's result can be kept in a file.

What is measured is what a plan needs: models that cannot pay are left out, the scores of the texts
say how much of most drafts is accepted, and of each verifier below the target the calls on one
drafter's tokens are timed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Protocol, TypeVar

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
    FollowedPair,
    MeasuredContext,
    MeasuredCost,
    MeasuredPair,
    PairAgreement,
)
from .settings import ProfileSettings, ReportProgress

MIN_CONTEXT = 96  # tokens before the calls that are timed
MAX_PROMPT = 256  # tokens of a text that are used: its end
MAX_CHAT = 1024  # of a prompt in token ids; its end, too, so longer: a chat needs its beginning
_SHORT = (1, 4)  # lengths at which further drafters of a verifier are timed
ROWS_OF_MANY = 5  # further tokens, of many texts, that cost about as much as a call on one
_WRITING, _AGREEMENT, _COSTS = "the target writes", "agreement", "costs"  # stages, as reported

T = TypeVar("T")


class RunStage(Protocol):
    """Runs the work of a stage, or reads its result, of type ``shape``, from an earlier run."""

    def __call__(self, name: str, shape: type[T], work: Callable[[], T], /) -> T: ...


class Stages:
    """The measurements on one set of models and prompts.

    Attributes:
        pool: members (the loaded candidates, then the target), cheapest first.
        call_ms: [K+1] milliseconds of a single call of each.
        texts: the target's, once they are written.
        expected: estimated milliseconds of every stage.
        slow_ms: a call of a target on which half the texts must do.
        least_repeats: of costs, even beyond the time limit.
        share: start and length of this temperature's part of all work, for progress.

    Raises:
        HierspecError: no prompt, or no room in the models' contexts.
    """

    slow_ms, least_repeats = 30.0, 1

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
        self._all_prompts = self.prompts
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
        self.texts: list[list[int]] = []
        self.expected: dict[str, float] = {}
        self._reported = 0.0

    def report_share(self, stage: str, part: float = 0.0) -> None:
        """Report that a stage has begun, or what part of it is done."""
        start, length = self.share
        names, ms = list(self.expected), list(self.expected.values())
        number = names.index(stage)
        done = (sum(ms[:number]) + part * ms[number]) / sum(ms)
        self._reported = max(self._reported, start + length * done)
        self.report(stage, self._reported)

    def expect(self, allowed: Sequence[tuple[int, int]], calls: Sequence[costs.TimedCall]) -> None:
        """Estimate how long the stages take, from single calls, if these pairs are measured."""
        members, settings, ms = self.pool.members, self.settings, self.call_ms
        scoring = [k for k, member in enumerate(members) if member.scores]
        target, texts = len(members) - 1, len(self.prompts)
        longest, scored = settings.max_speculative_tokens, agreement.SCORED

        def call(k: int, rows: float) -> float:
            return ms[k] * (1 + (rows - 1) / ROWS_OF_MANY)

        def drafts(i: int) -> float:
            above = [k for j, k in allowed if j == i]
            drafting = longest * call(i, texts)
            return drafting + sum(call(k, texts * (longest + 1)) for k in above)

        rounds = settings.places * (settings.rounds + 1)
        self.expected = {
            _WRITING: self.tokens * call(target, texts),
            _AGREEMENT: self.tokens / scored * sum(call(k, texts * scored) for k in scoring),
            **{
                _drafts_of(members[i].name): 0.0 if self.on_texts(i) else rounds * drafts(i)
                for i in sorted({i for i, _ in allowed})
            },
            _COSTS: self._num_repeats(calls) * sum(map(self.turn_ms, calls)),
        }

    def _num_repeats(self, calls: Sequence[costs.TimedCall]) -> int:
        """Estimate how often the calls will be timed."""
        settings, each = self.settings, max(sum(map(self.turn_ms, calls)), 1e-3)
        in_time = 1 + int(1e3 * settings.cost_seconds / each)
        return min(max(in_time, self.least_repeats), settings.repeats)

    def on_texts(self, i: int) -> bool:
        """Return whether a drafter is followed along the texts, without drafts of its own."""
        return self.pool.members[i].survives_on_texts

    def turn_ms(self, call: costs.TimedCall) -> float:
        """Estimate how long a turn of timed rounds takes."""
        drafter, verifier, n = call
        drafting = 0.0 if drafter is None else n * self.call_ms[drafter]
        check = self.call_ms[verifier] * (1 + n / priors.ROWS)
        return (costs.WARM + costs.TIMED) * (drafting + check)

    def measure(self, temperature: float, stage: RunStage) -> Iterator[AtTemperature]:
        """Measure everything at one temperature.

        This yields at once what is assumed until it is measured, and again whenever more of it is
        known, or costs are known better. ``priors`` of what it yields say what is missing.
        """
        members, settings = self.pool.members, self.settings
        target = len(members) - 1
        if self.call_ms[target] > self.slow_ms:  # at each temperature, the same half
            self.prompts = self._all_prompts[: -(-len(self._all_prompts) // 2)]
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
        self.texts = texts = stage(
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
        room = self.longest - max_tokens_of_turn(settings.max_speculative_tokens)
        context = min(max(MIN_CONTEXT, len(texts[0])), room)
        self.report_share(_COSTS)
        for timed in self.time_calls(calls, self.text_of(context), temperature, stage):
            yield AtTemperature(
                pairs=pairs,
                costs=timed,
                context=MeasuredContext(tokens=context, long=context, slopes=[]),
                token_ms=stage(
                    "token", float, lambda: costs.token_ms(self.pool, self.prompts[0], temperature)
                ),
                noise=noise(timed, self.load_before),
            )

    def text_of(self, length: int) -> list[int]:
        """Return so many tokens of the texts."""
        joined = [token for text in self.texts for token in text]
        return (joined * -(-length // len(joined)))[:length]

    def pairs(self, agreed: Mapping[str, PairAgreement]) -> list[tuple[int, int]]:
        """Return the (drafter, verifier) pairs that are measured.

        Drafters are left out that cannot pay even if checks of drafts were free: where the share in
        which a pair agrees is below the drafter's cost in its verifier's calls, and where a cheaper
        one agrees as much with the target.
        """
        members, ms = self.pool.members, self.call_ms
        target = len(members) - 1
        allowed = possible_pairs(self.pool.candidates, ms, self.settings.min_ratio)

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
        found, ease, scores = agreement.agreements(
            self.pool, texts, begins, ends, drafting, partial(self.report_share, _AGREEMENT)
        )
        # Small classes would differ by chance alone.
        max_classes = max(len(texts) * drafting.places // self.settings.places_per_class, 1)
        classes = agreement.classes(ease, drafting, min(self.settings.classes, max_classes))
        entries = {f"{i} {k}": alike for (i, k), alike in found.items()}
        followed: list[FollowedPair] = []
        allowed, target = self.pairs(entries), len(self.pool.members) - 1
        for i in sorted({i for i, _ in allowed}):
            if self.on_texts(i):
                above = [k for j, k in allowed if j == i and k < target]
                drafts = rates.follow_texts(self.pool, i, above, texts, scores, drafting)
                if drafts.lengths:
                    followed += curves.pairs(i, self.pool, drafts, classes, self.settings.seed)
        return entries, classes, followed

    def timed_calls(self, pairs: Sequence[tuple[int, int]]) -> list[costs.TimedCall]:
        """Return the calls whose costs are timed: every model alone, and pairs.

        A verifier below the target is timed above one drafter, and lengths that take long to draft
        above one: further drafters, whose times differ by a constant from that one's, are timed at
        short lengths.
        """
        members, budgets = self.pool.members, self.settings.budgets()
        target = len(members) - 1
        timed = costs.timed_calls(self.single_calls(pairs), ())
        first: dict[int, int] = {}  # by verifier; one that scores, which drafts all lengths
        for i, k in pairs:
            if k not in first or members[i].scores > members[first[k]].scores:
                first[k] = i
        for i, k in pairs:
            if first[k] == i:
                timed += costs.timed_calls([(i, k)], budgets)
            elif k == target:
                timed += costs.timed_calls([(i, k)], [n for n in _SHORT if n <= budgets[-1]])
        return timed

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
            if number >= self.least_repeats and spent > settings.cost_seconds:
                break
            samples = stage(f"costs {number}", list[CallSamples], partial(repeat, number, samples))
            yield [costs.entry(found) for found in samples]

    def single_calls(self, pairs: Sequence[tuple[int, int]]) -> list[costs.ModelPair]:
        used = {model for pair in pairs for model in pair} | {len(self.pool.members) - 1}
        return [(None, k) for k, e in enumerate(self.pool.members) if e.scores and k in used]


def _drafts_of(name: str) -> str:
    return f"drafts of {name}"


def max_tokens_of_turn(budget: int) -> int:
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
