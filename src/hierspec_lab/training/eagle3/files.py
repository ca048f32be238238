"""A trained network as a folder in the published layout, which other engines load, too."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from hierspec.lm.eagle3.config import Eagle3Config
from hierspec.lm.weights import INDEX_FILE, SINGLE_FILE
from hierspec.utils.files import write_atomically

from .network import Eagle3Network

_MAX_FILE_BYTES = 15 << 20
_ARCHITECTURE = "LlamaForCausalLMEagle3"


def write_network(
    folder: Path,
    network: Eagle3Network,
    dtype: torch.dtype,
    info: Mapping[str, Any] | None = None,
    scale: torch.Tensor | None = None,
) -> None:
    """Write a network as a folder that other engines can load, too.

    Args:
        info: about its training, written to ``hierspec.json``.
        scale: of ``fc``'s inputs, by which its columns are multiplied.
    """
    tensors: dict[str, torch.Tensor] = {}
    for name, tensor in network.state_dict().items():
        if name == "fc.weight" and scale is not None:
            tensor = tensor * scale
        converted = tensor.to(dtype) if tensor.is_floating_point() else tensor
        tensors[name] = converted.contiguous().clone()
    folder.mkdir(parents=True, exist_ok=True)
    _save(folder, tensors)
    config = {**_description(network.config), "torch_dtype": str(dtype).removeprefix("torch.")}
    text = json.dumps(config, indent=1) + "\n"
    write_atomically(folder / "config.json", text, "its description")
    if info is not None:
        write_atomically(folder / "hierspec.json", json.dumps(info, indent=1) + "\n", "its report")


def may_be_replaced(path: Path) -> bool:
    """Return whether a path is an empty folder or a drafter's, not a model or something else."""
    if not path.is_dir():
        return False
    try:
        config = json.loads((path / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return not any(path.iterdir())
    return isinstance(config, dict) and _ARCHITECTURE in config.get("architectures", ())


def _save(folder: Path, tensors: dict[str, torch.Tensor]) -> None:
    """Write one file, or the head in a second one where one file would be too large."""
    sizes = {name: tensor.numel() * tensor.element_size() for name, tensor in tensors.items()}
    parts = [tensors]
    if sum(sizes.values()) > _MAX_FILE_BYTES:
        head = {"lm_head.weight": tensors["lm_head.weight"]}
        parts = [{n: t for n, t in tensors.items() if n not in head}, head]
    names = [SINGLE_FILE]
    if len(parts) > 1:
        names = [f"model-{i:05}-of-{len(parts):05}.safetensors" for i in range(1, len(parts) + 1)]
    for name, part in zip(names, parts, strict=True):
        write_atomically(
            folder / name,
            lambda path, part=part: save_file(part, path, {"format": "pt"}),
            "the drafter",
        )
    if len(parts) > 1:
        weight_map = {n: name for name, part in zip(names, parts, strict=True) for n in part}
        index = {"metadata": {"total_size": sum(sizes.values())}, "weight_map": weight_map}
        write_atomically(folder / INDEX_FILE, json.dumps(index, indent=1) + "\n", "the drafter")
        names.append(INDEX_FILE)
    # Files of an earlier network would be read instead of these.
    possible = {
        SINGLE_FILE,
        INDEX_FILE,
        *(file.name for file in folder.glob("model-*-of-*.safetensors")),
    }
    for name in possible.difference(names):
        (folder / name).unlink(missing_ok=True)


def _description(config: Eagle3Config) -> dict[str, Any]:
    shared: dict[str, Any] = {
        "architectures": [_ARCHITECTURE],
        "model_type": "llama",
        "hidden_act": "silu",
        "mlp_bias": False,
        "tie_word_embeddings": False,
    }
    out = shared | config.model_dump(exclude_none=True)
    if "rope_theta" in config.rope:  # for readers of older configs
        out["rope_theta"] = config.rope["rope_theta"]
    if config.feature_layers is not None:
        out["eagle_aux_hidden_state_layer_ids"] = list(config.feature_layers)
    return out
