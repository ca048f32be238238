"""A small sibling: made of a larger model, trained, loaded, drafting; on a tiny stand-in."""

import dataclasses
import json
import math
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from chat_models import TURNS, save_chat
from safetensors.torch import load_file, save_file

from hierspec.api import Hierarchy
from hierspec.lm.backend import Span
from hierspec.lm.load import load
from hierspec.lm.weights import EMBEDDING, HEAD, SCORED, from_directory
from hierspec.zoo import registry, sibling
from hierspec_lab.bench.memory import count_parameters
from hierspec_lab.training.smollm2 import sibling as training
from hierspec_lab.training.smollm2.sibling import SiblingSettings
from hierspec_lab.training.store import FeatureStore
from hierspec_lab.training.texts import TrainingText

SETTINGS = SiblingSettings(size=(1, 16, 2, 16), vocabulary=64, minutes=0.02, batch=256)


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    """A tiny model with the shipped family's tokenizer and a chat template."""
    folder = tmp_path_factory.mktemp("model")
    return Path(save_chat(folder, TURNS, max_position_embeddings=1024))


@pytest.fixture(scope="module")
def conversations(tmp_path_factory) -> Path:
    path, rng = tmp_path_factory.mktemp("texts") / "answers.jsonl", random.Random(0)
    words = ["def", "self", "return", "value", "the", "list", "of", "names"]
    rows = []
    for number in range(120):
        asked, said = (" ".join(rng.choices(words, k=8)) for _ in range(2))
        messages = [
            {"role": "user", "content": f"{number} {asked}"},
            {"role": "assistant", "content": said},
        ]
        rows.append({"messages": messages, "domain": "code" if number % 2 else "chat"})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def trained(model: Path, conversations: Path, tmp_path_factory) -> tuple[Path, dict[str, Any]]:
    out = tmp_path_factory.mktemp("drafters") / "smollm2-sibling"
    return out, training.train(str(model), SETTINGS, out, [conversations])


def test_its_file_says_how_well_it_drafts(trained) -> None:
    folder, info = trained
    assert sibling.read_description(folder) == json.loads(json.dumps(info))
    assert info["size"] == "1x16"
    assert info["settings"]["other_rate"] == SETTINGS.adamw_rate  # the key of old files
    figures = info["figures"]
    assert set(figures) == {"all", "chat", "code"}
    assert figures["all"]["rows"] == figures["chat"]["rows"] + figures["code"]["rows"] > 0
    for one in figures.values():
        assert 0 < one["acceptance"] <= one["known"] <= 1
        assert 1 <= one["tokens_per_call"] <= 6


def test_it_is_made_of_the_larger_model(model: Path, trained) -> None:
    folder, _ = trained
    source, larger = registry.resolve(str(folder)), from_directory(model)
    own = load_file(folder / "model.safetensors")
    ids = own[sibling.VOCABULARY].long()
    assert len(ids) == 64
    assert torch.equal(source.tensor(SCORED), ids)
    seen = larger.tensor(EMBEDDING) @ own[sibling.EMBED_PROJECTION].float().T
    torch.testing.assert_close(source.tensor(EMBEDDING), seen)
    scored = larger.tensor(HEAD)[ids] @ own[sibling.HEAD_PROJECTION].float()
    torch.testing.assert_close(source.tensor(HEAD), scored)
    assert source.tokenizer_path == model
    # Weights in memory: as a Llama with the rows of its head that there are.
    stored = sum(source.tensor(name).numel() for name in source.names() if name != SCORED)
    assert count_parameters(str(folder)) == stored
    assert (
        count_parameters(str(folder), embedding=False) == stored - source.tensor(EMBEDDING).numel()
    )


