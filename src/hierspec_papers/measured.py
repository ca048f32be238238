"""Sums over runs of one method: tokens, calls of the target, and what became of drafts.

Calls of the target are counted in two ways. :func:`target_calls` adds up what every sequence took
part in: tokens over it are the mean acceptance length, P4's block efficiency, and what a sequence
gains does not depend on its company. :func:`target_forwards` counts a call once, whoever shares it:
tokens over that are what a forward of the machine yields, more in a batch. For one sequence at a
time both are the same; follow-up calls of a rule are in both, the prompt's own in neither.

Methods beside plain decoding, measured together: what every reproduction on models reports.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hierspec.bench.methods.base import Run, Unavailable
from hierspec.bench.methods.ours import HierarchyMethod
from hierspec.bench.records import PairedRatio
from hierspec.bench.summary import ratio
from hierspec.errors import HierspecError

from .lab import Lab


def written(runs: Sequence[Run]) -> int:
    """Tokens after the first, which the prompt's own forward gives."""
    return sum(run.num_tokens - 1 for run in runs)


def target_calls(runs: Sequence[Run]) -> int:
    """Calls of the target, each as often as there were sequences in it."""
    return sum(run.target_calls or 0 for run in runs)


def target_forwards(runs: Sequence[Run]) -> float:
    """Calls of the target, each once: runs of a batch hold shares of its counters."""
    return sum(run.target["calls"] for run in runs)


def tokens_per_call(runs: Sequence[Run]) -> float:
    """Mean acceptance length, all prompts together: :func:`written` over :func:`target_calls`."""
    calls = target_calls(runs)
    return written(runs) / calls if calls else 0.0


def tokens_per_second(runs: Sequence[Run]) -> float:
    """Tokens after the first over decoding time, all prompts together."""
    return written(runs) / sum(run.decode_seconds or 0.0 for run in runs)


def drafted(runs: Sequence[Run], level: int = -1) -> float:
    """Tokens that a level handed up; −1: the one right below the target."""
    return sum(run.levels[level]["num_draft_tokens"] for run in runs if run.levels)


def acceptance(runs: Sequence[Run], level: int = -1) -> float | None:
    """The share of a level's tokens that the level above kept; ``None`` where there were none."""
    offered = drafted(runs, level)
    kept = sum(run.levels[level]["num_accepted_tokens"] for run in runs if run.levels)
    return kept / offered if offered else None


def offered_per_call(runs: Sequence[Run]) -> float:
    """Draft tokens that the target verifies in a call."""
    calls = target_calls(runs)
    return drafted(runs) / calls if calls else 0.0


SYNTHETIC = "zoo:large"
INTERVAL = ("speed-up", "low 95", "high 95")  # columns


@dataclass(frozen=True, slots=True)
class Measured:
    """What a method came to, prompt by prompt, and plain decoding in the same measurement.

    Attributes:
        runs: one per prompt; empty where it could not run, and ``why`` says why.
        plain: as many of plain decoding.
    """

    name: str
    runs: tuple[Run, ...]
    plain: tuple[Run, ...]
    why: str = ""

    @property
    def speedup(self) -> PairedRatio:
        """Of wall milliseconds a token, paired per prompt."""
        return self.over(self.plain)

    def over(self, others: Sequence[Run]) -> PairedRatio:
        """How much faster than other runs on the same prompts; more than 1 is faster."""
        return ratio([run.ms_per_token for run in others], [run.ms_per_token for run in self.runs])

    @property
    def interval(self) -> tuple[float, float, float]:
        """The speed-up for a table: :data:`INTERVAL`."""
        found = self.speedup
        return found.median, found.low95, found.high95

    @property
    def half_width(self) -> float:
        """Of the 95 % interval of the speed-up."""
        found = self.speedup
        return (found.high95 - found.low95) / 2

    @property
    def decode_ms(self) -> float:
        """Milliseconds a token after the first, mean over prompts; 0 with no such token."""
        each = [ms for run in self.runs if (ms := run.decode_ms_per_token) is not None]
        return sum(each) / len(each) if each else 0.0

    @property
    def tokens_per_call(self) -> float:
        """Mean acceptance length (:func:`.counters.tokens_per_call`)."""
        return tokens_per_call(self.runs)

    @property
    def same_as_plain(self) -> int:
        """How many texts are plain decoding's, token for token."""
        pairs = zip(self.runs, self.plain, strict=True)
        return sum(run.token_ids == plain.token_ids for run, plain in pairs)

    def same(self, temperature: float) -> str:
        """:attr:`same_as_plain` for a table; empty for sampled texts, which need not be."""
        return "" if temperature else f"{self.same_as_plain} of {len(self.plain)}"

    def acceptance(self, level: int = -1) -> float:
        """Kept over drafted tokens of a level, all prompts together; −1: the one right below the
        target."""
        return acceptance(self.runs, level) or 0.0


def side_by_side(
    lab: Lab, methods: Sequence[HierarchyMethod], temperature: float, stage: str
) -> list[Measured]:
    """Plain decoding first, then every method, all taking turns on every prompt.

    Raises:
        ValueError: there is no prompt, or plain decoding cannot run.
    """
    if not lab.prompts:
        raise HierspecError(
            "there is no prompt to measure on: give --prompts a file with one or more"
        )
    every = [HierarchyMethod("plain", lab.models), *methods]
    found = lab.measure(every, temperature, f"{stage}, temperature {temperature:g}")
    plain = found[0]
    if isinstance(plain, Unavailable):
        raise HierspecError(f"plain decoding cannot run: {plain}")
    return [
        Measured(method.name, (), tuple(plain), str(runs))
        if isinstance(runs, Unavailable)
        else Measured(method.name, tuple(runs), tuple(plain))
        for method, runs in zip(every, found, strict=True)
    ]


def all_ran(found: Sequence[Measured]) -> list[Measured]:
    """The same, where every one of them could run.

    Raises:
        ValueError: one could not; says why.
    """
    for one in found:
        if one.why:
            raise HierspecError(f"{one.name} cannot run: {one.why}")
    return list(found)


def method_of(name: str, lab: Lab, hierarchy: dict[str, Any]) -> HierarchyMethod:
    """A hierarchy file's content as a method; its target is the lab's."""
    top = {key: value for key, value in hierarchy.items() if key not in ("target", "levels")}
    return HierarchyMethod(name, lab.models, hierarchy.get("levels", ()), **top)


def notes(lab: Lab) -> tuple[str, ...]:
    """How the numbers of this lab are to be read."""
    count = len(lab.prompts)
    out = [
        "Speed-ups are over our own plain decoding in the same interleaved run: the median of "
        f"paired ratios over {count} prompt{'s' * (count != 1)}, {lab.max_new_tokens} tokens "
        "each, with its 95 % bootstrap interval."
    ]
    if any(name.startswith(SYNTHETIC) for name in (lab.models.target.model, *lab.models.drafts)):
        out.append(
            f"{SYNTHETIC} is a synthetic cost with a real law (the trained trunk's, moved by eps): "
            "read this as what the method does at such costs and acceptances."
        )
    return tuple(out)
