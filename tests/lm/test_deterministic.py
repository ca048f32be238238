"""Bit-exact decoding: a token's scores do not depend on what was computed with it."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM

from hierspec import Hierarchy
from hierspec.core.context import Context
from hierspec.lm.base import Query
from hierspec.lm.lean import kernels
from hierspec.lm.lean.deterministic import DeterministicLeanBackend
from hierspec.lm.load import load
from hierspec.lm.trunk.trunk import Trunk
from hierspec.utils.testing import save_tiny
from hierspec.zoo import registry

DTYPES = [torch.float32, torch.bfloat16]
TEXT = torch.randint(3, 90, (60,), generator=torch.Generator().manual_seed(0)).tolist()


@pytest.fixture(scope="module", params=["llama", "qwen3", "mistral"])
def path(request, tmp_path_factory):
    return save_tiny(request.param, tmp_path_factory.mktemp(request.param) / "m", seed=1)


@pytest.fixture(autouse=True, params=["kernels", "tiles"])
def way(request, monkeypatch):
    """In the compiled kernels, and as where there is no compiler."""
    if request.param == "tiles":
        monkeypatch.setattr(kernels, "load", lambda: None)
    elif kernels.load() is None:
        pytest.skip("no C compiler here: tiles run instead")
    return request.param


def scored(trunk: Trunk, steps: list[int], company: int = 0):
    """Scores after every token of the text, which comes in steps of so many tokens; beside it,
    so many other texts."""
    view = trunk.view()
    slots = [view.open() for _ in range(1 + company)]
    rows, at = [], 0
    for n in steps:
        own = Query(slots[0], Context(TEXT[: at + n]), at + 1)
        others = [
            Query(slot, Context(TEXT[i + 1 : i + 2 + at]), at + 1)
            for i, slot in enumerate(slots[1:])
        ]
        found = view.score([*others[: company // 2], own, *others[company // 2 :]])
        first = sum(len(one.context) - one.start + 1 for one in others[: company // 2])
        rows.append(found[first : first + n])
        at += n
    for slot in slots:
        view.close(slot)
    return torch.cat(rows)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_scores_are_the_same_bits_for_any_number_of_rows(path, dtype):
    trunk = Trunk(load(str(path), dtype, backend="deterministic"), exits=[1])
    one_by_one = scored(trunk, [1] * 60)
    for n in range(2, 18):
        steps = [n] * (60 // n) + ([60 % n] if 60 % n else [])
        assert torch.equal(scored(trunk, steps), one_by_one), n
    assert torch.equal(scored(trunk, [60]), one_by_one), "a prompt at once"
    assert torch.equal(scored(trunk, [1, 7, 12, 40], company=3), one_by_one), "in a batch"
    assert torch.equal(scored(trunk, [40, 1, 3, 16], company=6), one_by_one)


def test_the_usual_backend_differs():
    """What the test above would find, in matrices that are large enough."""
    small = registry.resolve("zoo:small")
    usual = Trunk(load(small, torch.float32, backend="lean"))
    assert not torch.equal(scored(usual, [1] * 60), scored(usual, [12] * 5))
    exact = Trunk(load(small, torch.float32, backend="deterministic"))
    assert torch.equal(scored(exact, [1] * 60), scored(exact, [12] * 5))


def test_scores_are_the_lean_backends(path):
    usual = scored(Trunk(load(str(path), torch.float32, backend="lean")), [60])
    exact = scored(Trunk(load(str(path), torch.float32, backend="deterministic")), [60])
    torch.testing.assert_close(exact, usual, atol=1e-5 * float(usual.abs().max()), rtol=0)


def test_in_bfloat16_they_are_no_farther_from_float32(path, tmp_path):
    """On the same weights, which are rounded in both."""
    rounded = AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16).float()
    rounded.save_pretrained(tmp_path)
    wide = scored(Trunk(load(str(tmp_path), torch.float32, backend="lean")), [60])
    usual, exact = (
        scored(Trunk(load(str(path), torch.bfloat16, backend=backend)), [60]) - wide
        for backend in ("lean", "deterministic")
    )
    assert float(usual.square().mean()) > 0
    assert float(exact.square().mean()) <= float(usual.square().mean())


def test_rows_of_a_tile_that_differ_make_tiles_of_one(path, monkeypatch, way):
    if way == "kernels":
        found = load(str(path), torch.float32, backend="deterministic").fast_path
        assert "in compiled kernels" in found
        return
    monkeypatch.setattr(DeterministicLeanBackend, "_rows_are_equal", lambda self: False)
    backend = load(str(path), torch.float32, backend="deterministic")
    assert isinstance(backend, DeterministicLeanBackend)
    assert backend.tile == 1
    assert "tiles of 1" in backend.fast_path
    trunk = Trunk(backend)
    assert torch.equal(scored(trunk, [7] * 8 + [4]), scored(trunk, [1] * 60))


# --- whole generations


LEVELS = [
    {"method": "prompt_lookup", "num_speculative_tokens": 4, "prompt_lookup_min": 1},
    {"method": "early_exit", "exit_layer": 1, "num_speculative_tokens": 6, "verify": "block"},
]
PROMPTS = [TEXT[:5], TEXT[7:10], TEXT[20:21], TEXT[:40]]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("request_", [{}, {"temperature": 1.0, "seed": 3}], ids=["greedy", "match"])
def test_text_is_plain_decodings_to_the_last_token(path, dtype, request_):
    top = {"target": {"model": str(path), "dtype": dtype}, "deterministic": True, "verify": "match"}
    options = {"max_new_tokens": 50, "ignore_eos": True, **request_}
    plain = Hierarchy.from_config(top)
    expected = [plain.generate(prompt, **options).token_ids for prompt in PROMPTS]
    hierarchy = Hierarchy.from_config({**top, "levels": LEVELS})
    assert [hierarchy.generate(p, **options).token_ids for p in PROMPTS] == expected
    batch = [r.token_ids for r in hierarchy.generate_batch(PROMPTS, **options)]
    assert batch[0] == expected[0]
    if not request_:
        assert batch == expected, "when sampling, a sequence's number is part of its seed"


def test_files_keep_their_form(path):
    from hierspec.config.schema import HierarchyConfig

    config = HierarchyConfig.from_dict({"target": str(path), "deterministic": True})
    assert config.to_dict() == {"target": {"model": str(path)}, "levels": [], "deterministic": True}
    assert "deterministic" not in HierarchyConfig.from_dict({"target": "t"}).to_dict()


def test_refusals(tmp_path, path):
    def build(model, **target):
        Hierarchy.from_config({"target": {"model": str(model), **target}, "deterministic": True})

    with pytest.raises(ValueError, match="leave out backend"):
        build(path, backend="hf")
    other = save_tiny("gpt2", tmp_path / "gpt2", seed=1)
    with pytest.raises(ValueError, match=r"a Llama-shaped model on a CPU, .* leave"):
        build(other)
    with pytest.raises(ValueError, match="deterministic must be true or false"):
        Hierarchy.from_config({"target": str(path), "deterministic": 1})
