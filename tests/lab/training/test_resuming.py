"""What an interrupted training has left behind is read again; a damaged file is named."""

import pytest

from hierspec.cli import run
from hierspec.errors import HierspecError
from hierspec_lab.training.fit import curve, drop_cut_line
from hierspec_lab.training.resuming import (
    compute_once,
    give_up,
    save_settings,
    validate_settings,
)


def test_what_took_long_is_computed_once(tmp_path):
    path = tmp_path / "scale.json"
    assert compute_once(list[float], path, lambda: [0.5, 2.0]) == [0.5, 2.0]
    assert compute_once(list[float], path, list) == [0.5, 2.0]
    for content, reason in [("[0.5, ", "not valid JSON"), ('["a"]', r"\[0\] must be a number")]:
        path.write_text(content)
        with pytest.raises(HierspecError, match=rf"scale\.json: {reason}.*: delete it$"):
            compute_once(list[float], path, list)


def test_settings_are_an_object(tmp_path):
    save_settings(tmp_path, {"model": "a"})
    validate_settings(tmp_path, {"model": "a", "seed": 3}, "--overwrite")
    (tmp_path / "settings.json").write_text('["model"]')
    with pytest.raises(HierspecError, match=r"settings\.json: it must be an object.*: delete"):
        validate_settings(tmp_path, {"model": "a"}, "--overwrite")


def test_the_command_line_names_damaged_settings(tmp_path, capsys):
    (tmp_path / "settings.json").write_text('["model"]')
    assert run(["zoo", "train", "smollm2", "-o", str(tmp_path), "--quick"]) == 2
    assert "settings.json: it must be an object" in capsys.readouterr().err


def test_only_a_training_is_given_up(tmp_path):
    folder = tmp_path / "runs"
    give_up(folder)
    folder.mkdir()
    save_settings(folder, {"model": "a"})
    give_up(folder)
    assert not folder.exists()
    folder.mkdir()
    (folder / "thesis.tex").write_text("years of work")
    argv = ["zoo", "train", str(tmp_path / "out"), "--checkpoints", str(folder), "--no-resume"]
    assert run([*argv, "--quick"]) == 2
    assert (folder / "thesis.tex").read_text() == "years of work"


def test_a_family_is_not_written_over_a_model(tmp_path, capsys):
    (tmp_path / "config.json").write_text("{}")
    assert run(["zoo", "train", str(tmp_path), "--quick"]) == 2
    assert "holds other files: name a new folder" in capsys.readouterr().err
    assert [file.name for file in tmp_path.iterdir()] == ["config.json"]


def test_a_line_that_was_cut_is_dropped(tmp_path):
    log = tmp_path / "losses.jsonl"
    drop_cut_line(log)
    for content, left in [(b'{"step": 1}\n{"st', b'{"step": 1}\n'), (b'{"st', b""), (b"", b"")]:
        log.write_bytes(content)
        drop_cut_line(log)
        assert log.read_bytes() == left


@pytest.mark.parametrize(
    ("argv", "option"),
    [
        (["zoo", "train", "smollm2", "--no-resume"], "--resume"),
        (["zoo", "train", "out", "--minutes", "3"], "--minutes"),
        (["heads", "train", "--model", "zoo:mid", "--exits", "2", "--minutes", "3"], "--minutes"),
        (["heads", "train", "--model", "m", "--kind", "eagle3", "--loss", "tv"], "--loss"),
        (["heads", "train", "--model", "m", "--kind", "eagle3", "--dtype", "float32"], "--dtype"),
        (
            ["heads", "train", "--model", "m", "--kind", "acceptance", "--draft", "d", "--inner=3"],
            "--inner",
        ),
    ],
)
def test_options_that_a_training_does_not_read_are_refused(argv, option, capsys):
    assert run(argv) == 2
    assert f"{option} has no effect" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["out", "--trunk-steps", "-1"], "'--trunk-steps'"),
        (["out", "--student-steps", "0"], "'--student-steps'"),
        (["smollm2", "--minutes", "nan"], "minutes must be above 0"),
        (["smollm2", "--epochs", "0"], "epochs must be above 0"),
    ],
)
def test_numbers_that_train_nothing_are_refused_at_once(
    options, says, tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    assert run(["zoo", "train", *options]) == 2
    assert says in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_losses_are_read_by_step(tmp_path):
    log = tmp_path / "heads.jsonl"
    log.write_text('{"step": 1, "loss": 3.5}\n{"step": 2, "loss": 2}\n{"step": 2, "loss": 2.5}\n')
    assert curve(log) == [{"step": 1, "loss": 3.5}, {"step": 2, "loss": 2.5}]
    for damaged, reason in [('{"step"', "not valid JSON"), ('{"loss": 1}', "'step' is missing")]:
        log.write_text('{"step": 1}\n' + damaged)
        with pytest.raises(HierspecError, match=rf"heads\.jsonl, line 2: {reason}"):
            curve(log)
