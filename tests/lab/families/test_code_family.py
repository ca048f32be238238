"""The zoo: tokenizer, checkpoints, and the model made large at load time."""

import hashlib
import json
import shutil
from pathlib import Path

import pytest
import torch
from tiny_models import save_tiny
from transformers import AutoModelForCausalLM, AutoTokenizer
from typer.testing import CliRunner

from hierspec.cli.root import app
from hierspec.config.schema import TargetConfig
from hierspec.drafters.ngram_table import NgramModel
from hierspec.errors import HierspecError
from hierspec.lm.weights import WeightSource, build_hf_model, from_directory
from hierspec.presets.defaults import default_hierarchy
from hierspec.presets.registry import preset
from hierspec.profiling.candidates import choose_candidates
from hierspec.verifiers.formulas import overlap
from hierspec.zoo import fingerprint, registry
from hierspec.zoo.registry import resolve, table_path
from hierspec_lab.bench.methods.ours import shipped_drafts
from hierspec_lab.families import code
from hierspec_lab.families.code import DATA
from hierspec_lab.families.synthetic import Calibration, inflate, widen

SHIPPED = ("small", "mid", "trunk")
PROMPT = 'def add(a, b):\n    """Return the sum."""\n'
pytestmark = pytest.mark.usefixtures("global_generator_untouched")


def ids(length: int = 40, vocab: int = 4096) -> torch.Tensor:
    return torch.randint(vocab, (1, length), generator=torch.Generator().manual_seed(5))


# -- tokenizer ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        PROMPT,
        "class A:\n\tx = 1   # tabs,  runs   of spaces \n\n\n        deep\n            deeper\n",
        "naïve = 'żółć 漢字 🙂'\r\n\x00\x7f end ",
        " leading,   trailing   \n \n",
        "",
    ],
)
def test_tokenizer_loses_nothing(text: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(DATA)
    tokens = tokenizer(text)["input_ids"]
    assert tokenizer.decode(tokens) == text
    assert tokenizer.decode(tokens, skip_special_tokens=True) == text


def test_tokenizer_knows_indentation_and_the_end() -> None:
    tokenizer = AutoTokenizer.from_pretrained(DATA)
    assert tokenizer.eos_token == "<|endoftext|>"
    assert tokenizer("<|endoftext|>")["input_ids"] == [tokenizer.eos_token_id]
    assert len(tokenizer) == 4096
    for width in (4, 8, 12, 16):
        assert len(tokenizer(" " * width)["input_ids"]) == 1
    prompt, rest = tokenizer(PROMPT)["input_ids"], tokenizer("    return a + b\n")["input_ids"]
    assert tokenizer(PROMPT + "    return a + b\n")["input_ids"] == prompt + rest


# -- checkpoints --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_checkpoints_load_in_transformers(name: str) -> None:
    source = resolve(f"zoo:{name}")
    assert isinstance(source, WeightSource)
    assert source.name == f"zoo:{name}"
    model = AutoModelForCausalLM.from_pretrained(DATA / name, dtype=torch.float32)
    built = build_hf_model(source)
    with torch.no_grad():
        torch.testing.assert_close(built(ids()).logits, model(ids()).logits)
        assert built.lm_head.weight is built.model.embed_tokens.weight
    assert AutoTokenizer.from_pretrained(source.tokenizer_path).vocab_size == 4096


def test_the_zoo_is_small() -> None:
    files = [file for file in DATA.rglob("*") if file.is_file() and ".training" not in file.parts]
    assert max(file.stat().st_size for file in files) < 16 * 2**20
    weights = [file for file in files if file.suffix == ".safetensors"]
    assert sum(file.stat().st_size for file in weights) < 80_000_000
    assert sum(file.stat().st_size for file in files) < 80_500_000  # tokenizer, cards, curves
    assert table_path("zoo:ngram").stat().st_size < 1_500_000


def test_shipped_table_fits_the_vocabulary() -> None:
    assert NgramModel.load(table_path("zoo:ngram"), max_order=3).vocab_size == 4096


def test_a_damaged_calibration_is_named(tmp_path: Path) -> None:
    assert Calibration.load(tmp_path, 2) == Calibration(1.0, (1.0, 1.0))
    (tmp_path / "large.json").write_text('{"scale": 0.5, "residual_rms": [2, 3.5], "of": "trunk"}')
    assert Calibration.load(tmp_path, 2) == Calibration(0.5, (2.0, 3.5))
    (tmp_path / "large.json").write_text('{"scale": 0.5}')
    with pytest.raises(ValueError, match=r"large\.json: 'residual_rms' is missing: write it again"):
        Calibration.load(tmp_path, 2)


def test_damaged_checkpoints_are_explained(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"config\.json"):
        from_directory(tmp_path)
    folder = tmp_path / "trunk"
    shutil.copytree(DATA / "trunk", folder)
    shard = folder / "model-00002-of-00003.safetensors"
    whole = shard.read_bytes()
    shard.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"00002.*damaged.*again"):
        from_directory(folder)
    shard.unlink()
    with pytest.raises(ValueError, match=r"00002.*missing"):
        from_directory(folder)
    shutil.copy(folder / "model-00001-of-00003.safetensors", shard)
    with pytest.raises(ValueError, match="lacks"):
        from_directory(folder)


