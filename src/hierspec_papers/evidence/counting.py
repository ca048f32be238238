"""A run's numbers, sequence by sequence, also where sequences run together.

A batch's counters are shared out by :mod:`hierspec.bench.methods.ours`, so they say nothing of one
prompt. A trace does: every request names its sequence.
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
from hierspec.engine.generation import Generation
from hierspec.engine.observers import Checks, Observer
from hierspec.engine.trace import ListTracer
from hierspec.verifiers import registry
from hierspec.verifiers.multi_draft import outcomes
from hierspec_papers.p4.watching import Seen, seen
from hierspec_papers.p5.entropy import entropies, judged
from hierspec_papers.p5.rounds import Round

from .methods import SEVERAL

Record = dict[str, Any]
Events = Sequence[dict[str, Any]]
POWERS = (0.75, 1.0, 1.2, 2.0)  # of a draft's distribution: at .6, those of .8, .6, .5 and .3


def levels(events: Events) -> list[Record]:
    """Return each level's calls, tokens handed up and tokens kept, smallest first, target last.

    Args:
        events: of one sequence. The prompt's own call is left out.
    """
    out: dict[int, Record] = {}
    for event in events:
        if event["kind"] == "draft" and not event["leaf"]:
            continue
        at = event["index"]
        one = out.setdefault(at, {"name": event["level"], "calls": 0, "drafted": 0, "accepted": 0})
        one["calls"] += len(event["tokens"]) if event["kind"] == "draft" else 1
        for place, owner in enumerate(event.get("owners", ())):
            below = out[owner]
            below["drafted"] += 1
            below["accepted"] += place < event["num_accepted"]
    if out:
        out[max(out)]["calls"] -= 1
    return [out[at] for at in sorted(out)]


def target_rounds(events: Events) -> list[Round]:
    """Return the target's rounds of one sequence, those without a draft left out."""
    target = max(event["index"] for event in events)
    return [
        Round(event["base_length"], len(event["draft"]), event["num_accepted"])
        for event in events
        if event["kind"] == "check" and event["index"] == target and event["draft"]
    ]


class Gains(Observer):
    """What the exact law gives to every draft that the target verified, by sequence.

    Attributes:
        root: index of the target's node.
        several: where there were several drafts of a place, by sequence.
        powers: chances that a draft's first token is kept (:func:`of_powers`), by sequence.
    """

    def __init__(self) -> None:
        self.root = -1
        self.seen: dict[int, list[Seen]] = {}
        self.powers: dict[int, list[dict[str, float]]] = {}
        self.several: dict[int, list[Record]] = {}

    def verified(self, checks: Checks) -> None:
        if checks.node.index != self.root:
            return
        for task, every, verdict in zip(checks.tasks, checks.every, checks.verdicts, strict=True):
            number, kept, (draft, p) = task.sequence.id, verdict.num_accepted, every[0]
            if len(every) > 1:
                found = {"drafts": 1, "kept": kept, **of_several(every)}
                self.several.setdefault(number, []).append(found)
            elif draft.tokens:
                self.seen.setdefault(number, []).append(seen(checks.node.rule, draft, p, kept))
                self.powers.setdefault(number, []).append(of_powers(draft.distributions, p))


def of_several(every: Sequence[CheckedDraft]) -> dict[str, float]:
    """Return how many tokens each rule keeps of these drafts of one place, in expectation.

    Each way that a rule's tests may go, with its chance; ``one``: block on the first draft alone.
    """
    drafts, p = [draft for draft, _ in every], [rows for _, rows in every]
    found = {
        rule: sum(h * end.num_accepted for h, end in outcomes(registry.get(rule), drafts, p))
        for rule in SEVERAL
    }
    alone = outcomes(registry.get("block-rrs"), drafts[:1], p[:1])
    return {**found, "one": sum(h * end.num_accepted for h, end in alone)}


def of_powers(q: Distributions, p: Distributions) -> dict[str, float]:
    """Return the chance that a draft's first token is kept, Σ min(p, q), had q been of some power.

    A power is a temperature: of drafts at T, the distribution at T / e is the e-th power of theirs,
    normalised. So one draft compares temperatures, in one context.
    """
    width = max(p.width, q.width)
    own, theirs = q.rows(0, 1).dense(width)[0].double(), p.rows(0, 1).dense(width)[0].double()
    found = {}
    for power in POWERS:
        sharper = own.pow(power)
        kept = (sharper / sharper.sum()).minimum(theirs).sum()
        found[f"{power:g}"] = float(kept)
    return found


