"""A moderate part of benchmarks/first_hour.py: every way in, for a few families."""

import importlib.util
from pathlib import Path

import pytest
from installed import needs_lab

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "first_hour.py"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("first_hour", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("family", ["llama", "bloom", "deepseek_v3"])
def test_every_way_in_gives_the_tokens_of_generate(script, family, tmp_path):
    played = script.play(family, tmp_path, tokens=8)
    assert played["equal"] == dict.fromkeys(played["equal"], True)
    assert len(played["equal"]) == 5


@needs_lab
@pytest.mark.parametrize("family", ["t5", "umt5"])
def test_encoder_decoders_too_but_for_custom_generate_which_refuses(script, family, tmp_path):
    played = script.play(family, tmp_path, tokens=8)
    assert played["equal"] == dict.fromkeys(("cli", "python", "batch"), True)
    assert "encoder-decoder" in played["refused"]["custom_generate"]
    assert "\n" not in played["refused"]["custom_generate"]


@pytest.mark.parametrize("family", ["mamba", "bart", "qwen3_next", "gemma3n"])
def test_every_way_in_refuses_in_one_line(script, family, tmp_path):
    refused = script.refuse(family, tmp_path)
    assert refused["one_line"], refused["refused"]