@pytest.mark.parametrize("backend", ["lean", "deterministic"])
def test_it_scores_its_part_of_the_vocabulary_alone(trained, backend: str) -> None:
    folder, _ = trained
    source = registry.resolve(str(folder))
    loaded = load(source, torch.float32, backend=backend)
    span = [Span(loaded.new_cache(3), 0, 3)]
    h = loaded.layers(loaded.embed(torch.tensor([1, 2, 3]), span), 0, loaded.num_layers, span)
    scores = loaded.head(h)
    assert scores.shape == (3, 4096)
    known = torch.zeros(4096, dtype=torch.bool)
    known[source.tensor(SCORED)] = True
    assert scores[:, known].isfinite().all()
    assert bool((scores[:, ~known] == -math.inf).all())


def test_training_and_engine_compute_the_same(model: Path, trained) -> None:
    folder, _ = trained
    own = load_file(folder / "model.safetensors")
    ids = own[sibling.VOCABULARY].long()
    network: Any = training.initial_network(from_directory(model), SETTINGS, ids)
    network.set_tensors(own)
    network.dtype = torch.float32
    for name in ("embedding", "output", "cos", "sin"):
        setattr(network, name, getattr(network, name).float())
    text = torch.tensor([5, 9, 2, 77, 3])
    with torch.no_grad():
        mine = network(text[None])[-1][0] @ network.head().T
    engine = load(registry.resolve(str(folder)), torch.float32, backend="lean")
    span = [Span(engine.new_cache(5), 0, 5)]
    h = engine.layers(engine.embed(text, span), 0, engine.num_layers, span)
    # What training keeps of the model's matrices, and of rotations, is bfloat16.
    torch.testing.assert_close(mine, engine.head(h)[:, ids], atol=0.05, rtol=0.05)


def test_it_learns_the_larger_models_own_distributions(model: Path, tmp_path) -> None:
    source = from_directory(model)
    larger: Any = load(source, torch.float32, backend="lean")
    store, ids = FeatureStore(tmp_path, larger, (), 2**30), torch.arange(0, 4096, 3)
    rows = [(1, 2, 3, 4), (9, 8, 7)]
    store.extend(TrainingText(str(row), row, ((1, len(row)),), "") for row in rows)
    found = training.likeliest(store, ids)
    reference: Any = load(source, torch.float32, backend="deterministic")
    for start, row in zip(store.starts, rows, strict=True):
        span = [Span(reference.new_cache(len(row)), 0, len(row))]
        h = reference.embed(torch.tensor(row), span)
        scores = reference.head(reference.layers(h, 0, reference.num_layers, span))
        columns, probs = (of_all[start : start + len(row)] for of_all in found)
        expected = scores.softmax(-1).gather(1, ids[columns.long()])
        torch.testing.assert_close(probs.float(), expected, rtol=0.02, atol=1e-5)
        others = scores.softmax(-1)[:, ids].scatter(1, columns.long(), 0.0)
        assert bool((others.amax(-1) <= 1.02 * expected.amin(-1)).all())


@pytest.mark.parametrize("verify", ["block", "tokenwise"])
def test_a_draft_of_it_changes_no_text(model: Path, trained, verify: str) -> None:
    folder, _ = trained
    level = {"method": "draft_model", "model": str(folder), "num_speculative_tokens": 3}
    target = {"model": str(model), "dtype": "float32"}
    config = {"target": target, "levels": [level], "verify": verify}
    drafted = Hierarchy.from_config(config)
    plain = Hierarchy.from_config({"target": target, "levels": []})
    prompts = [[1, 2, 3], [40, 50, 60, 70], [9]]
    expected = [plain.generate(p, max_new_tokens=12, temperature=0.0).token_ids for p in prompts]
    found = drafted.generate_batch(prompts, max_new_tokens=12, temperature=0.0)
    assert [one.token_ids for one in found] == expected


def test_an_interrupted_training_goes_on(model: Path, conversations: Path, tmp_path) -> None:
    out = tmp_path / "smollm2-sibling"
    with pytest.raises(KeyboardInterrupt):
        training.train(str(model), SETTINGS, out, [conversations], stop_after=2)
    assert not out.exists()
    assert training.train(str(model), SETTINGS, out, [conversations])["steps"] > 2
    assert sibling.is_sibling(str(out))


