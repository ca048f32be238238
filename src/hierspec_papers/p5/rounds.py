"""Rounds of the target, read from a trace: what it was offered, and how much of it was kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from hierspec.bench.methods.base import Request, Run
from hierspec.bench.methods.ours import HierarchyMethod
from hierspec.engine.trace import ListTracer
from hierspec_papers.lab import Lab, run_of


@dataclass(frozen=True, slots=True)
class Round:
    """A verification by the target.

    Attributes:
        at: tokens before it, prompt included.
        offered: tokens of the draft it verified: the window.
        kept: how many of them.
    """

    at: int
    offered: int
    kept: int

    @property
    def rejected(self) -> bool:
        return self.kept < self.offered


def rounds(events: Sequence[dict[str, Any]]) -> list[Round]:
    """The target's rounds in one sequence's trace, those without a draft left out."""
    target = max(event["index"] for event in events)
    return [
        Round(event["base_length"], len(event["draft"]), event["num_accepted"])
        for event in events
        if event["kind"] == "check" and event["index"] == target and event["draft"]
    ]


def traced(
    lab: Lab, method: HierarchyMethod, temperature: float, number: int
) -> tuple[Run, list[Round]]:
    """One prompt continued by one method, seeded as :meth:`Lab.measure` seeds it."""

    def observed() -> dict[str, Any]:
        tracer = ListTracer()
        request = Request(lab.max_new_tokens, temperature, lab.seed + number)
        run = method.run(lab.prompts[number], request, tracer)
        return {"run": asdict(run), "rounds": [asdict(one) for one in rounds(tracer.events)]}

    key = f"{method.name}, temperature {temperature:g}, prompt {number}"
    found = lab.once(key, observed)
    return run_of(found["run"]), [Round(**one) for one in found["rounds"]]
