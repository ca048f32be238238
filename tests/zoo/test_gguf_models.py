"""A GGUF file's model is the one it was written from: same scores, for every architecture."""

from __future__ import annotations

from typing import Any

import gguf_files
import numpy as np
import pytest
import torch
from gguf_files import save, tiny

from hierspec.errors import HierspecError
from hierspec.lm.weights import build_hf_model
from hierspec.zoo.gguf.config import ARCHITECTURES
from hierspec.zoo.gguf.source import open_gguf

pytest.importorskip("gguf", reason="GGUF files are read by the package gguf (extra smollm2)")

IDS = torch.arange(100).remainder(len(gguf_files.TOKENS))[None]
ROPE = {"rope_theta": 50000.0}
DEFAULT = {**ROPE, "rope_type": "default"}
LLAMA3 = {
    **ROPE,
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {**ROPE, "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
LONG = {
    "rope_type": "longrope",
    **ROPE,
    "short_factor": [1.0, 1.1, 1.2, 1.3, 1.5, 1.6, 1.7, 1.8],
    "long_factor": [1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 5.0],
    "original_max_position_embeddings": 64,
}

pytestmark = pytest.mark.usefixtures("cache")


def scores(model: Any, ids: torch.Tensor = IDS) -> torch.Tensor:
    with torch.inference_mode():
        return model(ids).logits


def read(path: Any) -> Any:
    return build_hf_model(open_gguf(path, "tiny"), torch.float32)


@pytest.mark.parametrize(
    ("architecture", "options"),
    [
        ("llama", {}),
        ("llama", {"tie_word_embeddings": False, "num_key_value_heads": 4}),
        ("llama", {"attention_bias": True, "mlp_bias": True}),
        ("qwen2", {}),
        ("qwen3", {"head_dim": 32}),
        ("phi3", {"tie_word_embeddings": False}),
        (
            "phi3",
            {"rope_parameters": {**ROPE, "rope_type": "default", "partial_rotary_factor": 0.5}},
        ),
        ("gemma", {"head_dim": 32}),
        ("gemma2", {"head_dim": 32, "query_pre_attn_scalar": 32, "sliding_window": 24}),
        (
            "gemma3",
            {
                "head_dim": 32,
                "query_pre_attn_scalar": 32,
                "sliding_window": 24,
                "num_hidden_layers": 7,
                "rope_parameters": {
                    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
                },
            },
        ),
    ],
)
def test_the_model_is_the_one_it_was_written_from(tmp_path, architecture, options):
    model = tiny(architecture, **options)
    found = read(save(tmp_path / "tiny.gguf", model, architecture))
    assert type(found) is type(model)
    assert torch.equal(scores(found), scores(model))


def test_every_architecture_is_compared():
    assert set(ARCHITECTURES) == set(gguf_files.CLASSES)


def test_biases_of_a_part_of_the_layers_parts(tmp_path):
    model = tiny(attention_bias=True)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.bias.zero_()
    drop = [f"blk.{i}.attn_output.bias" for i in range(2)]
    assert torch.equal(scores(read(save(tmp_path / "tiny.gguf", model, drop=drop))), scores(model))


def ropes(model: Any) -> np.ndarray:
    """Factors as converters write them: what the model's frequencies are divided by."""
    plain = 50000.0 ** -(torch.arange(0, 16, 2).float() / 16)
    return (plain / model.model.rotary_emb.inv_freq).numpy().astype(np.float32)


def linear(writer: Any) -> None:
    writer.add_float32("llama.rope.scaling.factor", 4.0)


def linear_by_type(writer: Any) -> None:
    linear(writer)
    writer.add_string("llama.rope.scaling.type", "linear")


def linear_by_old_key(writer: Any) -> None:
    writer.add_float32("llama.rope.scale_linear", 4.0)


def none(writer: Any) -> None:
    linear(writer)
    writer.add_string("llama.rope.scaling.type", "none")


def yarn(writer: Any) -> None:
    linear(writer)
    writer.add_string("llama.rope.scaling.type", "yarn")
    writer.add_uint32("llama.rope.scaling.original_context_length", 32)


def yarn_with_betas(writer: Any) -> None:
    yarn(writer)
    writer.add_float32("llama.rope.scaling.yarn_beta_fast", 16.0)
    writer.add_float32("llama.rope.scaling.yarn_beta_slow", 2.0)


def yarn_with_attention(writer: Any) -> None:
    yarn(writer)
    writer.add_float32("llama.rope.scaling.attn_factor", 0.5)


LINEAR = {**ROPE, "rope_type": "linear", "factor": 4.0}
USUAL = 0.1 * np.log(4.0) + 1.0  # YaRN's factor of attention


@pytest.mark.parametrize(
    ("edit", "rope"),
    [
        (linear, LINEAR),
        (linear_by_type, LINEAR),
        (linear_by_old_key, LINEAR),
        (none, DEFAULT),
        (yarn, YARN),
        (yarn_with_betas, {**YARN, "beta_fast": 16.0, "beta_slow": 2.0}),
        (yarn_with_attention, {**YARN, "attention_factor": 0.5 * USUAL}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_scaled_rotations(tmp_path, edit, rope):
    model = tiny(rope_parameters=rope)
    found = read(save(tmp_path / "tiny.gguf", tiny(), edit=edit))
    torch.testing.assert_close(scores(found), scores(model))
    if rope is not DEFAULT:
        assert not torch.allclose(scores(found), scores(tiny()), atol=1e-2)


@pytest.mark.parametrize(
    "rope",
    [
        LLAMA3,
        {**LLAMA3, "factor": 32.0, "original_max_position_embeddings": 64},
        {**LLAMA3, "rope_theta": 50000.0, "original_max_position_embeddings": 8192},
        DEFAULT,
        LINEAR,
        {**LONG, "long_factor": LONG["short_factor"], "attention_factor": 1.0},
    ],
)
def test_rotations_by_a_tensor_of_factors(tmp_path, rope):
    model = tiny(rope_parameters=rope)
    path = save(tmp_path / "tiny.gguf", tiny(), extra={"rope_freqs.weight": ropes(model)})
    found = read(path)
    if rope["rope_type"] in ("llama3", "default"):  # those that our own layers know
        assert found.config.rope_parameters == rope
    torch.testing.assert_close(scores(found), scores(model))


@pytest.mark.parametrize("by", ["llama", "phi3"])
def test_long_rotations(tmp_path, by):
    original = {"original_max_position_embeddings": 64} if by == "phi3" else {}
    model = tiny(by, rope_parameters=LONG, **original)
    attention = model.model.rotary_emb.attention_scaling

    def edit(writer):
        writer.add_float32(f"{by}.rope.scaling.attn_factor", attention)
        if by == "llama":  # the other is written with its sizes
            writer.add_rope_scaling_orig_ctx_len(64)

    factors = {
        f"rope_factors_{kind}.weight": np.array(LONG[f"{kind}_factor"], np.float32)
        for kind in ("long", "short")
    }
    plain = tiny(by, **original)
    found = read(save(tmp_path / "tiny.gguf", plain, by, edit=edit, extra=factors))
    short = IDS[:, :40]
    torch.testing.assert_close(scores(found, short), scores(model, short))
    torch.testing.assert_close(scores(found), scores(model))


ODD = np.array([1, 2, 1, 2, 1, 2, 1, 2], np.float32)


def twice(writer: Any) -> None:
    linear(writer)


def dynamic(writer: Any) -> None:
    linear(writer)
    writer.add_string("llama.rope.scaling.type", "dynamic")


def yarn_read_differently(writer: Any) -> None:
    yarn(writer)
    writer.add_float32("llama.rope.scaling.yarn_attn_factor", 1.7)


def yarn_extrapolated(writer: Any) -> None:
    yarn(writer)
    writer.add_float32("llama.rope.scaling.yarn_ext_factor", 0.5)


def linear_with_attention(writer: Any) -> None:
    linear(writer)
    writer.add_float32("llama.rope.scaling.attn_factor", 0.5)


def partial(writer: Any) -> None:
    writer.add_rope_dimension_count(8)


@pytest.mark.parametrize(
    ("edit", "factors", "says"),
    [
        (None, ODD[:4], "no 8 positive factors"),
        (None, -ODD, "no 8 positive factors"),
        (twice, ropes(tiny(rope_parameters=LLAMA3)), "scales its rotation twice"),
        (dynamic, None, "'dynamic'"),
        (yarn_read_differently, None, "yarn_attn_factor 1.7"),
        (yarn_extrapolated, None, "yarn_ext_factor 0.5"),
        (linear_with_attention, None, "attn_factor 0.5"),
        (partial, None, "rotates 8 of 16 dimensions"),
    ],
)
def test_rotations_that_cannot_be_said_are_refused(tmp_path, edit, factors, says):
    extra = {} if factors is None else {"rope_freqs.weight": factors}
    with pytest.raises(HierspecError, match=says) as caught:
        read(save(tmp_path / "tiny.gguf", tiny(), edit=edit, extra=extra))
    assert "\n" not in str(caught.value)
