"""Requests: what a node asks of its interpreter.

``pending`` are the tokens of the round in progress that lie between the sequence's committed text
and the request.
"""

from __future__ import annotations

from dataclasses import dataclass

from .distributions import Distributions
from .nodes import Node, Verify
from .proposals import Proposal, States


@dataclass(frozen=True, slots=True, eq=False)
class Propose:
    """Run a node and return ``(Proposal, states)``; at most ``limit`` tokens are of use."""

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
    """The distribution of a node's model after ``pending`` → ``Distributions`` with one row."""

    node: Node
    pending: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Draw:
    """A token drawn from one row → token id."""

    node: Verify
    distribution: Distributions


Request = Propose | Check | Row | Draw
