"""Laws of two models side by side, reduced to numbers: they are too large to keep.

How often models agree: acceptance for every pair, and survival curves of real drafts.

The target continues every prompt. Along these texts every drafter runs a few real rounds under the
target at places spread evenly, so that drafts begin where drafts do begin: after a correction or a
bonus token. Every model between the two scores the same drafts. Laws are reduced to numbers at once
and never kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from hierspec.core.context import Context
from hierspec.core.distributions import DenseDistributions, Distributions, OneHotDistributions
from hierspec.core.nodes import Draft, Verify
from hierspec.core.proposals import Proposal, Verdict
from hierspec.core.rng import PhiloxRng
from hierspec.engine.observers import Checks, Observer
from hierspec.engine.runtime import Runtime
from hierspec.engine.sequences import LiveSequence
from hierspec.lm.base import Query
from hierspec.lm.trunk.trunk import Trunk
from hierspec.sampling.parameters import SamplingParams
from hierspec.sampling.scores import Job, distributions
from hierspec.verifiers import registry as verifiers

from .candidates import Entrant, Pool


def survival(draft: Proposal, p: Distributions, max_budget: int) -> tuple[np.ndarray, np.ndarray]:
    """Per m = 0 … M, given the draft: the probability that tokenwise keeps m tokens; and w_m."""
    one = np.zeros(max_budget + 1)
    other = np.zeros(max_budget + 1)
    one[0] = other[0] = 1.0
    if draft.tokens:
        ratios = _probs(p, draft.tokens) / _probs(draft.distributions, draft.tokens)
        one[1 : len(ratios) + 1] = np.minimum(ratios, 1.0).cumprod()
        for m, ratio in enumerate(ratios, 1):
            other[m] = min(1.0, other[m - 1] * ratio)
    return one, other


def overlap(q: Distributions, p: Distributions, vocab_size: int) -> np.ndarray:
    """1 − TV of every row, [n]."""
    if isinstance(q, OneHotDistributions) and isinstance(p, OneHotDistributions):
        return (likeliest(q) == likeliest(p)).astype(float)
    if isinstance(q, OneHotDistributions):  # a drafter that is greedy by its own temperature, or p
        return _probs(p, q.ids)
    if isinstance(p, OneHotDistributions):
        return _probs(q, p.ids)
    first, second = q.dense(vocab_size), p.dense(vocab_size)
    return torch.minimum(first.to(second), second).sum(-1).double().cpu().numpy()


def likeliest(rows: Distributions) -> np.ndarray:
    """The token of the largest probability of every row, [n]."""
    if isinstance(rows, OneHotDistributions):
        return np.array(rows.ids)
    assert isinstance(rows, DenseDistributions)
    return rows.probs.argmax(-1).cpu().numpy()


def _probs(rows: Distributions, tokens: Sequence[int]) -> np.ndarray:
    if isinstance(rows, DenseDistributions) and max(tokens) < rows.width:
        at = torch.tensor(tokens, device=rows.probs.device).unsqueeze(1)
        return rows.probs[: len(tokens)].gather(1, at).squeeze(1).double().cpu().numpy()
    return np.array([rows.prob(i, token) for i, token in enumerate(tokens)])


MAX_ENTRIES = 2**24  # of one model's laws at hand at one time: 64 MB in float32
MAX_TOGETHER = 32  # texts in one batch: their caches are held at the same time
_DRAFTS = 1 << 32  # dice of their own: a draft must not share those that drew its context


@dataclass(slots=True, eq=False)
class Drafts:
    """What became of one drafter's drafts: an entry per draft.

    Attributes:
        where: number of its text, and of the place there.
        lengths: how many tokens it had; data-dependent for look-ups.
        signals: [n] what the candidate's window reads at its tokens; NaN where it reads nothing.
        tokenwise: by verifier, [M+1]: the probability, given the draft, that the rule keeps its
            first m tokens; 0 past its end.
        block: the same for the block rule: w_m, whose mean is that probability (MATH §0).
    """

    where: list[tuple[int, int]] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    signals: list[tuple[float, ...]] = field(default_factory=list)
    tokenwise: dict[int, list[np.ndarray]] = field(default_factory=dict)
    block: dict[int, list[np.ndarray]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Plan:
    """How much to measure.

    Attributes:
        places: per text, where rounds are run.
        rounds: drafts at each place; one more goes before them, uncounted.
        max_budget: M, tokens of a draft.
        temperature: the request's; 0 is greedy.
    """

    places: int
    rounds: int
    max_budget: int
    temperature: float
    seed: int = 0


def continuations(
    pool: Pool, prompts: Sequence[Sequence[int]], length: int, plan: Plan
) -> list[list[int]]:
    """Every prompt with ``length`` tokens of the target's own after it."""
    root = plain(pool)
    runtime = Runtime(root, pool.vocab_size)
    texts: list[list[int]] = []
    for some in _batches(len(prompts), pool.vocab_size):
        sequences = opened(root, some, [prompts[i] for i in some], plan)
        try:
            for _ in range(length):
                _commit(sequences, runtime.round(sequences))
        finally:
            _close(sequences)
        texts += [sequence.tokens for sequence in sequences]
    return texts


