"""A service under faults: requests of many kinds, what each wrote, and what has to hold."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import threading
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fault_injection import Fault, Injector, Watch
from installed import LAB
from loading import hierarchy_of
from server_cases import byte_tokenizer
from tiny_models import add_noise, tiny_model

from hierspec import SamplingParams
from hierspec.config import methods
from hierspec.engine.request import Request
from hierspec.engine.stopping import StopConditions
from hierspec.exact.cases import JumpingController
from hierspec.server.service import Service, Streams
from hierspec.server.settings import ServeSettings

PATIENCE = 20.0  # seconds until every request must have ended
SETTINGS: dict[str, Any] = {
    "served_model_name": "tiny",
    "max_num_seqs": 5,
    "prefill_chunk": 16,
    "max_cache_tokens": 260,  # so few that kept texts are dropped
    "stall_timeout": 60.0,
}


def in_engine() -> bool:
    """Whether this is a thread of an engine."""
    return threading.current_thread().name.startswith("hierspec")


def save_family(folder: Path) -> dict[str, str]:
    """A target and a draft in double precision, so that no company changes a text by rounding."""
    tokenizer, paths = byte_tokenizer(), {}
    for name, noise in (("target", 0.0), ("draft", 0.05)):
        model = tiny_model("llama", seed=1, layers=2, vocab_size=len(tokenizer))
        paths[name] = str(folder / name)
        add_noise(model, noise).save_pretrained(paths[name])
        tokenizer.save_pretrained(paths[name])
    return paths


def hierarchies(paths: dict[str, str]) -> dict[str, Any]:
    """Hierarchies that draft, learn, look up, draft ahead, and are steered."""
    draft = {"method": "draft_model", "model": paths["draft"], "num_speculative_tokens": 3}
    pool = "ngram_pool" if "ngram_pool" in methods.names() else "prompt_lookup"
    levels = {
        "default": [
            {"method": "suffix", "num_speculative_tokens": 2},
            {**draft, "verify": "block"},
        ],
        "pool": [{"method": pool, "num_speculative_tokens": 3}],
        "ahead": [{**draft, "ahead": True} if LAB else draft],
        "steered": [draft],
    }
    target = {"model": paths["target"], "dtype": "float64"}
    made = {
        name: hierarchy_of({"target": target, "levels": below, "verify": "block"})
        for name, below in levels.items()
    }
    made["steered"].controller = JumpingController(made["steered"].root, [[3], [0], [1]])
    return made


def requests() -> list[Request]:
    """Requests of every kind; what each writes depends on itself alone."""
    shared = [3 + (7 * i) % 90 for i in range(20)]
    sampled, greedy = SamplingParams(temperature=1.0), SamplingParams()
    penalised = SamplingParams(temperature=0.8, repetition_penalty=1.2, top_k=20)

    def request(prompt: list[int], tokens: int = 5, **more: Any) -> Request:
        stop = StopConditions(max_new_tokens=tokens, max_length=512, stop=more.pop("stop", ()))
        more = {"params": sampled, "fixed_plan": True, **more}
        return Request(prompt=prompt, stop=stop, **more)

    return [
        request([*shared, 5, 9], seed=1),
        request([*shared, 6], 3, seed=2, params=penalised, num_logprobs=2),
        request([9, 8, 9, 8, 7], 5, seed=4, hierarchy="pool"),
        request([4 + i % 50 for i in range(40)], 3, seed=5, hierarchy="ahead"),
        request([40, 41], 5, seed=6, hierarchy="ahead"),
        request([30, 31, 32], 3, seed=7, hierarchy="steered"),
        request([60, 61], 3, seed=8, params=greedy, fixed_plan=False, prediction=(5, 6, 7, 8)),
        request(
            [12] * 9, 2, seed=9, params=greedy, fixed_plan=False, num_prompt_logprobs=1, priority=-1
        ),
        request([70, 71], 3, seed=10, speculative=False, stop=("e", "th")),
        request([80, 81], 3, seed=11),
    ]


@dataclasses.dataclass(frozen=True)
class Result:
    """What became of a request: how many ends, its error, its tokens as they were streamed."""

    num_ends: int
    error: BaseException | None
    streamed: tuple[int, ...]
    written: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What became of all requests, and of the service.

    Attributes:
        leaks: what is still held after all have ended.
        problems: what the service said of its health meanwhile.
    """

    results: list[Result]
    probe: Result
    leaks: list[str]
    problems: list[str]