def test_registry_errors_say_what_there_is(tmp_path: Path, monkeypatch) -> None:
    with pytest.raises(ValueError, match="zoo:small, zoo:mid, zoo:trunk, zoo:large"):
        resolve("zoo:huge")
    with pytest.raises(ValueError, match="ngram_table"):
        resolve("zoo:ngram")
    with pytest.raises(ValueError, match="it has: eps, seed, widen, deepen"):
        resolve("zoo:large?epsilon=1")
    for wrong in ("eps=much", "widen=wide", "widen=2.5", "deepen="):
        with pytest.raises(ValueError, match="is not a number"):
            resolve(f"zoo:large?{wrong}")
    for wrong in ("widen=0", "widen=1", "widen=3", "widen=-2", "widen=12"):
        with pytest.raises(ValueError, match=r"widen .* power of two, at least 2"):
            resolve(f"zoo:large?{wrong}")
    for wrong in ("deepen=0", "deepen=1", "deepen=-3"):
        with pytest.raises(ValueError, match=r"deepen .* at least 2"):
            resolve(f"zoo:large?{wrong}")
    with pytest.raises(ValueError, match="has no options"):
        resolve("zoo:mid?eps=1")
    with pytest.raises(ValueError, match="zoo:ngram"):
        table_path("nowhere")
    with pytest.raises(KeyError):
        resolve("zoo:large").tensor("model.layers.99.mlp.up_proj.weight")
    monkeypatch.setattr(code, "DATA", tmp_path)
    with pytest.raises(ValueError, match="zoo train"):
        resolve("zoo:mid")


# -- zoo:large ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tiny_zoo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trunk of random weights, as deep as the shipped one."""
    folder = tmp_path_factory.mktemp("zoo")
    sizes = {"vocab_size": 384, "num_key_value_heads": 4, "tie_word_embeddings": True}
    save_tiny("llama", folder / "trunk", layers=8, dtype=torch.bfloat16, **sizes)
    return folder


def test_widening_is_exact_in_bfloat16() -> None:
    weight = torch.randn(24, 16, generator=torch.Generator().manual_seed(0)).bfloat16()
    weight[0, 0] = 0.0
    wide = widen(weight, torch.Generator().manual_seed(1))
    assert wide.shape == (48, 32)
    for rows in (wide[:24], wide[24:]):
        assert torch.equal(rows[:, :16].double() + rows[:, 16:].double(), weight.double())
    assert not torch.equal(wide[:24], wide[24:])


