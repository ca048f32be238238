"""Verification rules: which drafted tokens are kept, and what follows them [MATH §1]."""

from hierspec.core.rules import Acceptance, Batch, Verifier, law_of_tau, scan

from .block import Block, Uncapped
from .induced import InducedBlock
from .leading import Leading
from .lenient import Lenient
from .match import Match
from .multi_draft import RRS, BlockRRS, DistinctRRS
from .naive import Naive
from .registry import get, names, register
from .soundness import check
from .tokenwise import Tokenwise
from .traversal import Traversal
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

register(Block(), "branch")  # P4's capped branch resampling is block: docs/branch-is-block.md
for _rule in (
    Tokenwise(), Naive(), Leading(), Lenient(), Match(), RRS(), DistinctRRS(), BlockRRS(),
    Traversal(), InducedBlock(), Uncapped(),
):  # fmt: skip
    register(_rule)
