"""Cases as files: strict reading, refusals that say why, and certificates as checks."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest

from hierspec.cli import run
from hierspec.exact.certificate import certify, load_case, parse_case

EXAMPLES = sorted((Path(__file__).parents[2] / "examples" / "certify").glob("*.json"))
THIRD = 1.0 / 3.0
CASE = {
    "vocab": 2,
    "models": [
        {"order": 0, "table": {"": [2 * THIRD, THIRD]}},
        {"order": 1, "table": {"": [THIRD, 2 * THIRD], "0": [0.5, 0.5], "1": [0.0, 1.0]}},
    ],
    "levels": [{"num_speculative_tokens": 2}, {"verify": "block"}],
}
EXPECTED = {
    "worked-example-tokenwise": 10 / 9,
    "worked-example-block": 11 / 9,
    "worked-example-uncapped": 12 / 9,
    "worked-example-naive": 4 / 3,
}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples(path):
    certificate = certify(load_case(path))
    assert certificate.passed() == ("uncapped" not in path.stem)
    assert certificate.conclusive
    if path.stem in EXPECTED:
        assert certificate.expected_accepted == pytest.approx(EXPECTED[path.stem], abs=1e-12)


def test_a_certificate():
    certificate = certify(CASE)
    assert certificate.passed()
    assert (certificate.horizon, certificate.longest_proposal) == (4, 2)
    data = json.loads(json.dumps(certificate.to_dict(law=True)))
    assert set(data) == {
        "tv", "conclusive", "lossless", "expected_accepted", "expected_tokens_per_target_call",
        "paths", "horizon", "longest_proposal", "worst_round_tv", "states", "lossy_round",
        "seconds", "engine", "law",
    }  # fmt: skip
    assert sum(data["law"].values()) == pytest.approx(1.0)
    assert data["law"]["1,1,1,1"] == pytest.approx(2 * THIRD)
    assert "1,0,0,0" not in data["law"]
    assert "law" not in certificate.to_dict()


def test_expectations_do_not_depend_on_the_horizon():
    near, far = certify({**CASE, "horizon": 1}), certify({**CASE, "horizon": 7})
    assert near.expected_accepted == far.expected_accepted
    assert near.expected_tokens_per_target_call == far.expected_tokens_per_target_call
    assert not near.conclusive
    assert not near.passed()
    assert near.passed(allow_inconclusive=True)
    assert far.conclusive


def test_a_lossy_rule_does_not_pass():
    target = {"order": 0, "table": {"": [THIRD, 2 * THIRD]}}
    levels = [{"num_speculative_tokens": 2}, {"verify": "uncapped"}]
    case = {**CASE, "models": [CASE["models"][0], target], "levels": levels}
    assert certify(case).tv == pytest.approx(1 / 9)
    assert not certify(case).passed(allow_inconclusive=True)


def edited(*path, to=None, drop=False):
    case = copy.deepcopy(CASE)
    at = case
    for key in path[:-1]:
        at = at[key]
    if drop:
        del at[path[-1]]
    else:
        at[path[-1]] = to
    return case


CONCATENATED = {
    "method": "concatenate",
    "parts": [{"model": 0, "num_speculative_tokens": 1}],
    "repeat": 2,
}


@pytest.mark.parametrize(
    ("case", "message"),
    [
        (edited("horizont", to=3), "did you mean 'horizon'"),
        (edited("vocab", drop=True), "'vocab' is missing"),
        (edited("vocab", to=0), "at least 1"),
        (edited("horizon", to=0), "at least 1"),
        (edited("horizon", to=40), "too large to enumerate"),
        (edited("horizon", to=10**12), "too large to enumerate"),
        (edited("models", to=[]), "must be a list"),
        (edited("models", 0, to=3), "must be an object"),
        (edited("models", 0, "ordre", to=0), "did you mean 'order'"),
        (edited("models", 0, "order", to=-1), "at least 0"),
        (edited("models", 0, "order", to=30), "too many"),
        (edited("models", 1, "table", "0", drop=True), r"models\[1\].*'0'"),
        (edited("models", 1, "table", "2", to=[0.5, 0.5]), r"models\[1\].*'2'"),
        (edited("models", 1, "table", "x", to=[0.5, 0.5]), r"models\[1\].*'x'"),
        (edited("models", 1, "table", "0", to=[0.5, 0.4]), "sums to 0.9"),
        (
            edited("models", 1, "table", "0", to=[1.5, -0.5]),
            "list of probabilities, one for",
        ),
        (edited("models", 1, "table", "0", to=[1.0]), "2 probabilities"),
        (
            edited("models", 1, "table", "0", to=["a", "b"]),
            "list of probabilities, one for",
        ),
        (
            edited("models", 1, "table", "0", to=[float("nan"), 1.0]),
            "list of probabilities, one for",
        ),
        (edited("models", 1, "table", to=[]), "must be an object"),
        (edited("levels", to=[{"verify": "block"}]), "1 levels for 2 models"),
        (edited("levels", 0, to={}), "'num_speculative_tokens' is missing"),
        (edited("levels", 0, to=[]), "must be an object"),
        (edited("levels", 1, to="block"), "must be an object"),
        (edited("levels", 0, "num_speculative_tokens", to=0), "at least 1"),
        (edited("levels", 0, "num_speculative_tokens", to=True), "at least 1"),
        (edited("levels", 0, "num_tokens", to=1), "did you mean 'num_speculative_tokens'"),
        (edited("levels", 0, "verify", to="block"), "only drafts"),
        (edited("levels", 0, "window", to={"kind": "entrpy"}), "entropy"),
        (edited("levels", 1, "num_speculative_tokens", to=2), "unknown key"),
        (edited("levels", 1, "verify", to="blok"), "There are: block, block-rrs, branch"),
        (edited("levels", 1, "verify", to=7), "no verifier called 7; there are: block"),
        (edited("levels", 1, "top_m", to=2), "has no top_m"),
        (edited("levels", 1, to={"verify": "leading", "top_m": 0}), "at least 1"),
        (edited("levels", 1, "bonus", to=1), "true or false"),
        (edited("levels", 1, "model", to=0), "the last model"),
        (edited("levels", 0, "model", to=5), "models are 0 to 1"),
        (edited("levels", 0, "model", to="0"), "must be the number"),
        (edited("levels", 0, to={**CONCATENATED, "repeat": 0}), "at least 1"),
        (edited("levels", 0, to={**CONCATENATED, "parts": []}), "list of levels"),
        (edited("levels", 0, to={**CONCATENATED, "part": []}), "did you mean 'parts'"),
        (
            edited("levels", 0, to={**CONCATENATED, "parts": [{"num_speculative_tokens": 1}]}),
            "'model' is missing",
        ),
        (
            edited("levels", to=[{"model": 0, "num_speculative_tokens": 1}, CONCATENATED, {}]),
            "comes first",
        ),
    ],
)
def test_mistakes_are_named(case, message):
    with pytest.raises(ValueError, match=message):
        certify(case)


@pytest.mark.parametrize(
    ("levels", "reason"),
    [
        (
            [{"num_speculative_tokens": 2, "window": {"kind": "entropy"}}, {"verify": "naive"}],
            "depends on the tokens drafted",
        ),
        ([CONCATENATED, {"verify": "naive"}], "depend on the position"),
    ],
)
def test_what_is_unsound_is_refused_as_the_runtime_does(levels, reason):
    with pytest.raises(ValueError, match=reason):
        certify({**CASE, "levels": levels})


def test_naive_above_leading_is_refused():
    levels = [
        {"num_speculative_tokens": 1},
        {"num_speculative_tokens": 2, "verify": "leading"},
        {"verify": "naive"},
    ]
    models = [CASE["models"][0], *CASE["models"]]
    with pytest.raises(ValueError, match="reported distributions"):
        certify({**CASE, "models": models, "levels": levels})


def test_levels_become_nodes():
    models = [CASE["models"][0], CASE["models"][1], CASE["models"][0], CASE["models"][1]]
    levels = [
        {"num_speculative_tokens": 2, "window": {"kind": "confidence", "floor": 0.3}},
        {"num_speculative_tokens": 3, "verify": "branch", "bonus": False},
        {"num_speculative_tokens": 2},
        {"verify": "naive"},
    ]
    root, vocab, horizon, _ = parse_case({**CASE, "models": models, "levels": levels})
    middle = root.below
    assert (vocab, horizon) == (2, None)
    assert (root.rule.name, middle.rule.name, middle.below.rule.name) == (
        "naive",
        "tokenwise",
        "block",
    )
    assert middle.exact_length  # naive above needs it
    assert not middle.below.exact_length
    assert not middle.below.bonus
    assert middle.below.below.window.floor == 0.3
    assert [root.index, middle.index, middle.below.index] == [3, 2, 1]


def test_one_level_decodes_plainly():
    certificate = certify({**CASE, "models": CASE["models"][1:], "levels": [{}]})
    assert certificate.passed()
    assert certificate.expected_tokens_per_target_call == 1.0


def test_the_command_line_names_the_file(tmp_path, capsys):
    file = tmp_path / "a.json"
    for change, reason in [
        ({"vocab": 0}, "case.vocab must be"),
        ({"levels": [{}]}, "case: 1 levels for 2 models"),
        ({"levels": [{"num_speculative_tokens": 1}, {"verify": "x"}]}, "levels[1].verify"),
    ]:
        file.write_text(json.dumps({**CASE, **change}))
        assert run(["certify", str(file)]) == 2
        assert f"{file}: {reason}" in capsys.readouterr().err


def test_files(tmp_path):
    with pytest.raises(ValueError, match="cannot read"):
        load_case(tmp_path / "none.json")
    bad = tmp_path / "bad.json"
    bad.write_text("{")
    with pytest.raises(ValueError, match="not valid JSON"):
        load_case(bad)
    bad.write_text("[]")
    with pytest.raises(ValueError, match="JSON object"):
        load_case(bad)
