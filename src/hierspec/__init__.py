"""Lossless hierarchical speculative decoding.

A stack of predictors in which each level drafts for the one above and verifies the one below, so
that a large model generates faster without changing its output law.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from .certificate import Certificate, certify
    from .config import HierarchyConfig, TargetConfig
    from .engine import Hierarchy
    from .generate import GenerationResult
    from .integrations import custom_generate
    from .params import SamplingParams
    from .presets import preset
    from .types import Proposal, TokenEvent, Verdict
    from .verifiers.base import Verifier, register

# Loaded when first used: importing hierspec costs no torch.
_HOME = {
    "Certificate": "certificate",
    "GenerationResult": "generate",
    "Hierarchy": "engine",
    "HierarchyConfig": "config",
    "Proposal": "types",
    "SamplingParams": "params",
    "TargetConfig": "config",
    "TokenEvent": "types",
    "Verdict": "types",
    "Verifier": "verifiers.base",
    "certify": "certificate",
    "custom_generate": "integrations",
    "preset": "presets",
    "register": "verifiers.base",
}

__all__ = [
    "Certificate",
    "GenerationResult",
    "Hierarchy",
    "HierarchyConfig",
    "Proposal",
    "SamplingParams",
    "TargetConfig",
    "TokenEvent",
    "Verdict",
    "Verifier",
    "certify",
    "custom_generate",
    "preset",
    "register",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        from importlib import import_module

        return getattr(import_module(f".{_HOME[name]}", __name__), name)
    raise AttributeError(f"module 'hierspec' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
