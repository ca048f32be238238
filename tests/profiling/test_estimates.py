"""From measurements, made up or real, to the planner's estimates."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from profiling_cases import described, made

from hierspec.planner.estimates import Chain
from hierspec.planner.latency import latency
from hierspec.planner.search import plan
from hierspec.profiling.estimates import _Costs, _first_and_step, estimates, extend_curve
from hierspec.profiling.profile import from_dict
from hierspec.profiling.schema import AtTemperature, MeasuredModel, TimeSummary
from hierspec.utils.schema import validate


def estimated(models, memory, measured, **options):
    """Estimates from a file's objects."""
    models = validate(list[MeasuredModel], models, "")
    return estimates(models, memory, validate(AtTemperature, measured, ""), **options)


def test_curves_are_carried_on():
    np.testing.assert_allclose(extend_curve(0.8 ** np.arange(6), 20), 0.8 ** np.arange(20))
    np.testing.assert_allclose(extend_curve(np.array([1, 0.5, 0, 0]), 6), [1, 0.5, 0, 0, 0, 0])
    np.testing.assert_allclose(extend_curve(np.array([1, 0.5]), 4), [1, 0.5, 0.25, 0.125])
    np.testing.assert_allclose(extend_curve(np.ones(9), 5), np.ones(5))


def test_costs_between_and_beyond_what_was_timed():
    known = estimated(*made(), max_budget=4)
    np.testing.assert_allclose(known.draft_ms[0, :7], [0, 1.5, 2.5, 3.5, 4.5, 5.5, 6.5])
    kept = known.survival[0, 1].cumsum()
    n = np.arange(12)
    np.testing.assert_allclose(known.verify_ms[0, 1, :12], 9 + n + 0.25 * kept[:12])
    assert known.plain_ms == 9.25
    assert known.draft_ms[1, 2] == 18
    assert np.isnan(known.survival[1, 0]).all()
    assert known.bytes([0, 1]) == 100


def test_noise_makes_no_draft_take_less_than_no_time():
    def times(**by_length):
        return {int(n[1:]): TimeSummary(mean=ms, median=ms, low=ms, high=ms, count=4)
                for n, ms in by_length.items()}  # fmt: skip

    first, step = _first_and_step([times(n1=1.0, n2=4.0, n4=10.0), times(n4=1.0)])
    np.testing.assert_allclose(first, [1.0, 0.0], atol=1e-9)
    assert step == pytest.approx(3.0)


def test_where_drafts_of_one_token_alone_were_timed_further_ones_cost_as_much():
    def once(ms):
        return {1: TimeSummary(mean=ms, median=ms, low=ms, high=ms, count=4)}

    first, step = _first_and_step([once(2.0), once(4.0)])
    np.testing.assert_allclose(first, [2.0, 4.0])
    assert step == pytest.approx(3.0)


def test_cost_of_a_first_step_is_charged_to_the_pair():
    """A draft's first step is dearer under a model that has used the caches: the check pays."""
    models, memory, measured = made()
    models.insert(1, described("mid"))
    pair = measured["pairs"][0] | {"verifier": 2, "classes": measured["pairs"][0]["classes"][:1]}
    measured["pairs"] = [pair, pair | {"verifier": 1}]
    alone, target, both = measured["costs"]
    cheap = {n: entry | {"mean": entry["mean"] - 0.5} for n, entry in both["draft"].items()}
    measured["costs"] = [
        alone,
        *(target | {"verifier": k} for k in (1, 2)),
        both | {"verifier": 2},
        both | {"verifier": 1, "draft": cheap},
    ]
    measured["context"]["slopes"] = []
    known = estimated(models, memory, measured, max_budget=4)
    np.testing.assert_allclose(known.draft_ms[0, 1:5], [1, 2, 3, 4])
    np.testing.assert_allclose(known.verify_ms[0, 1, :5], 9 + np.arange(5))
    kept = known.survival[0, 2].cumsum()[:5]
    np.testing.assert_allclose(known.verify_ms[0, 2, :5], 9.5 + np.arange(5) + 0.25 * kept)


