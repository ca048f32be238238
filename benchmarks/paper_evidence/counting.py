"""Counts of each sequence of a batch, read from the batch's trace.

A batch's own counters are divided evenly among its prompts (:mod:`hierspec_lab.bench.methods.ours`)
and say nothing about a single one. In a trace every request names its sequence.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

from hierspec.core.distributions import Distributions
from hierspec.core.nodes import Draft, Verify
from hierspec.drafters.base import CheckedDraft
from hierspec.engine.observers import Checks, Observer
from hierspec.engine.trace import ListTracer
from hierspec.verifiers import registry
from hierspec.verifiers.formulas import overlap
from hierspec.verifiers.multi_draft import outcomes
from hierspec_lab.bench.memory import level_parameters
from hierspec_lab.bench.methods.base import RunRequest
from hierspec_lab.bench.methods.ours import HierarchyMethod
from hierspec_lab.papers.p4.watching import VerifiedDraft, evaluate_draft
from hierspec_lab.papers.p5.entropy import entropies, judged_tokens
from hierspec_lab.papers.p5.rounds import Round, target_rounds
from hierspec_lab.timeline.events import CheckEvent, DraftEvent, Event, as_record

from .files import EntropyVerdict, ExperimentRun, KeptSums, LevelCounts, PositionSums, RoundCounts
from .methods import MULTI_DRAFT_RULES

POWERS = (0.75, 1.0, 1.2, 2.0)  # of q at temperature .6: q at temperatures .8, .6, .5 and .3


def count_levels(events: Sequence[Event]) -> list[LevelCounts]:
    """Count each level's calls, tokens handed up and tokens kept, smallest first, target last.

    The target's call for the prompt is left out.

    Args:
        events: the trace of one sequence.
    """
    by_node: dict[int, LevelCounts] = {}
    for event in events:
        if isinstance(event, DraftEvent) and not event.leaf:
            continue
        zeros = LevelCounts(name=event.level, calls=0, drafted=0, accepted=0)
        level = by_node.setdefault(event.index, zeros)
        level.calls += len(event.tokens) if isinstance(event, DraftEvent) else 1
        if isinstance(event, CheckEvent):
            for position, owner in enumerate(event.owners):
                by_node[owner].drafted += 1
                by_node[owner].accepted += position < event.num_accepted
    if by_node:
        by_node[max(by_node)].calls -= 1
    return [by_node[index] for index in sorted(by_node)]


class ExpectedTokens(Observer):
    """Compares how many tokens the target keeps of each draft with what is expected, by sequence.

    Attributes:
        root: index of the target's node.
        single_drafts: drafts verified alone, with the number of tokens kept and its distribution's
            mean and variance.
        draft_sets: for several drafts of one prefix, the number of tokens kept and those that each
            rule is expected to keep (:func:`expected_kept_by_rule`).
        first_chances: chances that a draft's first token is kept (:func:`first_kept_chances`).
    """

    def __init__(self, root: int) -> None:
        self.root = root
        self.single_drafts: dict[int, list[VerifiedDraft]] = {}
        self.draft_sets: dict[int, list[tuple[int, dict[str, float]]]] = {}
        self.first_chances: dict[int, list[dict[str, float]]] = {}

    def on_verify(self, checks: Checks) -> None:
        if checks.node.index != self.root:
            return
        for task, checked_drafts, verdict in zip(
            checks.tasks, checks.checked_drafts, checks.verdicts, strict=True
        ):
            sequence, kept, (draft, p) = task.sequence.id, verdict.num_accepted, checked_drafts[0]
            if len(checked_drafts) > 1:
                by_rule = expected_kept_by_rule(checked_drafts)
                self.draft_sets.setdefault(sequence, []).append((kept, by_rule))
            elif draft.tokens:
                verified = evaluate_draft(checks.node.rule, draft, p, kept)
                self.single_drafts.setdefault(sequence, []).append(verified)
                chances = first_kept_chances(draft.distributions, p)
                self.first_chances.setdefault(sequence, []).append(chances)


def expected_kept_by_rule(checked_drafts: Sequence[CheckedDraft]) -> dict[str, float]:
    """Return the expected number of tokens that each rule keeps of several drafts of one prefix.

    All outcomes of a rule's tests are enumerated. ``one`` is block on the first draft alone.
    """
    drafts, p = [draft for draft, _ in checked_drafts], [rows for _, rows in checked_drafts]

    def expected(rule: str, num_drafts: int) -> float:
        results = outcomes(registry.get(rule), drafts[:num_drafts], p[:num_drafts])
        return sum(probability * result.num_accepted for probability, result in results)

    by_rule = {rule: expected(rule, len(drafts)) for rule in MULTI_DRAFT_RULES}
    return {**by_rule, "one": expected("block-rrs", 1)}


def first_kept_chances(q: Distributions, p: Distributions) -> dict[str, float]:
    """Return, for each power of q, the chance Σ min(p, qᵉ) that a draft's first token is kept.

    A power stands for a temperature: if q is a distribution at temperature T, its e-th power,
    normalised, is the one at T / e. So one draft compares temperatures in the same context.
    """
    width = max(p.width, q.width)
    draft, target = q.rows(0, 1).dense(width)[0].double(), p.rows(0, 1).dense(width)[0].double()
    chances = {}
    for power in POWERS:
        weights = draft.pow(power)
        chances[f"{power:g}"] = float(overlap(weights / weights.sum(), target))
    return chances


def measure_runs(
    method: HierarchyMethod,
    prompts: Sequence[Sequence[int]],
    request: RunRequest,
    first: int = 0,
    *,
    compares_kept: bool = False,
    with_entropies: bool = False,
    with_rounds: bool = True,
) -> list[ExperimentRun]:
    """Continue the prompts as one batch and return the run of each.

    Args:
        first: number of the first prompt in the experiment.
        compares_kept: also compare how many tokens the target keeps of each draft with the computed
            distribution of that number.
        with_entropies: also record, for every token that the target verified, the drafter's
            entropy, in nats, and whether it was kept. The hierarchy must then have one level below
            the target.
        with_rounds: record every round of the target.
    """
    tracer = ListTracer()
    expected = ExpectedTokens(method.hierarchy.root.index) if compares_kept else None
    runs = method.run_batch(prompts, request, tracer, [expected] if expected else [])
    by_sequence: dict[int, list[Event]] = {}
    for event in map(as_record, tracer.events):
        by_sequence.setdefault(event.sequence, []).append(event)
    measured = []
    digits = 5 if len(prompts) == 1 else 1  # times of a batch say little
    sequences = sorted(by_sequence)
    for number, (run, prompt, sequence) in enumerate(zip(runs, prompts, sequences, strict=True)):
        rounds = target_rounds(by_sequence[sequence])
        token_digest = hashlib.sha256(" ".join(map(str, run.token_ids)).encode()).hexdigest()
        counted = ExperimentRun(
            method=method.name,
            prompt=first + number,
            tokens=run.num_tokens,
            text=token_digest[:12],
            target_calls=run.target_calls or 0,
            seconds=round(run.seconds, digits),
            decode_seconds=round(run.decode_seconds or 0.0, digits),
            levels=count_levels(by_sequence[sequence]),
            rounds=[RoundCounts(one.offered, one.kept) for one in rounds if with_rounds],
        )
        if len(prompts) == 1:
            counted.level_seconds = [round(level.seconds, 5) for level in run.counters]
            verifying = (level.verify_seconds or 0.0 for level in run.counters)
            counted.verify_seconds = round(sum(verifying), 6)
        if expected:
            counted.kept_sums = _kept_sums(expected, sequence)
        if with_entropies:
            text = [*prompt, *run.token_ids]
            counted.entropies = _entropies(method, text, len(prompt), rounds)
        measured.append(counted)
    return measured


def _kept_sums(expected: ExpectedTokens, sequence: int) -> KeptSums:
    """Return the sums over a sequence's drafts."""
    if draft_sets := expected.draft_sets.get(sequence):
        rules = draft_sets[0][1]
        return KeptSums(
            drafts=len(draft_sets),
            kept=sum(kept for kept, _ in draft_sets),
            by_rule={rule: _total(by_rule[rule] for _, by_rule in draft_sets) for rule in rules},
        )
    drafts = expected.single_drafts.get(sequence, [])
    chances = expected.first_chances.get(sequence, [])
    powers = [f"{power:g}" for power in POWERS]
    return KeptSums(
        drafts=len(drafts),
        kept=sum(draft.kept for draft in drafts),
        expected=_total(draft.mean for draft in drafts),
        variance=_total(draft.variance for draft in drafts),
        by_rule={
            rule: _total(float(draft.curves[rule][1:].sum()) for draft in drafts)
            for rule in ("tokenwise", "block")
        },
        positions=position_sums(drafts),
        powers={power: _total(row[power] for row in chances) for power in powers},
    )


