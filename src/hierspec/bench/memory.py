"""Memory of a method, and the weights that a call of each of its levels runs through.

All methods of a bench share one process and most of its weights, so the process's own peak says
nothing about one of them. What counts for a method is the weights it needs (shared ones count for
each method that needs them) and by how much one run of it, which is not timed, raises the resident
set or an accelerator's allocations.
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
from hierspec.profiling.candidates import parameters as count

parameters = functools.cache(count)


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
            model = getattr(node, "model", None)
            whole = backend(model)
            share = 0.0 if whole is None else model.exit_layer / whole.num_layers  # type: ignore[union-attr]
            read = {"encoder": False, "embedding": False}
            weights = _count(method.models, whole, **read) if share else 0
            out[node.name] = round(share * weights)
    except (ValueError, KeyError, AttributeError, OSError):
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
            whole = backend(getattr(node, "model", None))
            if whole is not None:
                owners[id(whole)] = _count(method.models, whole) * itemsize(whole)
    except (ValueError, KeyError, AttributeError, OSError):
        return None
    return sum(owners.values())


def backend(model: Any) -> Any:
    """Return the whole transformer behind a level; ``None`` for tables and the like."""
    whole = getattr(getattr(model, "cache_owner", None), "backend", None)
    return getattr(whole, "backend", whole)  # of one that skips layers


def _count(models: BenchModels, backend: Any, **counted: bool) -> int:
    """Count the weights of a loaded checkpoint; ``counted`` as for :func:`parameters`."""
    for (name, *_), loaded in models.loaded.backends.items():
        if loaded is backend:
            return parameters(name, **counted)
    raise KeyError("no checkpoint of this bench")


def itemsize(backend: Any) -> int:
    """Return the bytes of a weight; a backend's ``dtype`` may be of its hidden states alone."""
    return getattr(backend, "weight_dtype", backend.dtype).itemsize


_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def peak_rise(run: Callable[[], Any], device: str = "cpu") -> int | None:
    """Measure by how many bytes ``run`` raises the peak; ``None`` where the system cannot say.

    On a CPU the kernel's high-water mark is reset first (``/proc/self/clear_refs``, Linux alone).
    Memory that an earlier run gave back to the allocator but not to the system is used again
    without a trace, so small figures are lower bounds.
    """
    gc.collect()
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    try:
        _CLEAR.write_text("5")  # resets VmHWM
        before_kib = _field("VmRSS")
    except OSError:
        return None
    run()
    return max(0, _field("VmHWM") - before_kib) * 1024


def _field(name: str) -> int:
    for line in _STATUS.read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1])
    raise OSError(f"no {name} in {_STATUS}")
