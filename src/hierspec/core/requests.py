"""Requests: what a node asks of its interpreter.

``pending`` are the tokens of the round in progress that lie between the sequence's committed text
and the request.
"""

from __future__ import annotations

from dataclasses import dataclass

from .distributions import Distributions
from .nodes import LevelNode, Node, Verify
from .proposals import Proposal, States


@dataclass(frozen=True, slots=True, eq=False)
class Propose:
    """Run a node → ``(Proposal, states)``; the caller can use ``limit`` tokens at most."""

    node: Node
    pending: tuple[int, ...]
    limit: int
    states: States


@dataclass(frozen=True, slots=True, eq=False)
class Check:
    """Score ``draft`` with the node's model and verify it by the node's rule → ``Verdict``."""

    node: Verify
    pending: tuple[int, ...]
    draft: Proposal


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """Score the position after ``pending`` with a node's model → ``Distributions`` of one row."""

    node: LevelNode
    pending: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Draw:
    """Draw a token from one row → token id."""

    node: Verify
    distribution: Distributions


NodeRequest = Propose | Check | Row | Draw
