"""Verification rules: which drafted tokens are kept, and what follows them [MATH §1]."""

from . import block, leading, naive, several, tokenwise, uncapped  # noqa: F401  (they register themselves)
from .base import Acceptance, Batch, Verifier, get, law_of_tau, names, register, scan
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
