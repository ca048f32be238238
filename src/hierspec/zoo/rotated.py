"""``zoo:smollm2-16bit``: a checkpoint of 16 bits with the function of a file in few.

Weights that were released in 4 bits lie on a grid: a copy in 4 bits is the model itself, and says
nothing about copies of the checkpoints that people have. So its norms' weights are multiplied into
the next matrices, its head is no longer tied to its embedding, and its residual stream is rotated
by an orthogonal matrix Q: a state x becomes x Q. Norms without weights do not notice a rotation, so
the function stays, up to the rounding to bfloat16, while every weight is now a sum of many.

Q is a product of rounds, each a permutation, signs, and Hadamard transforms of blocks: sums and
differences in float64, in one order. Whatever multiplies matrices on a machine has no part in it,
and the file has the same bits everywhere.

What was trained to read or change the states of the file's model does the same on the checkpoint's
once the rotation is folded into its matrices: :func:`fold_head`, :func:`fold_eagle3`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import math
import os
import shutil
import struct
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from rich.progress import track

from hierspec.lm.exit_heads import FULL
from hierspec.lm.weights import HEAD, SINGLE_FILE, Checkpoint, from_directory
from hierspec.utils.documents import read_json
from hierspec.utils.files import cache_folder
from hierspec.utils.terminal import announce, console

from . import kept_folder
from .content import content_hash
from .gguf.source import open_gguf

if TYPE_CHECKING:
    from .gguf.source import GgufSource

FORMAT = 1  # version of the folders, raised when what is written changes
_SEED, _ROUNDS = 0, 3
_CHUNK = 256  # rows rotated at once: few enough for a processor's cache
_FINAL_NORM = "model.norm.weight"
_NORM_BEFORE = {
    **dict.fromkeys(("q_proj", "k_proj", "v_proj"), "input_layernorm"),
    **dict.fromkeys(("gate_proj", "up_proj"), "post_attention_layernorm"),
}
_WRITERS = ("o_proj", "down_proj")  # into the residual stream
log = logging.getLogger(__name__)

Doubles = np.ndarray[Any, np.dtype[np.float64]]


def open_rotated(path: Path, name: str) -> Checkpoint:
    """Open the 16-bit checkpoint of a Llama's GGUF file; make it in the user's cache at first.

    Args:
        name: what it is called, here and in the cache: ``zoo:NAME``.

    Raises:
        HierspecError: the file cannot be read, or there is no room for the checkpoint.
    """
    return dataclasses.replace(from_directory(rotated_folder(path, name)), name=name)


def rotated_folder(path: Path, name: str) -> Path:
    """Return the folder of :func:`open_rotated`'s checkpoint."""
    plain_name = name.rpartition(":")[2]
    digest = hashlib.sha256(f"{FORMAT} {content_hash(path)}".encode()).hexdigest()
    folder = cache_folder("models") / f"{plain_name}-{digest[:16]}"
    if not kept_folder.is_complete(folder, FORMAT):
        source = open_gguf(path, path.name)
        announce(log, f"making {name} in {folder}, once")

        def write(folder: Path) -> None:
            _write(source, folder, name)

        kept_folder.make(folder, FORMAT, path.name, f"the weights of {name}", write)
    return folder


def rotate_last(rows: Doubles) -> Doubles:
    """Return x Q for rows x [n, d]."""
    return rotate_first(rows.T).T


def rotate_first(matrix: Doubles) -> Doubles:
    """Return Qᵀ M for a matrix M [d, n]; d is a multiple of 8."""
    parts = (matrix[:, at : at + _CHUNK] for at in range(0, matrix.shape[1], _CHUNK))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return np.concatenate(list(pool.map(_rotate, parts)), axis=1)


def _rotate(matrix: Doubles) -> Doubles:
    d, n = matrix.shape
    block = d & -d  # the largest power of two that divides d
    assert block >= 8, d  # else blocks mix little
    other = np.empty((d, n))
    for number in range(_ROUNDS):
        noise = hashlib.shake_256(f"{_SEED}/{number}".encode()).digest(8 * d)
        keys = np.frombuffer(noise, "<u8")
        signs = 1.0 - 2.0 * (keys & 1)
        order = np.argsort(keys, kind="stable")
        matrix = np.ascontiguousarray(matrix[order] * signs[:, None])
        span = 1
        while span < block:
            pairs, out = (x.reshape(-1, 2, span, n) for x in (matrix, other))
            np.add(pairs[:, 0], pairs[:, 1], out=out[:, 0])
            np.subtract(pairs[:, 0], pairs[:, 1], out=out[:, 1])
            matrix, other = other, matrix
            span *= 2
        matrix *= block**-0.5
    return matrix


