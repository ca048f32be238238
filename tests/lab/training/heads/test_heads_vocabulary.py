"""Heads of kind mlp, and heads over a part of the vocabulary: exact, cheap, and files checked."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from heads_cases import damaged, hierarchy, level, rows_of
from safetensors.torch import load_file

from hierspec import Hierarchy
from hierspec.cli import run
from hierspec.config.exit_heads import load_head, read
from hierspec.lm.exit_heads import KINDS
from hierspec.lm.load import load
from hierspec.lm.trunk.trunk import Trunk
from hierspec.sampling.parameters import SamplingParams
from hierspec_lab.training.heads import least_squares
from hierspec_lab.training.heads.frozen import Frozen
from hierspec_lab.training.heads.heads import Heads
from hierspec_lab.training.heads.settings import HeadsSettings
from hierspec_lab.training.heads.states import Piece, StateStore
from hierspec_lab.training.heads.train import most_frequent, train

QUICK = {"tokens": 1500, "width": 32, "rows": 4, "learning_rate": 3e-3, "steps": 12}
SIZE = 24  # of 96 tokens
CASES = [("llama", "mlp"), ("gpt2", "transform"), ("opt", "full")]


@pytest.fixture(scope="module")
def trained(models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Heads over a part of the vocabulary."""
    out, folder = {}, tmp_path_factory.mktemp("heads")
    for name, kind in CASES:
        settings = HeadsSettings(exits=(1, 2), kind=kind, vocabulary=SIZE, loss="tv", **QUICK)
        out[name] = train(str(models[name]), settings, folder / f"{name}.safetensors").path
    return out


def exits(model: Path, head: Path | None, *rules: str) -> Hierarchy:
    """The first exit drafts, and for each rule one further verifies."""
    above = (level(2 + i, head, verify=rule) for i, rule in enumerate(rules))
    return hierarchy(model, level(1, head), *above)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", [name for name, _ in CASES])
