"""Methods measured side by side with plain decoding, their sums over prompts, and their tables.

Calls of the target are counted in two ways. :func:`target_calls` counts a call once for every
sequence in it: tokens over that are the mean acceptance length, P4's block efficiency, which does
not depend on the batch. :func:`target_forwards` counts a call once, however many sequences share
it: tokens over that are the yield of a forward, more in a batch. For one sequence at a time both
are the same; follow-up calls of a rule are in both, the prompt's own call in neither.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from hierspec.errors import HierspecError
from hierspec_lab.bench.method_records import MIN_PROMPTS_FOR_INTERVAL, PairedRatio
from hierspec_lab.bench.methods.base import Run, Unavailable
from hierspec_lab.bench.methods.ours import HierarchyMethod
from hierspec_lab.bench.summary import num_tokens_after_first, ratio

from .lab import Lab
from .tables import Curve, Table, TableRow


def target_calls(runs: Sequence[Run]) -> int:
    """Count calls of the target, each once for every sequence in it."""
    return sum(run.target_calls or 0 for run in runs)


def target_forwards(runs: Sequence[Run]) -> float:
    """Count calls of the target, each once; runs of a batch hold shares of its counters."""
    return sum(run.counters[-1].calls for run in runs)


def tokens_per_call(runs: Sequence[Run]) -> float:
    """Return the mean acceptance length: tokens after the first over :func:`target_calls`."""
    calls = target_calls(runs)
    return num_tokens_after_first(runs) / calls if calls else 0.0


def tokens_per_second(runs: Sequence[Run]) -> float:
    """Return tokens after the first over decoding time, all prompts together."""
    return num_tokens_after_first(runs) / sum(run.decode_seconds or 0.0 for run in runs)


def drafted(runs: Sequence[Run], level: int = -1) -> float:
    """Count the tokens that a level handed up; level −1 is the one below the target."""
    return sum(run.levels[level].num_draft_tokens for run in runs if run.levels)


def acceptance(runs: Sequence[Run], level: int = -1) -> float | None:
    """Return the share of a level's tokens that the level above accepted; ``None`` without any."""
    offered = drafted(runs, level)
    kept = sum(run.levels[level].num_accepted_tokens for run in runs if run.levels)
    return kept / offered if offered else None


def offered_per_call(runs: Sequence[Run]) -> float:
    """Return the mean number of draft tokens that the target verifies in a call."""
    calls = target_calls(runs)
    return drafted(runs) / calls if calls else 0.0


SYNTHETIC = "zoo:large"
SPEEDUP_COLUMNS = ("speed-up", "low 95", "high 95")


@dataclass(frozen=True, slots=True)
class Measured:
    """A method's runs, prompt by prompt, and plain decoding's in the same measurement.

    Attributes:
        runs: one per prompt; empty where it could not run.
        plain: plain decoding's, one per prompt.
        reason: why it could not run; else empty.
    """

    name: str
    runs: tuple[Run, ...]
    plain: tuple[Run, ...]
    reason: str = ""

    @property
    def speedup(self) -> PairedRatio:
        """The speed-up over plain decoding in wall time a token, paired per prompt."""
        return self.speedup_over(self.plain)

    def speedup_over(self, runs: Sequence[Run]) -> PairedRatio:
        """Return the speed-up over other runs on the same prompts."""
        return ratio([run.ms_per_token for run in runs], [run.ms_per_token for run in self.runs])

    @property
    def speedup_cells(self) -> tuple[float, float | None, float | None]:
        """The cells of :data:`SPEEDUP_COLUMNS`; bounds are ``None`` for fewer than five prompts."""
        speedup = self.speedup
        return (speedup.median, *speedup.bounds)

    @property
    def half_width(self) -> float:
        """Half the width of the speed-up's 95 % interval; 0 where there is none."""
        low, high = self.speedup.interval or (0.0, 0.0)
        return (high - low) / 2

    @property
    def decode_ms(self) -> float:
        """Milliseconds a token after the first, mean over prompts; 0 with no such token."""
        by_prompt = [ms for run in self.runs if (ms := run.decode_ms_per_token) is not None]
        return sum(by_prompt) / len(by_prompt) if by_prompt else 0.0

    @property
    def tokens_per_call(self) -> float:
        """The mean acceptance length."""
        return tokens_per_call(self.runs)

    @property
    def same_as_plain(self) -> int:
        """The number of texts that are plain decoding's, token for token."""
        pairs = zip(self.runs, self.plain, strict=True)
        return sum(run.token_ids == plain.token_ids for run, plain in pairs)

    def same_as_plain_cell(self, temperature: float) -> str:
        """Return :attr:`same_as_plain` as a table's cell, empty where texts are sampled."""
        return "" if temperature else f"{self.same_as_plain} of {len(self.plain)}"

    def acceptance(self, level: int = -1) -> float:
        """Return accepted over drafted tokens of a level, 0 without any; −1 is below the target."""
        return acceptance(self.runs, level) or 0.0

    def cells(self, temperature: float, *levels: int) -> tuple[Any, ...]:
        """Return the speed-up's cells, tokens a call, acceptance of ``levels``, and equal texts."""
        kept = map(self.acceptance, levels)
        return (
            *self.speedup_cells,
            self.tokens_per_call,
            *kept,
            self.same_as_plain_cell(temperature),
        )


