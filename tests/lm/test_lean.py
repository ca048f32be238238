"""The lean forward against transformers, for every shape it claims to run."""

from __future__ import annotations

from types import MethodType, SimpleNamespace

import pytest
import torch
import transformers as tf
from fakes.models import InMemory
from torch import nn

from hierspec.core.context import Context
from hierspec.lm.base import Query
from hierspec.lm.hf.decoder import HFBackend
from hierspec.lm.lean.decoder import LeanBackend
from hierspec.lm.lean.shape import LlamaShape, unsupported_reason
from hierspec.lm.trunk.trunk import Trunk

V = 61
_SIZES = {
    "vocab_size": V,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 96,
}
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 1e4,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
_YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 4.0,
    "original_max_position_embeddings": 32,
}
CONFIGS = {
    "llama": lambda: tf.LlamaConfig(**{**_SIZES, "num_key_value_heads": 4}),
    "llama gqa": lambda: tf.LlamaConfig(**_SIZES),
    "llama mqa": lambda: tf.LlamaConfig(**{**_SIZES, "num_key_value_heads": 1}),
    "llama biases": lambda: tf.LlamaConfig(**_SIZES, attention_bias=True, mlp_bias=True),
    "llama tied": lambda: tf.LlamaConfig(**_SIZES, tie_word_embeddings=True),
    "llama3 rope": lambda: tf.LlamaConfig(**_SIZES, rope_parameters=_LLAMA3),
    "yarn rope": lambda: tf.LlamaConfig(**_SIZES, rope_parameters=_YARN),
    "mistral": lambda: tf.MistralConfig(**_SIZES, sliding_window=8),
    "qwen2": lambda: tf.Qwen2Config(**_SIZES),
    "qwen2 windows": lambda: tf.Qwen2Config(
        **_SIZES, use_sliding_window=True, sliding_window=8, max_window_layers=2
    ),
    "qwen3": lambda: tf.Qwen3Config(**_SIZES, head_dim=16),
}
# Of the largest score. Lean adds in another order; the library rounds bfloat16 more often.
TOLERANCE = {torch.float32: 5e-6, torch.float64: 1e-12, torch.bfloat16: 0.05}


def _double_norm(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)


def make(name: str, dtype: torch.dtype) -> tuple[nn.Module, LeanBackend]:
    torch.manual_seed(0)
    model = tf.AutoModelForCausalLM.from_config(CONFIGS[name]()).eval()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.data.mul_(4)
        else:
            parameter.data.add_(torch.randn_like(parameter) * 0.2)
    model.to(dtype)
    if dtype == torch.float64:
        # The library's RMSNorm rounds to float32 whatever the model's dtype.
        for module in model.modules():
            if "RMSNorm" in type(module).__name__:
                module.forward = MethodType(_double_norm, module)
    return model, LeanBackend(InMemory(model), dtype)


def own(model: nn.Module, ids: list[int]) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=torch.tensor([ids]), use_cache=False).logits[0]


def tokens(n: int, seed: int) -> list[int]:
    return torch.randint(V, (n,), generator=torch.Generator().manual_seed(seed)).tolist()


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", CONFIGS)
def test_lean_equals_transformers(name, dtype):
    model, backend = make(name, dtype)
    view = Trunk(backend, [2]).view()
    first, second = tokens(24, 1), tokens(17, 2)
    wanted = [own(model, first), own(model, second)]
    tolerance = TOLERANCE[dtype] * max(w.abs().max().item() for w in wanted)

    whole = view.score([Query(view.open(), Context(first), 1)])
    assert whole.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert (whole - wanted[0]).abs().max() < tolerance

    slot = view.open()
    rows = [view.score([Query(slot, Context(first[:n]), n)]) for n in range(1, 25)]
    assert (torch.cat(rows) - wanted[0]).abs().max() < tolerance

    slots = [view.open(), view.open()]
    view.score([Query(slots[0], Context(first[:7]), 7)])
    got = view.score(
        [
            Query(slots[0], Context(first[:7], tuple(first[7:])), 5),
            Query(slots[1], Context(second), 1),
        ]
    )
    assert (got - torch.cat([wanted[0][4:], wanted[1]])).abs().max() < tolerance


