"""Random hierarchies: whatever `check` lets through, enumeration finds lossless."""

from __future__ import annotations

from itertools import pairwise

import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from installed import rules
from tabular_cases import V

from hierspec.core.nodes import Concatenate, Draft, Node, Verify
from hierspec.core.rules import Verifier
from hierspec.core.windows import ConfidenceWindow, EntropyWindow, FixedWindow
from hierspec.exact.certificate import certify_tree
from hierspec.exact.interpreter import longest_proposal
from hierspec.lm.tabular import TabularModel
from hierspec.verifiers.registry import get
from hierspec.verifiers.soundness import validate

RULES = [*rules("tokenwise", "block", "naive", "leading"), *rules("leading", top_m=2)]
WINDOWS = [FixedWindow(), EntropyWindow(threshold=0.7), ConfidenceWindow(floor=0.5)]


@st.composite
def models(draw) -> TabularModel:
    generator = torch.Generator().manual_seed(draw(st.integers(0, 999)))
    order = draw(st.integers(0, 1))
    return TabularModel.random(V, order, generator, draw(st.sampled_from(["random", "zeros"])))


@st.composite
def hierarchies(draw) -> Verify:
    """Up to four verifying levels over a drafter or a concatenation, numbered from the bottom."""
    count = 0

    def index() -> int:
        nonlocal count
        count += 1
        return count - 1

    def drafter(budget: int) -> Draft:
        window = draw(st.sampled_from([*WINDOWS, EntropyWindow()]))
        return Draft(index(), "draft", draw(models()), draw(st.integers(1, budget)), window)

    def level(below: Node, rule: Verifier, above: Verifier) -> Verify:
        return Verify(
            index(),
            "level",
            draw(models()),
            draw(st.integers(1, 2)),
            rule,
            below,
            window=draw(st.sampled_from(WINDOWS)),
            bonus=draw(st.booleans()),
            exact_length=above.fixed_length,
        )

    below: Node
    if draw(st.booleans()):
        below = drafter(3)
    else:
        parts: list[Node] = []
        for _ in range(draw(st.integers(1, 2))):
            part: Node = drafter(1)
            if draw(st.booleans()):
                part = level(part, draw(st.sampled_from(RULES)), get("tokenwise"))
            parts.append(part)
        below = Concatenate(index(), "both", tuple(parts), draw(st.integers(1, 2)))
    rules = draw(st.lists(st.sampled_from(RULES), min_size=1, max_size=3))
    for rule, above in pairwise(rules):
        below = level(below, rule, above)
    return Verify(index(), "target", draw(models()), 1, rules[-1], below, bonus=draw(st.booleans()))


@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],
)
@given(root=hierarchies(), cut=st.booleans())
def test_whatever_check_lets_through_is_lossless(root, cut):
    assume(longest_proposal(root.below) <= 5)
    try:
        validate(root)
    except ValueError:
        assume(False)
    assert certify_tree(root, V, cut_at_horizon=cut).tv < 1e-11