def _write(source: GgufSource, folder: Path, name: str) -> None:
    assert source.tokenizer_path is not None  # the file of zoo:smollm2 has a tokenizer
    for file in source.tokenizer_path.iterdir():
        if file.name != kept_folder.MANIFEST:
            shutil.copyfile(file, folder / file.name)
    config = read_json(dict[str, Any], folder / "config.json", "its configuration")
    config |= {"tie_word_embeddings": False, "dtype": "bfloat16"}
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    names = sorted({*source.names(), HEAD})
    screen = console(stderr=True)
    silent = not screen.is_terminal
    title = f"making {name}, once"
    with (folder / SINGLE_FILE).open("wb") as file:
        file.write(_header({one: source.shape(one) for one in names}))
        for one in track(names, title, console=screen, transient=True, disable=silent):
            file.write(_weight(source, one).view(torch.int16).numpy().tobytes())


def _header(shapes: Mapping[str, tuple[int, ...]]) -> bytes:
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in shapes.items():
        start, end = end, end + 2 * math.prod(shape)
        entries[name] = {"dtype": "BF16", "shape": shape, "data_offsets": (start, end)}
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def _weight(source: GgufSource, name: str) -> torch.Tensor:
    if len(source.shape(name)) == 1:
        return torch.ones(source.shape(name), dtype=torch.bfloat16)
    weight = source.tensor(name).double().numpy()
    *layer, module, _ = name.split(".")
    if module in _WRITERS:
        return _rounded(rotate_first(weight))
    norm = _FINAL_NORM if name == HEAD else None
    if module in _NORM_BEFORE:
        norm = ".".join((*layer[:-1], _NORM_BEFORE[module], "weight"))
    if norm is not None:
        weight = weight * source.tensor(norm).double().numpy()
    return _rounded(rotate_last(weight))


def fold_head(
    kind: str, tensors: Mapping[str, torch.Tensor], source: GgufSource
) -> dict[str, torch.Tensor]:
    """Return the tensors of an exit head for the checkpoint, from those for ``source``.

    Args:
        kind: of the head, as in :mod:`hierspec.lm.exit_heads`.
    """
    folded = dict(tensors)
    weight = tensors["weight"]
    if kind == FULL:  # it reads normed states, which the checkpoint's norm leaves unweighted
        folded["weight"] = _last(weight * source.tensor(_FINAL_NORM).to(weight.dtype))
        return folded
    size = weight.shape[1]  # rows that change the state come first, then those of an mlp
    folded["weight"] = _last(torch.cat((_first(weight[:size]), weight[size:])))
    if (bias := tensors.get("bias")) is not None:
        folded["bias"] = torch.cat((_first(bias[:size, None])[:, 0], bias[size:]))
    if "down" in tensors:
        folded["down"] = _first(tensors["down"])
    return folded


def fold_eagle3(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the tensors of an EAGLE-3 network for the checkpoint, from those for its file."""
    folded, norm = dict(tensors), "midlayer.input_layernorm.weight"
    fc, weight = tensors["fc.weight"], tensors[norm]
    folded["fc.weight"] = torch.cat([_last(part) for part in fc.tensor_split(3, dim=1)], 1)
    for name in (f"midlayer.self_attn.{part}_proj.weight" for part in "qkv"):
        embedded, states = tensors[name].tensor_split(2, dim=1)
        folded[name] = torch.cat((_last(embedded * weight), states), 1)
    folded[norm] = torch.ones_like(weight)
    return folded


def _last(rows: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(rotate_last(rows.double().numpy()).copy()).to(rows.dtype)


def _first(matrix: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(rotate_first(matrix.double().numpy())).to(matrix.dtype)


def _rounded(values: Doubles) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(values)).to(torch.bfloat16)
