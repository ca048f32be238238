"""Real drafts along the target's own texts, and how much of each every verifier would keep.

The target continues every prompt. At places spread evenly over these texts every drafter runs a
few real rounds under the target, so that drafts begin where they do in generation: after a
recovered or bonus token. Every model between the two scores the same drafts. Distributions are
reduced to numbers at once: they are too large to be kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from hierspec.core.context import Context
from hierspec.core.distributions import Distributions
from hierspec.core.proposals import Proposal, Verdict
from hierspec.engine.observers import Checks, Observer
from hierspec.engine.runtime import Runtime
from hierspec.engine.sequences import LiveSequence
from hierspec.verifiers.formulas import capped_ratio, prefix_weights

from .agreement import TextScores, copied
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

_LEAST = 1e-9  # of a probability by which one is divided
_DRAFTS = 1 << 32  # random stream of drafts: the texts before them were drawn from stream 0


@dataclass(slots=True, eq=False)
class FollowedDrafts:
    """One drafter's drafts and their survival: an entry per draft.

    Attributes:
        places: number of its text, and of its place in the text.
        lengths: its number of tokens; data-dependent for look-ups.
        signals: [n] what the candidate's window reads at its tokens; NaN where it has no signal.
        tokenwise: by verifier, [M+1]: the probability, given the draft, that the rule keeps its
            first m tokens; 0 past its end. Of several drafts, whether m tokens were accepted.
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
    pool: CandidatePool,
    prompts: Sequence[Sequence[int]],
    length: int,
    drafting: DraftingSettings,
    on_part: Callable[[float], None] = lambda part: None,
) -> list[list[int]]:
    """Continue every prompt by ``length`` tokens of the target, fewer where it ends."""
    root = build_levels(pool)
    runtime = Runtime(root, pool.vocab_size)
    texts: list[list[int]] = []
    for batch in batches(len(prompts), pool.vocab_size):
        sequences = open_sequences(root, batch, [prompts[i] for i in batch], drafting)
        try:
            active = sequences
            for written in range(1, length + 1):
                _commit(active, runtime.round(active))
                on_part((batch.start + len(batch) * written / length) / len(prompts))
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
    target = len(pool.members) - 1
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


def follow_texts(
    pool: CandidatePool,
    drafter: int,
    above: Sequence[int],
    texts: Sequence[Sequence[int]],
    scores: Sequence[TextScores],
    drafting: DraftingSettings,
) -> FollowedDrafts:
    """Follow a drafter along the target's texts by their scores, without drafts of its own.

    A text x drawn from p may be seen as what rounds have written: given x, tokenwise has kept its
    first m tokens with probability Π min(1, q/p), and the block rule with min(1, min Π q/p) over
    prefixes. So means over texts are the survival of real drafts under the target. (q gives a
    look-up's proposal 1.) Under a model k between the two, tokens are taken to be accepted each
    with their 1 − TV from k: its own continuations are not among the texts. Drafts begin after a
    round from any position, as they do in :func:`follow_drafts`.
    """
    target, size = len(pool.members) - 1, drafting.max_budget
    member = pool.members[drafter]
    positions = drafting.place_positions([found.count for found in scores])
    rng = np.random.default_rng((drafting.seed, drafter))
    drafts = FollowedDrafts()
    for number, (text, found) in enumerate(zip(texts, scores, strict=True)):
        p = np.maximum(found.probabilities[target], _LEAST)
        if member.scores:
            lengths = np.full(found.count, size)
            ratios = _windows(found.probabilities[drafter] / p, size)
        else:
            lengths, equal = copied(member.model, text, found, size)
            ratios = equal.astype(float)
        capped = np.minimum(ratios, 1.0)
        rows = {target: (_starting(capped.cumprod(1)), _starting(_least_products(ratios)))}
        for k in above:
            if member.scores:
                shared = _windows(found.overlaps[drafter, k], size)
            else:
                shared = capped * _windows(np.minimum(found.probabilities[k] / p, 1.0), size)
            curves = _starting(shared.cumprod(1))
            rows[k] = curves, curves
        kept = (rng.random(found.count)[:, None] < rows[target][1][:, 1:]).sum(1)
        begun = np.arange(found.count) + kept + 1
        whole = begun[begun + size <= found.count]
        for start in whole if len(whole) else begun[begun < found.count]:
            place = int(np.searchsorted(positions[number], start, side="right")) - 1
            if place < 0:
                continue
            drafts.places.append((number, place))
            drafts.lengths.append(int(lengths[start]))
            drafts.signals.append(())
            for k, (tokenwise, block) in rows.items():
                drafts.tokenwise.setdefault(k, []).append(tokenwise[start])
                drafts.block.setdefault(k, []).append(block[start])
    return drafts


def _windows(values: np.ndarray, size: int) -> np.ndarray:
    """Return the ``size`` values from each position on, [positions, size]; 0 past the end."""
    padded = np.concatenate([values, np.zeros(size)])
    return np.lib.stride_tricks.sliding_window_view(padded, size)[: len(values)]


def _starting(curves: np.ndarray) -> np.ndarray:
    """Put the 1 of no token before curves [N, M]."""
    return np.concatenate([np.ones((len(curves), 1)), curves], axis=1)


def _least_products(ratios: np.ndarray) -> np.ndarray:
    """Return the least product of the first ratios so far, at most 1, [N, M]."""
    return np.minimum(np.minimum.accumulate(ratios.cumprod(1), axis=1), 1.0)


def _has_ended(sequence: LiveSequence, start: int, drafting: DraftingSettings) -> bool:
    return not drafting.eos_ids.isdisjoint(sequence.tokens[start:])


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
        if self.pool.members[self.drafter].num_drafts > 1:
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
