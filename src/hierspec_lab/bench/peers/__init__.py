"""Decoding by other engines, on the same weights, dtype, threads and prompts as ours.

transformers is always installed; every other engine has a module here, is imported when it first
runs, and its error names the package to install where it is missing. See ``docs/peers.md``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hierspec_lab.bench.methods.entry import MethodEntry


def catalogue() -> list[MethodEntry]:
    """Return all methods of other engines, without importing any engine."""
    from . import hf, llama_cpp, sequential, vllm

    return [*hf.entries(), *sequential.entries(), *llama_cpp.entries(), *vllm.entries()]
