"""Training EAGLE-3: unrolled steps are those of drafts, and what is learnt is kept."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from eagle3_cases import LAYERS, reference, save_drafter
from tiny_models import save_tiny
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from hierspec import Hierarchy
from hierspec.errors import HierspecError
from hierspec.lm.eagle3 import checkpoint
from hierspec.lm.load import load
from hierspec_lab.training import texts
from hierspec_lab.training.eagle3 import start
from hierspec_lab.training.eagle3.measure import tokens_of_round
from hierspec_lab.training.eagle3.network import Eagle3Network
from hierspec_lab.training.eagle3.optimiser import AveragingAdamW
from hierspec_lab.training.eagle3.settings import Eagle3Settings
from hierspec_lab.training.eagle3.train import train
from hierspec_lab.training.eagle3.unroll import unroll
from hierspec_lab.training.store import FeatureStore

WORDS = [f"w{i}" for i in range(90)]
TEMPLATE = (
    "{% for m in messages %}<s> {{ m['role'] }} {{ m['content'] }} </s> {% endfor %}"
    "{% if add_generation_prompt %}<s> assistant {% endif %}"
)
QUICK = {"draft_vocab": 40, "feature_layers": LAYERS, "depth": 3, "learning_rate": 3e-3}


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny target with a chat template."""
    folder = save_tiny(
        "llama", tmp_path_factory.mktemp("eagle3") / "target", layers=4, dtype=torch.float32
    )
    words = ["<pad>", "<s>", "</s>", "user", "assistant", "<unk>", *WORDS]
    tokenizer = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>", unk_token="<unk>")
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def tokenizer(target: Path) -> Any:
    return PreTrainedTokenizerFast.from_pretrained(target)


@pytest.fixture(scope="module")
def chats(target: Path) -> Path:
    """Conversations in words of their own, more than enough for one to be held out."""
    g = torch.Generator().manual_seed(0)

    def said(n: int) -> str:
        return " ".join(WORDS[i] for i in torch.randint(0, 30, (n,), generator=g).tolist())

    path = target.parent / "chats.jsonl"
    lines = [
        {"messages": [{"role": r, "content": said(n)} for r, n in (("user", 4), ("assistant", 9))]}
        for _ in range(60)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_the_store_goes_on_after_an_interruption(target, tokenizer, chats, tmp_path):
    backend: Any = load(target, backend="lean")
    first = FeatureStore(tmp_path / "f", backend, LAYERS, 2**30)
    every = list(texts.read([chats], tokenizer, (), 64))
    first.extend(every[:5])
    with (tmp_path / "f" / "features.bin").open("ab") as file:
        file.write(b"cut short")
    again = FeatureStore(tmp_path / "f", backend, LAYERS, 2**30)
    again.extend(text for text in every if text.key not in again.keys)
    assert [text.key for text in again.texts] == [text.key for text in every]
    for number in (0, 5, len(every) - 1):
        ids = torch.tensor([every[number].ids])
        plain = AutoModelForCausalLM.from_pretrained(target)
        with torch.no_grad():
            states = plain(ids, output_hidden_states=True).hidden_states
        found = again.features(number, 0, ids.shape[1])
        for part, layer in enumerate(LAYERS):
            torch.testing.assert_close(found[:, part], states[layer][0], rtol=1e-2, atol=1e-2)
    index = tmp_path / "f" / "texts.jsonl"
    index.write_text(index.read_text()[:-9])  # cut short, too: what is added later stays readable
    cut = FeatureStore(tmp_path / "f", backend, LAYERS, 2**30)
    cut.extend(text for text in every if text.key not in cut.keys)
    assert FeatureStore(tmp_path / "f", backend, LAYERS, 2**30).texts == cut.texts == every
    small = FeatureStore(tmp_path / "g", backend, LAYERS, 50 * 4 * 32 * 2)
    small.extend(every)
    assert small.tokens <= 50


def test_unrolled_steps_are_those_of_drafts(tmp_path):
    folder = save_tiny("llama", tmp_path / "target", layers=4)
    plain = AutoModelForCausalLM.from_pretrained(folder).eval()
    drafter = save_drafter(tmp_path / "drafter", plain.config)
    network = Eagle3Network.of(checkpoint.read_network(drafter)).double()
    ids = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8]
    with torch.no_grad():
        states = plain(torch.tensor([ids]), output_hidden_states=True).hidden_states
        features = torch.cat([states[i][:, :-2] for i in LAYERS], -1)
        embedded = plain.get_input_embeddings()(torch.tensor([ids[1:-1]]))
        is_predicted = torch.ones(1, len(ids) - 2, dtype=torch.bool)
        is_predicted[0, :3] = False
        steps = list(unroll(network, features, embedded, is_predicted, 4))
    for step, (rows, scores) in enumerate(steps):
        assert rows.tolist() == list(range(3 + step, len(ids) - 2))
        for row, found in zip(rows.tolist(), scores, strict=True):
            border = row - step + 2  # so much was committed when the draft began
            wanted = reference(plain, drafter, ids[:border], ids[border : row + 2])
            torch.testing.assert_close(found, wanted[network.scored_ids], rtol=1e-5, atol=1e-5)