def test_heads_start_as_the_exits_without_for_their_tokens(models, name, kind) -> None:
    backend = load(models[name], backend="hf")
    ids = torch.tensor([0, 5, 17, 95])
    heads = Heads(kind, (1,), backend, ids, inner=8)
    generator = torch.Generator().manual_seed(0)
    h = torch.randn(5, backend.hidden_size, dtype=backend.dtype, generator=generator)
    with torch.no_grad():
        whole = backend.head(h)
        for found in (heads.scores(1, backend, h), heads.teacher(backend, h)):
            torch.testing.assert_close(found, whole[:, ids], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", [name for name, _ in CASES])
def test_training_helps_and_says_what_is_out_of_reach(trained, name) -> None:
    info = read(trained[name]).info.to_dict()
    assert info["vocabulary_size"] == SIZE
    for layer in ("1", "2"):
        before, after = info["before"][layer], info["after"][layer]
        assert after["kl"] < before["kl"]
        assert after["acceptance"] <= after["coverage"] < 1
    assert info["domains"] == {"text": info["after"]}
    assert json.loads(trained[name].with_suffix(".json").read_text())["settings"]["loss"] == "tv"


@pytest.mark.parametrize("name", [name for name, _ in CASES])
def test_other_tokens_score_minus_infinity_on_both_backends(models, trained, name) -> None:
    file, ids = read(trained[name]), [5, 9, 11, 40, 7, 3, 60]
    known = file.vocabulary()
    assert known is not None
    found = {}
    for backend in ("lean", "hf") if name == "llama" else ("hf",):
        loaded = load(models[name], torch.float64, backend=backend)
        head = load_head(file.path, 2, loaded, str(models[name]))
        assert head.num_bytes > 0
        found[backend] = rows = rows_of(Trunk(loaded, [2]).view(2, head), ids)
        assert rows.shape == (len(ids), 96)
        assert ((rows > -math.inf).sum(-1) == SIZE).all()
        assert rows[:, known].isfinite().all()
    scale = found["hf"][:, known].abs().max()
    for rows in found.values():
        assert (rows - found["hf"])[:, known].abs().max() <= 1e-6 * scale


def test_engine_scores_are_those_trained(models, trained) -> None:
    for name, kind in CASES:
        file = read(trained[name])
        backend = load(models[name], backend="hf")
        heads = Heads(kind, (1, 2), backend, file.vocabulary(), inner=64)
        state = load_file(file.path)
        ids = state.pop("vocabulary").long()
        heads.load_state_dict({key.removeprefix("exit."): t for key, t in state.items()})
        text = torch.arange(20)
        early, *_ = Frozen(backend, (1, 2)).states(text[None])
        got = rows_of(
            Trunk(backend, [1]).view(1, load_head(file.path, 1, backend, str(models[name]))),
            text.tolist(),
        )
        with torch.no_grad():
            expected = heads.scores(1, backend, early).to(got.dtype)
        torch.testing.assert_close(got[:, ids], expected, rtol=1e-9, atol=1e-9)


def test_exits_share_the_rows_of_the_models_own_head(models, trained) -> None:
    built = exits(models["llama"], trained["llama"], "block")
    first, second = built.root.below.below.model.head, built.root.below.model.head  # type: ignore
    assert first.part is second.part


def banned(heads: Path) -> tuple[tuple[int, float], ...]:
    """Every token that the heads can say, forbidden."""
    known = read(heads).vocabulary()
    assert known is not None
    return tuple((token, -math.inf) for token in known.tolist())


@pytest.mark.parametrize("name", [name for name, _ in CASES])
@pytest.mark.parametrize("rule", ["tokenwise", "block", "leading"])
def test_greedy_output_equals_plain_greedy(models, trained, name, rule) -> None:
    prompts = [[5, 9, 11, 40], [7], [3, 3, 8, 60, 61, 62, 2, 17]]
    settings: list[dict[str, Any]] = [
        {},
        {"repetition_penalty": 1.3, "frequency_penalty": 0.2},
        {"logit_bias": banned(trained[name])},
    ]
    for params in settings:
        options = {
            "max_new_tokens": 16,
            "ignore_eos": True,
            "seed": 0,
            "sampling": SamplingParams(temperature=0.0, **params),
        }
        plain = Hierarchy.from_config({"target": {"model": str(models[name])}, "levels": []})
        expected = plain.generate_batch(prompts, **options)
        drafted = exits(models[name], trained[name], rule).generate_batch(prompts, **options)
        assert [r.token_ids for r in drafted] == [r.token_ids for r in expected]


@pytest.mark.parametrize("name", [name for name, _ in CASES])
@pytest.mark.parametrize("unsure", ["exit", "target"])
def test_exits_that_choose_by_confidence_read_the_heads(models, trained, name, unsure) -> None:
    """Greedy as the target alone, whatever the heads cannot say; sampled in any company."""
    level = {
        "method": "adaptive_exit",
        "exit_layers": [1, 2],
        "head": str(trained[name]),
        "unsure": unsure,
        "confidence": 0.2,
        "num_speculative_tokens": 4,
    }
    prompts = [[5, 9, 11, 40], [7], [3, 3, 8, 60, 61, 62, 2, 17]]
    target = {"model": str(models[name]), "dtype": "float64"}
    built = Hierarchy.from_config({"target": target, "levels": [level]})
    plain = Hierarchy.from_config({"target": target, "levels": []})
    drafting: Any = built.root.below
    assert [exit.head is not None for exit in drafting.model.exits] == [True, True]
    assert drafting.model.partial
    drafted = 0
    for params in ({}, {"repetition_penalty": 1.3}, {"logit_bias": banned(trained[name])}):
        sampling = SamplingParams(temperature=0.0, **params)
        options: dict[str, Any] = {"max_new_tokens": 16, "ignore_eos": True, "sampling": sampling}
        expected = plain.generate_batch(prompts, **options)
        found = built.generate_batch(prompts, **options)
        assert [r.token_ids for r in found] == [r.token_ids for r in expected]
        drafted += found[0].levels[0]["num_draft_tokens"]
    assert drafted > 0
    options = {"max_new_tokens": 12, "ignore_eos": True, "seed": 3, "temperature": 1.0}
    together = built.generate_batch(prompts, **options)
    assert built.generate_batch(prompts[:1], **options)[0].token_ids == together[0].token_ids


@pytest.mark.parametrize("rule", ["tokenwise", "block", "leading"])
def test_a_request_that_forbids_all_that_a_head_can_say_goes_on(models, trained, rule) -> None:
    """Every token of the head is banned: drafts are worthless, the output is not."""
    bans = banned(trained["llama"])
    result = exits(models["llama"], trained["llama"], rule).generate(
        [5, 9], max_new_tokens=20, ignore_eos=True, seed=1, temperature=1.0, logit_bias=bans
    )
    assert len(result.token_ids) == 20
    assert not set(result.token_ids) & {token for token, _ in bans}


# -- the file


def _descending(info: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
    tensors["vocabulary"] = tensors["vocabulary"].flip(0)


def _beyond(info: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
    tensors["vocabulary"][-1] = 96


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda info, tensors: tensors.pop("vocabulary"), "the vocabulary is missing"),
        (_descending, "not 24 ascending ids below 96"),
        (_beyond, "not 24 ascending ids below 96"),
        (lambda info, tensors: info.update(vocabulary_size=23), "not 23 ascending ids"),
        (lambda info, tensors: tensors.pop("exit.1.down"), "the down of exit 1 is missing"),
        (lambda info, tensors: info.update(inner_size=8), r"has shape .*, not \(40, 32\)"),
    ],
)
def test_a_file_that_does_not_fit_is_refused(models, trained, tmp_path, change, message) -> None:
    path = damaged(trained["llama"], tmp_path / "bad.safetensors", change)
    with pytest.raises(ValueError, match=message):
        load_head(path, 1, load(models["llama"]), str(models["llama"]))


