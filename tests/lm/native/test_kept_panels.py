"""A model's panels in the user's cache: mapped from there, and made anew where they are damaged."""

from __future__ import annotations

import os
import time
from itertools import chain

import pytest
import torch
from tiny_models import save_tiny

from hierspec.lm.load import load
from hierspec.lm.native import kept_panels
from hierspec.lm.native.matrices import PackedMatrix
from hierspec.lm.weights import Checkpoint


@pytest.fixture(autouse=True)
def folder(monkeypatch, tmp_path):
    monkeypatch.setenv("HIERSPEC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(kept_panels, "_LEAST", 0)
    return tmp_path / "cache" / "panels"


@pytest.fixture
def model(tmp_path, monkeypatch):
    path = save_tiny("qwen2", tmp_path / "m", seed=1)
    monkeypatch.setattr("hierspec.utils.files._SETTLED_AFTER", 0.0)
    return path


def weights(backend):
    """Return the panels and biases of a model and of a copy of it, in order."""
    matrices = list[PackedMatrix]()
    for one in (backend, backend.copy_in(8)):
        layers = (layer.matrices().values() for layer in one.layer_weights)
        matrices += [*chain.from_iterable(layers), one._output]
    return [x for m in matrices for x in (m.panels, m.bias) if x is not None]


@pytest.mark.parametrize("small", [0, 1 << 30], ids=["mapped", "copied"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_kept_panels_are_those_that_were_packed(model, folder, dtype, small, monkeypatch):
    packed = weights(load(model, dtype))
    assert len(list(folder.iterdir())) == 3  # of the model, of its copy, and of copies' scores
    monkeypatch.setattr(kept_panels, "_SMALL", small)
    read = Checkpoint.tensor
    names = list[str]()
    monkeypatch.setattr(Checkpoint, "tensor", lambda s, name: names.append(name) or read(s, name))
    monkeypatch.setattr(PackedMatrix, "of", None)  # nothing is packed again
    for ours, theirs in zip(weights(load(model, dtype)), packed, strict=True):
        assert torch.equal(ours, theirs)
    assert not any(name.endswith("proj.weight") for name in names)


@pytest.mark.parametrize("place", ["a weight", "the index", "cut short", "empty"])
def test_a_damaged_file_is_made_anew(model, folder, place):
    expected = weights(load(model, torch.float32))
    for path in folder.iterdir():
        content = bytearray(path.read_bytes())
        if place == "a weight":
            content[100] ^= 1
        elif place == "the index":
            content[-60] ^= 1
        path.write_bytes(content[: {"cut short": len(content) // 2, "empty": 0}.get(place)])
    for _ in range(2):
        for ours, theirs in zip(weights(load(model, torch.float32)), expected, strict=True):
            assert torch.equal(ours, theirs)
    assert all(kept_panels._read(path) is not None for path in folder.iterdir())


def test_other_weights_under_the_same_name_are_packed(model, folder, tmp_path):
    before = weights(load(model, torch.float32))
    save_tiny("qwen2", tmp_path / "m", seed=2)
    time.sleep(0.02)  # the clock of the file system
    assert not torch.equal(weights(load(model, torch.float32))[0], before[0])


def test_weights_that_are_replaced_while_they_are_read_are_kept_under_no_name(
    model, folder, tmp_path, monkeypatch
):
    """As where a link, or a folder's name, is given to other weights, and taken back later."""
    link, other = tmp_path / "current", save_tiny("qwen2", tmp_path / "other", seed=2)
    expected = weights(load(model, torch.float32))
    for file in folder.iterdir():
        file.unlink()

    def point_to(path):
        link.unlink(missing_ok=True)
        link.symlink_to(path)

    def replaced(self, name):
        if "down_proj" in name:
            point_to(other)
        return read(self, name)

    read = Checkpoint.tensor
    point_to(model)
    with monkeypatch.context() as patch:
        patch.setattr(Checkpoint, "tensor", replaced)
        weights(load(link, torch.float32))
    point_to(model)
    for ours, theirs in zip(weights(load(link, torch.float32)), expected, strict=True):
        assert torch.equal(ours, theirs)


def test_another_version_packs_anew(model, folder, monkeypatch):
    load(model, torch.float32)
    monkeypatch.setattr(kept_panels, "package_version", lambda _: "another")
    load(model, torch.float32)
    assert len(list(folder.iterdir())) == 2


def test_an_interrupted_load_leaves_no_file(model, folder, monkeypatch):
    def interrupt(self, name):
        if "down_proj" in name:
            raise KeyboardInterrupt
        return read(self, name)

    read = Checkpoint.tensor
    monkeypatch.setattr(Checkpoint, "tensor", interrupt)
    with pytest.raises(KeyboardInterrupt):
        load(model, torch.float32)
    assert list(folder.iterdir()) == []


def test_what_a_killed_process_left_goes_and_what_another_writes_stays(model, folder):
    folder.mkdir(parents=True)
    for name in (".left.tmp", ".other.tmp"):
        (folder / name).touch()
    with kept_panels._writing(folder / "other"):
        load(model, torch.float32)
    names = {path.name for path in folder.iterdir()}
    assert ".other.tmp" in names
    assert ".left.tmp" not in names


def test_a_file_that_another_process_writes_is_not_written(model, folder):
    load(model, torch.float32)
    (written,) = folder.iterdir()
    written.unlink()
    with kept_panels._writing(written):
        load(model, torch.float32)
        assert not written.exists()


def test_the_file_used_longest_ago_makes_room(folder, monkeypatch):
    folder.mkdir(parents=True)
    for age, name in enumerate(["new", "older", "oldest"]):
        (folder / name).write_bytes(bytes(100))
        os.utime(folder / name, (1e9 - age, 1e9 - age))
    monkeypatch.setattr(kept_panels, "_MOST", 250)
    assert kept_panels._make_room(folder, 60)
    assert [path.name for path in folder.iterdir()] == ["new"]
    assert not kept_panels._make_room(folder, 300)


@pytest.mark.parametrize("full", ["at once", "in the end", "and nothing can be deleted"])
def test_a_full_disk_keeps_nothing(model, folder, full, monkeypatch):
    if full == "at once":
        monkeypatch.setattr(kept_panels, "_make_room", lambda *_: False)
    else:
        monkeypatch.setattr(
            kept_panels.KeptPanels, "_write", lambda *_: (_ for _ in ()).throw(OSError(28, "full"))
        )
    if full == "and nothing can be deleted":
        with monkeypatch.context() as patch:
            patch.setattr("pathlib.Path.unlink", lambda *_, **__: os.rmdir("/dev/null"))
            weights(load(model, torch.float32))
    packed = weights(load(model, torch.float32))
    assert not folder.exists() or list(folder.iterdir()) == []
    for ours, theirs in zip(weights(load(model, torch.float32)), packed, strict=True):
        assert torch.equal(ours, theirs)
