"""Training of acceptance heads: the paper's loss, text that was held out, interruptions."""

from __future__ import annotations

import json
import math

import pytest
import torch

from hierspec.cli import run
from hierspec.errors import HierspecError
from hierspec_lab.acceptance import files as acceptance_head
from hierspec_lab.acceptance.head import AcceptanceHead
from hierspec_lab.training.heads.acceptance import AcceptanceSettings, Samples, loss, measure, train


def test_a_head_learns_on_text_it_has_not_seen(tmp_path) -> None:
    settings = AcceptanceSettings(tokens=6_000, width=128, held_out=4, epochs=8)
    found = train("zoo:trunk", "zoo:small", settings, tmp_path / "head.safetensors").info.held_out
    assert found.loss < found.constant_loss
    assert found.auc > 0.5


def test_the_loss_is_least_at_the_weighted_share() -> None:
    """Of the paper's loss the minimum is y / (y + w (1 − y)), and its AUC is one half there."""
    kept = torch.tensor([0.75, 0.75])
    found = Samples(torch.ones(2, 4, dtype=torch.bfloat16), kept)
    head = AcceptanceHead(4, 1).requires_grad_(False)
    at = {}
    for share in (0.2, 1 / 3, 0.5):
        head.out.bias.fill_(math.log(share / (1 - share)))
        at[share] = float(loss(head, found, torch.arange(2), 6.0))
    assert min(at, key=at.__getitem__) == 1 / 3
    assert measure(head, found, 6.0)["constant_loss"] == pytest.approx(at[1 / 3], abs=1e-4)


@pytest.mark.parametrize("kept", [0.0, 1.0])
def test_where_all_or_none_is_kept_a_constant_loses_nothing(kept) -> None:
    found = Samples(torch.randn(5, 8).bfloat16(), torch.full((5,), kept))
    head = AcceptanceHead(8, 1)
    assert measure(head, found, 6.0)["constant_loss"] == 0.0


def test_an_interrupted_training_ends_with_the_same_head(tmp_path) -> None:
    settings = AcceptanceSettings(tokens=1_200, width=64, held_out=2, steps=12)
    uninterrupted = train("zoo:trunk", "zoo:small", settings, tmp_path / "a.safetensors").path
    interrupted = tmp_path / "b.safetensors"
    with pytest.raises(KeyboardInterrupt):
        train("zoo:trunk", "zoo:small", settings, interrupted, stop_after=5)
    changed = AcceptanceSettings(tokens=1_200, width=64, held_out=2, steps=12, depth=2)
    with pytest.raises(HierspecError, match="training of other settings"):
        train("zoo:trunk", "zoo:small", changed, interrupted)
    train("zoo:trunk", "zoo:small", settings, interrupted)
    paths = (uninterrupted, interrupted)
    states = [acceptance_head.load(acceptance_head.read(p)).state_dict() for p in paths]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_the_command_trains_and_shows(tmp_path, capsys) -> None:
    path = tmp_path / "head.safetensors"
    argv = ["heads", "train", "--kind", "acceptance", "--target", "zoo:trunk", "-o", str(path)]
    argv += ["--tokens", "1200", "--width", "64", "--windows", "2", "--steps", "4"]
    assert run(argv) != 0
    assert "--draft" in capsys.readouterr().err
    assert run([*argv, "--draft", "zoo:small"]) == 0
    assert '"kind": "acceptance"' in " ".join(capsys.readouterr().err.split())
    assert run(["heads", "show", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["target"] == "zoo:trunk"
