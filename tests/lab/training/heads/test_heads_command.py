"""``hierspec heads``: train, show, and mistakes in a line."""

import json
from typing import Any

import pytest

from hierspec.cli import run
from hierspec_lab.training.heads.frozen import Frozen
from hierspec_lab.training.models import output_file


def test_train_and_show(models, tmp_path, capsys) -> None:
    path = tmp_path / "h.safetensors"
    argv = ["heads", "train", "--model", str(models["gpt2"]), "--exits", "2,1", "-o", str(path)]
    small = ["--steps", "2", "--tokens", "600", "--width", "16", "--kind", "full"]
    assert run([*argv, *small, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["exits"] == [1, 2]
    assert (printed["kind"], printed["steps"]) == ("full", 2)
    assert run([*argv, *small]) == 2
    assert "--overwrite" in capsys.readouterr().err
    assert run(["heads", "show", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == printed
    assert run(["heads", "show", str(path)]) == 0
    assert "exit after layer" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--exits", "3"], "between 1 and 2"),
        (["--exits", "0"], "between 1 and 2"),
        (["--exits", "1,x"], "as in 2,4"),
        (["--exits", "1", "--kind", "tree"], "transform, full, mlp"),
        (["--exits", "1", "--loss", "mse"], "kl, tv"),
        (["--exits", "1", "--inner", "8"], "kind transform has none"),
        (["--exits", "1", "--vocabulary", "96"], "no part of the model's 96"),
        (["--exits", "1", "--lr", "0"], "learning_rate must be above 0"),
        (
            ["--exits", "1", "--dtype", "int8", "--overwrite"],
            "--dtype: unsupported dtype 'int8'",
        ),
        (["--exits", "1", "--width", "9999"], "smaller --width"),
        (["--exits", "1", "--texts", "nowhere.txt"], "cannot read texts from nowhere.txt"),
        (["--exits", "1", "--threads", "100000"], "--threads must lie between 1 and"),
        (["--exits", "1", "-o", "/proc/h.safetensors"], "directory); give another -o"),
        (["--exits", "1", "-o", "heads.pt"], "written as .safetensors"),
    ],
)
def test_mistakes_are_one_line(models, argv, message, capsys) -> None:
    assert run(["heads", "train", "--model", str(models["llama"]), *argv]) == 2
    err = capsys.readouterr().err
    assert message in err.strip().splitlines()[-1]
    assert "Loading weights" not in err
    assert not (models["llama"] / "exit_heads.safetensors").exists()


def test_the_shipped_family_is_not_written_into() -> None:
    with pytest.raises(ValueError, match="say where with -o"):
        output_file("zoo:mid", None, "exit_heads.safetensors", overwrite=False)


def test_interrupting_the_command_says_how_to_go_on(models, tmp_path, capsys, monkeypatch) -> None:
    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Frozen, "states", stop)
    path = tmp_path / "h.safetensors"
    argv = ["heads", "train", "--model", str(models["llama"]), "--exits", "1", "-o", str(path)]
    assert run([*argv, "--tokens", "600", "--width", "16"]) == 130
    assert "continues where it stopped" in capsys.readouterr().err
