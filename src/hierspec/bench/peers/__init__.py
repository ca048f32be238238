"""Decoding by other engines, on the same weights, dtype, threads and prompts as ours.

transformers is always there; every other engine lives in a module of its own, is imported when it
first runs, and says what to install where it is missing. See ``docs/peers.md``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hierspec.bench.methods.entry import MethodEntry


def catalogue() -> list[MethodEntry]:
    """All methods of other engines; none is imported for it."""
    from . import hf, llama_cpp, sequential, vllm

    return [*hf.entries(), *sequential.entries(), *llama_cpp.entries(), *vllm.entries()]
