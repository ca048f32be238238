"""Exit heads: training lowers the distance, resumes exactly, and leaves the output law alone."""

import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from hierspec import Hierarchy
from hierspec.bench.joint_law import chi_square, joint_law, sample
from hierspec.cli import run
from hierspec.config import acceptance_head, exit_heads
from hierspec.config.exit_heads import HeadsWarning, load_head, load_into, read
from hierspec.config.schema import TargetConfig
from hierspec.core.context import Context
from hierspec.lm.base import Query
from hierspec.lm.exit_heads import KINDS, Heads
from hierspec.lm.load import load
from hierspec.lm.trunk.trunk import Trunk
from hierspec.presets.registry import preset
from hierspec.sampling.parameters import SamplingParams
from hierspec.training.fit import CosineSchedule, Phase
from hierspec.training.heads.data import (
    encode_excerpts,
    from_files,
    split_texts,
    write_own_texts,
)
from hierspec.training.heads.frozen import Frozen
from hierspec.training.heads.settings import HeadsSettings
from hierspec.training.heads.train import train
from hierspec.training.models import output_file
from hierspec.training.windows import HeldOutWindows
from hierspec.utils.testing import save_tiny
from hierspec.zoo import fingerprint

FAMILIES = ("llama", "qwen3", "gpt2", "gemma2", "opt")
QUICK = {"tokens": 2000, "width": 32, "rows": 4, "learning_rate": 3e-3, "steps": 40}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def models(folder: Path) -> dict[str, Path]:
    """A tiny float64 model of each family, the second exit one layer below the last."""
    return {name: save_tiny(name, folder / name, seed=3) for name in FAMILIES}


@pytest.fixture(autouse=True, scope="module")
def short_own_texts() -> Iterator[None]:
    """The models write 64 tokens at a time, which takes a quarter of the calls."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hierspec.training.heads.data.OWN_LENGTH", 64)
        yield


@pytest.fixture(scope="module")
def trained(models: dict[str, Path], folder: Path) -> dict[str, Path]:
    """Heads of each family; the model's own text, as it has no tokenizer."""
    out = {}
    for i, (name, model) in enumerate(models.items()):
        settings = HeadsSettings(exits=(1, 2), kind=KINDS[i % 3], **QUICK)
        out[name] = train(str(model), settings, folder / f"{name}.safetensors").path
    return out


def level(layer: int, head: Any = None, **more: Any) -> dict[str, Any]:
    out = {"method": "early_exit", "exit_layer": layer, "num_speculative_tokens": 3, **more}
    return out if head is None else {**out, "head": str(head)}


def hierarchy(model: Path, *levels: dict[str, Any], backend: str = "auto") -> Hierarchy:
    target = {"model": str(model), "backend": backend}
    return Hierarchy.from_config({"target": target, "levels": list(levels)})


def rows_of(model: Any, ids: Sequence[int], start: int) -> torch.Tensor:
    return model.score([Query(model.open(), Context(list(ids)), start)])


# -- training -----------------------------------------------------------------------------------


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
        monkeypatch.setattr("hierspec.training.heads.frozen._CHUNK", chunk)
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

    def cut(self, heads, states):
        if torch.is_grad_enabled():
            seen.append(states)
            if len(seen) == 6:
                raise KeyboardInterrupt
        return distances(self, heads, states)

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


# -- in the engine ------------------------------------------------------------------------------


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
    slot = trunk.open()
    query = [Query(slot, Context(ids), 1)]
    got = [view.score(query) for view in (with_head, without, target)]
    assert trunk.counters.tokens == [5, 5, 5]  # each token once through each segment
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


# -- files --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("files", "name"), [(exit_heads, "zoo:smollm2-heads"), (acceptance_head, "zoo:mid-acceptance")]
)
def test_a_files_metadata_stays_as_it_stands_there(files, name) -> None:
    file = files.read(name)
    with safe_open(file.path, framework="pt") as opened:
        assert json.dumps(file.info.to_dict()) == opened.metadata()[exit_heads.METADATA_KEY]


