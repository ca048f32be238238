"""Small products run on one thread: waking the others costs more than they save.

Where threads sleep while they wait (:mod:`hierspec.openmp`), a hand-over costs 10 µs and more, and
a layer has several: a two-layer model of width 192 takes 290 µs a token on one thread and 400 µs on
two. Where they spin for a moment first, eight layers of width 384 gain a sixth from the second.
"""

from __future__ import annotations

from hierspec.openmp import spins

# One core's share of a layer, roughly, on the machines we have seen: bytes streamed and
# multiply-adds of few rows, per microsecond. Only the order of magnitude matters.
_BYTES, _OPERATIONS = 37e3, 250e3
_WORTH_MICROSECONDS = 100.0 if spins() else 250.0


def is_small(num_weights: int, num_bytes: int, rows: int) -> bool:
    """Whether products of ``rows`` rows with these weights are over before threads pay."""
    return num_bytes / _BYTES + 2 * rows * num_weights / _OPERATIONS < _WORTH_MICROSECONDS