def test_training_resumes_and_what_it_writes_drafts(target, chats, tmp_path, monkeypatch):
    settings = Eagle3Settings(**QUICK, steps=60, batch=128)
    out = tmp_path / "drafter"
    with pytest.raises(KeyboardInterrupt):
        train(str(target), settings, out, [chats], stop_after=20)
    assert not out.exists()
    out.mkdir()
    own = {"architectures": ["LlamaForCausalLMEagle3"]}  # as after the first measuring on the way
    (out / "config.json").write_text(json.dumps(own))
    with monkeypatch.context() as patch:
        patch.setattr(start, "most_frequent_ids", None)  # its rows keep their tokens
        info = train(str(target), settings, out, [chats])
    before, after = (info[when]["held out"] for when in ("before", "figures"))
    assert after["acceptance"][0] > before["acceptance"][0]
    assert len(after["agreement"]) == 3
    assert not out.with_name("drafter.training").exists()
    written = json.loads((out / "hierspec.json").read_text())
    assert written["steps"] == 60
    (measured,) = written["measured"]
    assert (measured["step"], measured["figures"]) == (60, written["figures"])
    assert measured["tokens"] > written["tokens"]  # it saw each text more than once
    first, *_, last = (line["tv@0"] for line in written["curve"])
    assert 0 < last < first < 1
    assert {"watch": 0, "measure": 15}.items() <= written["settings"].items()  # keys of old files
    with pytest.raises(HierspecError, match="holds a drafter already"):
        train(str(target), settings, out, [chats])
    level = {"method": "eagle3", "model": str(out), "num_speculative_tokens": 3}
    top = {"model": str(target), "dtype": "float32"}
    built = Hierarchy.from_config({"target": top, "levels": [level]})
    plain = Hierarchy.from_config({"target": top, "levels": []})
    prompts = [[1, 3, 9, 8, 2, 1, 4], [1, 3, 20, 2, 1, 4]]
    options = {"max_new_tokens": 12, "ignore_eos": True}
    assert [r.token_ids for r in built.generate_batch(prompts, **options)] == [
        r.token_ids for r in plain.generate_batch(prompts, **options)
    ]
    unknown = {"start_from": Path("zoo:smollm2-eagle")}
    with pytest.raises(HierspecError, match="no trained drafter called 'zoo:smollm2-eagle'"):
        train(str(target), settings, tmp_path / "more", [chats], **unknown)
    # On with what there is: its weights and vocabulary.
    more = Eagle3Settings(**QUICK, steps=1, batch=128)
    again = train(str(target), more, tmp_path / "more", [chats], start_from=out)
    assert again["before"]["held out"]["acceptance"] == pytest.approx(after["acceptance"], abs=0.02)


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_drafter_is_not_written_over_a_model(target, chats, tmp_path, overwrite):
    model = tmp_path / "model"
    shutil.copytree(target, model)
    before = {file: file.read_bytes() for file in model.iterdir()}
    settings = Eagle3Settings(**QUICK, steps=1, batch=128)
    with pytest.raises(HierspecError, match="no EAGLE-3 drafter: name a new folder"):
        train(str(target), settings, model, [chats], overwrite=overwrite)
    assert {file: file.read_bytes() for file in model.iterdir()} == before


