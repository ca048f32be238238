"""Costs of calls: what is timed, how often, and models in order of cost."""

from __future__ import annotations

import time

from hierspec import TargetConfig
from hierspec.profiling import costs
from hierspec.profiling.candidates import load, parse
from hierspec.profiling.costs import settled
from hierspec.profiling.schema import CallSamples


def test_every_pair_and_length_is_timed(family, loaded):
    pool = load(TargetConfig(model=family["target"]), [parse("exit:1"), parse("exit:2")], loaded)
    pairs = [(None, 0), (None, 2), (0, 1), (0, 2), (1, 2)]
    done = []
    times = costs.time_calls(
        pool, costs.timed_calls(pairs, (1, 3)), [5, 6, 7, 8], repeats=2, temperature=1.0,
        on_call=done.append,
    )  # fmt: skip
    assert len(done) == 2 * (2 + 3 * 2)
    for pair in pairs:
        lengths = {0} if pair[0] is None else {1, 3}
        assert set(times[pair].check) == lengths
        assert set(times[pair].draft) == (set() if pair[0] is None else lengths)
        for samples in (times[pair].check, times[pair].draft):
            for entry in costs.summary(samples).values():
                assert entry.count == 2 * costs.TIMED
                assert 0 < entry.low <= entry.median <= entry.high


def test_models_are_put_in_order_of_cost_and_exits_in_order_of_depth(family, loaded):
    candidates = [parse("exit:2"), parse(family["draft"]), parse("exit:1")]
    pool = load(TargetConfig(model=family["target"]), candidates, loaded)
    assert costs.order(pool, [1.0, 3.0, 2.0, 0.5]) == [2, 0, 1, 3]  # noise swapped the exits
    assert costs.order(pool, [2.0, 0.1, 1.0, 9.0]) == [1, 2, 0, 3]


def test_one_time_of_half_an_hour_is_left_out_of_any_number_of_times():
    for count in range(2, 8):
        times = costs.summary({4: [5.0] * (count - 1) + [1.8e6]})
        assert times[4].mean == 5.0
    assert costs.summary({4: [1.0, 1.5]})[4].mean == 1.25  # what merely differs is not


def test_a_clock_too_coarse_for_a_call_gives_it_some_time():
    assert costs.summary({0: [0.0, 0.0]})[0].mean > 0


def test_what_a_token_costs_is_not_what_one_of_them_did(family, loaded, monkeypatch):
    pool = load(TargetConfig(model=family["target"]), [], loaded)

    class Stopped(costs.Generation):
        def __iter__(self):
            for number, token in enumerate(super().__iter__()):
                if number == 5:
                    time.sleep(1.0)
                yield token

    monkeypatch.setattr(costs, "Generation", Stopped)
    assert costs.token_ms(pool, [5, 6, 7, 8], 0.0) < 1e3 / costs.TOKENS / 2


def test_calls_that_agree_are_timed_no_more():
    times = CallSamples(drafter=0, verifier=1, draft={}, check={})
    assert not settled(times, 4)
    times.check[4], times.draft[4] = [2.0] * 6, [1.0, 1.01, 1.0, 1.02, 1.0, 1.01]
    assert settled(times, 4)
    times.draft[4] = [1.0, 1.5, 1.0, 1.5, 2.0, 0.5]
    assert not settled(times, 4)
    assert set(times.check) == {4}  # asking leaves no trace