def position_sums(drafts: Sequence[VerifiedDraft]) -> PositionSums:
    """Sum over the longest drafts the chance that the first m tokens are all kept, m = 1 … n.

    The chance is that of the first m tokens as a draft of their own: tokenwise Π min(1, r_i), block
    w_m, and ideally min(1, R_m) [P4 Theorem 7]. Drafts cut short by the end of a text are left out.
    """
    # Naive branch resampling reaches the ideal, at the price of follow-up calls.
    curves = {"tokenwise": "tokenwise", "block": "block", "ideal": "naive"}
    length = max((draft.length for draft in drafts), default=0)
    longest = [draft for draft in drafts if draft.length == length]
    by_rule = {
        key: [
            _total(float(draft.curves[rule][m]) for draft in longest) for m in range(1, length + 1)
        ]
        for key, rule in curves.items()
    }
    return PositionSums(drafts=len(longest), by_rule=by_rule)


def _total(values: Iterable[float]) -> float:
    return round(sum(values), 6)


def _entropies(
    method: HierarchyMethod, text: Sequence[int], start: int, rounds: Sequence[Round]
) -> list[EntropyVerdict]:
    """Return the drafter's entropy at every token that the target verified."""
    drafter = method.hierarchy.root.below
    assert isinstance(drafter, Draft | Verify)
    values = entropies(drafter.model, text, start)
    return [
        EntropyVerdict(round(t.entropy, 4), int(t.kept))
        for t in judged_tokens(rounds, values, start)
    ]


def call_prices(method: HierarchyMethod) -> dict[str, float] | None:
    """Return what a call of each level costs in calls of the target, by weights read.

    ``None`` where the weights are unknown. Early exits of one trunk share what they have computed,
    but the last drafted token has not been through the layers they share: a check reads them too,
    unless its level drops the bonus token [MATH §4].
    """
    num_parameters = level_parameters(method)
    if not num_parameters:
        return None
    total = max(num_parameters.values())
    prices = {name: count / total for name, count in num_parameters.items()}
    levels = method.configuration["levels"]
    if all(level["method"] == "early_exit" for level in levels):
        names = list(prices)
        for i, level in enumerate(levels):
            if i and level.get("bonus") is False:
                prices[names[i]] -= num_parameters[names[i - 1]] / total
    return prices
