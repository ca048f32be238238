"""The weights of a GGUF file: where they are, and their values."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np

from hierspec.errors import HierspecError, first_line
from hierspec.lm.weights import EMBEDDING, HEAD

from .config import ARCHITECTURES
from .header import Header, StoredTensor

if TYPE_CHECKING:
    import torch

_TOP = {
    "token_embd.weight": EMBEDDING,
    "output_norm.weight": "model.norm.weight",
    "output.weight": HEAD,
}
# Read with the configuration, as they say how heads are rotated
_FACTORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")


def validate_package(header: Header) -> None:
    """Refuse to read weights without the package that dequantizes them."""
    if find_spec("gguf") is None:
        raise HierspecError(
            f"reading {header.name} needs the package gguf: pip install 'hierspec[smollm2]'"
        )


def validate_tensors(header: Header, config: Mapping[str, Any]) -> None:
    """Check what a file says of its tensors; no weight is read.

    Args:
        config: of :func:`.config.read_config`.

    Raises:
        HierspecError: a tensor is missing, cut off, of no use to the model, of a shape that does
            not fit its sizes, or of a type that is not read.
    """
    family = ARCHITECTURES[header.architecture]
    shapes = _shapes(header, config)
    stored = named(header)
    for name in stored:
        if name not in shapes:
            raise header.refuse(
                f"holds {stored[name].name!r}, which no {family.model_class} has: fetch another "
                "file of the model, or give the folder of its Hugging Face checkpoint"
            )
    for name, shape in shapes.items():
        if name not in stored:
            if may_lack(name, config):
                continue
            raise header.damaged(f"lacks {name}")
        tensor = stored[name]
        if tensor.shape != shape:
            raise header.damaged(
                f"has {tensor.name} of shape {tensor.shape}, where its sizes ask for {shape}"
            )
        _, _, block_size = _layout(header, tensor)
        # gguf may know its sizes, and not what it means.
        _dequantize(header, tensor, np.zeros(block_size, np.uint8))


def may_lack(name: str, config: Mapping[str, Any]) -> bool:
    """Return whether a parameter that is not in the file is 0: a bias, where a part has some."""
    return name.endswith(".bias") and bool(config.get("attention_bias"))


def factors(header: Header, name: str) -> Sequence[float]:
    """Return the values of a tensor of a row, such as the factors of a rotation."""
    return dequantized(header, header.tensors[name]).reshape(-1).tolist()


def dequantized(header: Header, tensor: StoredTensor) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return a tensor's values in float32, of its shape.

    Raises:
        HierspecError: its quantization is not read, the file ends within it, or it holds what is no
            number.
    """
    values = _dequantize(header, tensor, stored_bytes(header, tensor)[1])
    if not np.isfinite(values).all():
        raise header.damaged(f"holds NaN or infinity in {tensor.name}")
    return np.ascontiguousarray(values, np.float32).reshape(tensor.shape)