def follow_drafts(
    pool: Pool,
    drafter: int,
    above: Sequence[int],
    texts: Sequence[Sequence[int]],
    starts: Sequence[int],
    plan: Plan,
) -> Drafts:
    """Real rounds of a drafter under the target, seen by every verifier in ``above`` too.

    Args:
        texts: the target's own; ``starts``: where each prompt ends.
    """
    entrant, target = pool.entrants[drafter], pool.entrants[-1]
    below = Draft(
        0, entrant.name, entrant.model, plan.max_budget, entrant.window, entrant.temperature
    )
    root = Verify(1, target.name, target.model, 1, verifiers.get("block"), below)
    runtime = Runtime(root, pool.vocab_size)
    tap = _Tap(pool, [*above, len(pool.entrants) - 1], plan.max_budget)
    runtime.observe(tap)
    for some in _batches(len(texts), pool.vocab_size * (plan.max_budget + 1)):
        prompts = [texts[i][: starts[i]] for i in some]
        sequences = opened(root, some, prompts, plan, _DRAFTS)
        try:
            for tap.place in range(plan.places):
                for i, sequence in zip(some, sequences, strict=True):
                    stop = starts[i] + edge(len(texts[i]) - starts[i], tap.place, plan.places)
                    sequence.tokens.extend(texts[i][len(sequence.tokens) : stop])
                lengths = [len(sequence.tokens) for sequence in sequences]
                for number in range(plan.rounds + 1):
                    tap.counting = number > 0
                    _commit(sequences, runtime.round(sequences))
                for sequence, length in zip(sequences, lengths, strict=True):
                    rewind(sequence, length)
        finally:
            _close(sequences)
    return tap.seen


def _batches(count: int, entries: int) -> list[range]:
    """Numbers of texts to take together, where each needs so many entries of laws."""
    size = min(max(1, MAX_ENTRIES // entries), MAX_TOGETHER)
    return [range(at, min(at + size, count)) for at in range(0, count, size)]


def edge(length: int, place: int, places: int) -> int:
    """Where a place begins in so many tokens."""
    return length * place // places


def rewind(sequence: LiveSequence, length: int) -> None:
    """Wind a sequence back to its first ``length`` tokens, as if what came after had not been."""
    del sequence.tokens[length:]
    for owner, slot in sequence.slots.values():
        if isinstance(owner, Trunk):
            owner.rewind(slot, length)
        else:
            owner.close(slot)  # a table's, or an index of the text: made anew in no time


def plain(pool: Pool) -> Verify:
    return Verify(0, "target", pool.entrants[-1].model, 1, verifiers.get("block"), None)


def opened(
    root: Verify,
    numbers: Sequence[int],
    texts: Sequence[Sequence[int]],
    plan: Plan,
    stream: int = 0,
) -> list[LiveSequence]:
    return [
        LiveSequence(
            id=i,
            root=root,
            tokens=list(text),
            params=SamplingParams(temperature=plan.temperature),
            rng=PhiloxRng(plan.seed, stream + i),
            wanted=1 << 30,
        )
        for i, text in zip(numbers, texts, strict=True)
    ]


def _commit(sequences: Sequence[LiveSequence], verdicts: Sequence[Verdict]) -> None:
    for sequence, verdict in zip(sequences, verdicts, strict=True):
        sequence.tokens.extend(verdict.emitted.tokens)


def _close(sequences: Sequence[LiveSequence]) -> None:
    for sequence in sequences:
        sequence.close()


class _Tap(Observer):
    """Shows every draft that the target verifies to several verifiers."""

    def __init__(self, pool: Pool, above: Sequence[int], max_budget: int) -> None:
        self.pool, self.above, self.max_budget = pool, above, max_budget
        self.seen, self.counting, self.place = Drafts(), True, 0

    def verified(self, checks: Checks) -> None:
        if not self.counting:
            return
        drafts = checks.drafts
        sequences = [task.sequence for task in checks.tasks]
        self.seen.where += [(sequence.id, self.place) for sequence in sequences]
        self.seen.lengths += [len(draft) for draft in drafts]
        self.seen.signals += [draft.signals for draft in drafts]
        contexts = [
            Context(sequence.tokens, draft.tokens)
            for sequence, draft in zip(sequences, drafts, strict=True)
        ]
        for number in self.above:
            tokenwise = self.seen.tokenwise.setdefault(number, [])
            block = self.seen.block.setdefault(number, [])
            rows = laws_after(self.pool, number, sequences, contexts, [len(d) for d in drafts])
            for draft, p in zip(drafts, rows, strict=True):
                first, second = survival(draft, p, self.max_budget)
                tokenwise.append(first)
                block.append(second)


def laws_after(
    pool: Pool,
    number: int,
    sequences: Sequence[LiveSequence],
    contexts: Sequence[Context],
    back: Sequence[int],
) -> list[Distributions]:
    """Laws of an entrant after every context and at ``back`` places before, per sequence."""
    entrant: Entrant = pool.entrants[number]
    queries, jobs = [], []
    for sequence, context, n in zip(sequences, contexts, back, strict=True):
        start = len(context) - n
        queries.append(Query(sequence.slot(entrant.model), context, start))
        jobs.append(
            Job(
                params=sequence.params,
                temperature=None if sequence.params.greedy else entrant.temperature,
                context=context,
                start=start,
                num_rows=n + 1,
                prompt_length=sequence.num_prompt,
                vocab_size=pool.vocab_size,
                model=entrant.name,
            )
        )
    return distributions(jobs, entrant.model.score(queries))