def test_without_eps_large_is_the_trunk(tiny_zoo: Path, monkeypatch) -> None:
    monkeypatch.setattr(code, "DATA", tiny_zoo)
    trunk = resolve("zoo:trunk")
    small, large = build_hf_model(trunk), build_hf_model(inflate(trunk, tiny_zoo, eps=0.0, seed=7))
    tokens = ids(vocab=384)
    with torch.no_grad():
        a = small(tokens, output_hidden_states=True)
        b = large(tokens, output_hidden_states=True)
    torch.testing.assert_close(a.logits, b.logits, atol=1e-4, rtol=1e-4)
    for exit_layer in (1, 2, 4):  # an exit of the trunk is one of the large model, twice as deep
        before, after = a.hidden_states[exit_layer], b.hidden_states[2 * exit_layer]
        torch.testing.assert_close(before.repeat(1, 1, 2), after, atol=1e-4, rtol=1e-4)


def test_shipped_large_without_eps_is_the_trunk() -> None:
    one, two = (build_hf_model(resolve(name)) for name in ("zoo:trunk", "zoo:large?eps=0"))
    with torch.no_grad():
        p, q = (model(ids()).logits[0].softmax(-1) for model in (one, two))
    assert float(overlap(p, q).mean()) > 1 - 1e-4


def test_large_is_decided_by_its_seed_and_made_lazily() -> None:
    one, again, other = (resolve(f"zoo:large?eps=0.2&seed={seed}") for seed in (1, 1, 2))
    assert one.config.hidden_size == 768
    assert 110e6 < sum(one.tensor(n).numel() for n in one.names() if "layers.3." in n) * 16 < 120e6
    for layer in (0, 1):
        name = f"model.layers.{layer}.mlp.up_proj.weight"
        assert torch.equal(one.tensor(name), again.tensor(name))
        assert not torch.equal(one.tensor(name), other.tensor(name))
        assert one.tensor(name).dtype == torch.bfloat16


DEFAULT_BITS = {  # of zoo:large?eps=0.2&seed=3, when it could be made in this size only
    "model.embed_tokens.weight": "7ffb07d226d4eeef",
    "model.norm.weight": "ae136798ed306bfb",
    "model.layers.0.self_attn.q_proj.weight": "fb7950ba28b39d31",
    "model.layers.5.self_attn.o_proj.weight": "97c0212f66de827a",
    "model.layers.14.mlp.gate_proj.weight": "53476f5a3e94101d",
    "model.layers.15.mlp.down_proj.weight": "5a35a8c8ef96c9e9",
}


@pytest.mark.parametrize("options", ["", "&widen=2&deepen=2"])
def test_twice_as_wide_and_deep_is_bit_for_bit_what_it_was(options: str) -> None:
    large = resolve(f"zoo:large?eps=0.2&seed=3{options}")
    assert large.name == "zoo:large?eps=0.2&seed=3"
    for name, expected in DEFAULT_BITS.items():
        bits = large.tensor(name).contiguous().view(torch.int16).numpy().tobytes()
        assert hashlib.sha256(bits).hexdigest()[:16] == expected, name


@pytest.mark.parametrize(("widen", "deepen"), [(4, 2), (2, 3), (8, 3)])
def test_any_size_without_eps_is_the_trunk(
    tiny_zoo: Path, monkeypatch, widen: int, deepen: int
) -> None:
    monkeypatch.setattr(code, "DATA", tiny_zoo)
    trunk = resolve("zoo:trunk")
    name = f"zoo:large?eps=0&seed=7&widen={widen}&deepen={deepen}"
    source = resolve(name)
    assert source.name == name
    assert source.config.hidden_size == widen * trunk.config.hidden_size
    assert source.config.num_hidden_layers == deepen * trunk.config.num_hidden_layers
    small, large = build_hf_model(trunk), build_hf_model(source)
    tokens = ids(vocab=384)
    with torch.no_grad():
        a = small(tokens, output_hidden_states=True)
        b = large(tokens, output_hidden_states=True)
    torch.testing.assert_close(a.logits, b.logits, atol=1e-4, rtol=1e-4)
    for exit_layer in (1, 2, 4):
        before, after = a.hidden_states[exit_layer], b.hidden_states[deepen * exit_layer]
        torch.testing.assert_close(before.repeat(1, 1, widen), after, atol=1e-4, rtol=1e-4)


