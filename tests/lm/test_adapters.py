"""Adapters and quantized weights run through their own modules: the tokens of generate.

``peft`` is imported where it is used, since that takes longer than most tests.
"""

import json
import shutil

import pytest
import torch
from tiny_models import save_tiny
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

import hierspec
from hierspec import Hierarchy, HierspecError

PROMPTS = [[5, 9, 7], [11, 4, 4, 30, 8]]


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    folder = tmp_path_factory.mktemp("base")
    return save_tiny("llama", folder, seed=1, dtype=torch.float32, hidden_size=64)


def loaded(base, **options):
    return AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32, **options).eval()


def generated(model, **options):
    rows = []
    for prompt in PROMPTS:
        ids = torch.tensor([prompt])
        out = model.generate(
            input_ids=ids, max_new_tokens=8, do_sample=False, eos_token_id=None, **options
        )
        rows.append(tuple(out[0, len(prompt) :].tolist()))
    return rows


def ours(hierarchy):
    results = hierarchy.generate_batch(PROMPTS, max_new_tokens=8, ignore_eos=True)
    return [result.token_ids for result in results]


def test_lora_in_memory_in_a_folder_and_in_generate(base, tmp_path):
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(0)
    plain = loaded(base)
    settings = LoraConfig(
        r=4, target_modules=["q_proj", "v_proj", "up_proj"], init_lora_weights=False
    )
    model = get_peft_model(loaded(base), settings).eval()
    model.save_pretrained(tmp_path)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    expected = generated(model)
    assert expected != generated(plain)
    assert ours(Hierarchy(model, drafts=[plain, "ngram"])) == expected
    assert ours(Hierarchy.from_preset("layerskip", target=str(tmp_path))) == expected
    shutil.copy(base / "config.json", tmp_path)  # as some trainers write it
    assert ours(Hierarchy.from_preset("layerskip", target=str(tmp_path))) == expected
    shutil.copy(base / "model.safetensors", tmp_path)
    with pytest.raises(HierspecError, match=r"a model and an adapter for it: merge them .*or move"):
        Hierarchy(str(tmp_path), drafts=[])
    fast = {"custom_generate": hierspec.custom_generate, "hierarchy": "layerskip"}
    assert generated(model, **fast) == expected
    after = model.state_dict()
    assert all(torch.equal(after[name], weight) for name, weight in before.items())
    with pytest.raises(HierspecError, match="merge them"):
        Hierarchy({"target": {"model": model, "backend": "lean"}})


def test_an_adapter_that_is_in_no_layer_is_refused(base):
    from peft import PromptTuningConfig, get_peft_model

    settings = PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2)
    with pytest.raises(HierspecError, match="learns a prompt"):
        Hierarchy(get_peft_model(loaded(base), settings))


@pytest.mark.parametrize(
    "options",
    [
        {"load_in_4bit": True, "bnb_4bit_compute_dtype": torch.float32},
        {"load_in_8bit": True, "llm_int8_threshold": 0.0},
    ],
)
def test_bitsandbytes_whose_rows_stand_alone(base, tmp_path, options):
    model = loaded(base, quantization_config=BitsAndBytesConfig(**options))
    expected = generated(model)
    assert ours(Hierarchy(model, drafts=["exit:1"])) == expected
    model.save_pretrained(tmp_path)
    assert ours(Hierarchy(str(tmp_path), drafts=["exit:1"])) == expected


def test_8_bits_with_outliers_mix_rows(base):
    model = loaded(base, quantization_config=BitsAndBytesConfig(load_in_8bit=True))
    with pytest.raises(HierspecError, match=r"neighbours; load it with .*threshold=0\.0"):
        Hierarchy(model)


def test_a_quantization_without_its_package_names_it(tmp_path):
    save_tiny("llama", tmp_path, dtype=torch.float32)
    file = tmp_path / "config.json"
    how = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": True}
    file.write_text(json.dumps({**json.loads(file.read_text()), "quantization_config": how}))
    with pytest.raises(HierspecError, match=r"cannot be loaded by transformers: .*GPTQ.*optimum"):
        Hierarchy(str(tmp_path))
    target = {"model": str(tmp_path), "backend": "deterministic"}
    with pytest.raises(HierspecError, match=r"quantized weights, .* leave deterministic out$"):
        Hierarchy({"target": target})


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ('{"base_model_name_or_path": 5}', "base_model_name_or_path must be a string, not 5"),
        ("[]", "it must be an object, not \\[\\]"),
        ("{", "not valid JSON"),
        ("{}", "names no base model"),
    ],
)
def test_a_damaged_configuration_is_named(tmp_path, content, reason):
    (tmp_path / "adapter_config.json").write_text(content)
    with pytest.raises(HierspecError, match=rf"adapter_config\.json.* {reason}"):
        Hierarchy(str(tmp_path), drafts=[])


def test_an_adapter_of_an_adapter_is_refused(tmp_path):
    """Also one that names itself, which has no end."""
    for name in ("upper", "lower"):
        folder = tmp_path / name
        folder.mkdir()
        named = {"base_model_name_or_path": str(tmp_path / "lower"), "peft_type": "LORA"}
        (folder / "adapter_config.json").write_text(json.dumps(named))
    for name in ("upper", "lower"):
        with pytest.raises(HierspecError, match="is an adapter itself: merge that one"):
            Hierarchy(str(tmp_path / name), drafts=[])
