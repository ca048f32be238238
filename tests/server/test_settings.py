"""One schema for the file, the environment and options; later ones win."""

from __future__ import annotations

import json

import pytest

from hierspec import HierspecError
from hierspec.server.settings import ServeSettings, load, parse_assignments


def test_later_ones_win(tmp_path):
    file = tmp_path / "serve.json"
    file.write_text(json.dumps({"port": 1, "max_queue": 1, "host": "localhost"}))
    environment = {"HIERSPEC_SERVE_PORT": "2", "HIERSPEC_SERVE_MAX_QUEUE": "2"}
    found = load(file, {"port": 3, "model": None}, environment)
    assert (found.port, found.max_queue, found.host) == (3, 2, "localhost")


def test_toml_and_lists(tmp_path):
    file = tmp_path / "serve.toml"
    file.write_text('api_key = ["a"]\n[hierarchies]\nplain = "autoregressive"\n')
    found = load(file, environment={"HIERSPEC_SERVE_CORS_ORIGIN": "http://a, http://b"})
    assert found.api_key == ("a",)
    assert found.hierarchies == {"plain": "autoregressive"}
    assert found.cors_origin == ("http://a", "http://b")


def test_a_key_that_looks_like_a_number_is_a_text():
    assert load(environment={"HIERSPEC_SERVE_API_KEY": "12345"}).api_key == ("12345",)
    found = load(environment={"HIERSPEC_SERVE_HIERARCHIES": '{"plain": "autoregressive"}'})
    assert found.hierarchies == {"plain": "autoregressive"}


def test_single_settings_of_the_command_line():
    assert parse_assignments(["max_queue=10", "prefix_caching=false", "log_format=json"]) == {
        "max_queue": 10,
        "prefix_caching": False,
        "log_format": "json",
    }
    with pytest.raises(HierspecError, match="NAME=VALUE"):
        parse_assignments(["max_queue"])


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"HIERSPEC_SERVE_PROT": "1"}, "did you mean 'port'"),
        ({"HIERSPEC_SERVE_PORT": "many"}, "environment.port"),
        ({"HIERSPEC_SERVE_MAX_QUEUE": "-1"}, "max_queue"),
    ],
)
def test_mistakes_name_their_place(environment, words):
    with pytest.raises(HierspecError, match=words):
        load(environment=environment)


def test_models_and_hierarchies_that_are_not_there_are_refused_before_anything_is_loaded(tmp_path):
    for wrong, said in (
        ({"model": "/nowhere/at/all"}, "no directory"),
        ({"hierarchy": "speculatve"}, "did you mean 'speculative'"),
        ({"hierarchies": {"mine": str(tmp_path / "gone.json")}}, "gone.json"),
        ({"hierarchy": "suffix", "draft": ("zoo:small",)}, "uses no draft model"),
    ):
        with pytest.raises(HierspecError, match=said):
            ServeSettings(**wrong).validate_models()
    ServeSettings(model="zoo:mid", hierarchy="auto").validate_models()


def test_hierarchies_of_a_service_share_its_draft_models():
    settings = ServeSettings(
        model="zoo:mid",
        draft=("zoo:small",),
        hierarchy="speculative",
        hierarchies={"copies": "suffix"},
    )
    settings.validate_models()
    (drafted,) = settings.configuration("speculative").levels
    (copied,) = settings.configuration("suffix").levels
    assert (drafted.model, copied.method) == ("zoo:small", "suffix")
