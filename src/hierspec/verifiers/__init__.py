"""Verification rules: which drafted tokens are kept, and what follows them [MATH §1]."""

from hierspec.core.rules import Acceptance, Batch, Verifier, law_of_tau, scan

from . import block, leading, multi_draft, naive, tokenwise, uncapped  # noqa: F401  (they register themselves)
from .registry import get, names, register
from .soundness import check
from .verify import verify, verify_batch

__all__ = [
    "Acceptance",
    "Batch",
    "Verifier",
    "check",
    "get",
    "law_of_tau",
    "names",
    "register",
    "scan",
    "verify",
    "verify_batch",
]
