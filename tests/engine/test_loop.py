"""The engine loop: whoever shares it, everybody gets what they would have got alone."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace

import pytest
from fakes.engines import Reader, read
from loading import hierarchy_of

from hierspec import HierspecError, SamplingParams
from hierspec.drafters.prediction import Prediction
from hierspec.engine.engine import EngineSettings
from hierspec.engine.load_control import LoadControl
from hierspec.engine.loop import EngineLoop
from hierspec.engine.request import DeadlineError, Request, RequestCancelledError
from hierspec.engine.runner import Runner, ServingRunner
from hierspec.engine.stopping import StopConditions
from hierspec.engine.waiting import DrainingError, QueueFullError
from hierspec.lm.trunk.trunk import ExitModel
from hierspec.utils.graphs import Graphs


@pytest.fixture(scope="module")
def models(tiny_family):
    def level(name, tokens, **more):
        return {"method": "draft_model", "model": name, "num_speculative_tokens": tokens, **more}

    levels = [
        {"method": "prompt_lookup", "num_speculative_tokens": 3},
        level(tiny_family["small"], 2, verify="tokenwise"),
        level(tiny_family["draft"], 4, verify="block"),
    ]
    return hierarchy_of({"target": {"model": tiny_family["target"]}, "levels": levels})


@pytest.fixture
def loop(models):
    loops = []

    def make(**settings):
        runner = ServingRunner(models.root, predictor=Prediction())
        made = EngineLoop({"": runner}, EngineSettings(**settings))
        loops.append(made)
        return made

    yield make
    for one in loops:
        one.close()


def request(prompt, tokens=12, seed=0, **more):
    params = more.pop("params", SamplingParams(temperature=1.0))
    stop = StopConditions(max_new_tokens=tokens, max_length=512)
    more.setdefault("fixed_plan", True)
    return Request(prompt=prompt, params=params, stop=stop, seed=seed, **more)


def prompt_of(i, length=None):
    return [3 + (7 * i + j * (i + 3)) % 90 for j in range(length or 3 + i % 11)]


PARAMS = [
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=0.7, top_k=7, repetition_penalty=1.2),
    SamplingParams(temperature=1.3, min_p=0.05, logit_bias=((5, 1.0),)),
]


def alone(models, one):
    options = {"max_new_tokens": one.stop.max_new_tokens, "ignore_eos": True, "seed": one.seed}
    return list(models.generate(one.prompt, sampling=one.params, **options).token_ids)


def test_every_one_of_many_streams_is_what_it_would_be_alone(models, loop):
    requests = [
        request(prompt_of(i), 5 + i % 9, seed=i, params=PARAMS[i % 4], priority=i % 3)
        for i in range(32)
    ]
    engine = loop(max_num_seqs=10, prefill_chunk=8)
    readers = []
    for one in requests:  # some join while others run
        readers += read(engine, one)
    for reader, one in zip(readers, requests, strict=True):
        ended = reader.wait()
        assert ended.error is None
        assert ended.token_ids == alone(models, one)
        assert [event.token_id for event in reader.events] == list(ended.token_ids)


def test_choices_of_one_request_are_those_of_a_batch(models, loop):
    prompt = prompt_of(4)
    readers = read(loop(), *(request(prompt, 8, seed=3, place=i) for i in range(3)))
    found = [tuple(reader.wait().token_ids) for reader in readers]
    batch = models.generate_batch(
        [prompt] * 3, max_new_tokens=8, ignore_eos=True, seed=3, temperature=1.0
    )
    assert found == [one.token_ids for one in batch]
    assert len(set(found)) > 1


def test_a_long_prompt_is_read_in_pieces_beside_running_streams(models, loop, monkeypatch):
    widest = []
    score = ExitModel.score

    def watched(self, queries, *rest):
        widest.append(sum(len(q.context) - q.slot.overlap(q.context, 10**9) for q in queries))
        return score(self, queries, *rest)

    monkeypatch.setattr(ExitModel, "score", watched)
    engine = loop(prefill_chunk=32, prefix_caching=False)
    slow = request(prompt_of(1, 400), 4, seed=1)
    readers = read(engine, request(prompt_of(2), 40, seed=2), slow, request(prompt_of(3), 4))
    found = [reader.wait() for reader in readers]
    assert max(widest) < 100
    # The short one did not wait for all of the long one.
    assert found[2].time_to_first_token < found[1].time_to_first_token
    assert found[1].token_ids == alone(models, slow)


@pytest.mark.parametrize("live", [False, True])
def test_a_shared_prefix_is_prefilled_once_and_changes_nothing(models, loop, live):
    first = request(prompt_of(5, 60), 60 if live else 6, seed=1, num_logprobs=0)
    engine = loop()
    (reader,) = read(engine, first)
    if live:
        while not reader.events:
            time.sleep(0.001)
    else:
        reader.wait()
    text = [*first.prompt, *(() if live else reader.ended.token_ids[:4]), 9, 9, 8]
    again = request(text, 10, seed=2, num_logprobs=0)
    other = request(text, 10, seed=2, num_logprobs=0, tenant="somebody else")
    readers = read(engine, again, other)
    warm, stranger = (one.wait() for one in readers)
    assert warm.num_cached_tokens >= 60
    assert stranger.num_cached_tokens == 0
    assert warm.token_ids == stranger.token_ids == alone(models, again)
    pairs = zip(readers[0].events, readers[1].events, strict=True)
    assert all(abs(a.logprob - b.logprob) < 1e-12 for a, b in pairs)


def test_cached_texts_are_bounded_and_the_oldest_go(loop):
    engine = loop(max_cache_tokens=200)
    for i in range(8):
        (reader,) = read(engine, request(prompt_of(i, 50), 6, seed=i))
        reader.wait()
        assert engine.num_cache_tokens() <= 200
    prefixes = engine.runners[""].prefixes
    assert [text.tokens[:50] for text in prefixes.cached_texts] == [
        prompt_of(i, 50) for i in (5, 6, 7)
    ]


def test_no_more_texts_are_kept_than_are_worth_a_scan(loop, monkeypatch):
    monkeypatch.setattr("hierspec.engine.prefixes._MAX_TEXTS", 2)
    engine = loop()
    for i in range(4):
        (reader,) = read(engine, request(prompt_of(i, 50), 6, seed=i))
        reader.wait()
    kept = engine.runners[""].prefixes.cached_texts
    assert [text.tokens[:50] for text in kept] == [prompt_of(i, 50) for i in (2, 3)]


def test_a_cancelled_request_frees_its_place_within_a_round(loop):
    engine = loop(max_num_seqs=1)
    requests = request(prompt_of(1), 400), request(prompt_of(2), 4)
    readers = read(engine, *requests)
    while len(readers[0].events) < 3:
        time.sleep(0.001)
    seen = len(readers[0].events)
    engine.abort(requests[:1])
    assert isinstance(readers[0].wait().error, RequestCancelledError)
    assert len(readers[0].events) < seen + 60
    assert readers[1].wait().finish_reason == "length"
    assert not engine.running
    assert not engine.prefilling


def test_a_request_that_is_late_ends_wherever_it_is(loop):
    engine = loop(max_num_seqs=1)
    soon = time.monotonic() + 0.2
    readers = read(
        engine,
        request(prompt_of(1), 450, deadline=soon),
        request(prompt_of(2), 4, deadline=soon - 0.1),
        pause=0.01,
    )
    for reader in readers:
        assert isinstance(reader.wait().error, DeadlineError)


def test_a_full_queue_refuses_all_or_none(loop):
    engine = loop(max_num_seqs=1, max_queue=2)
    long = request(prompt_of(1), 400)
    running = read(engine, long, pause=0.005)
    while not engine.running:
        time.sleep(0.001)
    read(engine, request(prompt_of(2)))
    with pytest.raises(QueueFullError) as refused:
        read(engine, request(prompt_of(3)), request(prompt_of(4)))
    assert 1 <= refused.value.retry_after <= 60
    assert len(engine.waiting) == 1
    engine.abort([long])
    running[0].wait()


def test_the_more_urgent_goes_first(loop):
    engine = loop(max_num_seqs=1)
    order = []

    class Noting(Reader):
        def __call__(self, progress):
            if not self.events and progress.events:
                order.append(self)
            super().__call__(progress)

    readers = [Noting(0.002) for _ in range(4)]
    requests = [request(prompt_of(i), 8, priority=p) for i, p in enumerate((0, 5, 5, -1))]
    for one, reader in zip(requests, readers, strict=True):
        one.sink = reader
    engine.add(requests[:1])
    while not engine.running and not readers[0].done.is_set():
        time.sleep(0.0005)
    engine.add(requests[1:])
    for reader in readers:
        reader.wait()
    assert order == [readers[i] for i in (0, 3, 1, 2)]


def test_what_can_never_fit_is_refused_at_once(loop):
    with pytest.raises(HierspecError, match="64 tokens of cache"):
        read(loop(max_cache_tokens=63), request(prompt_of(1, 60), 4))


def test_draining_lets_the_running_end_and_takes_no_more(loop):
    engine = loop()
    (reader,) = read(engine, request(prompt_of(1), 6))
    engine.drain(60)
    with pytest.raises(DrainingError):
        read(engine, request(prompt_of(2)))
    assert reader.wait().finish_reason == "length"
    engine.close(60)


def test_those_that_outlast_the_grace_period_are_told(loop):
    engine = loop()
    (reader,) = read(engine, request(prompt_of(1), 450), pause=0.01)
    engine.drain(0.1)
    assert isinstance(reader.wait().error, RequestCancelledError)


def test_a_failing_forward_fails_only_its_own(models, loop, monkeypatch):
    """A forward that one sequence breaks, whoever is in it: the others never notice."""
    poison = 77
    score = ExitModel.score

    def failing(self, queries, *rest):
        if any(poison in query.context.tokens()[:3] for query in queries):
            raise RuntimeError("on purpose")
        return score(self, queries, *rest)

    monkeypatch.setattr(ExitModel, "score", failing)
    healthy = [request([5 + i, 6, 7, 8], 12, seed=i, params=PARAMS[i % 4]) for i in range(6)]
    broken = [request([poison, 4, 5], 12), request([4, poison, 5], 12)]
    readers = read(loop(), *healthy[:3], *broken, *healthy[3:])
    found = [reader.wait() for reader in readers]
    for ended in found[3:5]:
        assert "on purpose" in str(ended.error)
    monkeypatch.undo()
    for ended, one in zip(found[:3] + found[5:], healthy, strict=True):
        assert ended.error is None
        assert ended.token_ids == alone(models, one)


def test_scores_that_leave_no_token_hurt_nobody_else(models, loop):
    def nothing(ids, scores):
        return scores.fill_(-float("inf")) if ids.shape[1] > 8 else scores

    bad = request(prompt_of(1, 5), 12, params=SamplingParams(1.0, logits_processors=(nothing,)))
    good = [request(prompt_of(i), 12, seed=i) for i in range(4)]
    readers = read(loop(), *good[:2], bad, *good[2:])
    found = [reader.wait() for reader in readers]
    assert isinstance(found.pop(2).error, HierspecError)
    for ended, one in zip(found, good, strict=True):
        assert ended.token_ids == alone(models, one)


def test_a_prediction_is_a_level_and_changes_no_greedy_text(models, loop):
    one = request(prompt_of(3), 30, params=SamplingParams())
    plain = alone(models, one)
    expected = [*plain[:12], 4, 4, 4, *plain[14:]]
    ahead = request(prompt_of(3), 30, params=SamplingParams(), prediction=expected)
    readers = read(loop(), ahead, one)
    found = readers[0].wait()
    assert found.token_ids == plain == readers[1].wait().token_ids
    level = {each.name: each for each in found.levels}["prediction"]
    assert level.num_accepted_tokens >= 10
    assert level.num_draft_tokens > level.num_accepted_tokens
    assert any("prediction" in plan for plan in found.plans)


def test_plain_decoding_on_request(models, loop):
    one = request(prompt_of(3), 10, params=SamplingParams(), speculative=False)
    (reader,) = read(loop(), one)
    ended = reader.wait()
    assert ended.plans == {"plain": 9}
    assert ended.token_ids == alone(models, one)


def test_log_probabilities_of_a_prompt_are_those_of_its_continuation(models, loop):
    text = prompt_of(6, 40)
    one = request(text, 2, params=SamplingParams(), num_logprobs=2, num_prompt_logprobs=2)
    (reader,) = read(loop(prefill_chunk=16), one)
    scores = reader.wait().prompt_logprobs
    assert len(scores) == 39
    # A token that is certain to be written: its log-probability, asked for the other way.
    for at in (5, 17, 39):
        forced = SamplingParams(0.0, logit_bias=((text[at], 100.0),))
        result = models.generate(text[:at], max_new_tokens=1, sampling=forced, logprobs=True)
        assert scores[at - 1].logprob == pytest.approx(result.logprobs[0], abs=1e-9)
    assert all(len(score.top_logprobs) == 2 for score in scores)
    assert all(a[1] >= b[1] for a, b in (score.top_logprobs for score in scores))


def test_load_control_settles_on_what_was_fastest():
    speed = {1: [3.0, 2.0, 1.0], 16: [1.0, 2.0, 4.0]}
    control = LoadControl(3)
    for streams, rates in speed.items():
        used = []
        for _ in range(400):
            plan = control.choose(streams)
            used.append(plan)
            control.record_round(streams, plan, 100, 100 / rates[plan])
        best = rates.index(max(rates))
        assert used[60:].count(best) > 0.9 * len(used[60:])
    assert control.choose(1) == 0  # each number of streams has its own


def test_memory_goes_back_once_nothing_is_to_do(loop, monkeypatch):
    went_back = threading.Event()
    monkeypatch.setattr("hierspec.engine.loop.give_back_memory", went_back.set)
    engine = loop()
    for i in range(2):  # after few requests as after many
        went_back.clear()
        (reader,) = read(engine, request(prompt_of(i)))
        reader.wait()
        assert went_back.wait(20)


def test_load_control_loses_little_time_and_finds_what_has_changed():
    # Tokens and seconds of a round: long drafts, half of them, none, as with sixteen streams.
    rounds = {0: (80, 0.30), 1: (40, 0.12), 2: (16, 0.023)}
    control, seconds, tokens, first = LoadControl(3), 0.0, 0, []
    while seconds < 150:
        plan = control.choose(16)
        first.append(plan)
        control.record_round(16, plan, *rounds[plan])
        seconds, tokens = seconds + rounds[plan][1], tokens + rounds[plan][0]
    assert first[:4] == [2] * 4  # with many streams what is cheap is tried first
    assert {0, 1} < set(first)
    assert tokens / seconds > 0.97 * 16 / 0.023
    assert len(first[-2000:]) - first[-2000:].count(2) < 10  # those that lost and lost are left
    rounds[2], used = (16, 0.2), []  # the machine, or the text, is another one
    for _ in range(300):
        plan = control.choose(16)
        used.append(plan)
        control.record_round(16, plan, *rounds[plan])
    assert used[-50:].count(1) > 35


@pytest.mark.parametrize("stalled", [1, 5, 200])
@pytest.mark.parametrize("streams", [1, 16])
def test_a_round_in_which_the_machine_stood_still_does_not_decide(streams, stalled):
    seconds = [0.03, 0.02, 0.04]
    control, used = LoadControl(3), []
    for number in range(30_000):
        plan = control.choose(streams)
        used.append(plan)
        stall = 1800.0 if number == stalled else 0.0
        control.record_round(streams, plan, 10, seconds[plan] + stall)
    assert used[-10_000:].count(1) > 0.9 * 10_000


def test_load_control_by_a_clock_that_stands_still():
    control = LoadControl(3)
    for _ in range(50):
        control.record_round(1, control.choose(1), 10, 0.0)
    (load,) = control.classes.values()
    assert [plan.goodput for plan in load.plans] == [0.0] * 3


def test_load_control_begins_with_what_it_knows_of_about_as_many():
    rounds = {0: (80, 0.30), 1: (40, 0.12), 2: (16, 0.023)}
    control = LoadControl(3)
    for _ in range(60):
        plan = control.choose(16)
        control.record_round(16, plan, *rounds[plan])
    for streams in (15, 32):
        used = []
        for _ in range(20):
            used.append(control.choose(streams))
            control.record_round(streams, used[-1], *rounds[used[-1]])
        assert set(used) == {2}, streams
    assert control.choose(1) == 0  # too few to conclude from sixteen


def test_load_control_tries_nothing_where_a_round_would_not_tell():
    rounds = {0: (80, 0.30), 1: (40, 0.12), 2: (16, 0.023)}
    control = LoadControl(3)
    while control.choose(16) == 2:
        control.record_round(16, 2, *rounds[2])
    assert control.choose(16, measurable=False) == 2
    assert control.choose(16) == 1


def test_load_control_tries_nothing_for_one_stream_where_a_controller_chooses():
    control = LoadControl(2, controlled=True)
    used = {1: set(), 2: set()}
    for _ in range(50):
        for streams, plans in used.items():
            plans.add(control.choose(streams))
            control.record_round(streams, control.choose(streams), 10, (0.1, 0.2)[len(plans) - 1])
    assert used == {1: {0}, 2: {0, 1}}


def test_load_control_without_tokens():
    control = LoadControl(3)
    for _ in range(50):
        control.record_round(4, control.choose(4), 0, 0.01)


def test_rounds_in_which_a_gpu_met_new_shapes_are_not_measured(models, monkeypatch):
    """But for one in sixteen: requests that always bring new ones must not stop the search."""
    recorded, new = [], 1
    monkeypatch.setattr(LoadControl, "record_round", lambda self, *round: recorded.append(round))
    monkeypatch.setattr(Graphs, "num_first_runs", 0)

    def run_round(self, requests, num_streams, draft_plan=None):
        Graphs.num_first_runs += new
        return [None for _ in requests]

    monkeypatch.setattr(Runner, "run_round", run_round)
    runner = ServingRunner(models.root)
    waiting, running = (
        SimpleNamespace(speculative=True, fixed_plan=False, prediction=(), started=started)
        for started in (False, True)
    )
    for request, count, so_far in ((waiting, 20, 0), (running, 16, 0), (running, 1, 1)):
        for _ in range(count):
            runner.run_round([request], 1)
        assert len(recorded) == so_far
    runner.run_round([running], 1)
    new = 0
    runner.run_round([running], 1)
    assert len(recorded) == 2
