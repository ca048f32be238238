"""Trained exit heads in the engine: they draft better and leave the output law alone."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from heads_cases import hierarchy, level, rows_of
from heads_training import FAMILIES, QUICK
from joint_law import chi_square, joint_law, sample
from tiny_models import save_tiny
from work import Work

from hierspec.config.exit_heads import load_head, read
from hierspec.config.schema import TargetConfig
from hierspec.core.context import Context
from hierspec.lm.base import Query
from hierspec.lm.load import load
from hierspec.lm.trunk.trunk import Trunk
from hierspec.presets.registry import preset
from hierspec.sampling.parameters import SamplingParams
from hierspec.zoo import fingerprint
from hierspec_lab.training.heads.frozen import Frozen
from hierspec_lab.training.heads.heads import Heads
from hierspec_lab.training.heads.settings import HeadsSettings
from hierspec_lab.training.heads.train import load_into, train


@pytest.mark.parametrize("name", FAMILIES)
def test_greedy_output_equals_plain_greedy(models, trained, name) -> None:
    prompts = [[5, 9, 11, 40], [7], [3, 3, 8, 60, 61, 62, 2, 17]]
    options = {"max_new_tokens": 24, "ignore_eos": True, "seed": 0}
    plain = hierarchy(models[name]).generate_batch(prompts, **options)
    for levels in (
        [level(1, trained[name])],
        [level(1, trained[name]), level(2, trained[name], verify="block")],
        [level(1), level(1, trained[name], verify="tokenwise")],
    ):
        drafted = hierarchy(models[name], *levels).generate_batch(prompts, **options)
        assert [r.token_ids for r in drafted] == [r.token_ids for r in plain]


def test_a_trained_head_keeps_more_drafts(models, trained) -> None:
    options = {"max_new_tokens": 150, "ignore_eos": True, "seed": 1, "temperature": 1.0}
    prompts = [[5, 9], [11], [40, 3], [8]]

    def kept(head: Any) -> float:
        results = hierarchy(models["llama"], level(2, head)).generate_batch(prompts, **options)
        return results[0].levels[0]["acceptance_rate"]

    assert kept(trained["llama"]) > kept(None)


def test_samples_have_the_targets_joint_law(models, trained) -> None:
    """χ² of three tokens' joint law, heads drafting and verifying; fails at p < 1e-4."""
    model, head, prompt = models["llama"], trained["llama"], [5, 9, 60]
    params = SamplingParams(temperature=1.0, top_k=3)
    built = hierarchy(model, level(1, head), level(2, head, verify="block"))
    law = joint_law(hierarchy(model), prompt, params, 3)
    result = chi_square(sample(built, prompt, params, 3, 2048, batch_size=512), law)
    assert result.degrees > 10
    assert 10**result.log10_p > 1e-4, result


def test_caches_of_the_trunk_are_shared_with_and_without_heads(models, trained) -> None:
    backend = load(models["llama"])
    trunk = Trunk(backend, [1, 2])
    head = load_head(trained["llama"], 1, backend, str(models["llama"]))
    with_head, without, target = trunk.view(1, head), trunk.view(1), trunk.view()
    ids = [5, 9, 11, 40, 7]
    fresh = [Trunk(backend, [1, 2]) for _ in range(3)]
    alone = [fresh[0].view(1, head), fresh[1].view(1), fresh[2].view()]
    expected = [rows_of(view, ids, 1) for view in alone]
    done, slot = Work(trunk), trunk.open()
    query = [Query(slot, Context(ids), 1)]
    got = [view.score(query) for view in (with_head, without, target)]
    assert done.tokens == [5, 5, 5]  # each token once through each segment
    assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))
    assert not torch.equal(got[0], got[1])


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-6), (torch.float32, 1e-5), (torch.bfloat16, 0.05)]
)
@pytest.mark.parametrize(("name", "kind"), [("llama", "transform"), ("qwen3", "full")])
def test_backends_agree_on_scores(models, trained, name, kind, dtype, tolerance) -> None:
    """Relative to the largest score. The library rounds its norms to float32 even in float64."""
    assert read(trained[name]).kind == kind
    ids = [5, 9, 11, 40, 7, 3, 60]
    rows = {}
    for backend in ("lean", "hf"):
        loaded = load(models[name], dtype, backend=backend)
        head = load_head(trained[name], 2, loaded, str(models[name]))
        rows[backend] = rows_of(Trunk(loaded, [2]).view(2, head), ids, 1)
        assert rows[backend].dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    scale = rows["hf"].abs().max()
    assert (rows["lean"] - rows["hf"]).abs().max() <= tolerance * scale


def test_engine_scores_are_those_trained(models, trained) -> None:
    """What was measured on held-out text is what the engine runs, in float64."""
    for name in FAMILIES:
        file = read(trained[name])
        backend = load(models[name], backend="hf")
        heads = Heads(file.kind, (1, 2), backend, inner=file.info.inner_size)
        load_into(heads, file)
        ids = torch.arange(20)
        states = Frozen(backend, (1, 2)).states(ids[None])
        for layer, h in zip((1, 2), states[:2], strict=True):
            head = load_head(file.path, layer, backend, str(models[name]))
            got = rows_of(Trunk(backend, [layer]).view(layer, head), ids.tolist(), 1)
            with torch.no_grad():
                expected = heads.scores(layer, backend, h).to(got.dtype)
            torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-9)


def test_heads_beside_a_model_leave_it_as_it_was(folder) -> None:
    model = save_tiny("gpt2", folder / "beside", seed=4)
    mark = fingerprint.compute(str(model))
    file = train(str(model), HeadsSettings(exits=(1,), **{**QUICK, "steps": 2}))
    assert file.path == model / "exit_heads.safetensors"
    assert fingerprint.compute(str(model)) == mark == file.info.fingerprint
    drafted = hierarchy(model, level(1, model)).generate([5, 9], max_new_tokens=5, seed=0)
    assert drafted.token_ids == hierarchy(model).generate([5, 9], max_new_tokens=5).token_ids


def test_presets_take_the_heads_that_lie_beside_a_model(
    models: dict[str, Path], trained: dict[str, Path], tmp_path: Path
) -> None:
    own = tmp_path / "own"
    shutil.copytree(models["llama"], own)
    target = TargetConfig(model=str(own))
    assert all(getattr(one, "head", None) is None for one in preset("layerskip", target).levels)
    shutil.copy(trained["llama"], own / "exit_heads.safetensors")
    for name in ("layerskip", "hispec"):
        levels = preset(name, target).levels
        assert {getattr(one, "head", None) for one in levels} == {str(own)}, name
        assert {one.exit_layer for one in levels} <= {1, 2}  # type: ignore[union-attr]
