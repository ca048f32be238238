"""Counts of a run, sequence by sequence, also in a batch: read off its trace.

A batch's own counters are divided evenly (:mod:`hierspec.bench.methods.ours`) and say nothing of
one prompt. In a trace every request names its sequence.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from hierspec.api import Hierarchy
from hierspec.bench.memory import level_parameters
from hierspec.bench.methods.base import Request, Run
from hierspec.bench.methods.ours import HierarchyMethod
from hierspec.core.distributions import Distributions
from hierspec.drafters.base import CheckedDraft
from hierspec.engine.observers import Checks, Observer
from hierspec.engine.trace import ListTracer
from hierspec.verifiers import registry
from hierspec.verifiers.multi_draft import outcomes
from hierspec_papers.p4.watching import ObservedHierarchy, VerifiedDraft, evaluate_draft
from hierspec_papers.p5.entropy import entropies, judged_tokens
from hierspec_papers.p5.rounds import Round, target_rounds

from .methods import SEVERAL

Record = dict[str, Any]
Events = Sequence[dict[str, Any]]
POWERS = (0.75, 1.0, 1.2, 2.0)  # of a draft's distribution: at .6, those of .8, .6, .5 and .3


def levels(events: Events) -> list[Record]:
    """Count each level's calls, tokens handed up and tokens kept, smallest first, target last.

    The prompt's own call is left out.

    Args:
        events: of one sequence.
    """
    by_node: dict[int, Record] = {}
    for event in events:
        if event["kind"] == "draft" and not event["leaf"]:
            continue
        zero = {"name": event["level"], "calls": 0, "drafted": 0, "accepted": 0}
        level = by_node.setdefault(event["index"], zero)
        level["calls"] += len(event["tokens"]) if event["kind"] == "draft" else 1
        for place, owner in enumerate(event.get("owners", ())):
            below = by_node[owner]
            below["drafted"] += 1
            below["accepted"] += place < event["num_accepted"]
    if by_node:
        by_node[max(by_node)]["calls"] -= 1
    return [by_node[index] for index in sorted(by_node)]


class ExpectedTokens(Observer):
    """Compares what the target keeps of each draft with what the exact law expects, by sequence.

    Attributes:
        root: index of the target's node.
        seen: single drafts, with the number of tokens kept and its exact law.
        several: sets of drafts from one prefix, with the expectation by each rule
            (:func:`expected_of_drafts`).
        powers: chances that a draft's first token is kept (:func:`first_token_by_power`).
    """

    def __init__(self) -> None:
        self.root = -1
        self.seen: dict[int, list[VerifiedDraft]] = {}
        self.powers: dict[int, list[dict[str, float]]] = {}
        self.several: dict[int, list[Record]] = {}

    def of_target(self, root: int) -> ExpectedTokens:
        """Return itself, observing the node of index ``root``."""
        self.root = root
        return self

    def on_verify(self, checks: Checks) -> None:
        if checks.node.index != self.root:
            return
        for task, every, verdict in zip(
            checks.tasks, checks.checked_drafts, checks.verdicts, strict=True
        ):
            number, kept, (draft, p) = task.sequence.id, verdict.num_accepted, every[0]
            if len(every) > 1:
                expected = {"drafts": 1, "kept": kept, **expected_of_drafts(every)}
                self.several.setdefault(number, []).append(expected)
            elif draft.tokens:
                self.seen.setdefault(number, []).append(
                    evaluate_draft(checks.node.rule, draft, p, kept)
                )
                chances = first_token_by_power(draft.distributions, p)
                self.powers.setdefault(number, []).append(chances)


def expected_of_drafts(every: Sequence[CheckedDraft]) -> dict[str, float]:
    """Return the expected number of tokens that each rule keeps of several drafts of one prefix.

    All outcomes of a rule's tests are enumerated; ``one``: block on the first draft alone.
    """
    drafts, p = [draft for draft, _ in every], [rows for _, rows in every]
    expected = {
        rule: sum(h * end.num_accepted for h, end in outcomes(registry.get(rule), drafts, p))
        for rule in SEVERAL
    }
    alone = outcomes(registry.get("block-rrs"), drafts[:1], p[:1])
    return {**expected, "one": sum(h * end.num_accepted for h, end in alone)}


def first_token_by_power(q: Distributions, p: Distributions) -> dict[str, float]:
    """Return, for each power of q, the chance Σ min(p, qᵉ) that a draft's first token is kept.

    A power is a temperature: where q is a distribution at T, the one at T / e is its e-th power,
    normalised. So one draft compares temperatures in one context.
    """
    width = max(p.width, q.width)
    draft, target = q.rows(0, 1).dense(width)[0].double(), p.rows(0, 1).dense(width)[0].double()
    chances = {}
    for power in POWERS:
        sharper = draft.pow(power)
        kept = (sharper / sharper.sum()).minimum(target).sum()
        chances[f"{power:g}"] = float(kept)
    return chances


class ObservedMethod(HierarchyMethod):
    """A hierarchy whose drafts for the target are compared with the exact law."""

    expected: ExpectedTokens

    @property
    def hierarchy(self) -> Hierarchy:
        return ObservedHierarchy(super().hierarchy, self.expected.of_target)


def records(
    method: HierarchyMethod,
    prompts: Sequence[Sequence[int]],
    request: Request,
    with_entropies: bool = False,
) -> list[Record]:
    """Continue the prompts as one batch and return a record, ready for JSON, for each.

    Args:
        with_entropies: also record the drafter's entropy, in nats, at every judged token, with the
            verdict; the hierarchy then has one level below the target.
    """
    tracer = ListTracer()
    if isinstance(method, ObservedMethod):
        method.expected = ExpectedTokens()
    runs = method.run_batch(prompts, request, tracer)
    by_sequence: dict[int, list[dict[str, Any]]] = {}
    for event in tracer.events:
        by_sequence.setdefault(event["sequence"], []).append(event)
    out = []
    for run, prompt, number in zip(runs, prompts, sorted(by_sequence), strict=True):
        rounds = target_rounds(by_sequence[number])
        record = _record(run, levels(by_sequence[number]), rounds)
        if len(prompts) == 1:
            every = (*run.levels, run.target)
            record["level_seconds"] = [round(level["seconds"], 5) for level in every]
            record["verify_seconds"] = round(sum(level["verify_seconds"] for level in every), 6)
        if isinstance(method, ObservedMethod):
            record["exact"] = _exact_record(method.expected, number)
        if with_entropies:
            text = [*prompt, *run.token_ids]
            record["entropies"] = _entropies(method, text, len(prompt), rounds)
        out.append(record)
    return out


def _exact_record(expected: ExpectedTokens, number: int) -> Record:
    """Return the sums over a sequence's drafts."""
    if several := expected.several.get(number):
        return {key: round(sum(d[key] for d in several), 6) for key in several[0]}
    drafts, powers = expected.seen.get(number, []), expected.powers.get(number, [])
    by_power = {key: round(sum(d[key] for d in powers), 6) for key in (f"{e:g}" for e in POWERS)}
    return {**exact(drafts), "positions": positions(drafts), "powers": by_power}


