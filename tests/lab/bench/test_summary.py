"""A method's numbers, by hand."""

import math

import pytest

from hierspec_lab.bench import summary
from hierspec_lab.bench.method_records import LevelCounters, RunRecord


def test_statistics_by_hand():
    assert summary.quartiles([4.0]) == {"median": 4.0, "q1": 4.0, "q3": 4.0, "n": 1}
    assert summary.quartiles([4, 1, 3, 2]) == {"median": 2.5, "q1": 1.75, "q3": 3.25, "n": 4}
    found = summary.spread([1.0, 2.0, 6.0])
    assert (found.mean, found.median) == (3.0, 2.0)
    assert found.standard_error == pytest.approx(math.sqrt(7 / 3))
    assert summary.spread([5.0]).standard_error is None
    halves = summary.ratio([2, 4, 6], [1, 2, 3])
    assert (halves.median, halves.low95, halves.high95) == (2.0, 2.0, 2.0)
    wide = summary.ratio([1.0, 2.0, 9.0], [1.0, 1.0, 1.0])
    assert (wide.median, wide.low95, wide.high95) == (2.0, 1.0, 9.0)


def test_deviations_allow_for_few_values():
    # Student's t with 3 degrees at 5.841 is as rare as a normal deviate of 2.576 (1 % two-sided),
    # with 15 degrees at 2.947.
    for count, t in ((4, 5.841), (16, 2.947)):
        signs = [(-1) ** i * math.sqrt((count - 1) / count) for i in range(count)]
        shift = t / math.sqrt(count)
        assert summary.z_score([shift + sign for sign in signs]) == pytest.approx(2.576, abs=0.06)
    assert summary.z_score([0.3]) == 0.0
    assert summary.z_score([0.0, 0.0]) == 0.0


def runs_by_hand():
    def part(name, calls, drafts, drafted, kept, positions, seconds):
        return LevelCounters(
            name=name, calls=calls, num_drafts=drafts, num_draft_tokens=drafted,
            num_accepted_tokens=kept, num_accepted_tokens_per_pos=positions,
            acceptance_rate=0.0, seconds=seconds, forward_seconds=seconds / 2,
        )  # fmt: skip

    def run(prompt, tokens, seconds, calls=None, small=None):
        return RunRecord(
            prompt=prompt, num_tokens=tokens, seconds=seconds, decode_seconds=None,
            ms_per_token=1e3 * seconds / tokens, decode_ms_per_token=None,
            overhead_ms_per_token=None, target_calls=calls, mean_acceptance_length=None,
            same_as_plain=prompt == 0, logprob_per_token=None, token_ids=[],
            levels=[small] if small else [],
            target=part("big", calls, 0, 0, 0, [], 0.010) if calls else None,
        )  # fmt: skip

    ours = [
        run(0, 5, 0.1, 2, part("small", 4, 2, 4, 3, [2, 1], 0.004)),
        run(1, 7, 0.3, 2, part("small", 6, 2, 6, 4, [2, 1, 1], 0.006)),
    ]
    return ours, [run(0, 1, 0.04), run(1, 1, 0.03)]


def test_a_summary_by_hand():
    runs, plain = runs_by_hand()
    found = summary.summary(runs, plain, {"small": 1, "big": 10})
    assert found.tokens_per_second == pytest.approx(12 / 0.4)
    assert found.ms_per_token.mean == pytest.approx((20 + 300 / 7) / 2)
    assert found.decode_ms_per_token is None
    timed = [run.model_copy(update={"decode_ms_per_token": 7.0}) for run in runs[1:]]
    short = runs[:1]  # as one of a single token, which has no time after the first
    assert summary.summary([*short, *timed], plain).decode_ms_per_token == summary.spread([7.0])
    assert found.mean_acceptance_length == pytest.approx(10 / 4)
    assert found.speedup.median == pytest.approx((2.0 + 0.7) / 2)
    assert found.same_as_plain == 1
    assert found.acceptance_per_position == {"small": [1.0, 0.5, 0.25]}
    small, big = found.levels
    assert (small.name, big.name) == ("small", "big")
    assert small.calls_per_token == pytest.approx(1.0)
    assert small.ms_per_token == pytest.approx(1.0)
    assert small.forward_ms_per_token == pytest.approx(0.5)
    assert small.acceptance_rate == pytest.approx(0.7)
    assert big.acceptance_rate is None
    # Ten tokens cost the target 100 alone; here 4 calls of 10 and 10 calls of 1 are 50.
    assert found.standardized_walltime_improvement == pytest.approx(2.0)
    assert summary.summary(runs, plain).standardized_walltime_improvement is None
