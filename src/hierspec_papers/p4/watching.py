"""Verification on real models, watched: what the exact law says of every draft that was verified.

The exact interpreter turns a rule's acceptance probabilities into the law of τ, the number of
drafted tokens kept (:func:`hierspec.core.rules.law_of_tau`). The same two functions take the
rows of a real draft. So each round of the runtime has an expectation and a variance of τ, given the
draft, and what was kept less what was expected sums to 0 within Σ variance, over any text.

The draft's ratios give more: the probability of keeping m tokens or more is the mean over drafts of
Π min(1, r_i) tokenwise, of w_m in block, of min(1, R_m) in naive branch resampling [P4 §5.1], each
read off the first m tokens alone. One draft so compares the rules, at every length up to its own.

Nothing is reduced while the clock runs: rounds leave references, which become numbers afterwards.
Where these would hold more than :data:`HELD` bytes (V = 152k: 21 rows of a draft of ten are 13 MB)
they become numbers between two rounds, and the clock stands still for as long.
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

from hierspec.api import Hierarchy
from hierspec.bench.methods.base import Request, Run
from hierspec.bench.methods.ours import HierarchyMethod
from hierspec.core.distributions import DenseDistributions, Distributions
from hierspec.core.proposals import Proposal, Verdict
from hierspec.core.rules import Batch, Verifier, law_of_tau
from hierspec.engine.generation import Generation
from hierspec.engine.observers import Checks, Observer
from hierspec.verifiers import registry
from hierspec.verifiers.ratios import capped, log_products

CURVES = ("tokenwise", "block", "naive")
HELD = 1 << 28  # bytes of laws that a run keeps while it is timed


@dataclass(frozen=True, slots=True, eq=False)
class Seen:
    """One verified draft of n tokens.

    Attributes:
        kept: τ.
        mean: E[τ | draft] under the rule that verified it; ``variance`` likewise.
        others: E[τ | draft] under further rules, by name.
        curves: by rule of :data:`CURVES`, [n+1]: its mean over drafts is P(τ ≥ m), m = 0 … n.
    """

    kept: int
    mean: float
    variance: float
    others: dict[str, float]
    curves: dict[str, np.ndarray]

    @property
    def length(self) -> int:
        return len(self.curves["block"]) - 1


def seen(
    rule: Verifier, draft: Proposal, p: Distributions, kept: int, others: Sequence[str] = ()
) -> Seen:
    """Reduce a verified draft to numbers.

    Args:
        rule: that verified it; ``others``: names of rules to compare with.
        draft: n ≥ 1 tokens and their laws.
        p: the verifier's n + 1 laws.
        kept: τ of the verdict.
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
    means = {name: _moments(registry.get(name), batch)[0] for name in others}
    return Seen(kept, mean, max(square - mean * mean, 0.0), means, _curves(batch))


def _moments(rule: Verifier, batch: Batch) -> tuple[float, float]:
    """E[τ | draft] and E[τ² | draft]."""
    law = law_of_tau(rule.order, rule.acceptance(batch).h)[0].double().cpu().numpy()
    lengths = np.arange(len(law))
    return float(law @ lengths), float(law @ lengths**2)


def _curves(batch: Batch) -> dict[str, np.ndarray]:
    products = log_products(batch)
    steps = products.diff(dim=-1).nan_to_num(nan=-math.inf)  # −inf − −inf, after p said 0
    tokenwise = torch.nn.functional.pad(steps.clamp(max=0.0).cumsum(-1), (1, 0))
    found = (tokenwise.exp(), capped(products), products.clamp(max=0.0).exp())
    rows = (row[0].nan_to_num(nan=0.0).double().cpu().numpy() for row in found)
    return dict(zip(CURVES, rows, strict=True))


@dataclass(slots=True, eq=False)
class _Notes:
    """The drafts that one run's target verified: laws at first, numbers in the end.

    Attributes:
        waiting: arguments of :func:`seen`, holding ``held`` bytes of laws.
        paused: seconds spent on making numbers while the run went on.
    """

    others: Sequence[str]
    waiting: list[tuple[Verifier, Proposal, Distributions, int]] = field(default_factory=list)
    reduced: list[Seen] = field(default_factory=list)
    held: int = 0
    paused: float = 0.0

    def add(self, rule: Verifier, draft: Proposal, p: Distributions, kept: int) -> None:
        self.waiting.append((rule, draft, p, kept))
        self.held += _size(draft.distributions) + _size(p)

    def make_room(self) -> None:
        if self.held > HELD:
            began = time.perf_counter()
            self.reduce()
            self.paused += time.perf_counter() - began

    def reduce(self) -> list[Seen]:
        self.reduced += [seen(*one, self.others) for one in self.waiting]
        self.waiting, self.held = [], 0
        return self.reduced


def _size(distributions: Distributions) -> int:
    """Bytes."""
    parts = getattr(distributions, "parts", (distributions,))
    return sum(one.probs.nbytes for one in parts if isinstance(one, DenseDistributions))