def side_by_side(
    lab: Lab, methods: Sequence[HierarchyMethod], temperature: float, stage: str
) -> list[Measured]:
    """Measure plain decoding and every method, in turns on every prompt; plain comes first.

    Raises:
        HierspecError: there is no prompt, or plain decoding cannot run.
    """
    lab.require(stage)
    every = [HierarchyMethod("plain", lab.models), *methods]
    runs_by_method = lab.measure(every, temperature, f"{stage}, temperature {temperature:g}")
    plain = runs_by_method[0]
    if isinstance(plain, Unavailable):
        raise HierspecError(f"plain decoding cannot run: {plain}")
    return [
        Measured(method.name, (), tuple(plain), str(runs))
        if isinstance(runs, Unavailable)
        else Measured(method.name, tuple(runs), tuple(plain))
        for method, runs in zip(every, runs_by_method, strict=True)
    ]


def require_all(measurements: Sequence[Measured]) -> list[Measured]:
    """Return the measurements if every method could run.

    Raises:
        HierspecError: one could not; says why.
    """
    for measured in measurements:
        if measured.reason:
            raise HierspecError(f"{measured.name} cannot run: {measured.reason}")
    return list(measurements)


def uncompared_table(
    name: str,
    caption: str,
    label: str,
    rows: Iterable[tuple[str, Sequence[Any]]],
    columns: Sequence[str],
    inputs: dict[str, Any] | None = None,
    notes: Sequence[str] = (),
) -> Table:
    """Return a table without a column to compare with: all measured, computed, or all printed.

    Args:
        rows: labels, and a number or a text for each of ``columns``.
    """
    own = tuple(TableRow(label, (), tuple(numbers)) for label, numbers in rows)
    extra, remarks = tuple(columns), tuple(notes)
    return Table(name, caption, label, (), own, extra, inputs or {}, compared=False, notes=remarks)


def speedups(
    label: str, x: Iterable[float], measurements: Sequence[Measured], kind: str = "line"
) -> Curve:
    """Return a curve of the speed-ups over ``x``; the spread is half their 95 % intervals."""
    medians = tuple(measured.speedup.median for measured in measurements)
    spread = tuple(measured.half_width for measured in measurements)
    return Curve(label, tuple(map(float, x)), medians, kind, spread)


def method_of(name: str, lab: Lab, hierarchy: dict[str, Any]) -> HierarchyMethod:
    """Return a method from a hierarchy file's content; its target is the lab's."""
    top = {key: value for key, value in hierarchy.items() if key not in ("target", "levels")}
    return HierarchyMethod(name, lab.models, hierarchy.get("levels", ()), **top)


def notes(lab: Lab) -> tuple[str, ...]:
    """Return notes on how this lab's speed-ups are to be read."""
    count = len(lab.prompts)
    return (
        "Speed-ups are over our own plain decoding in the same interleaved run: the median of "
        f"paired ratios over {count} prompt{'s' * (count != 1)}, {lab.max_new_tokens} tokens "
        "each, "
        + (
            "with its 95 % bootstrap interval."
            if count >= MIN_PROMPTS_FOR_INTERVAL
            else "too few for an interval."
        ),
        *model_notes(lab),
    )


def model_notes(lab: Lab) -> tuple[str, ...]:
    """Return a note for any table where one of the models is synthetic, else none."""
    if not any(name.startswith(SYNTHETIC) for name in (lab.target, *lab.models.drafts)):
        return ()
    return (
        f"{SYNTHETIC} is a synthetic cost with a real distribution (the trained trunk's, moved "
        "by eps): read this as what the method does at such costs and acceptances.",
    )