def stored_bytes(
    header: Header, tensor: StoredTensor
) -> tuple[str, np.ndarray[Any, np.dtype[np.uint8]]]:
    """Return the name of a tensor's type and its bytes, [..., those of a row].

    Raises:
        HierspecError: its type is not known, or the file ends within it.
    """
    form, per_block, block_size = _layout(header, tensor)
    size = size_of(header, tensor)
    data = np.fromfile(tensor.file, np.uint8, size, offset=tensor.start)
    if data.size != size:
        raise header.damaged(f"ends within {tensor.name}")
    return form, data.reshape(*tensor.shape[:-1], tensor.shape[-1] // per_block * block_size)


def size_of(header: Header, tensor: StoredTensor) -> int:
    """Return the bytes of a tensor."""
    _, per_block, block_size = _layout(header, tensor)
    return math.prod(tensor.shape) // per_block * block_size


def _layout(header: Header, tensor: StoredTensor) -> tuple[str, int, int]:
    """Return the name of a tensor's type, and the numbers and bytes of a block."""
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    try:
        kind = GGMLQuantizationType(tensor.kind)
        per_block, block_size = GGML_QUANT_SIZES[kind]
    except (ValueError, KeyError):
        raise header.refuse(
            f"holds {tensor.name} in a quantization (ggml's type {tensor.kind}) that the installed "
            "package gguf does not know: pip install -U gguf, or use a file with another, such as "
            "Q8_0 or Q4_K_M"
        ) from None
    if not tensor.shape or tensor.shape[-1] % per_block:
        raise header.damaged(f"has {tensor.name} of shape {tensor.shape} in blocks of {per_block}")
    if math.prod(tensor.shape) // per_block * block_size > tensor.room:
        raise header.damaged(f"ends within {tensor.name}")
    return kind.name, per_block, block_size


def _dequantize(
    header: Header, tensor: StoredTensor, rows: np.ndarray[Any, np.dtype[np.uint8]]
) -> np.ndarray[Any, np.dtype[np.float32]]:
    from gguf import GGMLQuantizationType, dequantize

    kind = GGMLQuantizationType(tensor.kind)
    try:
        with np.errstate(all="ignore"):  # a damaged scale may overflow
            return dequantize(rows, kind)
    except (NotImplementedError, ValueError, KeyError) as error:
        raise header.refuse(
            f"holds {tensor.name} in the quantization {kind.name}, which cannot be dequantized "
            f"({first_line(error)}): use a file with another, such as Q8_0 or Q4_K_M"
        ) from None


def named(header: Header) -> dict[str, StoredTensor]:
    """Return a model's tensors by transformers' names; by the file's own where there is none."""
    parts = ARCHITECTURES[header.architecture].layer
    tensors = header.tensors.items()
    return {_parameter_name(name, parts): at for name, at in tensors if name not in _FACTORS}


def _parameter_name(name: str, parts: Mapping[str, str]) -> str:
    """Return ``model.layers.3.self_attn.q_proj.weight`` for ``blk.3.attn_q.weight``."""
    if name in _TOP:
        return _TOP[name]
    block, _, rest = name.partition(".")
    layer, _, part = rest.partition(".")
    part, _, kind = part.rpartition(".")
    if block != "blk" or part not in parts:
        return name
    return f"model.layers.{layer}.{parts[part]}.{kind}"


def _shapes(header: Header, config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return the shape of every parameter that transformers' model of these sizes has.

    To build that model, empty, takes two seconds.
    """
    width, inner, head = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    queries, keys = (config[f"num_{one}_heads"] * head for one in ("attention", "key_value"))
    rows = {
        **dict.fromkeys(("k_proj", "v_proj"), keys),
        **dict.fromkeys(("gate_proj", "up_proj"), inner),
        **dict.fromkeys(("o_proj", "down_proj"), width),
        "q_proj": queries,
        "qkv_proj": queries + 2 * keys,
        "gate_up_proj": 2 * inner,
    }
    family = ARCHITECTURES[header.architecture]
    biased = set(family.biased)
    biased |= {"q_proj", "k_proj", "v_proj", "o_proj"} if config.get("attention_bias") else set()
    biased |= {"gate_proj", "up_proj", "down_proj"} if config.get("mlp_bias") else set()
    vocabulary = (config["vocab_size"], width)
    shapes = {EMBEDDING: vocabulary, "model.norm.weight": (width,)}
    if not config["tie_word_embeddings"]:
        shapes[HEAD] = vocabulary
    for layer in range(config["num_hidden_layers"]):
        for part in family.layer.values():
            name, module = f"model.layers.{layer}.{part}", part.rpartition(".")[2]
            columns = {"o_proj": queries, "down_proj": inner}.get(module, width)
            if module in rows:
                shapes[f"{name}.weight"] = (rows[module], columns)
            else:
                shapes[f"{name}.weight"] = (head if module in ("q_norm", "k_norm") else width,)
            if module in biased:
                shapes[f"{name}.bias"] = (rows[module],)
    return shapes


def by_halves(values: torch.Tensor, name: str, config: Any) -> torch.Tensor:
    """Return rows of queries or keys in transformers' order, halves, where a Llama's are pairs."""
    if ".q_proj." in name:
        heads = config.num_attention_heads
    elif ".k_proj." in name:
        heads = config.num_key_value_heads
    else:
        return values
    rows, *rest = values.shape
    if rows % (2 * heads):
        return values  # an odd head has no halves, and is refused when it is rotated
    return values.reshape(heads, rows // heads // 2, 2, *rest).transpose(1, 2).reshape(rows, *rest)