def test_it_begins_with_the_weights_of_another(
    model: Path, conversations: Path, trained, tmp_path
) -> None:
    folder, _ = trained
    settings = dataclasses.replace(SETTINGS, vocabulary=80, minutes=1e-6)
    out = tmp_path / "smollm2-sibling"
    assert (
        training.train(str(model), settings, out, [conversations], start_from=folder)["steps"] == 1
    )
    own, new = (load_file(one / "model.safetensors") for one in (folder, out))
    assert len(new.pop(sibling.VOCABULARY)) == 80 > len(own.pop(sibling.VOCABULARY))
    for name, tensor in own.items():  # the one step, of a rate that is warming up, changes little
        assert float((new[name] - tensor).abs().max()) < 1e-3


def test_what_cannot_be_is_said_in_a_line(model: Path, trained, tmp_path, monkeypatch) -> None:
    folder, _ = trained
    with pytest.raises(ValueError, match="scores a part of its vocabulary") as caught:
        load(registry.resolve(str(folder)), torch.float32, backend="hf")
    assert "\n" not in str(caught.value)
    wide = dataclasses.replace(SETTINGS, size=(1, 4096, 2, 16))
    with pytest.raises(ValueError, match="wider than"):
        training.initial_network(from_directory(model), wide, torch.arange(4))
    broken = tmp_path / "broken"
    shutil.copytree(folder, broken)
    tensors = load_file(broken / "model.safetensors")

    def changed(**others: torch.Tensor) -> Any:
        save_file({**tensors, **others}, broken / "model.safetensors")
        return registry.resolve(str(broken))

    with pytest.raises(ValueError, match="ascending"):
        changed(vocabulary=tensors["vocabulary"].flip(0)).tensor(SCORED)
    with pytest.raises(ValueError, match="not below 4096"):
        changed(vocabulary=tensors["vocabulary"] + 4096).tensor(SCORED)
    with pytest.raises(ValueError, match="not of integers"):
        changed(vocabulary=tensors["vocabulary"] + 0.5).tensor(SCORED)
    projection = tensors[sibling.EMBED_PROJECTION]
    for bad in (projection * math.nan, projection.to(torch.int8)):
        with pytest.raises(ValueError, match="no finite numbers"):
            changed(**{sibling.EMBED_PROJECTION: bad}).tensor(EMBEDDING)
    with pytest.raises(ValueError, match="has shape"):
        changed(**{sibling.EMBED_PROJECTION: torch.zeros(3, 3)}).tensor(EMBEDDING)
    save_file({k: v for k, v in tensors.items() if k != "vocabulary"}, broken / "model.safetensors")
    with pytest.raises(ValueError, match="vocabulary is missing"):
        registry.resolve(str(broken))
    (broken / sibling.FILE).write_text("{}")
    with pytest.raises(ValueError, match="does not name the larger model"):
        registry.validate(str(broken))
    (broken / sibling.FILE).write_text(json.dumps({"schema_version": 9, "model": "x"}))
    with pytest.raises(ValueError, match="schema version 9"):
        registry.resolve(str(broken))
    for model in ("", str(broken), "/nowhere/x", "zoo:nope"):
        (broken / sibling.FILE).write_text(json.dumps({"schema_version": 1, "model": model}))
        for ask in (registry.validate, registry.resolve):
            with pytest.raises(
                ValueError, match=r"sibling\.json names .* as the larger model"
            ) as e:
                ask(str(broken))
            assert "\n" not in str(e.value)
    (broken / sibling.FILE).write_text("[" * 100_000)
    with pytest.raises(ValueError, match="no usable sibling"):
        registry.resolve(str(broken))
    (broken / sibling.FILE).write_text("no JSON")
    with pytest.raises(ValueError, match="no usable sibling"):
        registry.resolve(str(broken))
