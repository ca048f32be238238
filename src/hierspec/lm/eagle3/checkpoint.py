"""EAGLE-3 checkpoints in the published layout: ``config.json`` beside ``model.safetensors``.

Tensors: ``fc``, ``midlayer.*``, ``norm``, ``lm_head``, ``d2t``, ``t2d``; sometimes
``embed_tokens``, a copy of the target's embedding, which is ignored. In some files the layer is
called ``layers.0``.
"""

from __future__ import annotations

from pathlib import Path

import torch

from hierspec.errors import HierspecError
from hierspec.lm.weights import Checkpoint, locate, validate_shape
from hierspec.utils.files import expand_user

from .config import Eagle3Config, read_config
from .network import Eagle3Network

_IGNORED = ("embed_tokens.weight",)


def read_network(folder: str | Path) -> Eagle3Network:
    """Read a network, with parameters in float32.

    Raises:
        HierspecError: there is no such folder, or no EAGLE-3 drafter in it.
    """
    network, folder = Eagle3Network(read_folder(folder)), expand_user(folder)
    source = Checkpoint(folder, str(folder), None, locate(folder), None)
    names = (name for name in source.names() if name not in _IGNORED)
    _load_tensors(network, {_rename(name): source.tensor(name) for name in names}, source.name)
    return network.eval()


def read_folder(folder: str | Path) -> Eagle3Config:
    """Read what a network's folder says of it.

    Raises:
        HierspecError: there is no such folder, or no EAGLE-3 drafter in it.
    """
    folder = expand_user(folder)
    if not folder.is_dir():
        raise HierspecError(f"no directory {str(folder)!r}: give the folder of an EAGLE-3 drafter")
    return read_config(folder / "config.json")


def _rename(name: str) -> str:
    return name.replace("layers.0.", "midlayer.", 1) if name.startswith("layers.0.") else name


def _load_tensors(network: Eagle3Network, tensors: dict[str, torch.Tensor], path: str) -> None:
    config, expected = network.config, network.state_dict()
    if "d2t" not in tensors and config.draft_vocab_size == config.vocab_size:
        tensors |= {"d2t": expected["d2t"], "t2d": torch.ones_like(expected["t2d"])}
    if "t2d" not in tensors and "d2t" in tensors:
        network.set_vocabulary(tensors["d2t"] + torch.arange(len(tensors["d2t"])))
        tensors["t2d"] = network.t2d.clone()
    for name, tensor in expected.items():
        if name not in tensors:
            raise HierspecError(f"{path} lacks {name!r}: it is not an EAGLE-3 drafter of one layer")
        validate_shape(path, name, tensors[name].shape, tensor.shape)
    if unknown := sorted(set(tensors) - set(expected)):
        raise HierspecError(f"{path} holds {unknown[0]!r}, which no EAGLE-3 drafter has")
    network.load_state_dict({name: tensors[name] for name in expected})
    ids = network.scored_ids
    if int(ids.min()) < 0 or int(ids.max()) >= config.vocab_size:
        raise HierspecError(f"{path}: d2t leads out of the target's vocabulary")