class Bench:
    """A family of models, and services on it, one for each run."""

    def __init__(self, folder: Path, names: Sequence[str] = ()) -> None:
        made = hierarchies(save_family(folder))
        self.hierarchies = {name: made[name] for name in names or made}
        self._expected: list[Result] | None = None

    def run(self, injector: Injector | None = None, faults: Sequence[Fault] = ()) -> Outcome:
        """Serve all requests at once, under these faults; then one more, without them."""
        return asyncio.run(self._run(injector, faults))

    def injector(self, **options: Any) -> Injector:
        """Watch a run; return what makes each call fail that its engine's threads made."""
        watch = Watch(in_engine, ["hierspec"])
        with watch.watching():
            undisturbed = self.run()
        assert not broken_rules(undisturbed, undisturbed, [])
        self.undisturbed = undisturbed
        return Injector(list(watch.counts), in_engine, **options)

    async def _run(self, injector: Injector | None, faults: Sequence[Fault]) -> Outcome:
        sequences, made = weakref.WeakSet[Request](), Request.__post_init__

        def noting(sequence: Request) -> None:
            sequences.add(sequence)
            made(sequence)

        Request.__post_init__ = noting  # type: ignore[method-assign]
        served = [one for one in requests() if (one.hierarchy or "default") in self.hierarchies]
        *served, last = served
        service = Service(ServeSettings(**SETTINGS), self.hierarchies)
        engine, problems = service.engine, list[str]()
        planned = contextlib.ExitStack()
        if injector is not None:
            planned.enter_context(injector.faults(*faults))
        try:
            reading = [asyncio.ensure_future(_read(service.submit([one]))) for one in served]
            for _ in range(int(PATIENCE / 0.1)):
                _, left = await asyncio.wait(reading, timeout=0.1)
                problem = engine.problem
                if problem is not None:
                    problems.append(problem)
                if not left or problem == "the engine's thread has ended":
                    break
            planned.close()
            probe = asyncio.ensure_future(_read(service.submit([last])))
            await asyncio.wait([*reading, probe], timeout=PATIENCE)
            results = [_result(task) for task in (*reading, probe)]
            leaks = [*map(repr, engine.live), *map(repr, engine.waiting.items)]
            for _ in range(50):  # a sink is called before what it ended is let go
                if not any(one.slots for one in list(sequences)):
                    break
                await asyncio.sleep(0.002)
            leaks += [f"slots of sequence {s.id}" for s in list(sequences) if s.slots]
            if (kept := engine.num_cache_tokens()) > SETTINGS["max_cache_tokens"]:
                leaks.append(f"{kept} tokens of cache")
            if engine.problem is not None:
                leaks.append(engine.problem)
            return Outcome(results[:-1], results[-1], leaks, problems)
        finally:
            planned.close()
            Request.__post_init__ = made  # type: ignore[method-assign]
            with contextlib.suppress(Exception):
                service.close()


async def _read(streams: Streams) -> Result:
    ends, events = [], list[int]()
    async for _, progress in streams:
        events += [event.token_id for event in progress.events]
        if progress.ended is not None:
            ends.append(progress.ended)
    await asyncio.sleep(0)
    more = 0 if streams._queue.empty() else 1
    return Result(len(ends) + more, ends[0].error, tuple(events), tuple(ends[0].token_ids))


def _result(task: asyncio.Future[Result]) -> Result:
    if task.done():
        return task.result()
    task.cancel()
    return Result(0, None, (), ())


def broken_rules(undisturbed: Outcome, outcome: Outcome, faults: Sequence[Fault]) -> list[str]:
    """Say what does not hold: one end each; no text of another request changed; the next one
    served; nothing leaked; no more requests failed than there were faults."""
    found: list[str] = []
    pairs = zip(undisturbed.results, outcome.results, strict=True)
    for i, (before, after) in enumerate(pairs):
        if after.num_ends != 1:
            found.append(f"request {i} has {after.num_ends} ends")
        elif after.error is None and (after.streamed, after.written) != (
            before.streamed,
            before.written,
        ):
            found.append(f"request {i} wrote another text")
        elif after.written[: len(after.streamed)] != after.streamed and after.written:
            found.append(f"request {i} streamed what it did not write")
    failed = [one for one in outcome.results if one.error is not None]
    # A call that did its work and then failed may have been shared by all.
    if len(failed) > len(faults) and all(fault.kind != "late" for fault in faults):
        found.append(f"{len(failed)} requests failed: {[repr(one.error) for one in failed]}")
    if outcome.probe != undisturbed.probe and not (outcome.probe.error and outcome.problems):
        found.append(f"the next request was not served: {outcome.probe}")
    return found + [f"leaked: {leak}" for leak in outcome.leaks]