def test_width_changes_the_cost_and_not_the_law(tiny_zoo: Path, monkeypatch) -> None:
    monkeypatch.setattr(code, "DATA", tiny_zoo)
    two, eight, trunk = (
        build_hf_model(resolve(name))(ids(vocab=384)).logits.detach()
        for name in ("zoo:large?eps=2", "zoo:large?eps=2&widen=8", "zoo:trunk")
    )
    torch.testing.assert_close(two, eight, atol=1e-3, rtol=1e-3)
    assert (two - trunk).abs().max() > 0.1  # random branches matter at this eps


def test_branches_after_one_layer_share_the_deviation() -> None:
    one, four = (resolve(f"zoo:large?eps=0.2&deepen={1 + n}") for n in (1, 4))
    for part in ("self_attn.o_proj", "mlp.down_proj"):
        alone = one.tensor(f"model.layers.7.{part}.weight").float().square().mean()
        shared = [
            four.tensor(f"model.layers.{layer}.{part}.weight").float().square().mean()
            for layer in range(16, 19)  # of trunk layer 3, as layer 7 above
        ]
        for each in shared:
            assert 4 * each.item() == pytest.approx(alone.item(), rel=0.02)


# -- command line -------------------------------------------------------------------------------


def test_list_and_card() -> None:
    listed = CliRunner().invoke(app, ["zoo", "list"])
    assert listed.exit_code == 0
    assert {"zoo:smollm2", "zoo:small", "zoo:mid", "zoo:trunk"} <= {*listed.output.split()}
    card = CliRunner().invoke(app, ["zoo", "card", "--plain"])
    assert card.exit_code == 0
    assert "Acceptance" in card.output


def test_a_shipped_head_names_the_model_that_it_was_trained_on():
    known = json.loads((DATA / "mid-acceptance" / "acceptance_head.json").read_text())
    assert known["fingerprint"] == fingerprint.compute("zoo:mid")


def test_presets_draft_with_the_smaller_models_of_the_family():
    def drafts(target):
        levels = default_hierarchy(TargetConfig(model=target)).levels
        return [level.model for level in levels if level.method == "draft_model"]

    assert drafts("zoo:large") == drafts("zoo:large?eps=0.2") == ["zoo:small", "zoo:trunk"]
    assert drafts("zoo:trunk") == drafts("zoo:mid") == ["zoo:small"]
    assert drafts("zoo:small") == []
    assert preset("speculative", "zoo:large?eps=0.2").levels[0].model == "zoo:trunk"
    assert preset("speculative", "zoo:trunk").levels[0].model == "zoo:small"
    with pytest.raises(HierspecError, match=r"'speculative' needs a draft model .* add --draft"):
        preset("speculative", "zoo:small")
    assert shipped_drafts("zoo:mid") == ("zoo:small",)
    assert shipped_drafts("zoo:small") == shipped_drafts("a/model") == ()


def test_what_auto_tries_below_its_models():
    def names(target, *drafts):
        config = TargetConfig(model=target)
        return [candidate.name for candidate in choose_candidates(config, drafts)]

    family = ["zoo:small", "zoo:mid", "zoo:trunk"]
    assert names("zoo:large?eps=0.2") == ["ngram", *family, "prompt-lookup"]
    assert "exit:4" in names("zoo:trunk")
    assert not {"zoo:trunk", "zoo:large"} & set(names("zoo:trunk"))
    assert "zoo:small" not in names("zoo:small")
    assert names("zoo:large", "zoo:mid") == ["ngram", "prompt-lookup", "zoo:mid"]
    assert registry.family("zoo:large?eps=0.1") == registry.family("zoo:ngram") == "code"
