"""The roofline of plain decoding: every token reads all weights, and memory is only so fast."""

from __future__ import annotations

import statistics
import time

import torch

from hierspec.errors import HierspecError
from hierspec.lm.native.backend import NativeBackend
from hierspec_lab.bench.methods.ours import BenchModels

from .memory import count_parameters, whole_backend
from .records import Roofline

_BUFFER_BYTES = 512 << 20  # more than the caches of most processors
_DEVICE_BUFFER_BYTES = 4 << 30  # a GPU reads the other in less time than a wait takes
_READS_A_WAIT = 8
_MIN_SECONDS = 0.4


def roofline(
    models: BenchModels, batch_size: int = 1, previous: Roofline | None = None
) -> Roofline | None:
    """Estimate the least time of plain decoding per token; ``None`` if weights cannot be counted.

    A forward writes a token of each sequence of a batch. Other work on the machine can only make a
    sample of the bandwidth slower, so the fastest one counts; a call adds one.

    Args:
        previous: the result of earlier calls; an older file may hold one without ``samples``.
    """
    try:
        weight_bytes = weight_bytes_per_token(models)
    except HierspecError:
        return None
    earlier = [] if previous is None else previous.samples or [previous.bytes_per_second]
    samples = [*earlier, best_bandwidth(models.plain.root.model.device)]
    fastest = max(samples)
    return Roofline(
        weight_bytes=weight_bytes,
        bytes_per_second=fastest,
        ms_per_token=ms_to_read(weight_bytes, fastest) / batch_size,
        samples=samples,
    )


def ms_to_read(num_bytes: float, bytes_per_second: float) -> float:
    """Return the milliseconds in which memory delivers so many bytes."""
    return 1e3 * num_bytes / bytes_per_second


def weight_bytes_per_token(models: BenchModels) -> int:
    """Count the bytes of the target's weights that a token reads.

    The table of embeddings, of which it reads one row, counts only if the head shares it.
    """
    backend = whole_backend(models.plain.root.model)
    if isinstance(backend, NativeBackend) and backend.own_bits:
        return backend.num_bytes_read
    size = count_parameters(models.target.model, embedding=False)
    assert backend is not None  # its parameters were counted
    return size * backend.weight_dtype.itemsize


def bandwidth(device: torch.device) -> float:
    """Measure memory's bandwidth in bytes a second; the median of some reads of a buffer."""
    return statistics.median(_bandwidth_samples(device))


def best_bandwidth(device: torch.device) -> float:
    """Measure memory's bandwidth in bytes a second; the fastest of some reads of a buffer."""
    return max(_bandwidth_samples(device))


def _bandwidth_samples(device: torch.device) -> list[float]:
    """Measure bytes a second of some reads of a buffer from end to end."""
    size, reads = _BUFFER_BYTES, 1
    if device.type == "cuda":
        size = min(_DEVICE_BUFFER_BYTES, torch.cuda.mem_get_info(device)[0] // 4)
        reads = _READS_A_WAIT
    buffer = torch.ones(size // 4, dtype=torch.float32, device=device)
    durations, end = [], time.perf_counter() + _MIN_SECONDS
    while len(durations) < 5 or time.perf_counter() < end:
        began = time.perf_counter()
        for _ in range(reads):
            total = buffer.sum()
        total.item()  # an accelerator is waited for
        durations.append((time.perf_counter() - began) / reads)
    return [buffer.numel() * 4 / seconds for seconds in durations[1:]]
