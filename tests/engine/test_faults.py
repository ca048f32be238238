"""Whatever fails in the engine: every request ends once, and no other's text is changed."""

from __future__ import annotations

import threading
import time

import pytest
from fakes.engines import read
from fault_cases import Bench, broken_rules
from fault_injection import KINDS, Fault
from loading import hierarchy_of
from server_cases import save_family

from hierspec import HierspecError, SamplingParams
from hierspec.engine.caches import SessionCache
from hierspec.engine.engine import EngineSettings
from hierspec.engine.loop import EngineLoop
from hierspec.engine.request import Request
from hierspec.engine.runner import ServingRunner
from hierspec.engine.sequences import LiveSequence
from hierspec.engine.stopping import StopConditions
from hierspec.engine.waiting import WaitingQueue
from hierspec.lm.trunk.trunk import ExitModel

# Where each call is made to fail here, in one of the ways; benchmarks/faults.py does all.
MODULES = ("engine.loop", "engine.engine", "engine.waiting", "engine.prefixes", "engine.runtime")
ROUNDS = ("engine.runner", "engine.request", "server.service")


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    return Bench(tmp_path_factory.mktemp("faults"), ["default"])


@pytest.fixture(scope="module")
def injector(bench):
    found = bench.injector(slow=0.01)
    yield found
    found.remove()


@pytest.mark.parametrize("modules", [MODULES, ROUNDS])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_any_call_may_fail(bench, injector, modules):
    """Each function that the engine's thread called in these modules, once, in turn in every way;
    and its next call as well."""
    functions = [name for name in injector.functions if name.startswith(modules)]
    assert len(functions) >= 20
    happened, problems = 0, {}
    for i, function in enumerate(functions):
        kinds = KINDS[i % len(KINDS)], KINDS[(i // 2) % len(KINDS)]
        faults = [Fault(function, number, kind) for number, kind in enumerate(kinds, 1)]
        outcome = bench.run(injector, faults[: 1 + i % 2])
        happened += len(injector.happened)
        if broken := broken_rules(bench.undisturbed, outcome, injector.happened):
            problems[function, kinds] = broken
    assert not problems
    assert happened > 0.9 * len(functions)


# --- the loop's health


@pytest.fixture(scope="module")
def hierarchy(tmp_path_factory):
    paths = save_family(tmp_path_factory.mktemp("family"))
    level = {"method": "draft_model", "model": paths["draft"], "num_speculative_tokens": 3}
    return hierarchy_of({"target": {"model": paths["target"]}, "levels": [level]})


@pytest.fixture
def engine(hierarchy):
    made = EngineLoop({"": ServingRunner(hierarchy.root)}, EngineSettings(stall_timeout=0.3))
    yield made
    made.close()


def submit(engine, *prompts):
    stop = StopConditions(max_new_tokens=4, max_length=512)
    params = SamplingParams(temperature=1.0)
    made = [Request(prompt=p, params=params, stop=stop, seed=1) for p in prompts]
    return read(engine, *made)


def until(condition):
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_dead_thread_is_a_problem_and_the_next_request_starts_another(engine, monkeypatch):
    monkeypatch.setattr(EngineLoop, "_run", lambda self: None)
    (left,) = submit(engine, [5, 6])
    until(lambda: engine.problem == "the engine's thread has ended")
    monkeypatch.undo()
    (following,) = submit(engine, [7, 8])
    assert left.wait().error is following.wait().error is None
    assert engine.problem is None


def test_closing_does_not_wait_for_a_step_that_hangs(engine, monkeypatch, caplog):
    let_go, score = threading.Event(), ExitModel.score
    monkeypatch.setattr(ExitModel, "score", lambda *args: let_go.wait(20) and score(*args))
    submit(engine, [5, 6])
    until(lambda: engine.problem is not None)
    began = time.monotonic()
    engine.close()
    assert time.monotonic() - began < 10
    assert "closed while the engine is still in a step" in caplog.text
    let_go.set()
    engine.wait(20)
    assert not engine.has_work


def test_a_step_that_hangs_is_a_problem_until_it_goes_on(engine, monkeypatch):
    let_go, score = threading.Event(), ExitModel.score
    monkeypatch.setattr(ExitModel, "score", lambda *args: let_go.wait(20) and score(*args))
    readers = submit(engine, [5, 6])
    assert engine.problem is None
    until(lambda: engine.problem is not None)
    assert "in one step for" in engine.problem
    let_go.set()
    assert readers[0].wait().error is None
    until(lambda: engine.problem is None)
    engine.last_step_time -= 100  # without work no step is late
    assert engine.problem is None
    assert submit(engine, [5, 7])[0].wait().error is None
    assert engine.problem is None


def test_steps_that_go_on_failing_end_all_and_are_a_problem_until_one_succeeds(engine, monkeypatch):
    def failing(self):
        raise MemoryError("on purpose")

    monkeypatch.setattr(WaitingQueue, "first", failing)
    for reader in submit(engine, [5, 6], [5, 7]):
        assert isinstance(reader.wait().error, MemoryError)
    until(lambda: engine.problem is not None)
    assert "steps failed: MemoryError" in engine.problem
    monkeypatch.undo()
    assert submit(engine, [5, 6])[0].wait().error is None
    assert engine.problem is None


@pytest.mark.parametrize("name", ["snapshot", "context", "slot"])
def test_what_always_fails_for_one_request_ends_it_alone(engine, monkeypatch, name):
    method = getattr(LiveSequence, name)

    def failing(self, *arguments):
        if self.tokens[0] == 9:
            raise MemoryError("on purpose")
        return method(self, *arguments)

    monkeypatch.setattr(LiveSequence, name, failing)
    failed, other = submit(engine, [9, 5], [7, 5])
    assert isinstance(failed.wait().error, MemoryError)
    assert other.wait().error is None
    assert engine.problem is None


def test_a_hierarchy_that_there_is_not_is_refused_at_once(engine):
    stop, params = StopConditions(max_new_tokens=4), SamplingParams()
    one = Request(prompt=[5], params=params, stop=stop, seed=1, hierarchy="another")
    with pytest.raises(HierspecError, match="no hierarchy 'another'"):
        engine.add([one])


def test_a_user_function_that_exits_ends_its_own_request(engine, hierarchy):
    def leave(ids, scores):
        raise SystemExit("enough")

    stop = StopConditions(max_new_tokens=4, max_length=512)
    params = SamplingParams(temperature=1.0, logits_processors=(leave,))
    (reader,) = read(engine, Request(prompt=[5], params=params, stop=stop, seed=1))
    (other,) = submit(engine, [5, 6])
    assert isinstance(reader.wait().error, RuntimeError)
    assert "SystemExit: enough" in str(reader.ended.error)
    assert other.wait().error is None


def test_a_session_cache_is_free_again_though_a_slot_does_not_close():
    class Owner:
        def __init__(self):
            self.closed = 0

        def close(self, slot):
            self.closed += 1
            raise RuntimeError("on purpose")

    owner, cache = Owner(), SessionCache()
    slots = {**cache.take(), (1, 0): (owner, None), (2, 0): (owner, None)}
    with pytest.raises(RuntimeError, match="on purpose"):
        cache.give_back(slots)
    assert owner.closed == 2
    assert not cache.in_use