def test_heads_can_be_gone_on_with(models, trained, tmp_path, capsys) -> None:
    """Their numbers are kept, and of full heads the vocabulary; other sizes are refused."""
    small = ["--steps", "1", "--lr", "1e-9", "--tokens", "600", "--width", "16"]
    small += ["--features", str(tmp_path / "states")]

    def go_on(name: str, kind: str, size: int, *more: str) -> int:
        argv = ["heads", "train", "--model", str(models[name]), "--exits", "1,2", "--kind", kind]
        argv += ["--from", str(trained[name]), "--vocabulary", str(size), *small, *more]
        return run([*argv, "-o", str(tmp_path / f"{kind}.safetensors"), "--overwrite"])

    assert go_on("llama", "mlp", 8) == 0
    one, two = load_file(trained["llama"]), load_file(tmp_path / "mlp.safetensors")
    assert len(two["vocabulary"]) == 8
    torch.testing.assert_close(one["exit.2.down"], two["exit.2.down"], rtol=0, atol=1e-6)
    assert list((tmp_path / "states").glob("*.states"))
    assert go_on("opt", "full", SIZE) == 0
    one, two = load_file(trained["opt"]), load_file(tmp_path / "full.safetensors")
    assert torch.equal(one["vocabulary"], two["vocabulary"])
    capsys.readouterr()
    assert go_on("opt", "full", 8) == 2
    assert "that score 24 tokens; to start from" in capsys.readouterr().err
    assert go_on("llama", "mlp", 8, "--inner", "8") == 2
    assert "heads of another size" in capsys.readouterr().err


def test_the_vocabulary_is_what_follows_most_often() -> None:
    ids = torch.tensor([7, 3, 3, 9, 3, 9, 1])
    pieces = [Piece(ids, torch.tensor([0, 1, 2, 3, 4, 6]))]
    found = most_frequent(pieces, 3, 20)
    assert found is not None
    assert found.tolist() == [0, 3, 9]  # then the lowest of those that never follow
    assert most_frequent(pieces, None, 20) is None


# -- hidden states


@pytest.fixture
def frozen(models) -> Frozen:
    return Frozen(load(models["llama"], backend="hf"), (1, 2))


PIECES = [
    Piece.from_ids(torch.arange(5, 25)),
    Piece(torch.arange(30, 60), torch.tensor([3, 9, 29])),
    Piece.from_ids(torch.arange(60, 70), "code"),
]


