"""How many tokens are accepted of each draft that a real model verifies, beside what is expected.

The exact interpreter turns a rule's acceptance probabilities into the distribution of τ, the number
of drafted tokens accepted (:func:`hierspec.core.rules.tau_probabilities`). The same two functions
take the rows of a real draft. So each round of the runtime has an expectation and a variance of τ,
given the draft, and over any text the sum of accepted less expected tokens is 0 within Σ variance.

The draft's ratios give more: the probability of keeping m tokens or more is the mean over drafts of
Π min(1, r_i) tokenwise, of w_m in block, of min(1, R_m) in naive branch resampling [P4 §5.1], each
computed from the first m tokens alone. So one draft compares the rules, at every length up to its
own.

Nothing is computed while a run is timed: rounds keep references, evaluated afterwards. Where these
would take more than :data:`MAX_PENDING_BYTES` (V = 152k: 21 rows of a draft of ten are 13 MB) they
are evaluated between two rounds, and that time is taken off the run's.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from hierspec.core.distributions import DenseDistributions, Distributions, parts
from hierspec.core.proposals import Proposal, Verdict
from hierspec.core.rules import Batch, Verifier, tau_probabilities
from hierspec.engine.observers import Checks, Observer
from hierspec.verifiers import registry
from hierspec.verifiers.formulas import capped, log_products
from hierspec_lab.bench.methods.base import Run, RunRequest
from hierspec_lab.bench.methods.ours import HierarchyMethod

CURVES = ("tokenwise", "block", "naive")
MAX_PENDING_BYTES = 1 << 28  # bytes of distributions that a run keeps while it is timed


@dataclass(frozen=True, slots=True, eq=False)
class VerifiedDraft:
    """One verified draft of n tokens.

    Attributes:
        kept: τ, the number of its tokens that were kept.
        mean, variance: of τ given the draft, under the rule that verified it.
        means: E[τ | draft] under further rules, by name.
        curves: by rule of :data:`CURVES`, [n+1]: its mean over drafts is P(τ ≥ m), m = 0 … n.
    """

    kept: int
    mean: float
    variance: float
    means: dict[str, float]
    curves: dict[str, np.ndarray]

    @property
    def length(self) -> int:
        return len(self.curves["block"]) - 1


def evaluate_draft(
    rule: Verifier, draft: Proposal, p: Distributions, kept: int, compared: Sequence[str] = ()
) -> VerifiedDraft:
    """Compute the distribution of τ of a verified draft: mean, variance, and curves by rule.

    Args:
        rule: the rule that verified it.
        draft: n ≥ 1 tokens and their distributions.
        p: the verifier's n + 1 distributions.
        kept: τ of the verdict.
        compared: names of rules to compare with.
    """
    width = max(p.width, draft.distributions.width)
    rows = p.dense(width)
    batch = Batch(
        rows.unsqueeze(0),
        draft.distributions.dense(width).to(rows).unsqueeze(0),
        torch.tensor([draft.tokens], device=rows.device),
        torch.tensor([len(draft)], device=rows.device),
    )
    mean, square = _moments(rule, batch)
    means = {name: _moments(registry.get(name), batch)[0] for name in compared}
    return VerifiedDraft(kept, mean, max(square - mean * mean, 0.0), means, _curves(batch))


def _moments(rule: Verifier, batch: Batch) -> tuple[float, float]:
    """Return E[τ | draft] and E[τ² | draft]."""
    probs = tau_probabilities(rule.order, rule.acceptance(batch).h)[0].double().cpu().numpy()
    lengths = np.arange(len(probs))
    return float(probs @ lengths), float(probs @ lengths**2)


def _curves(batch: Batch) -> dict[str, np.ndarray]:
    products = log_products(batch)
    # In logs as the others are: where rules keep as much, their curves are equal to the last digit.
    steps = products.diff(dim=-1).nan_to_num(nan=-math.inf)  # −inf − −inf, after p = 0
    tokenwise = torch.nn.functional.pad(steps.clamp(max=0.0).cumsum(-1), (1, 0))
    ideal = products.clamp(max=0.0).exp()  # on average no lossless rule keeps k tokens more often
    curves = (tokenwise.exp(), capped(products), ideal)
    return {name: row[0].cpu().numpy() for name, row in zip(CURVES, curves, strict=True)}


@dataclass(slots=True, eq=False)
class _PendingDrafts:
    """The drafts that one run's target verified: kept as distributions, then evaluated.

    Attributes:
        pending: arguments of :func:`evaluate_draft`, with ``num_bytes`` bytes of distributions.
        evaluated: the results.
        paused: seconds of the run spent on evaluating.
    """

    compared: Sequence[str]
    pending: list[tuple[Verifier, Proposal, Distributions, int]] = field(default_factory=list)
    evaluated: list[VerifiedDraft] = field(default_factory=list)
    num_bytes: int = 0
    paused: float = 0.0

    def add(self, rule: Verifier, draft: Proposal, p: Distributions, kept: int) -> None:
        self.pending.append((rule, draft, p, kept))
        self.num_bytes += _size(draft.distributions) + _size(p)

    def limit_memory(self) -> None:
        if self.num_bytes > MAX_PENDING_BYTES:
            began = time.perf_counter()
            self.evaluate()
            self.paused += time.perf_counter() - began

    def evaluate(self) -> list[VerifiedDraft]:
        self.evaluated += [evaluate_draft(*arguments, self.compared) for arguments in self.pending]
        self.pending, self.num_bytes = [], 0
        return self.evaluated


def _size(distributions: Distributions) -> int:
    dense = (part for part in parts(distributions) if isinstance(part, DenseDistributions))
    return sum(part.probs.nbytes for part in dense)


class _DraftObserver(Observer):
    """Collects every draft that the target, the node of index ``root``, verifies."""

    def __init__(self, root: int, verified_drafts: _PendingDrafts) -> None:
        self.root, self.verified_drafts = root, verified_drafts

    def on_verify(self, checks: Checks) -> None:
        if checks.node.index == self.root:
            for draft, p, verdict in zip(checks.drafts, checks.p, checks.verdicts, strict=True):
                if draft.tokens:
                    self.verified_drafts.add(checks.node.rule, draft, p, verdict.num_accepted)

    def on_round_end(self, sequences: Sequence[Any], verdicts: Sequence[Verdict]) -> None:
        self.verified_drafts.limit_memory()


class DraftCollector(HierarchyMethod):
    """A method: a hierarchy with one draft a round, which keeps the drafts that it verified.

    Args:
        compared: rules to evaluate on the same drafts.

    Attributes:
        rounds: the verified drafts of each run.
    """

    def __init__(
        self,
        name: str,
        models: Any,
        levels: Sequence[dict[str, Any]],
        compared: Sequence[str] = (),
        **top: Any,
    ) -> None:
        super().__init__(name, models, levels, **top)
        self.compared: tuple[str, ...] = tuple(compared)
        self.rounds: list[list[VerifiedDraft]] = []

    def run(self, prompt: Sequence[int], request: RunRequest, tracer: Any = None) -> Run:
        """Run as :meth:`HierarchyMethod.run` does; the time of evaluating drafts is taken off."""
        verified = _PendingDrafts(self.compared)
        observer = _DraftObserver(self.hierarchy.root.index, verified)
        (run,) = self.run_batch([prompt], request, tracer, [observer])
        self.rounds.append(verified.evaluate())
        # Drafts come after the first token, so all of the pause lies in decoding.
        seconds = run.seconds - verified.paused
        decode = None if run.decode_seconds is None else run.decode_seconds - verified.paused
        return dataclasses.replace(run, seconds=seconds, decode_seconds=decode)

    def drafts(self, runs: Sequence[Run]) -> list[VerifiedDraft]:
        """Return the drafts of as many last runs as are given; those before only warmed up."""
        return [draft for rounds in self.rounds[-len(runs) :] for draft in rounds]


@dataclass(frozen=True, slots=True)
class Mean:
    """A mean and its standard error."""

    value: float
    error: float

    @staticmethod
    def from_values(values: Sequence[float]) -> Mean:
        """Return the mean of independent values; the error of fewer than two is NaN."""
        array = np.asarray(values, dtype=float)
        if len(array) < 2:
            return Mean(float(array.mean()) if len(array) else math.nan, math.nan)
        return Mean(float(array.mean()), float(array.std(ddof=1) / math.sqrt(len(array))))


def mean_kept(drafts: Sequence[VerifiedDraft]) -> float:
    """Return the mean τ."""
    return sum(draft.kept for draft in drafts) / len(drafts)


def mean_expected(drafts: Sequence[VerifiedDraft]) -> Mean:
    """Return the mean expected τ; its error comes from the tests' randomness."""
    n = len(drafts)
    variance = sum(draft.variance for draft in drafts)
    return Mean(sum(draft.mean for draft in drafts) / n, math.sqrt(variance) / n)


