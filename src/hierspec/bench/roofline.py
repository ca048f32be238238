"""How fast plain decoding could be: every token reads all weights once, and memory is only so fast.

Also what levels' weights count for: a method's bytes, and the prices of standardized walltime.

Peak memory of a method, on a run of its own that nobody times.

All methods of a bench share one process and most of its weights, so the process's own peak says
nothing about one of them. What counts for a method is the weights it needs (shared ones count for
each method that needs them) and by how much one run of it raises the resident set, or an
accelerator's allocations, above what was there before.
"""

from __future__ import annotations

import functools
import gc
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from hierspec.bench.methods.ours import HierarchyMethod, Models
from hierspec.core.nodes import walk
from hierspec.profiling.candidates import parameters as count

_BUFFER = 512 << 20  # bytes; more than the caches of most processors
_SECONDS = 0.4

parameters = functools.cache(count)


def floor(
    models: Models, batch_size: int = 1, before: Mapping[str, Any] | None = None
) -> dict[str, Any] | None:
    """``weight_bytes`` a forward reads, ``bytes_per_second`` of memory, ``ms_per_token``.

    A forward writes a token of each sequence of a batch. Whatever else the machine does can only
    make a sample slower, so the fastest one stands; ``samples`` has all, a call adds one.
    ``None`` where the target's weights cannot be counted.

    Args:
        before: what earlier calls have found; a file may hold one without ``samples``.
    """
    try:
        weight_bytes = read_per_token(models)
    except (ValueError, KeyError, AttributeError, TypeError, OSError):
        return None
    earlier = [] if before is None else before.get("samples", [before["bytes_per_second"]])
    samples = [*earlier, fastest_read(models.plain.root.model.device)]
    speed = max(samples)
    return {
        "weight_bytes": weight_bytes,
        "bytes_per_second": speed,
        "ms_per_token": 1e3 * weight_bytes / speed / batch_size,
        "samples": samples,
    }


def read_per_token(models: Models) -> int:
    """Bytes of the target's weights without its table of embeddings, of which a token reads one
    row; where the head is that same table, all of it counts."""
    from hierspec.config.target import target_config

    name = models.target.model
    config = target_config(name)
    size = parameters(name)
    if not config.tie_word_embeddings:
        size -= config.vocab_size * config.hidden_size
    return size * _itemsize(_backend(models.plain.root.model))


def bandwidth(device: torch.device) -> float:
    """Bytes a second when a buffer is read from end to end; the median of some tries."""
    return statistics.median(_reads(device))


def fastest_read(device: torch.device) -> float:
    """As :func:`bandwidth`, the fastest of the tries."""
    return max(_reads(device))


def _reads(device: torch.device) -> list[float]:
    """Bytes a second of some reads of a buffer."""
    free = _BUFFER
    if device.type == "cuda":
        free = min(free, torch.cuda.mem_get_info(device)[0] // 4)
    buffer = torch.ones(free // 4, dtype=torch.float32, device=device)
    seen, end = [], time.perf_counter() + _SECONDS
    while len(seen) < 5 or time.perf_counter() < end:
        began = time.perf_counter()
        buffer.sum().item()  # .item() waits for an accelerator
        seen.append(time.perf_counter() - began)
    return [buffer.numel() * 4 / seconds for seconds in seen[1:]]


def level_parameters(method: Any) -> dict[str, int] | None:
    """Weights that a call of each level runs through, by the level's name; tables have none.

    ``None`` for what is no hierarchy of ours, where weights cannot be counted, and where a level
    decides anew at every call how many layers it runs.
    """
    if not isinstance(method, HierarchyMethod):
        return None
    out = {}
    try:
        for node in walk(method.hierarchy.root):
            model = getattr(node, "model", None)
            whole = _backend(model)
            share = 0.0 if whole is None else model.exit_layer / whole.num_layers  # type: ignore[union-attr]
            out[node.name] = round(share * _count(method.models, whole)) if share else 0
    except (ValueError, KeyError, AttributeError, OSError):
        return None
    return out


def weight_bytes(method: Any) -> int | None:
    """Of all models that a method needs, shared ones once.

    Other engines may say so themselves, by an attribute ``weight_bytes``.
    """
    if not isinstance(method, HierarchyMethod):
        return getattr(method, "weight_bytes", None)
    owners: dict[int, int] = {}
    try:
        for node in walk(method.hierarchy.root):
            whole = _backend(getattr(node, "model", None))
            if whole is not None:
                owners[id(whole)] = _count(method.models, whole) * _itemsize(whole)
    except (ValueError, KeyError, AttributeError, OSError):
        return None
    return sum(owners.values())


def _backend(model: Any) -> Any:
    """The transformer behind a level, all of its layers; ``None`` for tables and the like."""
    trunk = getattr(model, "cache_owner", None)
    if trunk is None:
        return None
    return getattr(trunk.backend, "backend", trunk.backend)  # of one that skips layers


def _count(models: Models, backend: Any) -> int:
    """Weights of a loaded checkpoint."""
    for (name, *_), loaded in models.loaded.backends.items():
        if loaded is backend:
            return parameters(name)
    raise KeyError("no checkpoint of this bench")


def _itemsize(backend: Any) -> int:
    """Bytes of a weight: a backend's ``dtype`` is that of its hidden states."""
    return getattr(backend, "weight_dtype", backend.dtype).itemsize


_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def rise(run: Callable[[], Any], device: str = "cpu") -> int | None:
    """Bytes by which ``run`` raises the peak; ``None`` where nobody can tell.

    On a CPU the kernel's high-water mark is reset first (``/proc/self/clear_refs``, Linux alone).
    Memory that an earlier run gave back to the allocator but not to the system is used again
    without a trace, so small figures are lower bounds.
    """
    gc.collect()
    if device == "cuda":
        import torch

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
