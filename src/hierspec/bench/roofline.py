"""The roofline of plain decoding: every token reads all weights, and memory is only so fast."""

from __future__ import annotations

import statistics
import time

import torch

from hierspec.bench.memory import backend, itemsize, parameters
from hierspec.bench.methods.ours import BenchModels
from hierspec.bench.records import Roofline

_BUFFER = 512 << 20  # bytes; more than the caches of most processors
_SECONDS = 0.4


def roofline(
    models: BenchModels, batch_size: int = 1, before: Roofline | None = None
) -> Roofline | None:
    """Estimate the least time of plain decoding per token; ``None`` if weights cannot be counted.

    A forward writes a token of each sequence of a batch. Other work on the machine can only make a
    sample of the bandwidth slower, so the fastest one counts; a call adds one.

    Args:
        before: the result of earlier calls; an older file may hold one without ``samples``.
    """
    try:
        weight_bytes = read_per_token(models)
    except (ValueError, KeyError, AttributeError, TypeError, OSError):
        return None
    earlier = [] if before is None else before.samples or [before.bytes_per_second]
    samples = [*earlier, fastest_read(models.plain.root.model.device)]
    speed = max(samples)
    return Roofline(
        weight_bytes=weight_bytes,
        bytes_per_second=speed,
        ms_per_token=1e3 * weight_bytes / speed / batch_size,
        samples=samples,
    )


def read_per_token(models: BenchModels) -> int:
    """Count the bytes of the target's weights that a token reads.

    The table of embeddings, of which it reads one row, counts only if the head shares it.
    """
    size = parameters(models.target.model, embedding=False)
    return size * itemsize(backend(models.plain.root.model))


def bandwidth(device: torch.device) -> float:
    """Measure memory's bandwidth in bytes a second; the median of some reads of a buffer."""
    return statistics.median(_reads(device))


def fastest_read(device: torch.device) -> float:
    """Measure as :func:`bandwidth`; the fastest of the reads."""
    return max(_reads(device))


def _reads(device: torch.device) -> list[float]:
    """Measure bytes a second of some reads of a buffer from end to end."""
    free = _BUFFER
    if device.type == "cuda":
        free = min(free, torch.cuda.mem_get_info(device)[0] // 4)
    buffer = torch.ones(free // 4, dtype=torch.float32, device=device)
    durations, end = [], time.perf_counter() + _SECONDS
    while len(durations) < 5 or time.perf_counter() < end:
        began = time.perf_counter()
        buffer.sum().item()  # .item() waits for an accelerator
        durations.append(time.perf_counter() - began)
    return [buffer.numel() * 4 / seconds for seconds in durations[1:]]