def damaged(source: Path, to: Path, change: Any) -> Path:
    """A copy with tensors and description changed."""
    info, tensors = read(source).info.to_dict(), load_file(source)
    change(info, tensors)
    save_file(tensors, to, {"hierspec": json.dumps(info)})
    return to


def _nan(info, tensors):
    tensors["exit.2.weight"][0, 0] = float("nan")


def _shape(info, tensors):
    tensors["exit.2.weight"] = tensors["exit.2.weight"][1:].clone()


def _gone(info, tensors):
    del tensors["exit.2.weight"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_nan, "NaN or infinite"),
        (_shape, r"has shape \(31, 32\)"),
        (_gone, "weight of exit 2 is missing"),
        (lambda info, tensors: info.update(schema_version=9), "schema version 9"),
        (
            lambda info, tensors: info.update(kind="tree"),
            "kind must be 'transform', 'full' or 'mlp'",
        ),
        (lambda info, tensors: info.pop("hidden_size"), "its metadata: 'hidden_size' is missing"),
        (lambda info, tensors: info.update(exits=[1]), "after layers 1, none after layer 2"),
        (lambda info, tensors: info.update(vocab_size=97), "vocab_size is 97"),
        (lambda info, tensors: info.update(num_layers=4), "num_layers is 4"),
        (lambda info, tensors: info.pop("exits"), "holds no exit heads"),
    ],
)
def test_a_file_that_does_not_fit_is_refused(models, trained, tmp_path, change, message) -> None:
    path = damaged(trained["llama"], tmp_path / "bad.safetensors", change)
    with pytest.raises(ValueError, match=message):
        hierarchy(models["llama"], level(2, path))


WRONG = {
    "kind": ([], None, "tree"),
    "exits": ("12", 2, [], ["1", "2"], [1.0, 2.0], [0, 1], [True, 2], [2, 1], [1, 1, 2], [1, 9]),
    "model": (None, 5, ""),
    "hidden_size": ("32", 32.0, True, 0, None, [32]),
    "vocab_size": ("96", -1),
    "num_layers": ("3", None, 2),
    "input_size": ("32", 0, None),
    "fingerprint": (5, ["x"], ""),
    "parameters": ("many", 0),
    "before": ([1], {"1": 0.5}, {"1": {"kl": "low"}}, None),
    "after": ("good",),
    "texts": ("a book", None),
}


@pytest.mark.parametrize(
    ("key", "value"), [(key, value) for key, values in WRONG.items() for value in values]
)
def test_a_description_of_wrong_types_is_refused(trained, tmp_path, key, value) -> None:
    def change(info: dict[str, Any], tensors: Any) -> None:
        info[key] = value

    path = damaged(trained["llama"], tmp_path / "bad.safetensors", change)
    about = "exits" if (key, value) == ("num_layers", 2) else key
    with pytest.raises(ValueError, match=rf"damaged \(its metadata\.{about}\b") as caught:
        read(path)
    assert "\n" not in str(caught.value)


def _whole_numbers(info, tensors):
    tensors["exit.2.weight"] = tensors["exit.2.weight"].int()


def _long_bias(info, tensors):
    tensors["exit.2.bias"] = torch.zeros(len(tensors["exit.2.bias"]) + 1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_whole_numbers, r"weight of exit 2 is of torch\.int32"),
        (_long_bias, r"bias of exit 2 has shape \(33,\), not \(32,\)"),
    ],
)
def test_tensors_that_are_no_heads_are_refused(trained, tmp_path, change, message) -> None:
    path = damaged(trained["llama"], tmp_path / "bad.safetensors", change)
    with pytest.raises(ValueError, match=message):
        read(path).tensors(2)


@pytest.mark.parametrize("left", [0, 4, 8, 60, -4000, -1])
def test_a_file_cut_short_is_refused_in_a_line(trained, tmp_path, left) -> None:
    path = tmp_path / "short.safetensors"
    path.write_bytes(trained["llama"].read_bytes()[:left])
    with pytest.raises(ValueError, match="is damaged") as caught:
        read(path)
    assert "\n" not in str(caught.value)


