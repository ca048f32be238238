"""Verify drafts: from distributions to verdicts, by one of three implementations ("paths").

- :mod:`.paths.greedy`: one-hot distributions are compared as integers;
- :mod:`.paths.host`: rules with a shortcut read the drafted tokens' probabilities, and then only
  the rows that matter;
- :mod:`.paths.device`: every other rule, and every rule on an accelerator, gets a padded batch.

All take the same uniforms: n + 1 for a draft of n tokens, the first n in the scan (u_k at length
k), the last for the token that follows; greedy decoding takes none. A verdict therefore depends
neither on the rest of the batch nor on the path.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch

from hierspec.core.distributions import Distributions, UnreadOneHot
from hierspec.core.proposals import Proposal, Verdict
from hierspec.core.rng import Rng
from hierspec.core.rules import Verifier
from hierspec.utils.graphs import Graphs
from hierspec.utils.reads import Reads

from .paths import device, greedy, host
from .paths.case import DraftCase


def verify(
    rule: Verifier,
    draft: Proposal,
    p: Distributions,
    rng: Rng,
    scores: torch.Tensor | None = None,
    bonus: bool = True,
    index: int = -1,
) -> Verdict:
    """Verify one draft without shortcuts: the reference form of a rule, its plug-in contract.

    Args:
        rule: how to verify; its follow-up requests, if any, are left to the caller.
        draft: n tokens and their distributions.
        p: n + 1 rows of the verifier.
        rng: n + 1 uniforms are taken.
        scores: [n+1, V], for rules that read them.
        bonus: whether one more token follows a draft (n ≥ 1) that was accepted whole.
        index: of the verifying node, recorded as owner of what is emitted.
    """
    return device.verdicts([DraftCase(rule, draft, p, rng, scores, bonus, index)])[0]


def verify_batch(
    rule: Verifier,
    drafts: Sequence[Proposal],
    p: Sequence[Distributions],
    rng: Sequence[Rng],
    scores: Sequence[torch.Tensor] | None = None,
    bonus: bool = True,
    index: int = -1,
) -> list[Verdict]:
    """Verify many drafts at one node → verdicts in order; as :func:`start_batch`, at once."""
    _, finish = start_batch(rule, drafts, p, rng, scores, bonus, index)
    return finish()


def start_batch(
    rule: Verifier,
    drafts: Sequence[Proposal],
    p: Sequence[Distributions],
    rng: Sequence[Rng],
    scores: Sequence[torch.Tensor] | None = None,
    bonus: bool = True,
    index: int = -1,
    graphs: Graphs | None = None,
    reads: Reads | None = None,
) -> tuple[list[torch.Tensor | None], Callable[[], list[Verdict]]]:
    """Begin to verify many drafts at one node.

    Args:
        rule, bonus, index: of the node, as in :func:`verify`.
        drafts: B proposals of n_b tokens each; lengths may differ, and be 0.
        p: n_b + 1 rows of the verifier for each; the last one follows the whole draft.
        rng: of the drafts' sequences. A draft takes n_b + 1 uniforms, or none where p is one-hot.
        scores: [n_b+1, V] untempered scores for each; for rules that read them.
        graphs: of the rows' device, if given; decisions are recorded as one CUDA graph a shape.
        reads: what decisions on an accelerator are read with; ``None``: alone.

    Returns:
        For each draft, where an accelerator decides: [n_b + 1] int64 there, the token that the
        verifier emits in each row if it is there that no more is accepted; and what waits for the
        accelerator, if there is one, and returns the verdicts. Their signals are left NaN: they
        come from scores that a rule need not see.
    """
    reads = reads or Reads()
    score_rows = [None] * len(drafts) if scores is None else scores
    cases = [
        DraftCase(rule, draft, own_p, own_rng, own_scores, bonus, index)
        for draft, own_p, own_rng, own_scores in zip(drafts, p, rng, score_rows, strict=True)
    ]
    compared = [greedy.start(case, reads) if greedy.applies(case) else None for case in cases]
    next_tokens = [
        case.p.tokens if compare is not None and isinstance(case.p, UnreadOneHot) else None
        for case, compare in zip(cases, compared, strict=True)
    ]
    places = [i for i, compare in enumerate(compared) if compare is None]
    sampled = [cases[i] for i in places]
    decide: Callable[[], list[Verdict]]
    if not sampled or host.applies(rule, sampled):
        decide = partial(host.verdicts, sampled)
    else:
        tokens, decide = device.start(sampled, reads, graphs)
        if tokens.device.type != "cpu":
            for i, token in zip(places, tokens.split_with_sizes([1] * len(places)), strict=True):
                next_tokens[i] = token.expand(len(cases[i].draft) + 1)

    def verdicts() -> list[Verdict]:
        decided = iter(decide())
        return [next(decided) if compare is None else compare() for compare in compared]

    return next_tokens, verdicts
