"""Rounds of the target, read from a trace: tokens it was offered, and tokens it accepted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from hierspec.engine.trace import ListTracer
from hierspec.utils import schema
from hierspec_lab.bench.methods.base import Run, RunRequest
from hierspec_lab.bench.methods.ours import HierarchyMethod
from hierspec_lab.papers.lab import Lab
from hierspec_lab.timeline.events import CheckEvent, Event, as_record


@dataclass(frozen=True, slots=True)
class Round:
    """A verification by the target.

    Attributes:
        at: number of tokens before it, prompt included.
        offered: number of tokens of the draft that it verified, P5's window.
        kept: how many of them it kept.
    """

    at: int
    offered: int
    kept: int

    @property
    def rejected(self) -> bool:
        return self.kept < self.offered


def target_rounds(events: Sequence[Event]) -> list[Round]:
    """Return the target's rounds in one sequence's trace, those without a draft left out."""
    target = max(event.index for event in events)
    return [
        Round(event.base_length, len(event.draft), event.num_accepted)
        for event in events
        if isinstance(event, CheckEvent) and event.index == target and event.draft
    ]


def run_traced(
    lab: Lab, method: HierarchyMethod, temperature: float, number: int
) -> tuple[Run, list[Round]]:
    """Run a method on a prompt, or read it from the record; seeded as in :meth:`Lab.measure`."""

    def observe() -> dict[str, Any]:
        tracer = ListTracer()
        request = RunRequest(lab.max_new_tokens, temperature, lab.seed + number)
        run = method.run(lab.prompts[number], request, tracer)
        rounds = target_rounds([as_record(event) for event in tracer.events])
        return {"run": run.to_dict(), "rounds": [asdict(each) for each in rounds]}

    key = f"{method.name}, temperature {temperature:g}, prompt {number}"
    record = lab.once(key, observe)
    run = schema.validate(Run, record["run"], f"the record's {key}")
    return run, [Round(**fields) for fields in record["rounds"]]
