"""One schema for the file, the environment and options; later ones win."""

from __future__ import annotations

import json
import re

import pytest
from server_cases import TEMPLATE, save_family

from hierspec import Hierarchy, HierspecError
from hierspec.server import loading
from hierspec.server.app import create_app
from hierspec.server.prepare import sampling_params
from hierspec.server.settings import ServeSettings
from hierspec.server.sources import load, parse_assignments
from hierspec.server.wire.completions import CompletionRequest


@pytest.fixture
def variables(monkeypatch):
    def set_them(**texts):  # named without their prefix
        for name, text in texts.items():
            monkeypatch.setenv(f"HIERSPEC_SERVE_{name}", text)

    return set_them


def test_later_ones_win(tmp_path, variables):
    file = tmp_path / "serve.json"
    hierarchies = {"theirs": "suffix"}
    there = {"port": "1", "max_queue": 1, "host": "localhost", "hierarchies": hierarchies}
    file.write_text(json.dumps(there))
    variables(PORT="2", MAX_QUEUE="2", HIERARCHIES='{"ours": "auto"}')
    found = load(file, {"port": 3, "model": None})
    assert (found.port, found.max_queue, found.host) == (3, 2, "localhost")
    assert found.hierarchies == {"ours": "auto"}  # in place of the file's
    assert found.max_num_seqs == ServeSettings().max_num_seqs


def test_settings_made_in_python_are_not_the_environments(variables):
    variables(PORT="2", MAX_QUEUE="many", PROT="1")
    assert ServeSettings(port=3) == ServeSettings(port=3, max_queue=256)
    assert ServeSettings().port == 8000
    assert parse_assignments([]) == {}


def test_toml_and_lists(tmp_path, variables):
    file = tmp_path / "serve.toml"
    file.write_text('api_key = ["a"]\n[hierarchies]\nplain = "autoregressive"\n')
    variables(CORS_ORIGIN="http://a, http://b")
    found = load(file)
    assert found.api_key == ("a",)
    assert found.hierarchies == {"plain": "autoregressive"}
    assert found.cors_origin == ("http://a", "http://b")


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("API_KEY", "12345", ("12345",)),  # a text, though it looks like a number
        ("MODEL", "123", "123"),
        ("THREADS", "4", 4),
        ("THREADS", "null", None),
        ("REQUEST_TIMEOUT", "5", 5.0),
        ("MAX_BODY_BYTES", "1e6", 1_000_000),
        ("PREFIX_CACHING", "false", False),
        ("LOG_FORMAT", "json", "json"),
        ("HIERARCHIES", '{"plain": "autoregressive"}', {"plain": "autoregressive"}),
        ("PORT", "", 8000),  # an empty variable is none
    ],
)
def test_variables_are_converted_to_the_settings_types(variables, name, text, value):
    variables(**{name: text})
    found = getattr(load(), name.lower())
    assert (found, type(found)) == (value, type(value))


def test_single_settings_of_the_command_line():
    assert parse_assignments(["max_queue=10", "prefix_caching=false", "log_format=json"]) == {
        "max_queue": 10,
        "prefix_caching": False,
        "log_format": "json",
    }
    with pytest.raises(HierspecError, match="NAME=VALUE"):
        parse_assignments(["max_queue"])


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("PROT", "1", "HIERSPEC_SERVE_PROT: unknown key 'prot'; did you mean 'port'?"),
        ("PORT", "many", "HIERSPEC_SERVE_PORT: port must be an integer from 0 to 65535"),
        ("MAX_QUEUE", "-1", "HIERSPEC_SERVE_MAX_QUEUE: max_queue must be an integer of at least 1"),
        ("HIERARCHIES", "plain", "HIERSPEC_SERVE_HIERARCHIES: hierarchies must be an object"),
    ],
)
def test_a_mistake_names_its_variable(variables, name, text, words):
    variables(MODEL="zoo:tiny", **{name: text})
    with pytest.raises(HierspecError, match=f"^{re.escape(words)}"):
        load(options={name.lower(): None})


