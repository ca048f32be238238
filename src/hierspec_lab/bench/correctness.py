"""Checks outputs: token ids where decoding is greedy, the target's likelihood elsewhere.

Both use one teacher-forced pass of the target over an output: all positions at once, no sampling,
and no part of the method that wrote it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import astuple, dataclass

import torch

from hierspec.core.context import Context
from hierspec.engine.caches import common_prefix_length
from hierspec.lm.backend import backend_of
from hierspec.lm.base import LanguageModel, Query
from hierspec.lm.encoder_decoder import split_prompt

from .method_records import LikelihoodSummary
from .summary import standard_error, z_score

MAX_PAIRED_Z = 3.0  # of the paired differences: 0.3 % of sound methods lie outside
MAX_LAW_Z = 4.0  # of all tokens against the law itself: 0.006 %
# The error that rounding may cause in a score, in steps of the data type at the size of the largest
# score: a coarse type rounds the score itself, a fine one shows what many layers add up.
_ROUNDING_STEPS = {torch.bfloat16: 4.0, torch.float16: 4.0}
_FINE_ROUNDING_STEPS = 32.0
# The least standard deviation, in nats, since it is 0 for one-hot distributions; larger than
# rounding errors.
_MIN_DEVIATION = 1e-9
_ROWS = 32  # distributions held at once in float64, as probabilities and logarithms


@dataclass(frozen=True, slots=True)
class Likelihood:
    """An output under the target's distributions at a temperature, in nats.

    Attributes:
        logprob: Σ log p(token), n tokens.
        surplus: Σ (log p(token) + H), H the entropy of the distribution at each position. If
            tokens have the target's distribution, each term's expectation given the past is 0.
        variance: Σ Var(log p) of the same distributions: the variance of ``surplus``.
    """

    num_tokens: int = 0
    logprob: float = 0.0
    surplus: float = 0.0
    variance: float = 0.0

    def __add__(self, other: Likelihood) -> Likelihood:
        return Likelihood(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))

    @property
    def per_token(self) -> float:
        return self.logprob / max(1, self.num_tokens)

    @property
    def law_z(self) -> float:
        """The surplus over its standard deviation: normal if tokens have the target's law."""
        return self.surplus / max(math.sqrt(self.variance), _MIN_DEVIATION)

    @staticmethod
    def from_logs(logs: torch.Tensor, ids: Sequence[int]) -> Likelihood:
        """Return the likelihood of ``ids``, one for each row of log-probabilities [n, V]."""
        probs = logs.exp()
        finite = torch.where(probs > 0, logs, torch.zeros_like(logs))
        mean = (probs * finite).sum(-1)  # −H
        variance = (probs * finite.square()).sum(-1) - mean.square()
        chosen = logs.gather(1, torch.tensor(ids, device=logs.device)[:, None])[:, 0]
        return Likelihood(
            num_tokens=len(ids),
            logprob=float(chosen.sum()),
            surplus=float((chosen - mean).sum()),
            variance=float(variance.clamp_min(0).sum()),
        )


def scores(model: LanguageModel, prompt: Sequence[int], ids: Sequence[int]) -> torch.Tensor:
    """Compute the target's scores [len(ids), V] for each token of ``ids``, given all before it."""
    slot = model.open()
    try:
        prefix, source = split_prompt(model, prompt)
        context = Context([*prefix, *ids], source=source)
        return model.score([Query(slot, context, len(prefix))])[: len(ids)]
    finally:
        model.close(slot)


def likelihood(
    model: LanguageModel, prompt: Sequence[int], ids: Sequence[int], temperature: float
) -> Likelihood:
    """Compute an output's likelihood under the target at a temperature > 0."""
    total = Likelihood()
    for rows in scores(model, prompt, ids).split(_ROWS) if ids else ():
        logs = torch.log_softmax(rows.double() / temperature, dim=-1)
        total += Likelihood.from_logs(logs, ids[total.num_tokens :][: len(rows)])
    return total


def gap(
    model: LanguageModel, prompt: Sequence[int], plain: Sequence[int], ids: Sequence[int]
) -> float | None:
    """Return the best score less the lower one of the outputs' tokens, where these first differ.

    In logits of one teacher-forced pass: near 0 where the two best scores tie, so that rounding
    decides. ``None``: the outputs are equal, or one merely ends sooner, or the target gives one of
    the tokens a score of −∞.
    """
    position = common_prefix_length(plain, ids)
    if position >= min(len(plain), len(ids)):
        return None
    row = scores(model, prompt, plain[: position + 1])[position].double()
    difference = float(row.max() - min(row[plain[position]], row[ids[position]]))
    return difference if math.isfinite(difference) else None  # a results file has no infinity


def tolerance(
    model: LanguageModel, prompt: Sequence[int], dtype: torch.dtype | None = None
) -> float:
    """Return the largest :func:`gap`, in logits, that rounding in a data type explains.

    Args:
        dtype: default: the model's own.
    """
    backend = backend_of(model)
    own_dtype = torch.float32 if backend is None else backend.weight_dtype
    used = dtype or own_dtype
    row = scores(model, prompt[:-1] or prompt, prompt[-1:])
    size = float(row.nan_to_num(0.0, 0.0, 0.0).abs().max())  # ids that a model masks have −∞
    return _ROUNDING_STEPS.get(used, _FINE_ROUNDING_STEPS) * torch.finfo(used).eps * max(1.0, size)


def law_test(
    outputs: Sequence[Likelihood], plain: Sequence[Likelihood], is_plain: bool = False
) -> LikelihoodSummary:
    """Test a method's outputs against plain sampling's, and against the target's distribution.

    Two tests. *Paired*: the mean log-probability a token, less plain sampling's on the same prompt,
    over prompts. *Law*: all tokens' surplus over its standard deviation; it compares with the
    target's own distributions instead of a second sample, and so is far less noisy.
    ``within_noise`` is false where either lies far outside what chance allows.
    """
    differences = [a.per_token - b.per_token for a, b in zip(outputs, plain, strict=True)]
    count = len(differences)
    law_z = sum(outputs, Likelihood()).law_z
    paired_ok = is_plain or count < 2 or abs(z_score(differences)) <= MAX_PAIRED_Z
    return LikelihoodSummary(
        mean=statistics.fmean(output.per_token for output in outputs),
        difference_from_plain=statistics.fmean(differences),
        standard_error=standard_error(differences),
        law_z=law_z,
        within_noise=paired_ok and abs(law_z) <= MAX_LAW_Z,
    )