def test_a_draft_of_nothing_costs_a_plain_call():
    models, memory, measured = made()
    measured["costs"][2]["check"]["0"] = {"mean": 4.0, "median": 4, "low": 4, "high": 4, "count": 1}
    known = estimated(models, memory, measured, max_budget=4)
    assert known.verify_ms[0, 1, 0] == pytest.approx(9 + 0.25)


def test_a_check_without_a_bonus_has_a_row_less_and_spares_the_shared_layers():
    """Exits after 2 and 6 layers of a trunk, 1 ms a layer and 1 ms a head; a drafter of its own."""
    models = [
        {"name": name, "owner": owner, "level": level, "weights": None, "call_ms": 1.0}
        for name, owner, level in (
            ("other", "other", {"method": "draft_model", "model": "other"}),
            ("exit 2", "trunk", {"method": "early_exit", "exit_layer": 2}),
            ("exit 6", "trunk", {"method": "early_exit", "exit_layer": 6}),
            ("target", "trunk", None),
        )
    ]
    plain_ms = (0.5, 3.0, 7.0, 9.0)

    def cost(drafter, verifier, check):
        times = {str(n): dict.fromkeys(("mean", "median", "low", "high"), ms) | {"count": 1}
                 for n, ms in enumerate(check, 0 if drafter is None else 1)}  # fmt: skip
        return {"drafter": drafter, "verifier": verifier, "draft": {}, "check": times}

    _, _, measured = made()
    costs = [cost(None, k, [ms]) for k, ms in enumerate(plain_ms)]
    costs += [cost(i, 2, [7.5, 8.0, 8.5]) for i in (0, 1)]
    known = estimated(models, {}, measured | {"costs": costs, "pairs": []}, max_budget=3)
    for drafter, shared_ms in ((0, 0.0), (1, 2.0)):
        np.testing.assert_allclose(known.check_ms(True)[drafter, 2, :4], [7.0, 7.5, 8.0, 8.5])
        np.testing.assert_allclose(
            known.check_ms(False)[drafter, 2, :4],
            [7.0, *(np.array([7.0, 7.5, 8.0]) - shared_ms)],
        )
    # An exit that cannot pay is left out, and not timed.
    costs = [row for row in costs if 1 not in (row["drafter"], row["verifier"])]
    known = estimated(models, {}, measured | {"costs": costs, "pairs": []}, max_budget=3)
    np.testing.assert_allclose(known.check_ms(False)[0, 2, :4], [7.0, 7.0, 7.5, 8.0])


def test_a_price_is_the_mean_over_classes():
    known = estimated(*made(), max_budget=4)
    chain = Chain((0, 1), (2,))
    prices = []
    for a in (0.5, 0.8):
        tokens = 1 + a + a**2
        prices.append((2.5 + 11 + 0.25 * tokens) / tokens)
    assert len(known.classes) == 2
    assert latency(known, chain).ms_per_token == pytest.approx(np.mean(prices))
    best = plan(known).best
    assert best.ms <= min(np.mean(prices), known.plain_ms)


def test_a_step_and_a_call_are_fitted_to_all_their_times():
    """One length's noise is shared: drafts of n tokens take 1.5 + (n - 1), checks 9 + n."""
    models, memory, measured = made()

    def times(noise):
        found = {1: 0.0, 2: noise, 4: 0.0, 8: 0.0}
        entry = {"count": 12}
        return {
            kind: {
                str(n): dict.fromkeys(("mean", "median", "low", "high"), base + n + off) | entry
                for n, off in found.items()
            }
            for kind, base in (("draft", 0.5), ("check", 9.0))
        }

    models.insert(1, described("other"))
    alone, target, _ = measured["costs"]
    measured["costs"] = [alone, target | {"verifier": 2}]
    measured["costs"] += [
        {"drafter": i, "verifier": 2} | times(off) for i, off in ((0, 0.6), (1, 0.0))
    ]
    measured |= {"pairs": [], "context": {"tokens": 100, "long": 1000, "slopes": []}}
    known = estimated(models, memory, measured, max_budget=4)
    np.testing.assert_allclose(known.draft_ms[1, 1:9], np.arange(1, 9) + 0.5)
    assert 0.05 < known.draft_ms[0, 2] - 2.5 < 0.4
    np.testing.assert_allclose(np.diff(known.draft_ms[0, 1:], 2), 0, atol=1e-12)
    # Half of it lies in both drafters' calls on two tokens, a quarter of the rest in its own calls.
    assert known.verify_ms[0, 2, 2] - 11 == pytest.approx(0.375)
    assert known.verify_ms[1, 2, 2] - 11 == pytest.approx(0.225)