def test_files_that_are_none_are_refused(models, trained, tmp_path) -> None:
    llama = models["llama"]
    short = tmp_path / "short.safetensors"
    short.write_bytes(trained["llama"].read_bytes()[:-100])
    with pytest.raises(ValueError, match="is damaged"):
        hierarchy(llama, level(2, short))
    with pytest.raises(ValueError, match="no exit heads at"):
        hierarchy(llama, level(2, tmp_path))
    with pytest.raises(ValueError, match="holds no exit heads"):
        hierarchy(llama, level(2, llama / "model.safetensors"))
    with pytest.raises(ValueError, match=r"levels\[0\].head must be the path"):
        hierarchy(llama, {**level(2), "head": 3})
    with pytest.raises(ValueError, match="exit layers must lie between"):
        hierarchy(llama, level(7, trained["llama"]))


def test_heads_of_other_weights_warn_and_stay_exact(trained, folder) -> None:
    other = save_tiny("llama", folder / "other", seed=9)
    with pytest.warns(HeadsWarning, match="trained on other weights"):
        drafting = hierarchy(other, level(2, trained["llama"]))
    options: dict[str, Any] = {"max_new_tokens": 20, "ignore_eos": True}
    plain = hierarchy(other).generate([5, 9], **options)
    assert drafting.generate([5, 9], seed=0, **options).token_ids == plain.token_ids


def test_hierarchy_files_keep_the_head(models, trained) -> None:
    built = hierarchy(models["llama"], level(2, trained["llama"]))
    assert built.config.to_dict()["levels"][0]["head"] == str(trained["llama"])
    assert "head" not in hierarchy(models["llama"], level(2)).config.to_dict()["levels"][0]


# -- texts --------------------------------------------------------------------------------------


def test_texts_come_from_files_lines_and_folders(tmp_path) -> None:
    (tmp_path / "a.txt").write_text("one text\n")
    (tmp_path / "b.jsonl").write_text('{"prompt": "two"}\n"three"\n')
    (tmp_path / ".hidden").write_text("not this")
    assert from_files([tmp_path]) == ["one text", "two", "three"]
    assert from_files([tmp_path / "b.jsonl"]) == ["two", "three"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="holds no texts"):
        from_files([tmp_path / "empty"])
    for name in ("empty.txt", "empty.jsonl"):
        (tmp_path / name).touch()
        with pytest.raises(ValueError, match="holds no text"):
            from_files([tmp_path / name])
    with pytest.raises(ValueError, match="has no tokenizer"):
        encode_excerpts(["x"], None, 10, 4, 0)


def letters(text: str, verbose: bool) -> dict[str, list[int]]:
    """A tokenizer of four letters a token."""
    return {"input_ids": [ord(text[i]) for i in range(0, len(text), 4)]}


def test_excerpts_come_from_as_many_texts_as_there_are() -> None:
    texts = [chr(65 + i) * 4000 for i in range(20)]
    rows = encode_excerpts(texts, letters, 200, 8, 0)
    assert sum(map(len, rows)) == 200
    assert [len(row) for row in rows[:-1]] == [16] * 12  # 10 a text, in multiples of 8
    assert len({int(row[0]) for row in rows}) == len(rows) == 13
    rows = encode_excerpts(["a" * 40, "b" * 40_000], letters, 1000, 8, 0)
    assert sum(map(len, rows)) == 1000  # the long one makes up for the short one
    assert sum(map(len, encode_excerpts(["a" * 40, "b" * 80], letters, 1000, 8, 0))) == 30
    assert torch.equal(*(torch.cat(encode_excerpts(texts, letters, 200, 8, 3)) for _ in range(2)))
    for limit in (0, -5):  # all that may be used is kept back
        assert sum(map(len, encode_excerpts(texts, letters, limit, 8, 0))) == 0


