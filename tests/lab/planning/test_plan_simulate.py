"""``hierspec plan --simulate``: what it says beside the predictions, and what it refuses."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest
from fakes.profiles import FakeProfile

from hierspec import cli

PROBLEM = {
    "costs": FakeProfile.COSTS,
    "acceptance": FakeProfile.RATES,
    "names": FakeProfile.NAMES,
}


def pairs():
    random = np.random.default_rng(0)
    for i, k in ((0, 1), (0, 2), (1, 2)):
        kept = np.minimum(random.geometric(1 - FakeProfile.RATES[i][k], 3000) - 1, 9).tolist()
        yield SimpleNamespace(drafter=i, verifier=k, lengths=[9] * 3000, kept=kept)


@pytest.fixture
def hierspec(capsys, tmp_path, monkeypatch):
    """Run ``hierspec plan`` on a problem or a profile: (status, output, error)."""

    def run(asked, *options):
        path = tmp_path / "file.json"
        data = asked if isinstance(asked, dict) else {"kind": "hierspec-profile"}
        path.write_text(json.dumps(data))
        monkeypatch.setattr(
            "hierspec_lab.planning.profiles.load_valid_profile", lambda *_, **__: asked
        )
        status = cli.run(["plan", str(path), *options])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


def answers(hierspec, asked, *options):
    """Predicted and simulated latency of every hierarchy."""
    status, out, _ = hierspec(asked, "--json", *options)
    assert status == 0
    data = json.loads(out)
    return [(one["latency"], one["simulated"]) for one in (data, *data["runners_up"])]


def test_json(hierspec):
    got = answers(hierspec, PROBLEM, "--simulate", "3000")
    assert len(got) > 2
    for predicted, found in got:
        assert set(found) == {
            "ms_per_token", "standard_error", "acceptances", "costs", "rounds",
        }  # fmt: skip
        assert (found["acceptances"], found["costs"], found["rounds"]) == ("iid", "real", 3000)
        assert abs(found["ms_per_token"] - predicted) < 5 * found["standard_error"] + 1e-9
    assert "simulated" not in json.loads(hierspec(PROBLEM, "--json")[1])


@pytest.mark.parametrize(
    "options",
    [[], ["--acceptances", "recorded"], ["--acceptances", "iid", "--costs", "artificial"]],
)
def test_profiles(hierspec, options):
    """These records are coin flips, and costs are constants: so all is one."""
    for predicted, found in answers(
        hierspec, FakeProfile([*pairs()]), "--simulate", "3000", "--top", "3", *options
    ):
        assert found["acceptances"] == (options[1] if options else "curves")
        assert abs(found["ms_per_token"] - predicted) < 5 * found["standard_error"] + 1e-9


def test_what_people_read(hierspec):
    status, out, _ = hierspec(PROBLEM, "--simulate", "50")
    assert status == 0
    assert "simulated ± standard error: 50 rounds each, independent acceptances" in out
    assert out.count(" ± ") > 2
    assert "33.00 ± 0" not in out
    status, out, _ = hierspec(PROBLEM | {"costs": [30, 31, 33]}, "--simulate", "50")
    assert "33 ± 0" in out
    recorded = FakeProfile([*pairs()], classes=2)
    asked = ("--simulate", "50", "--acceptances", "recorded", "--temperature", "1")
    _, out, _ = hierspec(recorded, *asked)
    assert "recorded drafts in order" in out
    assert "tokenwise" in out
    assert "every draft has the same weight" in out
    assert "±" not in hierspec(PROBLEM)[1]


def test_one_hierarchy_alone_is_shown_too(hierspec):
    _, out, _ = hierspec(PROBLEM, "--simulate", "50", "--top", "1")
    assert out.count(" ± ") == 2  # its figure, and what the figure is


@pytest.mark.parametrize(
    ("asked", "options", "words"),
    [
        (PROBLEM, ["--simulate", "1"], "simulate"),
        (PROBLEM, ["--costs", "real"], "--simulate ROUNDS"),
        (PROBLEM, ["--simulate", "9", "--costs", "free"], "'real' or 'artificial'"),
        (PROBLEM, ["--simulate", "9", "--acceptances", "real"], "'iid', 'curves' or 'recorded'"),
        (PROBLEM, ["--simulate", "9", "--acceptances", "recorded"], "for profiles"),
        (
            FakeProfile(),
            ["--simulate", "9", "--acceptances", "recorded"],
            "measure the profile again",
        ),
    ],
)
def test_refusals(hierspec, asked, options, words):
    status, out, err = hierspec(asked, *options)
    assert (status, out) == (2, "")
    assert err.count("\n") == 1
    assert words in err