@pytest.mark.parametrize("name", ["llama gqa", "mistral", "qwen3"])
def test_rewinds_and_chunks_give_the_rows_of_a_fresh_forward(name):
    model, backend = make(name, torch.float64)
    trunk = Trunk(backend, [2])
    trunk.chunk = 5
    view, low = trunk.view(), trunk.view(2)
    slot = view.open()
    ids = tokens(30, 3)
    scale = own(model, ids).abs().max().item()
    for kept, draft in ((6, (1, 2, 3)), (7, (4,)), (20, (5, 6)), (22, ()), (9, (7,) * 9)):
        # Committed tokens never change, so these contexts differ in what is pending only.
        context = Context(ids[:6], tuple(ids[6:kept]) + draft)
        low.score([Query(slot, context, len(context))])
        got = view.score([Query(slot, context, 1)])
        assert (got - own(model, list(context))).abs().max() < 1e-11 * scale


@pytest.mark.parametrize("backend", [LeanBackend, HFBackend])
def test_a_cache_that_grew_gives_the_rows_of_a_fresh_forward(backend, monkeypatch):
    monkeypatch.setattr("hierspec.lm.trunk.slots._FIRST_CAPACITY_ON_CPU", 8)
    model, lean = make("llama gqa", torch.float64)
    view = Trunk(lean if backend is LeanBackend else HFBackend(model)).view()
    slot, ids = view.open(), tokens(40, 5)
    want = view.score([Query(view.open(), Context(ids), 1)])
    rooms = []
    for start, end in ((0, 5), (5, 9), (9, 17), (17, 40)):
        got = view.score([Query(slot, Context(ids[:end]), start + 1)])
        assert (got - want[start:end]).abs().max() < 1e-10
        rooms.append(slot.state.capacity)
    assert rooms == [8, 16, 32, 64]


def test_an_exit_is_the_first_layers_with_norm_and_head():
    model, backend = make("llama gqa", torch.float64)
    view = Trunk(backend, [3]).view(3)
    ids = tokens(12, 4)
    got = view.score([Query(view.open(), Context(ids), 1)])
    model.model.layers = model.model.layers[:3]
    model.config.num_hidden_layers = 3
    assert (got - own(model, ids)).abs().max() < 1e-12 * got.abs().max()


def test_the_number_of_threads_is_left_as_it_was():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        _, backend = make("llama", torch.float32)
        view = Trunk(backend).view()
        view.score([Query(view.open(), Context([1, 2]), 1)])
        assert torch.get_num_threads() == 2
        with pytest.raises(RuntimeError):
            backend.head(torch.zeros(1, 7))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_contexts_beyond_the_first_rotation_table():
    config = tf.LlamaConfig(**{**_SIZES, "max_position_embeddings": 5000, "num_hidden_layers": 1})
    torch.manual_seed(0)
    model = tf.LlamaForCausalLM(config).eval()
    view = Trunk(LeanBackend(InMemory(model))).view()
    ids = tokens(2100, 6)
    slot = view.open()
    view.score([Query(slot, Context(ids[:100]), 100)])
    got = view.score([Query(slot, Context(ids), 2100)])
    want = own(model, ids)[-1:]
    assert (got - want).abs().max() < 1e-5 * want.abs().max()


@pytest.mark.parametrize(
    ("config", "why"),
    [
        (tf.Gemma2Config(), "gemma2"),
        (tf.LlamaConfig(hidden_act="gelu"), "gelu"),
        (
            tf.LlamaConfig(
                rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
            ),
            "dynamic",
        ),
        (
            tf.LlamaConfig(hidden_size=96, num_attention_heads=6, num_key_value_heads=4),
            "6 heads do not divide among 4",
        ),
        (SimpleNamespace(model_type="mamba"), "mamba"),
    ],
)
def test_other_shapes_are_refused_with_the_reason(config, why):
    assert why in (unsupported_reason(config) or "")
    with pytest.raises(ValueError, match=f"{why}.*backend='hf'"):
        LlamaShape.from_config(config)