def test_what_is_measured_is_not_trained_on() -> None:
    rows = [torch.arange(i * 100, i * 100 + 50) for i in range(20)]
    texts = split_texts(rows, None, HeldOutWindows(4, 16), {})
    learnt, measured = (
        {token for piece in part for token in piece.ids.tolist()}
        for part in (texts.train, texts.held_out)
    )
    assert [len(piece.ids) for piece in texts.held_out] == [16] * 4
    assert not learnt & measured
    assert (texts.source["tokens"], texts.source["held_out_tokens"]) == (900, 100)
    with pytest.raises(ValueError, match="too little text"):
        split_texts(rows[:1], None, HeldOutWindows(4, 32), {})


def test_own_texts_go_on_after_an_interruption(tmp_path) -> None:
    calls = []

    def write(number: int) -> list[list[int]]:
        calls.append(number)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return [[number] * 10]

    path = tmp_path / "own.jsonl"
    with pytest.raises(KeyboardInterrupt):
        write_own_texts(write, 40, path, lambda *_: None)
    path.write_text(path.read_text() + "[[2, 2,")  # cut short
    rows, _ = write_own_texts(write, 40, path, lambda *_: None)
    assert [row[0].item() for row in rows] == [0, 1, 2, 3]
    assert calls == [0, 1, 2, 2, 3]
    with pytest.raises(ValueError, match="wrote no text"):
        write_own_texts(lambda _: [[]], 40, tmp_path / "none.jsonl", lambda *_: None)


def test_own_texts_are_measured_on_after_beginnings_of_their_own(tmp_path) -> None:
    def write(number: int) -> list[list[int]]:
        """The third text is the same every time, the last one another's."""
        return [[1, number], [2, number], [3, 9], [1, number]]

    learnt, kept = write_own_texts(
        write, 16, tmp_path / "a.jsonl", lambda *_: None, held_out=(1, 3)
    )
    assert [row.tolist() for row in learnt] == [[3, 9]]
    assert [row.tolist() for row in kept] == [[2, 0], [1, 0], [2, 1], [1, 1], [2, 2], [1, 2],
                                              [2, 3], [1, 3]][: len(kept)]  # fmt: skip
    assert len(kept) * 2 + 2 >= 16
    # Few tokens in all, but enough of those to measure on.
    path = tmp_path / "b.jsonl"
    *_, kept = write_own_texts(write, 1, path, lambda *_: None, (1,), min_held_out=6)
    assert [row.tolist() for row in kept] == [[2, 0], [2, 1], [2, 2]]
    # A model that says one thing only ends: what it said is there once.
    learnt, _ = write_own_texts(lambda _: [[4, 4]], 100, tmp_path / "c.jsonl", lambda *_: None)
    assert [row.tolist() for row in learnt] == [[4, 4]]


def test_no_own_text_is_trained_on_and_measured_on(models, tmp_path, monkeypatch) -> None:
    """Beginnings of several tokens: none of them is on both sides."""
    from hierspec.training.heads import data as choosing

    seen: dict[str, Any] = {}
    monkeypatch.setattr(choosing, "_start_ids", lambda text, *_: [ord(c) % 96 for c in text[:6]])
    monkeypatch.setattr(choosing, "split_texts", lambda *parts: seen.update(parts=parts))
    backend = load(models["llama"], backend="hf")
    settings = HeadsSettings(exits=(1,), tokens=1200, width=32)
    quiet = lambda stage, share: None  # noqa: E731
    choosing.choose_texts(str(models["llama"]), backend, None, settings, (), (), tmp_path, quiet)
    learnt, kept = ({tuple(row.tolist()) for row in part} for part in seen["parts"][:2])
    assert sum(map(len, kept)) > 32
    assert not learnt & kept
    assert len({row[:6] for row in kept}) == 2
    assert not {row[:6] for row in learnt} & {row[:6] for row in kept}


def test_a_text_given_twice_counts_once() -> None:
    texts = ["a" * 400, "b" * 400]
    once, twice = (encode_excerpts(some, letters, 1000, 8, 0) for some in (texts, texts * 2))
    assert sum(map(len, twice)) == sum(map(len, once)) == 200


# -- command line -------------------------------------------------------------------------------


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
        (["--exits", "1", "--dtype", "int8", "--overwrite"], "dtype must be"),
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
