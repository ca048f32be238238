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

from hierspec.bench.methods.ours import BenchModels, HierarchyMethod
from hierspec.core.nodes import walk
from hierspec.errors import HierspecError
from hierspec.profiling.memory import parameters

count_parameters = functools.cache(parameters)


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
            model: Any = getattr(node, "model", None)
            owner = backend(model)
            if owner is not None and not hasattr(model, "exit_layer"):
                return None
            share = 0.0 if owner is None else model.exit_layer / owner.num_layers
            per_call = {"encoder": False, "embedding": False}
            weights = _count(method.models, owner, **per_call) if share else 0
            out[node.name] = round(share * weights)
    except HierspecError:
        return None
    return out


def weight_bytes(method: Any) -> int | None:
    """Add up the bytes of all models that a method needs, shared ones once.

    Methods of other engines may have them as an attribute ``weight_bytes``.
    """
    if not isinstance(method, HierarchyMethod):
        return getattr(method, "weight_bytes", None)
    owners: dict[int, int] = {}
    try:
        for node in walk(method.hierarchy.root):
            owner = backend(getattr(node, "model", None))
            if owner is not None:
                owners[id(owner)] = _count(method.models, owner) * itemsize(owner)
    except HierspecError:
        return None
    return sum(owners.values())


def backend(model: Any) -> Any:
    """Return the whole transformer behind a level; ``None`` for tables and the like."""
    owner = getattr(getattr(model, "cache_owner", None), "backend", None)
    return getattr(owner, "backend", owner)  # of one that skips layers


def _count(models: BenchModels, backend: Any, **included: bool) -> int:
    """Count the weights of a loaded checkpoint; ``included`` as for ``parameters``.

    Raises:
        HierspecError: it is none of this bench's, or as ``parameters``.
    """
    for (name, *_), loaded in models.loaded.backends.items():
        if loaded is backend:
            return count_parameters(name, **included)
    raise HierspecError("no checkpoint of this bench")


def itemsize(backend: Any) -> int:
    """Return the bytes of a weight; a backend's ``dtype`` may be of its hidden states alone."""
    return getattr(backend, "weight_dtype", backend.dtype).itemsize


_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def peak_rise(run: Callable[[], Any], device: str = "cpu") -> int | None:
    """Measure by how many bytes ``run`` raises the peak; ``None`` where it cannot be measured.

    On a CPU the kernel's high-water mark is reset first (``/proc/self/clear_refs``, Linux alone).
    Memory that an earlier run returned to the allocator but not to the system is used again
    unnoticed, so small figures are lower bounds.
    """
    gc.collect()
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        allocated = torch.cuda.memory_allocated()
        run()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - allocated
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
