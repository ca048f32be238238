"""Lossless hierarchical speculative decoding.

A stack of predictors in which each level drafts for the one above and verifies the one below, so
that a large model generates faster without changing its output distribution.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    __version__: str

    from hierspec.api import Hierarchy
    from hierspec.config.schema import HierarchyConfig, TargetConfig
    from hierspec.core.proposals import Proposal, Verdict
    from hierspec.core.rules import Verifier
    from hierspec.engine.results import GenerationResult, TokenEvent
    from hierspec.errors import HierspecError
    from hierspec.exact.certificate import Certificate, certify
    from hierspec.integrations.transformers import custom_generate
    from hierspec.presets.registry import preset
    from hierspec.sampling.parameters import SamplingParams
    from hierspec.verifiers.registry import register

# Loaded when first used: importing hierspec costs no torch.
_MODULES = {
    "Certificate": "exact.certificate",
    "GenerationResult": "engine.results",
    "Hierarchy": "api",
    "HierarchyConfig": "config.schema",
    "HierspecError": "errors",
    "Proposal": "core.proposals",
    "SamplingParams": "sampling.parameters",
    "TargetConfig": "config.schema",
    "TokenEvent": "engine.results",
    "Verdict": "core.proposals",
    "Verifier": "core.rules",
    "certify": "exact.certificate",
    "custom_generate": "integrations.transformers",
    "preset": "presets.registry",
    "register": "verifiers.registry",
}

__all__ = [
    "Certificate",
    "GenerationResult",
    "Hierarchy",
    "HierarchyConfig",
    "HierspecError",
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
    if name == "__version__":
        return _version()
    if name in _MODULES:
        from importlib import import_module

        return getattr(import_module(f".{_MODULES[name]}", __name__), name)
    raise AttributeError(f"module 'hierspec' has no attribute {name!r}")


def _version() -> str:
    """Return the version of the installed package, set from the tag that it was built at."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("hierspec")
    except PackageNotFoundError:  # sources on the path, never installed
        return "0+unknown"


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
