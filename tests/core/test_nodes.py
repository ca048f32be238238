"""Trees of levels: one put over another, changed as a whole, and with a leaf more."""

from __future__ import annotations

import pytest

from hierspec.core.nodes import (
    Concatenate,
    Draft,
    Verify,
    add_first_leaf,
    replace_fields,
    walk,
    walk_levels,
)
from hierspec.verifiers.registry import get

SMALL = Draft(0, "small", "a", 4, num_drafts=2)
MIDDLE = Verify(1, "middle", "b", 8, get("block"), SMALL)
BOTH = Concatenate(3, "both", (MIDDLE, Draft(2, "tail", "c", 2)), 2)


@pytest.mark.parametrize(
    ("rule", "cuts", "distinct"),
    [("naive", True, False), ("rrs-without-replacement", False, True), ("block", False, False)],
)
def test_what_is_below_a_level_drafts_as_its_rule_needs(rule, cuts, distinct):
    root = Verify(4, "target", "d", 1, get(rule), None)
    assert root.over(SMALL).below.distinct is distinct
    assert root.over(MIDDLE).below.exact_length is cuts
    first, tail = root.over(BOTH).below.parts
    assert first.exact_length is cuts
    assert first.below.distinct is False  # another rule verifies it
    assert tail.distinct is False  # it makes one draft
    assert root.over(MIDDLE).over(None).below is None


def test_fields_of_a_whole_tree():
    root = Verify(4, "target", "d", 1, get("block"), BOTH)
    longer = replace_fields(
        root, lambda node: {} if isinstance(node, Concatenate) else {"budget": node.budget + 1}
    )
    assert [level.budget for level in walk_levels(longer)] == [5, 9, 3, 2]
    assert [level.budget for level in walk_levels(root)] == [4, 8, 2, 1]
    names = replace_fields(root, lambda node: {"name": node.name.upper()})
    assert [node.name for node in walk(names)] == ["SMALL", "MIDDLE", "TAIL", "BOTH", "TARGET"]
    assert longer.below.repeat == 2


def test_a_leaf_more_drafts_first():
    root = Verify(4, "target", "d", 1, get("block"), BOTH)
    more = add_first_leaf(root, "first", "e", 6)
    assert [(node.index, node.name) for node in walk(more)] == [
        (0, "first"),
        (1, "small"),
        (2, "middle"),
        (3, "tail"),
        (4, "both"),
        (5, "levels"),
        (6, "target"),
    ]
    leaf, levels = more.below.parts
    assert (leaf.model, leaf.budget) == ("e", 6)
    assert [part.name for part in levels.parts] == ["middle", "tail"]
    alone = add_first_leaf(Verify(0, "target", "d", 1, get("block"), None), "first", "e", 6)
    assert [(node.index, node.name) for node in walk(alone)] == [
        (0, "first"),
        (1, "levels"),
        (2, "target"),
    ]