def test_states_are_kept_once_and_found_again(frozen, tmp_path) -> None:
    kept = StateStore(tmp_path, "s", frozen)
    kept.compute(PIECES[:2], lambda share: None)
    size = kept.path.stat().st_size
    assert size == (20 + 3) * 3 * 32 * 2
    again = StateStore(tmp_path, "s", Frozen(frozen.backend, (1, 2)))
    again.frozen.states = None  # type: ignore  # nothing is computed again
    again.compute(PIECES[:2], lambda share: None)
    assert again.path.stat().st_size == size
    rows = again.rows_of([PIECES[1]])
    assert rows.tolist() == [20, 21, 22]
    direct = frozen.states(PIECES[1].ids[None].long())
    for held, h in zip(again.read(rows), direct, strict=True):
        torch.testing.assert_close(held, h[PIECES[1].positions], rtol=2**-8, atol=1e-6)


@pytest.mark.parametrize("left", [0, 100])
def test_states_that_are_gone_are_computed_again(frozen, tmp_path, left) -> None:
    """And not read as zeros, on which an exit's head seems to be right always."""
    kept = StateStore(tmp_path, "s", frozen)
    kept.compute(PIECES, lambda share: None)
    if left:
        kept.path.write_bytes(kept.path.read_bytes()[:left])
    else:
        kept.path.unlink()
    others = [Piece.from_ids(torch.arange(2, 40))]
    StateStore(tmp_path, "s", frozen).compute(others, lambda share: None)
    again = StateStore(tmp_path, "s", frozen)
    again.compute(PIECES, lambda share: None)
    for piece in (*PIECES, *others):
        direct = frozen.states(piece.ids[None].long())
        for held, h in zip(again.read(again.rows_of([piece])), direct, strict=True):
            torch.testing.assert_close(held, h[piece.positions], rtol=2**-8, atol=1e-6)


def test_an_interrupted_computation_goes_on(frozen, tmp_path, monkeypatch) -> None:
    whole = StateStore(tmp_path / "whole", "s", frozen)
    whole.compute(PIECES, lambda share: None)
    states, calls = Frozen.states, []

    def cut(self: Frozen, ids: torch.Tensor) -> list[torch.Tensor]:
        calls.append(ids)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return states(self, ids)

    monkeypatch.setattr(Frozen, "states", cut)
    kept = StateStore(tmp_path / "cut", "s", frozen)
    with pytest.raises(KeyboardInterrupt):
        kept.compute(PIECES, lambda share: None)
    with kept.path.open("ab") as file:
        file.write(b"torn")
    with kept.index.open("a") as file:
        file.write('["abc", 2')
    kept = StateStore(tmp_path / "cut", "s", frozen)
    kept.compute(PIECES, lambda share: None)
    assert len(calls) == 2 + 2  # the first text was there
    StateStore(tmp_path / "cut", "s", frozen).compute(PIECES, lambda share: None)
    assert len(calls) == 2 + 2  # the text after the torn line is found again
    assert kept.path.read_bytes() == whole.path.read_bytes()


def test_a_first_guess_lowers_the_distance(frozen, tmp_path) -> None:
    backend, generator = frozen.backend, torch.Generator().manual_seed(0)
    pieces = [Piece.from_ids(torch.randint(96, (40,), generator=generator)) for _ in range(30)]
    kept = StateStore(tmp_path, "s", frozen)
    kept.compute(pieces, lambda share: None)
    rows = kept.rows_of(pieces)
    states = kept.read(rows[-300:])
    for kind in ("transform", "mlp"):
        heads = Heads(kind, (1, 2), backend, inner=4)
        with torch.no_grad():
            before = frozen.distances(heads, states)[0]
            least_squares.initialise(heads, kept, rows[:-300], 0)
            after = frozen.distances(heads, states)[0]
        assert (after < 0.9 * before).all()


def test_a_guess_that_helps_nobody_is_not_taken(frozen, tmp_path, monkeypatch) -> None:
    kept = StateStore(tmp_path, "s", frozen)
    kept.compute(PIECES, lambda share: None)
    heads = Heads("transform", (1, 2), frozen.backend)
    monkeypatch.setattr(least_squares, "_RIDGES", (-1e-9,))
    monkeypatch.setattr(
        least_squares, "_products", lambda *_: (torch.eye(32).double().expand(2, 32, 32),) * 2
    )
    worst = iter([torch.ones(2, 2), torch.full((2, 2), 2.0)])
    monkeypatch.setattr(frozen, "distances", lambda *_: next(worst))
    least_squares.initialise(heads, kept, kept.rows_of(PIECES), 0)
    assert all(not parameter.any() for parameter in heads.parameters())
