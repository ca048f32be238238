"""Which hierarchies are lossless, decided before anything runs [MATH §1, §2].

The runtime, configuration files and ``certify`` all call :func:`validate`, so that what one refuses
all refuse, with the reason and the fix.
"""

from __future__ import annotations

from collections.abc import Iterator

from hierspec.core.nodes import Concatenate, Draft, Node, Verify, walk
from hierspec.core.rules import Verifier
from hierspec.errors import HierspecError


def says(model: object, attribute: str, default: bool = False) -> bool:
    """Return what a level's model says of itself; one that says nothing is as most models are.

    ``declines``: its drafts may end early by what their tokens are. ``has_distributions``: it has a
    next-token distribution for each context.
    """
    return bool(getattr(model, attribute, default))


def validate(root: Node, greedy: bool = False, allow_lossy: bool = False) -> None:
    """Refuse a hierarchy whose output would not be the target's.

    Args:
        root: the target's node.
        greedy: the request is decoded greedily; then all distributions are one-hot, drafts are
            functions of the context, and only the final rule can change the output.
        allow_lossy: accept rules known to change the output's distribution. Conditions that a
            *lossless* rule needs still hold: breaking them would be a mistake, not a choice.
    """
    if not isinstance(root, Verify):
        raise HierspecError("the last level is the target: it verifies; it cannot only draft")
    for node in walk(root):
        if isinstance(node, Verify) and node.below is not None:
            if root.rule.draft_independent:
                _validate_multi_draft(node)  # nothing else about a draft can change the output
                continue
            _validate_rule(node, node is root, greedy, allow_lossy)
            if node.rule.fixed_length and not greedy:
                _validate_fixed(node)
            _validate_multi_draft(node)


def _validate_rule(node: Verify, final: bool, greedy: bool, allow_lossy: bool) -> None:
    rule = node.rule
    sound = rule.exact_for(greedy) if final else rule.exact_as_draft
    if sound or allow_lossy:
        return
    place = "as the target's rule" if final else f"at level {node.name!r}"
    says_when = rule.exact_when != Verifier.exact_when  # a plug-in's rule may leave it as it is
    exact_when = f" (exact: {rule.exact_when})" if says_when else ""
    raise HierspecError(
        f"verifier {rule.name!r} {place} changes the distribution of the output"
        f"{exact_when}; use 'tokenwise' or 'block', or set allow_lossy"
    )


def _validate_multi_draft(node: Verify) -> None:
    """Refuse several drafts but of a leaf right below a multi-draft rule, all of one length."""
    for leaf in _leaves(node.below):
        if leaf.num_drafts == 1:
            continue
        if leaf is not node.below:
            reason = "a part of a concatenation makes one: set num_drafts to 1"
        elif not node.rule.multi_draft:
            reason = (
                f"verifier {node.rule.name!r} at level {node.name!r} takes one: use "
                "'traversal', 'block-rrs', 'rrs' or 'rrs-without-replacement' there, or set "
                "num_drafts to 1"
            )
        elif not leaf.window.fixed_length:
            reason = "its window must be fixed: remove it, or set num_drafts to 1"
        elif says(leaf.model, "declines"):
            reason = "and each ends where no exit is sure: remove unsure, or set num_drafts to 1"
        else:
            continue
        raise HierspecError(f"level {leaf.name!r} makes {leaf.num_drafts} drafts at once; {reason}")


def _leaves(node: Node | None) -> Iterator[Draft]:
    """Yield the leaves whose drafts reach the level above ``node`` unchanged."""
    if isinstance(node, Draft):
        yield node
    elif isinstance(node, Concatenate):
        for part in node.parts:
            yield from _leaves(part)


def _validate_fixed(node: Verify) -> None:
    """Refuse what a rule that resamples to the draft's end cannot verify.

    It needs drafts of fixed length, from distributions that depend on the context alone.
    """
    rule, below, reason = node.rule.name, node.below, None
    assert below is not None
    if isinstance(below, Concatenate):
        reason = "the distributions of a concatenated draft depend on the position in it"
    elif not below.window.fixed_length:
        reason = f"the window of {below.name!r} depends on the tokens drafted"
    elif says(below.model, "declines"):
        reason = f"how long a draft of {below.name!r} is depends on its tokens"
    elif not says(below.model, "has_distributions", True):  # a look-up's
        reason = f"{below.name!r} has no distribution at contexts other than its own"
    elif isinstance(below, Verify) and below.below and not below.rule.reports_model_distributions:
        reason = (
            f"{below.name!r} verifies by {below.rule.name!r}, whose reported distributions depend "
            "on the round before"
        )
    elif isinstance(below, Verify) and not below.exact_length:
        reason = (
            f"{below.name!r} hands up whatever its rounds yield: cut it to its budget "
            "(exact_length)"
        )
    if reason is not None:
        raise HierspecError(
            f"verifier {rule!r} at level {node.name!r} is exact only when {node.rule.exact_when}; "
            f"{reason}; use 'block' at level {node.name!r}, or change the level below"
        )
    if not node.window.fixed_length:
        raise HierspecError(
            f"level {node.name!r} cannot have a {type(node.window).__name__}: the tokens that "
            f"verifier {rule!r} draws after its check carry no signal for it; use a fixed window"
        )