class _Observed(Hierarchy):
    """A hierarchy whose generations are observed; it shares models and lock."""

    def __init__(self, hierarchy: Hierarchy, gains: Gains) -> None:
        self.__dict__.update(vars(hierarchy))
        self.gains = gains

    def start(self, *args: Any, **options: Any) -> Generation:
        generation = super().start(*args, **options)
        self.gains.root = generation.root.index
        generation.runtime.observe(self.gains)
        return generation


class ObservedMethod(HierarchyMethod):
    """A method whose target's drafts are held against the exact law."""

    gains: Gains

    @property
    def hierarchy(self) -> Hierarchy:
        return _Observed(super().hierarchy, self.gains)


def records(
    method: HierarchyMethod,
    prompts: Sequence[Sequence[int]],
    request: Request,
    with_entropies: bool = False,
) -> list[Record]:
    """Continue prompts together and return a record for each.

    Args:
        with_entropies: of the drafter at every judged token, in nats, with the verdict; the
            hierarchy has one level below the target then.
    """
    tracer = ListTracer()
    if isinstance(method, ObservedMethod):
        method.gains = Gains()
    runs = method.run_batch(prompts, request, tracer)
    by_sequence: dict[int, list[dict[str, Any]]] = {}
    for event in tracer.events:
        by_sequence.setdefault(event["sequence"], []).append(event)
    out = []
    for run, prompt, number in zip(runs, prompts, sorted(by_sequence), strict=True):
        found = target_rounds(by_sequence[number])
        one = _record(run, levels(by_sequence[number]), found)
        if len(prompts) == 1:
            every = (*run.levels, run.target)
            one["level_seconds"] = [round(level["seconds"], 5) for level in every]
            one["verify_seconds"] = round(sum(level["verify_seconds"] for level in every), 6)
        if isinstance(method, ObservedMethod):
            if many := method.gains.several.get(number):
                one["exact"] = {key: round(sum(d[key] for d in many), 6) for key in many[0]}
            else:
                drafts = method.gains.seen.get(number, [])
                one["exact"] = {**exact(drafts), "positions": positions(drafts)}
                powers = method.gains.powers.get(number, [])
                one["exact"]["powers"] = {
                    f"{e:g}": round(sum(found[f"{e:g}"] for found in powers), 6) for e in POWERS
                }
        if with_entropies:
            one["entropies"] = _entropies(method, [*prompt, *run.token_ids], len(prompt), found)
        out.append(one)
    return out


def _record(run: Run, found: list[Record], rounds: list[Round]) -> Record:
    digest = hashlib.sha256(" ".join(map(str, run.token_ids)).encode()).hexdigest()
    return {
        "tokens": run.num_tokens,
        "text": digest[:12],
        "target_calls": run.target_calls,
        "seconds": round(run.seconds, 5),
        "decode_seconds": round(run.decode_seconds or 0.0, 5),
        "levels": found,
        "rounds": [[one.offered, one.kept] for one in rounds],
    }


def exact(drafts: Sequence[Seen]) -> Record:
    """Return sums over drafts: kept, expected, its variance, what each rule's law expects."""
    curves = {
        rule: round(sum(float(one.curves[rule][1:].sum()) for one in drafts), 6)
        for rule in ("tokenwise", "block")
    }
    return {
        "drafts": len(drafts),
        "kept": sum(one.kept for one in drafts),
        "expected": round(sum(one.mean for one in drafts), 6),
        "variance": round(sum(one.variance for one in drafts), 6),
        **curves,
    }


def positions(drafts: Sequence[Seen]) -> Record:
    """Return sums over the longest drafts: the chance that m tokens are kept whole, m = 1 … n.

    By the draft's first m tokens alone, tokenwise Π min(1, r_i), in block w_m, and ideally
    min(1, R_m) [P4 Theorem 7]. Drafts that the end of a text cut short are left out.
    """
    longest = max((one.length for one in drafts), default=0)
    some = [one for one in drafts if one.length == longest]
    sums = {
        said: [
            round(sum(float(one.curves[rule][m]) for one in some), 6) for m in range(1, longest + 1)
        ]
        for said, rule in (("tokenwise", "tokenwise"), ("block", "block"), ("ideal", "naive"))
    }
    return {"drafts": len(some), **sums}


def _entropies(
    method: HierarchyMethod, text: Sequence[int], start: int, rounds: Sequence[Round]
) -> list[list[float]]:
    """Return [entropy, 1 if kept else 0] of every judged token."""
    below = method.hierarchy.root.below
    values = entropies(below.model, text, start)  # type: ignore[union-attr]
    return [[round(t.entropy, 4), int(t.kept)] for t in judged(rounds, values, start)]


def prices(method: HierarchyMethod) -> dict[str, float] | None:
    """Return a call's price at each level in calls of the target, by weights; ``None``: unknown.

    Early exits of one trunk share what they have computed: a level is charged for the layers
    between the exit below it and its own.
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