class _Watching(Observer):
    """Leaves a note of every draft that the target, the node of index ``root``, verified."""

    def __init__(self, root: int, notes: _Notes) -> None:
        self.root, self.notes = root, notes

    def verified(self, checks: Checks) -> None:
        if checks.node.index == self.root:
            for draft, p, verdict in zip(checks.drafts, checks.p, checks.verdicts, strict=True):
                if draft.tokens:
                    self.notes.add(checks.node.rule, draft, p, verdict.num_accepted)

    def round_ended(self, sequences: Sequence[Any], verdicts: Sequence[Verdict]) -> None:
        self.notes.make_room()


class _WatchedHierarchy(Hierarchy):
    """A hierarchy whose generations are watched; it shares models and lock."""

    def __init__(self, hierarchy: Hierarchy, notes: _Notes) -> None:
        self.__dict__.update(vars(hierarchy))
        self.notes = notes

    def start(self, *args: Any, **options: Any) -> Generation:
        generation = super().start(*args, **options)
        generation.runtime.observe(_Watching(generation.root.index, self.notes))
        return generation


class Watched(HierarchyMethod):
    """A hierarchy with one draft a round as a method; ``rounds`` has a list of drafts per run.

    Args:
        others: rules to evaluate on the same drafts.
    """

    def __init__(
        self, name: str, models: Any, levels: Sequence[dict[str, Any]], others=(), **top: Any
    ) -> None:
        super().__init__(name, models, levels, **top)
        self.others: tuple[str, ...] = tuple(others)
        self.rounds: list[list[Seen]] = []
        self._notes = _Notes(self.others)

    @property
    def hierarchy(self) -> Hierarchy:
        return _WatchedHierarchy(super().hierarchy, self._notes)

    def run(self, prompt: Sequence[int], request: Request, tracer: Any = None) -> Run:
        """As :meth:`HierarchyMethod.run`; the time it takes to watch is not part of it."""
        self._notes = notes = _Notes(self.others)
        run = super().run(prompt, request, tracer)
        self.rounds.append(notes.reduce())
        # Drafts come after the first token, so all of the pause lies in decoding.
        decode = None if run.decode_seconds is None else run.decode_seconds - notes.paused
        return dataclasses.replace(run, seconds=run.seconds - notes.paused, decode_seconds=decode)

    def drafts(self, runs: Sequence[Run]) -> list[Seen]:
        """Of the last runs, as many as given: those before them only warmed up."""
        return [draft for rounds in self.rounds[-len(runs) :] for draft in rounds]


@dataclass(frozen=True, slots=True)
class Mean:
    """A mean and its standard error."""

    value: float
    error: float

    @staticmethod
    def of(values: Sequence[float]) -> Mean:
        """Of independent values; the error of fewer than two is NaN."""
        many = np.asarray(values, dtype=float)
        if len(many) < 2:
            return Mean(float(many.mean()) if len(many) else math.nan, math.nan)
        return Mean(float(many.mean()), float(many.std(ddof=1) / math.sqrt(len(many))))


def kept(drafts: Sequence[Seen]) -> float:
    """Mean τ."""
    return sum(draft.kept for draft in drafts) / len(drafts)


def expected(drafts: Sequence[Seen]) -> Mean:
    """Mean τ that the exact law gives to these drafts; the error is of what dice make of it."""
    n = len(drafts)
    variance = sum(draft.variance for draft in drafts)
    return Mean(sum(draft.mean for draft in drafts) / n, math.sqrt(variance) / n)


def z_score(drafts: Sequence[Seen]) -> float:
    """Kept less expected, in standard deviations; 0 where nothing was left to chance."""
    mean = expected(drafts)
    return (kept(drafts) - mean.value) / mean.error if mean.error else 0.0


def gain(drafts: Sequence[Seen], over: str = "tokenwise", rule: str = "block") -> Mean:
    """How many more tokens a draft ``rule`` keeps than ``over``, in expectation, draft by draft.

    Block's curve is above tokenwise's at every draft: w_m ≥ Π min(1, r_i).
    """
    return Mean.of([float((d.curves[rule] - d.curves[over])[1:].sum()) for d in drafts])


def predicted_tokens_per_call(drafts: Sequence[Seen], rule: str, length: int) -> float:
    """From drafts of ``length`` tokens or more, cut to that length: E[tokens] / E[target calls].

    Naive branch resampling calls the target once more for every position after the corrected one
    up to the draft's end [MATH §1]: n − τ − 1 follow-up calls for n tokens.
    """
    curve = np.mean([d.curves[rule][: length + 1] for d in drafts if d.length >= length], axis=0)
    accepted, whole = float(curve[1:].sum()), float(curve[length])
    if rule == "naive":
        return (length + whole) / (length - accepted + whole)
    return 1.0 + accepted
