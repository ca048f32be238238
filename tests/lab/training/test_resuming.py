"""What an interrupted training has left behind is read again; a damaged file is named."""

import pytest

from hierspec.cli import run
from hierspec.errors import HierspecError
from hierspec_lab.training.fit import curve
from hierspec_lab.training.resuming import compute_once, save_settings, validate_settings


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


def test_losses_are_read_by_step(tmp_path):
    log = tmp_path / "heads.jsonl"
    log.write_text('{"step": 1, "loss": 3.5}\n{"step": 2, "loss": 2}\n{"step": 2, "loss": 2.5}\n')
    assert curve(log) == [{"step": 1, "loss": 3.5}, {"step": 2, "loss": 2.5}]
    for damaged, reason in [('{"step"', "not valid JSON"), ('{"loss": 1}', "'step' is missing")]:
        log.write_text('{"step": 1}\n' + damaged)
        with pytest.raises(HierspecError, match=rf"heads\.jsonl, line 2: {reason}"):
            curve(log)
