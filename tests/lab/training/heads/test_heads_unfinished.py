"""An interrupted training of heads is gone on with, or given up when told so; never lost."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from tiny_models import save_tiny

from hierspec.cli import run
from hierspec_lab.training.heads.settings import HeadsSettings
from hierspec_lab.training.heads.train import train


def quick(**changed: Any) -> HeadsSettings:
    settings = HeadsSettings(exits=(1, 2), tokens=600, width=16, rows=4, steps=8)
    return dataclasses.replace(settings, **changed)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Two models alike but for their weights."""
    folder = tmp_path_factory.mktemp("models")
    return [str(save_tiny("llama", folder / str(seed), seed=seed)) for seed in (1, 2)]


@pytest.fixture
def cut(pair, tmp_path) -> Path:
    """The output of a training that was interrupted after five steps."""
    path = tmp_path / "h.safetensors"
    with pytest.raises(KeyboardInterrupt):
        train(pair[0], quick(), path, stop_after=5)
    return path


def kept(path: Path) -> dict[str, bytes]:
    folder = path.with_name(f"{path.name}.training")
    return {file.name: file.read_bytes() for file in folder.iterdir()}


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"steps": 2}, r"\(--steps was 8, is 2\)"),
        ({"steps": None, "learning_rate": 1.0}, r"--lr was 0.0002, is 1.0, --steps was 8, is not"),
        ({"exits": (1,)}, r"\(--exits was 1,2, is 1\)"),
        ({"seed": 3}, r"\(--seed was 0, is 3\)"),
    ],
)
def test_other_settings_are_refused_and_nothing_is_lost(pair, cut, monkeypatch, changed, says):
    before = kept(cut)
    with monkeypatch.context() as patch, pytest.raises(ValueError, match=says) as error:  # noqa: PT012
        patch.setattr(
            "hierspec_lab.training.heads.train.load_model", None
        )  # refused before a model is loaded
        train(pair[0], quick(**changed), cut)
    assert "or --overwrite to give it up" in str(error.value)
    assert "\n" not in str(error.value)
    assert kept(cut) == before
    assert train(pair[0], quick(), cut).info.steps == 8


def test_another_model_or_data_type_is_refused(pair, cut):
    with pytest.raises(ValueError, match=r"--model was .*1, is .*2"):
        train(pair[1], quick(), cut)
    with pytest.raises(ValueError, match="--dtype was auto, is float32"):
        train(pair[0], quick(), cut, dtype="float32")


def test_other_weights_are_refused(pair, cut, monkeypatch):
    before = kept(cut)
    monkeypatch.setattr("hierspec.zoo.fingerprint.compute", lambda model: "others")
    with pytest.raises(ValueError, match=r"\(the model's weights\)"):
        train(pair[0], quick(), cut)
    assert kept(cut) == before


def test_texts_that_changed_are_refused(tmp_path, capsys):
    path, text = tmp_path / "h.safetensors", tmp_path / "text.jsonl"
    argv = ["heads", "train", str(text), "--model", "zoo:small", "--exits", "1", "-o", str(path)]
    argv += ["--steps", "2", "--tokens", "600", "--width", "16"]
    write = [json.dumps(f"def f{i}(x): return x + {i}\n" * 20) for i in range(9)]
    text.write_text("\n".join(write))
    settings = HeadsSettings(exits=(1,), steps=2, tokens=600, width=16)
    with pytest.raises(KeyboardInterrupt):
        train("zoo:small", settings, path, [text], stop_after=1)
    text.write_text("\n".join(reversed(write)))
    before = kept(path)
    assert run(argv) == 2
    assert "other settings (the texts): give the same" in capsys.readouterr().err
    assert kept(path) == before
    assert run([*argv, "--overwrite"]) == 0


def test_the_way_out_starts_afresh(pair, cut):
    heads = train(pair[0], quick(steps=2), cut, overwrite=True)
    assert heads.info.steps == 2
    assert not cut.with_name(f"{cut.name}.training").exists()


def test_what_the_model_wrote_is_not_lost_either(pair, tmp_path, monkeypatch):
    path = tmp_path / "h.safetensors"

    def stop(*args: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):  # noqa: PT012
        patch.setattr("hierspec_lab.training.heads.data.split_texts", stop)
        train(pair[0], quick(), path)
    with pytest.raises(ValueError, match=r"\(--seed was 0, is 1\)"):
        train(pair[0], quick(seed=1), path)
    # More steps of the same texts lose nothing.
    assert train(pair[0], quick(steps=9), path).info.steps == 9


def test_a_damaged_record_is_refused(pair, cut):
    (cut.with_name(f"{cut.name}.training") / "settings.json").write_text("{")
    with pytest.raises(ValueError, match=r"settings\.json: not valid JSON.*: delete .*\.training$"):
        train(pair[0], quick(), cut)
