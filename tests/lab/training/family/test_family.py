"""The shipped family made again: its corpus, its training, and what an interruption leaves."""

import json
from pathlib import Path

import pytest
import torch

from hierspec.drafters.ngram_table import NgramModel
from hierspec.lm.weights import build_hf_model, from_directory
from hierspec.zoo.registry import resolve, table_path
from hierspec_lab.families import code
from hierspec_lab.training.family import build
from hierspec_lab.training.family.build import train
from hierspec_lab.training.family.corpus import Document, functions_with_docstrings, load_corpus
from hierspec_lab.training.family.evaluate import load_llama
from hierspec_lab.training.family.export import model_card

pytestmark = pytest.mark.usefixtures("global_generator_untouched")


@pytest.fixture(scope="session")
def quick_zoo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shipped family made again in its smallest form, in seconds."""
    folder = tmp_path_factory.mktemp("zoo")
    train(folder, quick=True)
    return folder


@pytest.mark.parametrize("name", ["small", "mid", "trunk"])
def test_what_is_trained_is_what_transformers_runs(name: str) -> None:
    source = resolve(f"zoo:{name}")
    ids = torch.randint(4096, (1, 40), generator=torch.Generator().manual_seed(5))
    trained = load_llama(source, torch.float32)
    with torch.no_grad():
        expected = build_hf_model(source)(ids).logits
        torch.testing.assert_close(trained.logits(trained(ids)[-1]), expected, atol=2e-4, rtol=1e-4)


def test_corpus_split_is_decided_by_names() -> None:
    once, again = load_corpus(max_files=200), load_corpus(max_files=200)
    assert once == again
    names = [{d.name for d in part} for part in (once.train, once.held_out)]
    assert names[0]
    assert names[1]
    assert not names[0] & names[1]
    assert all(d.held_out for d in once.held_out)
    assert not any("site-packages" in name or "_sysconfigdata" in name for name in names[0])


def test_functions_become_texts_of_their_own() -> None:
    text = 'import os\n\n@cache\ndef f(x):\n    """Doc."""\n    return x\n\ndef g(): pass\n'
    found = functions_with_docstrings(Document("m.py", text))
    assert found == ['@cache\ndef f(x):\n    """Doc."""\n    return x\n']
    assert functions_with_docstrings(Document("m.py", "def f(:")) == []


def test_an_interrupted_training_ends_the_same(
    tmp_path: Path, quick_zoo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    metrics = json.loads((quick_zoo / "metrics.json").read_text())
    monkeypatch.setattr(build, "measure", lambda *_: metrics)  # of models compared below
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, quick=True, stop_after=4)
    assert not (tmp_path / "trunk").exists()
    train(tmp_path, quick=True)
    for name in ("small", "mid", "trunk"):
        one, two = (from_directory(folder / name) for folder in (quick_zoo, tmp_path))
        for key in one.names():
            torch.testing.assert_close(one.tensor(key), two.tensor(key), msg=f"{name} {key}")


def test_a_training_with_another_seed_is_refused(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, quick=True, stop_after=2)
    with pytest.raises(ValueError, match=r"\(--seed was 0, is 1\): give .*--no-resume"):
        train(tmp_path, seed=1, quick=True, stop_after=4)
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, seed=1, quick=True, stop_after=2, resume=False)
    assert torch.load(tmp_path / ".training" / "trunk.pt")["step"] == 2


def test_a_quick_zoo_is_whole(quick_zoo: Path, monkeypatch) -> None:
    monkeypatch.setattr(code, "DATA", quick_zoo)
    metrics = json.loads((quick_zoo / "metrics.json").read_text())
    assert (quick_zoo / "MODEL_CARD.md").read_text() == model_card("family", metrics)
    assert metrics["plan"]["students"]["other_rate"] == 3e-3  # the key of old files
    result = metrics["evaluation"]
    assert {"ngram", "small", "mid", "trunk@1", "trunk@4", "trunk"} < set(result["names"])
    for matrix in result["acceptance"].values():
        assert all(0 <= x <= 1.0001 for row in matrix for x in row)
    assert NgramModel.load(table_path("zoo:ngram")).vocab_size == 384
    assert resolve("zoo:large").config.num_hidden_layers == 16
    assert not list(quick_zoo.rglob("*.tmp"))
