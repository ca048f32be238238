"""Memory of a method, and the weights that a call of each of its levels runs through.

All methods of a bench share one process and most of its weights, so the process's own peak says
nothing about one of them. A method is charged with the weights it needs (shared ones for each
method that needs them) and with how much one run of it, which is not timed, raises the resident set
or an accelerator's allocations.
"""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from hierspec.config.target import model_config
from hierspec.core.nodes import Concatenate, walk, walk_levels
from hierspec.errors import HierspecError, first_line
from hierspec.lm.backend import Backend, HasBackend, backend_of
from hierspec.lm.base import CacheUser
from hierspec.lm.llama_config import of_transformers
from hierspec.lm.native.backend import NativeBackend
from hierspec.lm.trunk.trunk import ExitModel
from hierspec.lm.weights import SCORED
from hierspec.zoo import registry
from hierspec_lab.bench.methods.ours import BenchModels, HierarchyMethod


@functools.cache
def count_parameters(model: str, *, encoder: bool = True, embedding: bool = True) -> int:
    """Count a model's weights; tied ones once.

    Args:
        encoder: count an encoder's as well, which runs once for each source.
        embedding: count untied input embeddings as well, of which a token reads one row.

    Raises:
        HierspecError: transformers cannot build it.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM

    config = model_config(model)
    size, excluded = config.vocab_size * config.hidden_size, 0
    if registry.can_resolve(model) and SCORED in (source := registry.resolve(model)).names():
        excluded = size - len(source.tensor(SCORED)) * config.hidden_size
    if not (embedding or config.tie_word_embeddings):
        excluded += size
    kind = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    try:
        with torch.device("meta"):
            empty = kind.from_config(of_transformers(config))
    except Exception as error:  # models and their validators raise errors of many kinds
        raise HierspecError(
            f"the weights of {model} cannot be counted: {first_line(error)}"
        ) from error
    weights = {id(weight): weight for weight in empty.parameters()}
    if config.is_encoder_decoder and not encoder:
        shared = id(empty.get_input_embeddings().weight)  # the decoder's too
        for weight in empty.get_encoder().parameters():
            if id(weight) != shared:
                weights.pop(id(weight), None)
    return sum(weight.numel() for weight in weights.values()) - excluded


def level_parameters(method: Any) -> dict[str, int] | None:
    """Count the weights that a call of each level runs through, by level name; 0 for tables.

    Two do not count: an encoder, which runs once for a text, and a table of embeddings that is not
    also the head, of which a token reads one row. ``None`` for methods of other engines, where
    weights cannot be counted, and where a level decides at every call how many layers it runs.
    """
    if not isinstance(method, HierarchyMethod):
        return None
    out = {}
    try:
        for node in walk(method.hierarchy.root):
            model = None if isinstance(node, Concatenate) else node.model
            owner = None if model is None else whole_backend(model)
            if owner is None:
                out[node.name] = 0
                continue
            if not isinstance(model, ExitModel):
                return None
            weights = _count(method.models, owner, encoder=False, embedding=False)
            out[node.name] = round(model.exit_layer / owner.num_layers * weights)
    except HierspecError:
        return None
    return out


def weight_bytes(method: Any) -> int | None:
    """Add up the bytes of all models that a method needs, shared ones once.

    ``None`` for methods of other engines.
    """
    if not isinstance(method, HierarchyMethod):
        return None
    owners: dict[int, int] = {}
    try:
        for node in walk_levels(method.hierarchy.root):
            owner = whole_backend(node.model)
            if owner is not None:
                size = owner.weight_dtype.itemsize  # ``dtype`` may be of hidden states alone
                owners[id(owner)] = _count(method.models, owner) * size
                if isinstance(owner, NativeBackend) and owner.own_bits:
                    owners[id(owner)] = owner.num_bytes
    except HierspecError:
        return None
    return sum(owners.values())


def whole_backend(model: CacheUser) -> Backend | None:
    """Return the whole transformer behind a level; ``None`` for tables and the like."""
    backend = backend_of(model)
    return backend.backend if isinstance(backend, HasBackend) else backend  # if it skips layers


def _count(models: BenchModels, backend: Backend, **included: bool) -> int:
    """Count the weights of a loaded checkpoint; ``included`` as for :func:`count_parameters`.

    Raises:
        HierspecError: it is none of this bench's, or as :func:`count_parameters`.
    """
    for (name, *_), loaded in models.loaded.backends.items():
        if loaded is backend:
            return count_parameters(name, **included)
    raise HierspecError("no checkpoint of this bench")


_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def peak_rise(run: Callable[[], Any], device: torch.device | str = "cpu") -> int | None:
    """Measure by how many bytes ``run`` raises the peak; ``None`` where it cannot be measured.

    On a CPU the kernel's high-water mark is reset first (``/proc/self/clear_refs``, Linux alone).
    Memory that an earlier run returned to the allocator but not to the system is used again
    unnoticed, so small figures are lower bounds.
    """
    gc.collect()
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        allocated = torch.cuda.memory_allocated(device)
        run()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - allocated
    try:
        _CLEAR.write_text("5")  # resets VmHWM
        resident_kib = _field("VmRSS")
    except OSError:
        return None
    run()
    return max(0, _field("VmHWM") - resident_kib) * 1024


def _field(name: str) -> int:
    for line in _STATUS.read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1])
    raise OSError(f"no {name} in {_STATUS}")
