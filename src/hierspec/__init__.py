"""Lossless hierarchical speculative decoding.

A stack of predictors in which each level drafts for the one above and verifies the one below, so
that a large model generates faster without changing its output distribution.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    __version__: str

    from hierspec.api import Hierarchy
    from hierspec.config.levels import TargetInfo
    from hierspec.config.methods import register_method
    from hierspec.config.schema import HierarchyConfig, TargetConfig
    from hierspec.core.proposals import Proposal, Verdict
    from hierspec.core.rules import Acceptance, Verifier
    from hierspec.drafters.base import LookUp
    from hierspec.engine.results import GenerationResult, TokenEvent
    from hierspec.errors import HierspecError
    from hierspec.exact.certificate import Certificate, certify
    from hierspec.integrations.transformers import custom_generate
    from hierspec.lm.next_token import NextTokenModel
    from hierspec.presets.registry import preset
    from hierspec.sampling.parameters import SamplingParams
    from hierspec.verifiers.registry import register

# Loaded when first used: importing hierspec costs no torch.
_MODULES = {
    "Acceptance": "core.rules",
    "Certificate": "exact.certificate",
    "GenerationResult": "engine.results",
    "Hierarchy": "api",
    "HierarchyConfig": "config.schema",
    "HierspecError": "errors",
    "LookUp": "drafters.base",
    "NextTokenModel": "lm.next_token",
    "Proposal": "core.proposals",
    "SamplingParams": "sampling.parameters",
    "TargetConfig": "config.schema",
    "TargetInfo": "config.levels",
    "TokenEvent": "engine.results",
    "Verdict": "core.proposals",
    "Verifier": "core.rules",
    "certify": "exact.certificate",
    "custom_generate": "integrations.transformers",
    "preset": "presets.registry",
    "register": "verifiers.registry",
    "register_method": "config.methods",
}

__all__ = [
    "Acceptance",
    "Certificate",
    "GenerationResult",
    "Hierarchy",
    "HierarchyConfig",
    "HierspecError",
    "LookUp",
    "NextTokenModel",
    "Proposal",
    "SamplingParams",
    "TargetConfig",
    "TargetInfo",
    "TokenEvent",
    "Verdict",
    "Verifier",
    "certify",
    "custom_generate",
    "preset",
    "register",
    "register_method",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from hierspec.utils.machine import package_version

        return package_version("hierspec")
    if name in _MODULES:
        from importlib import import_module

        return getattr(import_module(f".{_MODULES[name]}", __name__), name)
    raise AttributeError(f"module 'hierspec' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
