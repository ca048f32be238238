"""Copies that are rounded for the inputs of the model's matrices."""

from __future__ import annotations

import shutil

import pytest
import torch
from rich.progress import Progress
from tiny_models import save_tiny
from transformers import AutoModelForCausalLM
from unpacking import values

from hierspec.errors import HierspecError
from hierspec.lm.load import load
from hierspec.lm.native import calibration
from hierspec.lm.native.backend import COPY_FORMS
from hierspec.lm.native.calibration import NotCalibratedWarning
from hierspec.lm.native.formats import FORMATS
from hierspec.lm.native.rounding import round_to
from hierspec.methods.quantized import QuantizedConfig, quantize

FORMS = sorted(COPY_FORMS.values())


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("HIERSPEC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("hierspec.lm.native.kept_panels._LEAST", 1)
    return tmp_path / "cache" / "panels"


@pytest.mark.parametrize("form", FORMS)
def test_inputs_that_have_nothing_in_common_are_rounded_to_nearest(form):
    weight = torch.randn(21, 96, generator=torch.Generator().manual_seed(1))
    nearest, in_turn = (
        round_to(weight, FORMATS[form], moments) for moments in (None, 2.5 * torch.eye(96))
    )
    for ours, theirs in zip(in_turn, nearest, strict=True):
        assert (ours is None and theirs is None) or torch.equal(ours, theirs)


@pytest.mark.parametrize("width", [96, 72])
@pytest.mark.parametrize("form", FORMS)
def test_inputs_that_occur_together_make_up_for_each_others_errors(form, width):
    generator = torch.Generator().manual_seed(2)
    weight = torch.randn(21, width, generator=generator)
    x = torch.randn(500, width // 4, generator=generator) @ torch.randn(width // 4, width)
    x += 0.1 * torch.randn(x.shape, generator=generator)
    moments, errors = x.T @ x / len(x), []
    for given in (None, moments):
        codes = round_to(weight, FORMATS[form], given)
        assert int(codes.codes.max()) <= FORMATS[form].most
        rounded = values(FORMATS[form], codes)[:, :width]
        errors.append(float(((rounded - weight) @ x.T).square().mean()))
    assert errors[1] < 0.4 * errors[0]


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3"])
def test_moments_are_those_of_the_inputs_in_transformers(tmp_path, family, monkeypatch):
    path = save_tiny(family, tmp_path / "m", seed=1)
    backend = load(path, dtype=torch.float32)
    drawn = []
    draw = calibration._draw_texts
    monkeypatch.setattr(
        calibration, "_draw_texts", lambda *given: drawn.append(draw(*given)) or drawn[0]
    )
    found = list(calibration._moments(backend, Progress(disable=True)))
    model, seen = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32), []
    for layer in model.model.layers:
        attention, mlp = layer.self_attn, layer.mlp
        for module in (attention.q_proj, attention.o_proj, mlp.gate_proj, mlp.down_proj):
            module.register_forward_pre_hook(lambda _, given: seen.append(given[0][:, 1:]))
    with torch.inference_mode():
        model(drawn[0][0])
    assert len(seen) == 4 * len(found)
    for x, ours in zip(seen, (one for layer in found for one in layer), strict=True):
        rows = x.flatten(0, 1)
        expected = rows.T @ rows / len(rows)
        assert (ours - expected).abs().max() < 1e-3 * expected.abs().max()


def test_a_copy_is_calibrated_once_and_again_where_the_file_is_damaged(
    tmp_path, cache, monkeypatch
):
    backend = load(save_tiny("llama", tmp_path / "m", seed=1), dtype=torch.bfloat16)
    begun = []
    draw = calibration._draw_texts
    monkeypatch.setattr(calibration, "_draw_texts", lambda *given: begun.append(1) or draw(*given))

    def panels(calibrate=True):
        layers = quantize(backend, 4, calibrate).layer_weights
        return torch.cat([m.panels.flatten() for one in layers for m in one.matrices().values()])

    made = panels()
    assert not torch.equal(made, panels(False))
    assert torch.equal(panels(), made)
    assert len(begun) == 1
    file = cache / f"{calibration._key(backend)}-Q4_1"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    for damaged in (content, content[:20], b""):
        file.write_bytes(damaged)
        assert torch.equal(panels("auto"), made)
    assert len(begun) == 4
    shutil.rmtree(cache)
    cache.write_text("no folder can be made here")
    assert torch.equal(panels(), made)


@pytest.mark.parametrize("logged", [False, True])
def test_what_takes_long_is_said_once_where_no_bar_shows_it(
    tmp_path, monkeypatch, capsys, caplog, logged
):
    backend = load(save_tiny("llama", tmp_path / "m", seed=1), dtype=torch.float32)
    capsys.readouterr()
    quantize(backend, 4, True)
    assert capsys.readouterr().err == ""  # a moment
    monkeypatch.setattr(calibration, "_INSTANT", 0)
    quantize(backend, 4, True)
    assert capsys.readouterr().err == ""  # it is kept
    with caplog.at_level("INFO" if logged else "WARNING", "hierspec"):
        quantize(backend, 5, True)
    lines = caplog.messages if logged else capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert "takes a minute or two, once: it is kept in the cache" in lines[0]
    assert "calibrated in" in lines[1]
    assert capsys.readouterr().err == ""


def test_when_a_copy_is_calibrated(tmp_path, monkeypatch):
    path, made = save_tiny("llama", tmp_path / "m", seed=1), []
    backend = load(path, dtype=torch.float32)
    monkeypatch.setattr(
        "hierspec.lm.native.calibration.calibrated_copy", lambda _, bits: made.append(bits)
    )
    for bits in COPY_FORMS:
        quantize(backend, bits, "auto")
    assert sorted(made) == [4, 5, 6]
    monkeypatch.setattr(calibration, "_QUICK", 100)
    quantize(backend, 4, "auto")
    quantize(backend, 4, False)
    assert len(made) == 3
    quantize(backend, 8, True)
    assert made[3:] == [8]
    with pytest.warns(NotCalibratedWarning, match="outside the compiled kernels"):
        quantize(load(path, dtype=torch.float32, backend="lean"), 4, True)
    with pytest.raises(HierspecError, match='calibrate must be true, false or "auto"'):
        QuantizedConfig(num_speculative_tokens=3, calibrate="yes")


def test_states_that_are_no_numbers_are_said_and_rounded_to_nearest(tmp_path):
    backend = load(save_tiny("llama", tmp_path / "m", seed=1), dtype=torch.float32)
    backend.layer_weights[1].norm.fill_(torch.nan)
    with pytest.warns(NotCalibratedWarning, match="states are no numbers"):
        assert quantize(backend, 4, True).formats == quantize(backend, 4).formats


def test_a_copy_of_another_layout_is_made_anew(tmp_path, monkeypatch):
    model = load(save_tiny("llama", tmp_path / "m"), torch.float32)
    before = calibration._key(model)
    monkeypatch.setattr(calibration, "layout", lambda: "another")
    assert calibration._key(model) != before
