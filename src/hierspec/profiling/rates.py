"""Real drafts along the target's own texts, and how much of each every verifier would keep.

The target continues every prompt. At places spread evenly over these texts every drafter runs a
few real rounds under the target, so that drafts begin where they do in generation: after a
recovered or bonus token. Every model between the two scores the same drafts. Distributions are
reduced to numbers at once: they are too large to be kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from hierspec.core.context import Context
from hierspec.core.distributions import Distributions
from hierspec.core.proposals import Proposal, Verdict
from hierspec.engine.observers import Checks, Observer
from hierspec.engine.runtime import Runtime
from hierspec.engine.sequences import LiveSequence
from hierspec.verifiers.formulas import capped_ratio, prefix_weights

from .candidates import CandidatePool
from .rounds import (
    DraftingSettings,
    batches,
    build_levels,
    distributions_after,
    open_sequences,
    probabilities,
    rewind,
)

_DRAFTS = 1 << 32  # random stream of drafts: the texts before them were drawn from stream 0


@dataclass(slots=True, eq=False)
class FollowedDrafts:
    """One drafter's drafts and their survival: an entry per draft.

    Attributes:
        places: number of its text, and of its place in the text.
        lengths: its number of tokens; data-dependent for look-ups.
        signals: [n] what the candidate's window reads at its tokens; NaN where it has no signal.
        tokenwise: by verifier, [M+1]: the probability, given the draft, that the rule keeps its
            first m tokens; 0 past its end. Of several drafts, whether m tokens were kept.
        block: the same for the block rule: w_m, whose mean is that probability (MATH §0).
    """

    places: list[tuple[int, int]] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    signals: list[tuple[float, ...]] = field(default_factory=list)
    tokenwise: dict[int, list[np.ndarray]] = field(default_factory=dict)
    block: dict[int, list[np.ndarray]] = field(default_factory=dict)


def survival(draft: Proposal, p: Distributions, max_budget: int) -> tuple[np.ndarray, np.ndarray]:
    """Return for m = 0 … M the probability that tokenwise keeps m tokens of the draft; and w_m."""
    tokenwise, block = np.zeros((2, max_budget + 1))
    tokenwise[0] = block[0] = 1.0
    if n := len(draft.tokens):
        p_x, q_x = (probabilities(rows, draft.tokens) for rows in (p, draft.distributions))
        tokenwise[1 : n + 1] = np.cumprod(
            [capped_ratio(*pair) for pair in zip(p_x.tolist(), q_x.tolist(), strict=True)]
        )
        block[: n + 1] = prefix_weights(p_x.tolist(), q_x.tolist())
    return tokenwise, block


def continuations(
    pool: CandidatePool, prompts: Sequence[Sequence[int]], length: int, drafting: DraftingSettings
) -> list[list[int]]:
    """Continue every prompt by ``length`` tokens of the target, fewer where it ends."""
    root = build_levels(pool)
    runtime = Runtime(root, pool.vocab_size)
    texts: list[list[int]] = []
    for batch in batches(len(prompts), pool.vocab_size):
        sequences = open_sequences(root, batch, [prompts[i] for i in batch], drafting)
        try:
            active = sequences
            for _ in range(length):
                _commit(active, runtime.round(active))
                active = [s for s in active if not _has_ended(s, len(s.tokens) - 1, drafting)]
                if not active:
                    break
        finally:
            _close(sequences)
        texts += [sequence.tokens for sequence in sequences]
    return texts


def follow_drafts(
    pool: CandidatePool,
    drafter: int,
    above: Sequence[int],
    texts: Sequence[Sequence[int]],
    starts: Sequence[int],
    drafting: DraftingSettings,
) -> FollowedDrafts:
    """Run real rounds of a drafter under the target; score its drafts by all models in ``above``.

    Args:
        texts: the target's own; ``starts``: where each prompt ends.
    """
    target = len(pool.entrants) - 1
    root = build_levels(pool, target, drafter, drafting.max_budget)
    runtime = Runtime(root, pool.vocab_size)
    observer = _SurvivalObserver(pool, drafter, [*above, target], drafting.max_budget)
    runtime.observe(observer)
    positions = drafting.place_positions([len(t) - s for t, s in zip(texts, starts, strict=True)])
    for batch in batches(len(texts), pool.vocab_size * (drafting.max_budget + 1)):
        prompts = [texts[i][: starts[i]] for i in batch]
        sequences = open_sequences(root, batch, prompts, drafting, _DRAFTS)
        try:
            for observer.place in range(max(len(positions[i]) for i in batch)):
                active = [s for s in sequences if observer.place < len(positions[s.id])]
                for sequence in active:
                    stop = starts[sequence.id] + positions[sequence.id][observer.place]
                    sequence.tokens.extend(texts[sequence.id][len(sequence.tokens) : stop])
                lengths = [len(sequence.tokens) for sequence in active]
                for number in range(drafting.rounds + 1):
                    observer.counting = number > 0
                    for sequence, length in zip(active, lengths, strict=True):
                        if _has_ended(
                            sequence, length, drafting
                        ):  # drafts never begin after an end
                            rewind(sequence, length)
                    _commit(active, runtime.round(active))
                for sequence, length in zip(active, lengths, strict=True):
                    rewind(sequence, length)
        finally:
            _close(sequences)
    return observer.drafts_seen


def _has_ended(sequence: LiveSequence, start: int, drafting: DraftingSettings) -> bool:
    """Return whether the text ended at a token from ``start`` on."""
    return not drafting.ends.isdisjoint(sequence.tokens[start:])


def _commit(sequences: Sequence[LiveSequence], verdicts: Sequence[Verdict]) -> None:
    for sequence, verdict in zip(sequences, verdicts, strict=True):
        sequence.tokens.extend(verdict.emitted.tokens)


def _close(sequences: Sequence[LiveSequence]) -> None:
    for sequence in sequences:
        sequence.close()


class _SurvivalObserver(Observer):
    """Adds the survival of every draft that the target verifies, by all models above it."""

    def __init__(
        self, pool: CandidatePool, drafter: int, above: Sequence[int], max_budget: int
    ) -> None:
        self.pool, self.drafter, self.above, self.max_budget = pool, drafter, above, max_budget
        self.drafts_seen, self.counting, self.place = FollowedDrafts(), True, 0

    def on_verify(self, checks: Checks) -> None:
        if not self.counting:
            return
        drafts = checks.drafts
        sequences = [task.sequence for task in checks.tasks]
        self.drafts_seen.places += [(sequence.id, self.place) for sequence in sequences]
        self.drafts_seen.lengths += [len(draft) for draft in drafts]
        self.drafts_seen.signals += [draft.signals for draft in drafts]
        if self.pool.entrants[self.drafter].num_drafts > 1:
            for verdict in checks.verdicts:
                kept = np.arange(self.max_budget + 1) <= verdict.num_accepted
                for curves in (self.drafts_seen.tokenwise, self.drafts_seen.block):
                    curves.setdefault(self.above[-1], []).append(kept.astype(float))
            return
        contexts = [
            Context(sequence.tokens, draft.tokens)
            for sequence, draft in zip(sequences, drafts, strict=True)
        ]
        for number in self.above:
            tokenwise = self.drafts_seen.tokenwise.setdefault(number, [])
            block = self.drafts_seen.block.setdefault(number, [])
            rows = distributions_after(
                self.pool, number, sequences, contexts, [len(d) for d in drafts]
            )
            for draft, p in zip(drafts, rows, strict=True):
                first, second = survival(draft, p, self.max_budget)
                tokenwise.append(first)
                block.append(second)