def _record(run: Run, counts: list[Record], rounds: list[Round]) -> Record:
    digest = hashlib.sha256(" ".join(map(str, run.token_ids)).encode()).hexdigest()
    return {
        "tokens": run.num_tokens,
        "text": digest[:12],
        "target_calls": run.target_calls,
        "seconds": round(run.seconds, 5),
        "decode_seconds": round(run.decode_seconds or 0.0, 5),
        "levels": counts,
        "rounds": [[each.offered, each.kept] for each in rounds],
    }


def exact(drafts: Sequence[VerifiedDraft]) -> Record:
    """Sum over drafts: tokens kept, expected, its variance, and expected by each rule."""
    curves = {
        rule: round(sum(float(draft.curves[rule][1:].sum()) for draft in drafts), 6)
        for rule in ("tokenwise", "block")
    }
    return {
        "drafts": len(drafts),
        "kept": sum(draft.kept for draft in drafts),
        "expected": round(sum(draft.mean for draft in drafts), 6),
        "variance": round(sum(draft.variance for draft in drafts), 6),
        **curves,
    }


def positions(drafts: Sequence[VerifiedDraft]) -> Record:
    """Sum over the longest drafts the chance that m tokens are kept whole, m = 1 … n.

    By the draft's first m tokens alone: tokenwise Π min(1, r_i), block w_m, and ideally
    min(1, R_m) [P4 Theorem 7]. Drafts that the end of a text cut short are left out.
    """
    length = max((draft.length for draft in drafts), default=0)
    longest = [draft for draft in drafts if draft.length == length]
    sums = {
        key: [
            round(sum(float(draft.curves[rule][m]) for draft in longest), 6)
            for m in range(1, length + 1)
        ]
        for key, rule in (("tokenwise", "tokenwise"), ("block", "block"), ("ideal", "naive"))
    }
    return {"drafts": len(longest), **sums}


def _entropies(
    method: HierarchyMethod, text: Sequence[int], start: int, rounds: Sequence[Round]
) -> list[list[float]]:
    """Return [entropy in nats, 1 if kept else 0] of every judged token."""
    below = method.hierarchy.root.below
    values = entropies(below.model, text, start)  # type: ignore[union-attr]
    return [[round(t.entropy, 4), int(t.kept)] for t in judged_tokens(rounds, values, start)]


def prices(method: HierarchyMethod) -> dict[str, float] | None:
    """Return what a call of each level costs in calls of the target, by weights read.

    ``None`` where the weights are unknown. Early exits of one trunk share what they have computed:
    a level is charged for the layers between the exit below it and its own.
    """
    weights = level_parameters(method)
    if not weights:
        return None
    whole = max(weights.values())
    below = 0
    out = {}
    shared = all(level["method"] == "early_exit" for level in method.configuration["levels"])
    for name, count in weights.items():
        out[name] = (count - below) / whole
        below = count if shared else 0
    return out
