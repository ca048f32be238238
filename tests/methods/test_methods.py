"""The registry of methods: every file of the room is one, and says what is true of its model."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from hierspec.config import methods
from hierspec.config.chains import parse_level
from hierspec.config.levels import Capabilities, method_name
from hierspec.config.schema import HierarchyConfig
from hierspec.errors import HierspecError
from hierspec.profiling import candidates

OPTIONS = {
    "draft_model": {"model": "m"},
    "eagle3": {"model": "m"},
    "early_exit": {"exit_layer": 1},
}
LEVELS = {
    method_name(level): parse_level(
        {"method": method_name(level), **OPTIONS.get(method_name(level), {})}, ""
    )
    for level in methods.built_in()
}


@pytest.mark.parametrize("name", LEVELS)
def test_a_method_of_this_package_is_a_file_of_its_name(name):
    level = LEVELS[name]
    assert type(level).__module__ == f"{methods.GROUP}.{name}"
    assert name in methods.names()
    assert level.capabilities.verifies == (level.only_drafts is None)


@pytest.mark.parametrize("form", methods.short_forms())
def test_a_short_form_is_of_one_method(form):
    draft = form.replace("LAYER", "4")
    found = [level for level in methods.built_in() if level.from_short(draft) is not None]
    assert len(found) == 1
    assert methods.from_short(draft)["method"] == method_name(found[0])
    parse_level(methods.from_short(draft), "")


def test_names_are_also_written_with_hyphens_and_models_may_be_called_anything():
    assert methods.from_short("prompt-lookup") == {"method": "prompt_lookup"}
    for model in ("draft_model", "draft-model", "a/suffix", "zoo:tiny-draft"):
        assert methods.from_short(model) is None


def test_a_file_is_read_with_its_own_methods_alone_and_without_torch():
    levels = [{"method": "suffix", "num_speculative_tokens": 2}]
    code = f"""if True:
        import json, sys
        from hierspec.config.schema import HierarchyConfig
        HierarchyConfig.from_dict({{"target": "x", "levels": {levels}}})
        print(json.dumps([name for name in sys.modules if name.startswith("hierspec.methods.")]))
        from hierspec.config import methods
        methods.built_in()
        assert "torch" not in sys.modules
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == ["hierspec.methods.suffix"]


def test_a_method_of_others_may_be_planned(monkeypatch):
    monkeypatch.setattr(methods, "_REGISTERED", dict(methods._REGISTERED))

    def make(options, target):
        raise AssertionError("no model is made of a name")

    methods.register_method("planned", capabilities=Capabilities(planned=True, cost=1))(make)
    planned = candidates.parse("planned,temperature=0.5")
    candidates.validate_planned([planned])
    assert planned.can_verify
    methods.register_method("unplanned")(make)
    with pytest.raises(HierspecError, match="comes from a plug-in and cannot be planned"):
        candidates.validate_planned([candidates.parse("unplanned")])


def test_a_level_is_checked_in_place_by_its_method():
    with pytest.raises(HierspecError, match=r"^hierarchy\.levels\[0\]\.parts\[1\]\[1\]: unknown"):
        HierarchyConfig.from_dict(
            {
                "target": "x",
                "levels": [
                    {
                        "method": "concatenate",
                        "parts": [
                            {"method": "suffix", "num_speculative_tokens": 1},
                            [
                                {"method": "suffix", "num_speculative_tokens": 1},
                                {"method": "quantized", "num_speculative_tokens": 1, "bit": 4},
                            ],
                        ],
                    }
                ],
            }
        )
