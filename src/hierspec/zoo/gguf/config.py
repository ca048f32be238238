"""The configuration of a GGUF file's model, as transformers has it, from the file's metadata.

An architecture is a row of :data:`ARCHITECTURES`: its class in transformers, the names of its
layers' parameters, and what else its configuration says. What a name means differs between them:
the rows of a Llama's queries and keys are in another order, and Gemma's norms have one added
(:mod:`.weights` undoes both).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from .header import Header
from .rotation import KeyReader, rope_parameters
from .tokenizer import Vocabulary

_ATTENTION = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
}
_MLP = {"ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
_LLAMA = {**_ATTENTION, "ffn_norm": "post_attention_layernorm", **_MLP}
_HEAD_NORMS = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
_GEMMA_NORMS = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_PHI3 = {
    "attn_norm": "input_layernorm",
    "attn_qkv": "self_attn.qkv_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_up": "mlp.gate_up_proj",
    "ffn_down": "mlp.down_proj",
}
_WINDOW, _CAP = "attention.sliding_window", "final_logit_softcapping"
# Keys that change a model's scores, and values with which they do not
_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "attention.causal": (True,),
    "attention.scale": (0.0,),
    "attention.clamp_kqv": (0.0,),
    "attention.max_alibi_bias": (0.0,),
    "attention.temperature_scale": (0.0,),
    "attn_logit_softcapping": (0.0,),
    "embedding_scale": (0.0, 1.0),
    "logit_scale": (0.0, 1.0),
    "residual_scale": (0.0, 1.0),
    _CAP: (0.0,),
    _WINDOW: (0,),
}


@dataclass(frozen=True, slots=True)
class Architecture:
    """A family of models, by llama.cpp's name.

    Attributes:
        model_class: in transformers.
        layer: names of a layer's parameters: the file's → transformers'.
        extra: what its configuration says besides the sizes, of a header and the sizes so far.
        interleaved: whether rows of queries and keys that rotate together are adjacent.
        norm_offset: what the file has added to the weights of norms.
        partial_rotation: whether it may rotate a part of each head.
        biased: matrices of a layer that always have a bias.
        reads: those of :data:`_NEUTRAL` that ``extra`` reads.
    """

    model_class: str
    model_type: str
    layer: Mapping[str, str]
    extra: Callable[[Header, dict[str, Any]], dict[str, Any]] = lambda header, sizes: {}
    interleaved: bool = False
    norm_offset: float = 0.0
    partial_rotation: bool = False
    biased: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()


def _biases(header: Header, sizes: dict[str, Any]) -> dict[str, Any]:
    return {
        "attention_bias": _has_bias(header, "attn_"),
        "mlp_bias": _has_bias(header, "ffn_"),
    }


def _gemma(header: Header, sizes: dict[str, Any]) -> dict[str, Any]:
    return {"hidden_activation": "gelu_pytorch_tanh", "hidden_act": "gelu_pytorch_tanh"}


def _gemma2(header: Header, sizes: dict[str, Any]) -> dict[str, Any]:
    key = header.architecture
    return {
        **_gemma(header, sizes),
        "query_pre_attn_scalar": _query_scale(sizes, 46),
        "attn_logit_softcapping": header.number(f"{key}.attn_logit_softcapping", 50.0),
        "final_logit_softcapping": header.number(f"{key}.final_logit_softcapping", 30.0),
        **_windows(header, sizes, every=2, window=4096),
    }


def _gemma3(header: Header, sizes: dict[str, Any]) -> dict[str, Any]:
    key = header.architecture
    cap = header.number(f"{key}.final_logit_softcapping", 0.0)
    local = header.number(f"{key}.rope.freq_base_swa", 10000.0)
    return {
        **_gemma(header, sizes),
        "query_pre_attn_scalar": _query_scale(sizes, 62),
        "attn_logit_softcapping": None,
        "final_logit_softcapping": cap or None,
        **_windows(header, sizes, every=6, window=0),
        "rope_parameters": {
            "full_attention": sizes["rope_parameters"],
            "sliding_attention": {"rope_type": "default", "rope_theta": local},
        },
    }


def _phi3(header: Header, sizes: dict[str, Any]) -> dict[str, Any]:
    key, length = header.architecture, sizes["max_position_embeddings"]
    return {
        "original_max_position_embeddings": header.positive(
            f"{key}.rope.scaling.original_context_length", length
        ),
        "sliding_window": header.integer(f"{key}.{_WINDOW}", 0) or None,
    }


# llama.cpp's name → the family
ARCHITECTURES = {
    "llama": Architecture("LlamaForCausalLM", "llama", _LLAMA, _biases, interleaved=True),
    "qwen2": Architecture(
        "Qwen2ForCausalLM", "qwen2", _LLAMA, biased=("q_proj", "k_proj", "v_proj")
    ),
    "qwen3": Architecture("Qwen3ForCausalLM", "qwen3", {**_LLAMA, **_HEAD_NORMS}),
    "phi3": Architecture(
        "Phi3ForCausalLM", "phi3", _PHI3, _phi3, partial_rotation=True, reads=(_WINDOW,)
    ),
    "gemma": Architecture("GemmaForCausalLM", "gemma", _LLAMA, _gemma, norm_offset=1.0),
    "gemma2": Architecture(
        "Gemma2ForCausalLM",
        "gemma2",
        {**_ATTENTION, **_GEMMA_NORMS, **_MLP},
        _gemma2,
        norm_offset=1.0,
        reads=(_WINDOW, _CAP, "attn_logit_softcapping"),
    ),
    "gemma3": Architecture(
        "Gemma3ForCausalLM",
        "gemma3_text",
        {**_ATTENTION, **_HEAD_NORMS, **_GEMMA_NORMS, **_MLP},
        _gemma3,
        norm_offset=1.0,
        reads=(_WINDOW, _CAP),
    ),
}


def architecture_of(header: Header) -> Architecture:
    """Return the family of a file's model.

    Raises:
        HierspecError: it is one that is not read.
    """
    name = header.architecture
    if name not in ARCHITECTURES:
        raise header.refuse(
            f"holds a model of architecture {name!r}; GGUF files are read for "
            f"{', '.join(ARCHITECTURES)} only: give the folder of its Hugging Face checkpoint "
            "instead"
        )
    if header.integer(f"{name}.expert_count", 0):
        raise header.refuse(
            f"holds a mixture of experts ({name}.expert_count), which is not read from GGUF files: "
            "give the folder of its Hugging Face checkpoint instead"
        )
    family = ARCHITECTURES[name]
    for key, neutral in _NEUTRAL.items():
        value = header.fields.get(f"{name}.{key}", neutral[0])
        if key not in family.reads and value not in neutral:
            raise header.refuse(
                f"has {name}.{key} {value}, which no {family.model_class} has: give the folder of "
                "its Hugging Face checkpoint instead"
            )
    return family


def read_config(header: Header, vocabulary: Vocabulary | None, read: KeyReader) -> dict[str, Any]:
    """Return the contents of the model's ``config.json``.

    Args:
        vocabulary: ``None``: the file says nothing of its tokens, and has as many as it embeds.
        read: (a tensor's name) → its values, for factors of rotations.

    Raises:
        HierspecError: the architecture is not supported, or a size is missing or impossible.
    """
    family, key = architecture_of(header), header.architecture
    heads = header.positive(f"{key}.attention.head_count")
    width = header.positive(f"{key}.embedding_length")
    head_dim = header.positive(f"{key}.attention.key_length", max(width // heads, 1))
    values = header.positive(f"{key}.attention.value_length", head_dim)
    layers = header.positive(f"{key}.block_count")
    if layers > len(header.tensors):
        raise header.damaged(f"has {layers} layers, but {len(header.tensors)} tensors")
    if values != head_dim:
        raise header.refuse(
            f"has keys of {head_dim} and values of {values} dimensions, which is not supported: "
            "choose a model where they are equal"
        )
    kv_heads = header.positive(f"{key}.attention.head_count_kv", heads)
    if heads % kv_heads:
        raise header.damaged(f"has {heads} heads, which do not divide among {kv_heads} of keys")
    tied = "output.weight" not in header.tensors
    sizes: dict[str, Any] = {
        "architectures": [family.model_class],
        "model_type": family.model_type,
        "dtype": "bfloat16",
        "hidden_size": width,
        "intermediate_size": header.positive(f"{key}.feed_forward_length"),
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "max_position_embeddings": header.context_length,
        "rms_norm_eps": header.number(f"{key}.attention.layer_norm_rms_epsilon"),
        "rope_parameters": rope_parameters(header, head_dim, read, family.partial_rotation),
        "vocab_size": _num_embedded(header) if vocabulary is None else len(vocabulary.tokens),
        "hidden_act": "silu",
        "tie_word_embeddings": tied,
        "bos_token_id": vocabulary and vocabulary.bos,
        "eos_token_id": (vocabulary and vocabulary.ends) or None,
        "pad_token_id": vocabulary and vocabulary.token_id("padding"),
    }
    return {**sizes, **family.extra(header, sizes)}


def _num_embedded(header: Header) -> int:
    embedding = header.tensors.get("token_embd.weight")
    if embedding is None:
        raise header.damaged("lacks the tensor token_embd.weight")
    return embedding.shape[0]


def _has_bias(header: Header, part: str) -> bool:
    return any(
        name.startswith("blk.") and f".{part}" in name and name.endswith(".bias")
        for name in header.tensors
    )


def _query_scale(sizes: dict[str, Any], layers_of_largest: int) -> int:
    """Return what Gemma's queries are divided by the root of; its 27B models alone differ."""
    if sizes["num_hidden_layers"] == layers_of_largest:
        return sizes["hidden_size"] // sizes["num_attention_heads"]
    return sizes["head_dim"]


def _windows(header: Header, sizes: dict[str, Any], every: int, window: int) -> dict[str, Any]:
    """Return which layers attend to a window: all but one in ``every``, or as the file lists."""
    key, layers = f"{header.architecture}.{_WINDOW}", sizes["num_hidden_layers"]
    window = header.integer(key, window)
    if window <= 0:
        return {"layer_types": ["full_attention"] * layers}
    pattern = header.fields.get(f"{key}_pattern", every)
    if isinstance(pattern, list):
        slides = [bool(one) for one in pattern]
    else:
        period = header.positive(f"{key}_pattern", every)
        slides = [(i + 1) % period != 0 for i in range(layers)]
    if len(slides) != layers:
        raise header.damaged(f"has {len(slides)} entries in {key}_pattern, but {layers} layers")
    kinds = ["sliding_attention" if one else "full_attention" for one in slides]
    return {"sliding_window": window, "layer_types": kinds}
