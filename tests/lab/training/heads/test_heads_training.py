"""Training of exit heads lowers the distance and resumes exactly."""

import json

import pytest
import torch
from heads_training import FAMILIES, QUICK
from safetensors.torch import load_file

from hierspec.config.exit_heads import read
from hierspec.errors import HierspecError
from hierspec.lm.exit_heads import KINDS
from hierspec.lm.load import load
from hierspec_lab.cli.heads_output import show_exit_heads
from hierspec_lab.training.fit import CosineSchedule, Phase
from hierspec_lab.training.heads.frozen import Frozen
from hierspec_lab.training.heads.heads import Heads
from hierspec_lab.training.heads.settings import HeadsSettings
from hierspec_lab.training.heads.train import train


@pytest.mark.parametrize("name", FAMILIES)
def test_training_brings_every_exit_nearer_on_text_it_has_not_seen(trained, name) -> None:
    info = read(trained[name]).info.to_dict()
    assert info["steps"] == QUICK["steps"]
    for layer in ("1", "2"):
        before, after = info["before"][layer], info["after"][layer]
        assert after["kl"] < 0.97 * before["kl"]
        assert after["acceptance"] > before["acceptance"]
    report = json.loads(trained[name].with_suffix(".json").read_text())
    assert {key: report[key] for key in info} == info
    assert report["curve"][-1]["step"] == QUICK["steps"]
    assert not trained[name].with_name(f"{trained[name].name}.training").exists()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", FAMILIES)
def test_heads_start_as_the_exits_without(models, name, kind) -> None:
    backend = load(models[name], backend="hf")
    heads = Heads(kind, (1, 2), backend)
    h = torch.randn(
        5, backend.hidden_size, dtype=backend.dtype, generator=torch.Generator().manual_seed(0)
    )
    with torch.no_grad():
        # A copied matrix lies elsewhere in memory, and products may be added in another order.
        torch.testing.assert_close(
            heads.scores(1, backend, h), backend.head(h), rtol=1e-13, atol=1e-13
        )


def test_chunks_give_the_same_loss_and_gradients(models, monkeypatch) -> None:
    backend = load(models["gemma2"], backend="hf")
    ids = torch.arange(48).view(2, 24)
    found = []
    for chunk in (1 << 23, 7 * backend.vocab_size):
        monkeypatch.setattr("hierspec_lab.training.heads.frozen._CHUNK", chunk)
        heads, frozen = Heads("full", (1, 2), backend), Frozen(backend, (1, 2))
        kl, _ = frozen.distances(heads, frozen.states(ids))
        kl.sum().backward()
        found.append([kl.detach(), *(p.grad for p in heads.parameters())])
        assert all(p.grad is None for p in backend.model.parameters())
    for whole, parts in zip(*found, strict=True):
        assert parts.norm() > 0
        torch.testing.assert_close(parts, whole, rtol=1e-5, atol=1e-7)  # the loss is float32


def test_a_batch_in_an_old_cache_is_as_in_a_new_one(models) -> None:
    backend = load(models["gemma2"], backend="hf")
    frozen = Frozen(backend, (1,))
    frozen.states(torch.full((2, 40), 5))
    ids = torch.arange(60).view(2, 30)
    again, fresh = frozen.states(ids), Frozen(backend, (1,)).states(ids)
    assert all(torch.equal(a, b) for a, b in zip(again, fresh, strict=True))
    with torch.no_grad():
        theirs = backend.model(ids).logits.flatten(0, 1)
        torch.testing.assert_close(backend.head(again[-1]), theirs, rtol=0, atol=1e-9)


def test_an_exit_teaches_those_before_it_and_stays_as_it_is(
    models, trained, folder, capsys
) -> None:
    settings = HeadsSettings(exits=(1, 2), kind=read(trained["llama"]).kind, teacher=2, **QUICK)
    path = folder / "taught.safetensors"
    with pytest.raises(HierspecError, match="say --from which"):
        train(str(models["llama"]), settings, path)
    info = train(str(models["llama"]), settings, path, start_from=trained["llama"]).info
    before, after = load_file(trained["llama"]), load_file(path)
    assert torch.equal(before["exit.2.weight"], after["exit.2.weight"])
    assert not torch.equal(before["exit.1.weight"], after["exit.1.weight"])
    assert set(info.by_teacher["after"]) == {"1"}
    assert set(info.after) == {"1", "2"}
    assert info.by_teacher["after"]["1"].kl < info.by_teacher["before"]["1"].kl
    assert info.after["2"] == info.before["2"]
    show_exit_heads(read(path), as_json=False)
    assert "1 for 2" in capsys.readouterr().out
    for teacher in (1, 3):
        with pytest.raises(HierspecError, match="another before it"):
            HeadsSettings(exits=(1, 2), teacher=teacher)


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_resumed_training_ends_with_the_same_bits(models, folder, family) -> None:
    settings = HeadsSettings(exits=(1, 2), kind="full", **{**QUICK, "steps": 12})
    model, paths = str(models[family]), [folder / f"{family}-{i}.safetensors" for i in range(2)]
    train(model, settings, paths[0])
    for stop in (5, 9):
        with pytest.raises(KeyboardInterrupt):
            train(model, settings, paths[1], stop_after=stop)
        assert not paths[1].exists()
    assert train(model, settings, paths[1]).info.steps == 12
    one, two = (load_file(path) for path in paths)
    assert one.keys() == two.keys()
    assert all(torch.equal(one[key], two[key]) for key in one)
    with pytest.raises(ValueError, match="exists already"):
        train(model, settings, paths[1])


def test_an_interrupted_step_is_not_lost(models, folder, monkeypatch) -> None:
    settings = HeadsSettings(exits=(1,), **{**QUICK, "steps": 8})
    model, path = str(models["llama"]), folder / "cut.safetensors"
    whole = train(model, settings, folder / "uncut.safetensors")
    seen = []
    distances = Frozen.distances

    def cut(self, heads, states, teacher=None):
        if torch.is_grad_enabled():
            seen.append(states)
            if len(seen) == 6:
                raise KeyboardInterrupt
        return distances(self, heads, states, teacher)

    monkeypatch.setattr(Frozen, "distances", cut)
    with pytest.raises(KeyboardInterrupt):
        train(model, settings, path)
    again = train(model, settings, path)
    assert len(seen) == 6 + 3  # steps 6, 7 and 8
    assert torch.equal(again.tensors(1)["weight"], whole.tensors(1)["weight"])


def test_the_rate_warms_up_and_falls_to_zero() -> None:
    schedule = CosineSchedule(200, (Phase(1.0, 1, 1),))
    factors = [schedule.factor(step) for step in range(200)]
    assert factors[:10] == pytest.approx([(i + 1) / 10 for i in range(10)])
    assert factors[10] == 1
    assert factors[105] == pytest.approx(0.5)
    assert factors[9:] == sorted(factors[9:], reverse=True)
    assert factors[-1] < 1e-3
    assert CosineSchedule(1, (Phase(1.0, 1, 1),)).factor(0) == 1