def z_score(drafts: Sequence[VerifiedDraft]) -> float:
    """Return accepted less expected tokens in standard deviations; 0 where nothing is random."""
    mean = mean_expected(drafts)
    return (mean_kept(drafts) - mean.value) / mean.error if mean.error else 0.0


def gain(drafts: Sequence[VerifiedDraft]) -> Mean:
    """Return how many more tokens a draft block is expected to keep than tokenwise.

    Block's curve is above tokenwise's at every draft: w_m ≥ Π min(1, r_i).
    """
    gains = [d.curves["block"] - d.curves["tokenwise"] for d in drafts]
    return Mean.from_values([float(curve[1:].sum()) for curve in gains])


def predicted_tokens_per_call(drafts: Sequence[VerifiedDraft], rule: str, length: int) -> float:
    """Return E[tokens] / E[target calls] of drafts cut to ``length``; shorter ones are left out.

    Naive branch resampling calls the target once more for every position after the recovered token
    up to the draft's end [MATH §1]: n − τ − 1 follow-up calls for n tokens.
    """
    curve = np.mean([d.curves[rule][: length + 1] for d in drafts if d.length >= length], axis=0)
    accepted, all_kept = float(curve[1:].sum()), float(curve[length])
    if rule == "naive":
        return (length + all_kept) / (length - accepted + all_kept)
    return 1.0 + accepted
