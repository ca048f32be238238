"""Rounds of the engine outside a generation: live sequences on given texts, rewound as needed."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from hierspec.config.nodes import build_nodes, make_rule
from hierspec.config.numbered import NumberedConfig
from hierspec.core.context import Context
from hierspec.core.distributions import DenseDistributions, Distributions
from hierspec.core.nodes import Verify
from hierspec.core.rng import PhiloxRng
from hierspec.engine.sequences import LiveSequence
from hierspec.lm.base import Query
from hierspec.lm.trunk.trunk import Trunk
from hierspec.sampling.parameters import SamplingParams
from hierspec.sampling.scores import ScoreRows, distributions

from .candidates import CandidatePool
from .schema import RULE, RULE_FOR_SEVERAL_DRAFTS

MAX_ENTRIES = 2**24  # of one model's distributions held at once: 64 MB in float32
MAX_BATCH = 32  # texts in one batch: their caches are held at the same time


@dataclass(frozen=True, slots=True)
class DraftingSettings:
    """Where drafts are measured along the texts, how many, and how long.

    Attributes:
        places: positions at which rounds are run, per text on average.
        rounds: drafts at each place, after one that is not counted.
        max_budget: M, tokens of a draft.
        temperature: the request's; 0 is greedy.
    """

    places: int
    rounds: int
    max_budget: int
    temperature: float
    seed: int = 0
    eos_ids: frozenset[int] = frozenset()

    def place_positions(self, lengths: Sequence[int]) -> list[list[int]]:
        """Return per text the positions of its places, spread evenly as if all were one text."""
        ends = np.cumsum(lengths)
        positions: list[list[int]] = [[] for _ in lengths]
        for number in range(self.places * len(lengths)):
            position = int(ends[-1]) * number // (self.places * len(lengths))
            index = int(np.searchsorted(ends, position, side="right"))
            positions[index].append(position - int(ends[index]) + lengths[index])
        return positions


def build_levels(
    pool: CandidatePool, verifier: int = -1, drafter: int | None = None, budget: int = 0
) -> Verify:
    """Build a hierarchy of one level, or of two; default: the target alone."""
    levels, rule = list[NumberedConfig](), RULE
    if drafter is not None:
        low = pool.members[drafter]
        level = NumberedConfig(
            model=drafter,
            num_speculative_tokens=budget,
            temperature=low.temperature,
            window=low.window,
            num_drafts=low.num_drafts,
        )
        levels.append(level)
        if low.num_drafts > 1:
            rule = RULE_FOR_SEVERAL_DRAFTS

    def model_and_name(level: Any, _: str) -> tuple[Any, str]:
        member = pool.members[verifier if level is None else level.model]
        return member.model, member.name

    root = build_nodes(levels, model_and_name, make_rule(rule))
    return dataclasses.replace(root, temperature=pool.members[verifier].temperature)


def open_sequence(
    root: Verify, number: int, tokens: Sequence[int], temperature: float, rng: PhiloxRng
) -> LiveSequence:
    """Open a sequence that never ends by itself, with ``tokens`` as its prompt."""
    return LiveSequence(
        id=number,
        root=root,
        tokens=list(tokens),
        params=SamplingParams(temperature=temperature),
        rng=rng,
        num_remaining_tokens=1 << 30,
    )


def open_sequences(
    root: Verify,
    numbers: Sequence[int],
    texts: Sequence[Sequence[int]],
    drafting: DraftingSettings,
    stream: int = 0,
) -> list[LiveSequence]:
    """Open a sequence for each text; its random numbers depend on its number and ``stream``."""
    return [
        open_sequence(root, i, text, drafting.temperature, PhiloxRng(drafting.seed, stream + i))
        for i, text in zip(numbers, texts, strict=True)
    ]


def rewind(sequence: LiveSequence, length: int) -> None:
    """Rewind a sequence and its caches to its first ``length`` tokens."""
    del sequence.tokens[length:]
    for owner, slot in sequence.slots.values():
        if isinstance(owner, Trunk):
            owner.rewind(slot, length)
        else:
            owner.close(slot)  # of a table or a look-up's index: cheap to rebuild


def batches(count: int, entries: int) -> list[range]:
    """Split ``count`` texts into batches; each text needs ``entries`` numbers of distributions."""
    size = min(max(1, MAX_ENTRIES // entries), MAX_BATCH)
    return [range(start, min(start + size, count)) for start in range(0, count, size)]


def distributions_after(
    pool: CandidatePool,
    number: int,
    sequences: Sequence[LiveSequence],
    contexts: Sequence[Context],
    back: Sequence[int],
) -> list[Distributions]:
    """Return a member's last ``back + 1`` distributions per sequence, to the context's end."""
    member = pool.members[number]
    queries, jobs = [], []
    for sequence, context, n in zip(sequences, contexts, back, strict=True):
        start = len(context) - n
        queries.append(Query(sequence.slot(member.model), context, start))
        jobs.append(
            ScoreRows(
                params=sequence.params,
                temperature=None if sequence.params.greedy else member.temperature,
                context=context,
                start=start,
                num_rows=n + 1,
                prompt_length=sequence.prompt_length,
                vocab_size=pool.vocab_size,
                model=member.name,
            )
        )
    return distributions(jobs, member.model.score(queries))


def probabilities(rows: Distributions, tokens: Sequence[int]) -> np.ndarray:
    """Return the probability of each token in its row, float64."""
    if isinstance(rows, DenseDistributions) and max(tokens) < rows.width:
        indices = torch.tensor(tokens, device=rows.probs.device).unsqueeze(1)
        return rows.probs[: len(tokens)].gather(1, indices).squeeze(1).double().cpu().numpy()
    return np.array([rows.prob(i, token) for i, token in enumerate(tokens)])