def test_long_drafts_of_a_drafter_that_made_none_cost_what_others_do():
    def row(drafter, **check):
        found = {
            n[1:]: {"mean": ms, "median": ms, "low": ms, "high": ms, "count": 3}
            for n, ms in check.items()
        }
        return {"drafter": drafter, "verifier": 2, "draft": {}, "check": found}

    rows = [row(None, n0=2.0), row(0, n0=2.0, n2=2.2), row(1, n1=2.3, n2=2.4, n8=9.0), row(3)]
    context = {"tokens": 100, "long": 1000, "slopes": []}
    measured = validate(AtTemperature, made(costs=rows, context=context)[2], "")
    models = validate(list[MeasuredModel], [described(name) for name in "abcd"], "")
    costs = _Costs(models, measured)
    look_up, model, never = (costs.verify_calls(13)[i, 2] for i in (0, 1, 3))
    assert model[[1, 2, 8]].tolist() == pytest.approx([2.3, 2.4, 9.0])
    assert look_up[2] == pytest.approx(2.2)
    assert look_up[8] == pytest.approx(9.0 - 0.2), "as much less as its own drafts"
    assert look_up[12] > 12, "and on with that slope, which its own two points do not know"
    assert never[8] == pytest.approx(8.95), "by the mean of those that made some"


def test_a_time_that_is_far_off_makes_no_other_call_free():
    """Of a machine that paused: planning ends, and no plan takes less than no time."""

    def row(drafter, **check):
        found = {
            n[1:]: {"mean": ms, "median": ms, "low": ms, "high": ms, "count": 2}
            for n, ms in check.items()
        }
        return {"drafter": drafter, "verifier": 2, "draft": {}, "check": found}

    rows = [row(None, n0=13.0), row(0, n1=4.0, n2=4.2, n3=180.0), row(1, n1=4.1, n2=275.0, n3=5.3)]
    context = {"tokens": 100, "long": 1000, "slopes": []}
    measured = validate(AtTemperature, made(costs=rows, context=context)[2], "")
    models = validate(list[MeasuredModel], [described(name) for name in "abc"], "")
    costs = _Costs(models, measured)
    assert costs.verify_calls(9)[:2, 2].min() >= 4.0


def test_windows_reach_the_planner(whole):
    profile = from_dict(whole)
    known = profile.estimates(1.0)
    windowed = {i for i, m in enumerate(profile.models[:-1]) if "window" in (m.level or {})}
    lookups = {i for i, m in enumerate(profile.models) if m.name == "prompt-lookup"}
    assert set(known.joint_survival) == windowed | lookups
    assert len(windowed) == 2
    for i in windowed:
        lengths = known.joint_survival[i][known.target][:, 0]
        assert lengths.sum() == pytest.approx(1)
        expected = (lengths * np.arange(4)).sum()
        chain = Chain((i, known.target), (3,))
        drafted = latency(known, chain)
        without = latency(known_without_windows(known), chain)
        assert expected <= 3
        assert drafted.tokens_per_call <= without.tokens_per_call + 1e-9


def known_without_windows(known):
    return replace(
        known,
        joint_survival={},
        classes=tuple(replace(part, joint_survival={}) for part in known.classes),
    )