def test_overwriting_goes_on_where_it_stopped(target, chats, tmp_path):
    """And another drafter's training is not taken up."""
    settings, out = Eagle3Settings(**QUICK, steps=30, batch=128), tmp_path / "drafter"
    folder = tmp_path / "drafter.training"
    train(str(target), Eagle3Settings(**QUICK, steps=1, batch=128), out, [chats])
    with pytest.raises(KeyboardInterrupt):
        train(str(target), settings, out, [chats], overwrite=True, stop_after=10)
    (folder / "kept").touch()
    with pytest.raises(KeyboardInterrupt):
        train(str(target), settings, out, [chats], overwrite=True, stop_after=20)
    assert (folder / "kept").exists()
    other = Eagle3Settings(**{**QUICK, "feature_layers": (1, 2, 4)}, steps=1, batch=128)
    more = {"features": tmp_path / "others"}
    with pytest.raises(HierspecError, match="--feature-layers was 1,2,3, is 1,2,4"):
        train(str(target), other, tmp_path / "drafter", [chats], **more)
    shutil.rmtree(out)  # its first writing was cut
    out.mkdir()
    (out / ".model.safetensors.0.tmp").touch()
    assert train(str(target), settings, out, [chats])["steps"] == 30
    with pytest.raises(KeyboardInterrupt):
        train(str(target), settings, out, [chats], overwrite=True, stop_after=10)
    train(str(target), other, out, [chats], **more, overwrite=True)  # gives that up
    assert not folder.exists()


def test_what_is_held_out_was_not_learnt_from(target, chats, tmp_path):
    settings, told = Eagle3Settings(**QUICK, steps=1, batch=128), []
    features = tmp_path / "features"
    small = Eagle3Settings(**QUICK, steps=1, batch=128, store_gib=1e-9)
    with pytest.raises(HierspecError, match="give a larger --store-gib"):
        train(str(target), small, tmp_path / "none", [chats], features=tmp_path / "small")
    train(str(target), settings, tmp_path / "one", [chats], features=features, tell=told.append)
    assert not any("--store-gib" in line for line in told)
    with pytest.raises(HierspecError, match="is to be held out"):
        train(str(target), settings, tmp_path / "two", [chats], [chats], features=features)


def test_trainings_that_share_features_learn_from_their_own_texts(target, chats, tmp_path):
    settings = Eagle3Settings(**QUICK, steps=1, batch=128)
    lines = chats.read_text().splitlines(keepends=True)
    files = tmp_path / "a.jsonl", tmp_path / "b.jsonl", tmp_path / "c.jsonl"
    for path, own in zip(files, (lines[:25], lines[20:40], lines[40:]), strict=True):
        path.write_text("".join(own))
    a, b, c = files

    def read_and_measured(out, *more, **options):
        info = train(str(target), settings, tmp_path / out, *more, **options)
        return info["tokens"], {group: part["texts"] for group, part in info["figures"].items()}

    shared = {"features": tmp_path / "features"}
    cases = [("one", [a], [b]), ("two", [a, c], []), ("three", [b], [])]
    for out, *texts_of_it in cases:
        alone = read_and_measured(f"{out} alone", *texts_of_it)
        assert read_and_measured(f"{out} beside others", *texts_of_it, **shared) == alone


def test_weights_are_averaged_over_the_last_tenth_of_the_steps():
    """Step i of t counts as much as the product of (j - 1) / (j + 9) over the j after it."""
    p = torch.nn.Parameter(torch.tensor([1.0, -2.0]))
    optimiser, values = AveragingAdamW([p], 0.1), []
    for _ in range(200):
        p.grad = torch.randn(2, generator=torch.Generator().manual_seed(len(values)))
        optimiser.step()
        values.append(p.detach().clone())
    weights, left = [], 1.0
    for t in range(200, 0, -1):
        weights.append(left * 10 / (t + 9))
        left *= (t - 1) / (t + 9)
    mean = sum(w * value for w, value in zip(weights, reversed(values), strict=True))
    with optimiser.averages_in_place():
        torch.testing.assert_close(p.detach(), mean)
    assert torch.equal(p, values[-1])
    assert sum(weights) == pytest.approx(1)
    assert sum(weights[:40]) > 0.85


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"depth": 0}, "depth must be above 0"),
        ({"feature_layers": (1, 2)}, "three different layers"),
        ({"minutes": -1.0}, "minutes must be above 0"),
    ],
)
def test_settings_are_checked(wrong, message):
    with pytest.raises(HierspecError, match=message):
        Eagle3Settings(**wrong)


def test_tokens_of_a_round_by_hand():
    kept = torch.tensor([[0.5, 0.5, 1.0], [1.0, 0.0, 1.0]])
    assert tokens_of_round(kept).tolist() == [1 + 0.5 + 0.25 + 0.25, 2.0]
    assert tokens_of_round(torch.ones(3, 0)).tolist() == [1.0] * 3
