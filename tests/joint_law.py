"""Tests that sampled output has the target's law: the exact law of the first tokens, and χ².

For real models, where enumerating the hierarchy's own randomness is out of reach: the target's
joint law of the first few tokens is computed by expanding its tree, and compared with samples.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scipy.stats import chi2

from hierspec.api import Hierarchy
from hierspec.core.context import Context
from hierspec.errors import HierspecError
from hierspec.lm.base import Query
from hierspec.lm.encoder_decoder import split_prompt
from hierspec.sampling.parameters import SamplingParams
from hierspec.sampling.scores import ScoreRows, distributions

Tokens = tuple[int, ...]


def joint_law(
    hierarchy: Hierarchy, prompt: Sequence[int], params: SamplingParams, length: int
) -> dict[Tokens, float]:
    """Compute the target's exact law of the next ``length`` tokens: {tokens: probability}.

    Every continuation of positive probability is expanded, so ``params`` must keep few tokens
    (top-k): k^length cells, about k^(length−1) rows of the target.
    """
    model = hierarchy.root.model
    prefix, source = split_prompt(model, prompt)
    law: dict[Tokens, float] = {(): 1.0}
    for _ in range(length):
        longer: dict[Tokens, float] = {}
        slot = model.open()
        for tokens, mass in law.items():
            context = Context([*prefix, *tokens], source=source)
            # One slot for the whole tree: rewinding to the shared prefix is the cache's work.
            slot.forget_committed()
            scores = model.score([Query(slot, context, len(context))])
            rows = ScoreRows(params, context, len(context), 1, len(prefix), model.vocab_size)
            (row,) = distributions([rows], scores)
            probs = row.dense(model.vocab_size)[0]
            for token in probs.nonzero().flatten().tolist():
                longer[(*tokens, token)] = mass * float(probs[token])
        model.close(slot)
        law = longer
    return law


def sample(
    hierarchy: Hierarchy,
    prompt: Sequence[int],
    params: SamplingParams,
    length: int,
    num_samples: int,
    batch_size: int = 64,
    seed: int = 0,
) -> Counter[Tokens]:
    """Count the first ``length`` tokens of ``num_samples`` independent generations."""
    counts: Counter[Tokens] = Counter()
    for number, start in enumerate(range(0, num_samples, batch_size)):
        size = min(batch_size, num_samples - start)
        results = hierarchy.generate_batch(
            [list(prompt)] * size,
            max_new_tokens=length,
            seed=seed * 1_000_003 + number,
            ignore_eos=True,
            sampling=params,
        )
        counts.update(result.token_ids for result in results)
    return counts


@dataclass(frozen=True, slots=True)
class ChiSquare:
    """Pearson's statistic, its degrees of freedom, and log10 of its p-value."""

    statistic: float
    degrees: int
    log10_p: float


def chi_square(
    counts: Mapping[Tokens, int], law: Mapping[Tokens, float], min_expected: float = 10.0
) -> ChiSquare:
    """Test counts against a law; cells expected less than ``min_expected`` times are pooled.

    Outcomes of probability 0 that occurred give log10 p = −inf.
    """
    total = sum(counts.values())
    if any(law.get(tokens, 0.0) <= 0.0 for tokens in counts):
        return ChiSquare(math.inf, 0, -math.inf)
    statistic, cells = 0.0, 0
    pooled_expected, pooled_count = 0.0, 0
    for tokens, mass in law.items():
        expected, count = total * mass, counts.get(tokens, 0)
        if expected < min_expected:
            pooled_expected += expected
            pooled_count += count
        else:
            statistic += (count - expected) ** 2 / expected
            cells += 1
    if pooled_expected >= min_expected:
        statistic += (pooled_count - pooled_expected) ** 2 / pooled_expected
        cells += 1
    degrees = cells - 1
    if degrees < 1:
        raise HierspecError(f"too few cells are expected {min_expected:g} times: take more samples")
    log_p = float(chi2.logsf(statistic, degrees))
    return ChiSquare(statistic, degrees, log_p / math.log(10))
