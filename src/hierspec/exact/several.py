"""Several drafts of one place, enumerated."""

from __future__ import annotations

import dataclasses
from typing import Any

from ..hierarchy import Draft
from ..several_drafts import together
from ..types import Proposal
from .rows import Rows, TableLaws, normalised

Drafts = list[tuple[float, Proposal]]  # with their probabilities


def several(node: Draft, single: Drafts, rows: Rows) -> Drafts:
    """All lists of ``node.num_drafts`` drafts from one place, given what one draft may be."""
    lists: list[tuple[float, tuple[Proposal, ...]]] = [(1.0, ())]
    for _ in range(node.num_drafts):
        longer = []
        for probability, drafts in lists:
            tried = {draft.tokens[0] for draft in drafts} if node.distinct else set()
            fresh = without(single, tried, rows) if tried else single
            if not fresh:  # its law ran out of tokens
                longer.append((probability, drafts))
            longer += [(probability * chance, (*drafts, one)) for chance, one in fresh]
        lists = longer
    return [(probability, together(drafts)) for probability, drafts in lists]


def without(single: Drafts, tried: set[int], rows: Rows) -> Drafts:
    """The same draft, drawn on condition that its first token is none of ``tried``."""
    rest = [(chance, draft) for chance, draft in single if draft.tokens[0] not in tried]
    total = sum(chance for chance, _ in rest)
    out = []
    for chance, draft in rest:
        first, *ids = draft.laws.ids  # type: ignore[union-attr]
        row = rows.rows[first].copy()
        row[list(tried)] = 0.0
        laws: Any = TableLaws(rows, (rows.intern(normalised(row)), *ids))
        out.append((chance / total, dataclasses.replace(draft, laws=laws)))
    return out