@pytest.mark.parametrize(
    ("there", "words"),
    [
        ({"prot": 1}, ": unknown key 'prot'; did you mean 'port'?"),
        ({"port": 70000}, ".port must be an integer from 0 to 65535, not 70000"),
        ({"max_queue": "-1"}, ".max_queue must be an integer of at least 1, not '-1'"),
        ({"prefix_caching": "false"}, ".prefix_caching must be true or false, not 'false'"),
    ],
)
def test_a_mistake_names_its_file(tmp_path, variables, there, words):
    file = tmp_path / "serve.json"
    file.write_text(json.dumps(there))
    variables(PORT="1", MAX_QUEUE="1")  # these win, but the file is wrong all the same
    with pytest.raises(HierspecError, match=f"^{re.escape(str(file) + words)}"):
        load(file)


@pytest.mark.parametrize("keys", [54321, ["first", 54321], {"54321": "first"}, [["54321"]]])
def test_a_wrong_key_is_not_shown(tmp_path, keys):
    file = tmp_path / "serve.json"
    file.write_text(json.dumps({"api_key": keys}))
    with pytest.raises(HierspecError) as raised:
        load(file)
    assert str(raised.value) == f"{file}.api_key: keys are non-empty strings"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"host": ""}, "options.host must be a non-empty string, not ''"),
        (["max_queue=-1"], "options.max_queue must be an integer of at least 1, not -1"),
        (["prot=1"], "options: unknown key 'prot'; did you mean 'port'?"),
    ],
)
def test_a_mistake_names_its_option(variables, options, words):
    variables(HOST="localhost", MAX_QUEUE="1")
    with pytest.raises(HierspecError, match=f"^{re.escape(words)}"):
        load(options=options if isinstance(options, dict) else parse_assignments(options))


def test_models_and_hierarchies_that_are_not_there_are_refused_before_anything_is_loaded(tmp_path):
    for wrong, said in (
        ({"model": "/nowhere/at/all"}, "no directory"),
        ({"hierarchy": "speculatve"}, "did you mean 'speculative'"),
        ({"hierarchies": {"mine": str(tmp_path / "gone.json")}}, "gone.json"),
        ({"hierarchy": "suffix", "draft": ("zoo:tiny-draft",)}, "uses no draft model"),
    ):
        with pytest.raises(HierspecError, match=said):
            ServeSettings(**wrong).validate_models()
    ServeSettings(model="zoo:tiny", hierarchy="auto").validate_models()


def test_hierarchies_of_a_service_share_its_draft_models():
    settings = ServeSettings(
        model="zoo:tiny",
        draft=("zoo:tiny-draft",),
        hierarchy="speculative",
        hierarchies={"copies": "suffix"},
    )
    settings.validate_models()
    (drafted,) = settings.configuration("speculative").levels
    (copied,) = settings.configuration("suffix").levels
    assert (drafted.model, copied.method) == ("zoo:tiny-draft", "suffix")


def test_hierarchies_of_a_service_have_one_target(tmp_path):
    files = []
    for name in ("tiny", "tiny-draft"):
        files.append(tmp_path / f"{name}.json")
        files[-1].write_text(json.dumps({"target": {"model": f"zoo:{name}"}, "levels": []}))
    ours, theirs = map(str, files)
    with pytest.raises(HierspecError, match="'theirs' has the target zoo:tiny-draft"):
        loading.load(ServeSettings(hierarchy=ours, hierarchies={"theirs": theirs}))


@pytest.mark.parametrize("template", [TEMPLATE, None])
def test_auto_plans_for_requests_as_they_are_by_default(tmp_path, monkeypatch, template):
    given = {}

    def auto(target, drafts, **options):
        given.update(options)
        return Hierarchy.from_preset("autoregressive", target=target.model)

    monkeypatch.setattr(loading.Hierarchy, "auto", auto)
    target = save_family(tmp_path, template)["target"]
    hierarchies = loading.load(ServeSettings(model=target, hierarchy="auto"))
    service = create_app(ServeSettings(), hierarchies).state.service
    params = sampling_params(service, CompletionRequest(prompt="a"))
    service.close()
    assert given["temperature"] == params.temperature == 1.0
    assert given["chat"] == (template is not None)
