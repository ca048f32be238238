"""What stands in for transformers' configurations and tokenizers says what they say."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tiny_zoo import FOLDER

from hierspec.lm.llama_config import of_transformers, read_llama_config
from hierspec.lm.saved_tokenizer import read_tokenizer

PLAIN: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
    "eos_token_id": 0,
    "rope_theta": 10000.0,
    "torch_dtype": "bfloat16",
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 128,
}
TEXTS = ("def add(a, b):\n    return a + b\n", " two  blanks, naïve ✓", "<s> not special </s>", "")


def write(folder: Path, **changes: Any) -> Path:
    values = {key: value for key, value in (PLAIN | changes).items() if value is not None}
    (folder / "config.json").write_text(json.dumps(values))
    return folder


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"head_dim": 32, "attention_bias": True, "mlp_bias": True, "eos_token_id": [0, 3]},
        {"rope_scaling": LLAMA3},
        {"rope_theta": None, "rope_parameters": {**LLAMA3, "rope_theta": 5e5}},
        {"rope_theta": None, "rope_parameters": {"rope_type": "default", "rope_theta": 5e5}},
        {"torch_dtype": None, "dtype": "float32", "rope_scaling": None},
    ],
)
def test_a_plain_configuration_says_what_transformers_says(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    config = read_llama_config(write(tmp_path, **changes))
    assert config is not None
    theirs = of_transformers(config)
    for name, value in vars(config).items():
        if name != "transformers":
            assert value == getattr(theirs, name, value), name
    assert config.initializer_range == theirs.initializer_range  # it is asked for what is not read


@pytest.mark.parametrize(
    "changes",
    [
        {"model_type": "mistral"},
        {"rope_scaling": {"rope_type": "linear", "factor": 2.0}},
        {"rope_theta": None},
        {"quantization_config": {"quant_method": "fp8"}},
        {"layer_types": ["sliding_attention", "full_attention"]},
        {"hidden_size": 66},
        {"head_dim": 15},
        {"per_layer_config": {"0": {"intermediate_size": 48}}},
        {"rope_scaling": LLAMA3, "original_max_position_embeddings": 64},
        {"a_key_of_other_versions": 1},
        {"num_hidden_layers": "2"},
        {"num_key_value_heads": None},
    ],
)
def test_any_other_is_left_to_transformers(tmp_path: Path, changes: dict[str, Any]) -> None:
    assert read_llama_config(write(tmp_path, **changes)) is None


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A Llama's folder with the tokenizer of ``zoo:tiny``."""
    from transformers import AutoTokenizer

    AutoTokenizer.from_pretrained(FOLDER / "tiny").save_pretrained(tmp_path)
    return write(tmp_path)


def test_a_tokenizer_does_what_transformers_does(folder: Path) -> None:
    from transformers import AutoTokenizer

    ours = read_tokenizer(folder)
    assert ours is not None
    theirs = AutoTokenizer.from_pretrained(folder)
    for text in TEXTS:
        for special in (True, False):
            ids = ours(text, add_special_tokens=special, verbose=False)["input_ids"]
            assert ids == theirs(text, add_special_tokens=special)["input_ids"]
            options = {"skip_special_tokens": special, "clean_up_tokenization_spaces": False}
            assert ours.decode(ids, **options) == theirs.decode(ids, **options)
    assert len(ours) == len(theirs)
    names = ("bos_token_id", "eos_token_id", "pad_token", "unk_token_id", "chat_template")
    for name in (*names, "clean_up_tokenization_spaces"):
        assert getattr(ours, name) == getattr(theirs, name), name
    assert sorted(ours.all_special_ids) == sorted(theirs.all_special_ids)
    assert "_whole" not in vars(ours)  # all that without transformers'
    batch = [[5, 6], [7]]
    assert ours.decode(batch, clean_up_tokenization_spaces=False) == theirs.decode(batch)
    assert ours("def").input_ids == theirs("def").input_ids
    assert ours.convert_ids_to_tokens([5]) == theirs.convert_ids_to_tokens([5])
    assert type(ours.transformers) is type(theirs)
    ignored = {"_tokenizer", "init_kwargs"}  # an object, and how each came to be
    own, other = (
        {k: v for k, v in vars(x).items() if k not in ignored} for x in (ours.transformers, theirs)
    )
    assert own == other
    assert ours.backend_tokenizer.to_str() == theirs.backend_tokenizer.to_str()


def test_what_is_changed_in_a_tokenizer_counts(folder: Path) -> None:
    ours = read_tokenizer(folder)
    assert ours is not None
    ours.chat_template = "{{ messages[0].content }}<mark>"
    ours.add_tokens(["<mark>"])
    ours.pad_token = "<mark>"
    new = len(ours) - 1
    assert ours("a<mark>", verbose=False)["input_ids"][-1] == new == ours.pad_token_id
    assert ours.decode([new], clean_up_tokenization_spaces=False) == "<mark>"
    message = {"role": "user", "content": "a"}
    assert ours.apply_chat_template([message], return_dict=False)[-1] == new
    assert new in ours.all_special_ids


def test_a_grammar_is_read_with_it(folder: Path) -> None:
    pytest.importorskip("llguidance")
    from hierspec.server.grammar import Grammars

    ours = read_tokenizer(folder)
    assert ours is not None
    assert ours.eos_token_id is not None
    Grammars(ours, len(ours), frozenset({ours.eos_token_id}))


@pytest.mark.parametrize(
    "settings",
    [
        {"tokenizer_class": "LlamaTokenizer"},
        {"add_bos_token": True},
        {"eos_token": "a word that is no token"},
        {"added_tokens_decoder": {"0": {"content": "another", "special": True}}},
        {"extra_special_tokens": ["<more>"]},
    ],
)
def test_a_tokenizer_that_transformers_changes_is_left_to_it(
    folder: Path, settings: dict[str, Any]
) -> None:
    file = folder / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | settings))
    assert read_tokenizer(folder) is None


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("special_tokens_map.json", "{}"),
        ("additional_chat_templates/tool_use.jinja", "{{ tools }}"),
        ("config.json", json.dumps(PLAIN | {"model_name": "phi3"})),  # has another tokenizer
    ],
)
def test_files_that_only_transformers_reads(folder: Path, name: str, text: str) -> None:
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text(text)
    assert read_tokenizer(folder) is None


def test_a_template_is_utf_8_in_every_locale(folder: Path) -> None:
    (folder / "chat_template.jinja").write_bytes("é🦙".encode())
    code = (
        "import sys; from pathlib import Path; from hierspec.lm.saved_tokenizer import "
        "read_tokenizer; print(ascii(read_tokenizer(Path(sys.argv[1])).chat_template))"
    )
    locale = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = [sys.executable, "-c", code, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=locale)
    assert done.stdout.strip() == ascii("é🦙"), done.stderr


def test_a_llama_runs_without_the_heavy_modules(folder: Path) -> None:
    """Importing these takes longer than loading a small model."""
    if shutil.which("cc") is None:
        pytest.skip("transformers' layers run where there is no compiler")
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    LlamaForCausalLM(LlamaConfig.from_pretrained(folder)).to(torch.bfloat16).save_pretrained(folder)
    write(folder)
    heavy = ("transformers", "scipy", "matplotlib", "pandas", "sklearn", "gguf", "accelerate")
    code = (
        "import sys; from hierspec.cli import run; "
        f"status = run(['generate', 'def', '--target', {str(folder)!r}, '--max-new-tokens', '2', "
        "'--json']); "
        f"print([m for m in {heavy!r} if m in sys.modules], file=sys.stderr); sys.exit(status)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[-1] == "[]"
