"""Tokens kept, where windows stop, and what a profile says of both."""

from __future__ import annotations

import numpy as np
import pytest

from hierspec.core.windows import ConfidenceWindow, EntropyWindow
from hierspec.profiling import curves, rates


def test_tokens_kept_follow_the_curve():
    rows = np.array([[1, 1, 1, 0], [1, 0, 0, 0], [1, 0.5, 0.5, 0.2]])
    kept = np.array([curves.draw_kept(rows, (seed,)) for seed in range(4000)])
    assert (kept[:, 0] == 2).all()
    assert (kept[:, 1] == 0).all()
    shares = np.bincount(kept[:, 2], minlength=4) / 4000
    # 4.5 standard errors of a share, at most 0.0079: one choice of seeds in 50 000 fails
    np.testing.assert_allclose(shares, [0.5, 0, 0.3, 0.2], atol=0.036)
    assert shares[1] == 0


def test_where_windows_stop():
    drafts = rates.FollowedDrafts(
        signals=[(0.1, 3.0, 0.2), (0.1, 0.1, 0.1), (2.0, 0.0, 0.0), (), (2.2, 0.1)]
    )
    kept = np.array([1, 3, 0, 0, 2])

    def stop(window):
        return curves.stopping_lengths(window, drafts, kept).tolist()

    assert stop(EntropyWindow(threshold=1.0)) == [2, 3, 1, 0, 1]
    assert stop(ConfidenceWindow(floor=0.15)) == [1, 1, 2, 0, 2]
    # From 0 the running threshold cuts everything at one token; of those, the third draft's is
    # rejected (2.0), and the mean is 2: the 3.0 was rejected too, but behind the cut.
    assert stop(EntropyWindow()) == [2, 3, 3, 0, 1]


def test_the_threshold_settles_as_the_engine_would_have_it():
    """Thresholds follow what is rejected inside the window, not behind it."""
    drafts = rates.FollowedDrafts(signals=[(5.0, 1.0), (0.5, 9.0), (0.5, 2.0), (0.5, 9.0)])
    kept = np.array([0, 1, 2, 1])
    window = EntropyWindow()
    state = window.init()
    for signals, tau in zip(drafts.signals, kept, strict=True):
        length = next((n for n, s in enumerate(signals, 1) if window.stops((s,), state)), 2)
        state = window.observe(state, signals[:length], min(int(tau), length))
    assert window.threshold_after(state) == (5.0 + 9.0 + 9.0) / 3
    assert curves.stopping_lengths(window, drafts, kept).tolist() == [2, 2, 2, 2]


def test_joint_laws_sum_to_one():
    lengths = np.array([0, 2, 3, 2])
    rows = np.array([[1, 0.9, 0.8, 0.7]] * 4)
    law = curves.joint_survival(lengths, rows)
    assert law[:, 0].sum() == pytest.approx(1)
    np.testing.assert_allclose(law[2], [0.5, 0.45, 0.4, 0])
    np.testing.assert_allclose(law.sum(0), [1, 0.675, 0.6, 0.175])


def test_windows_in_a_profile(whole):
    names = [model["name"] for model in whole["models"]]
    for measured in whole["temperatures"].values():
        windowed = 0
        for pair in measured["pairs"]:
            name = names[pair["drafter"]]
            parts = [pair, *pair["classes"]]
            varied = "window" in name or name == "prompt-lookup"
            assert all(("joint" in part) == varied for part in parts)
            assert len(pair["kept"]) == len(pair["lengths"]) == pair["drafts"]
            assert all(k <= n <= 3 for k, n in zip(pair["kept"], pair["lengths"], strict=True))
            if varied:
                windowed += 1
                law = np.bincount(pair["lengths"], minlength=4) / pair["drafts"]
                for rule in ("block", "tokenwise"):
                    joint = np.array(pair["joint"][rule])
                    np.testing.assert_allclose(joint[:, 0], law, atol=1e-6)
            else:
                assert set(pair["lengths"]) == {3}
        assert windowed > 0
