"""Methods measured side by side with plain decoding, their sums over prompts, and their tables.

Calls of the target are counted in two ways. :func:`target_calls` adds up what every sequence took
part in: tokens over it are the mean acceptance length, P4's block efficiency, and what a sequence
gains does not depend on its company. :func:`target_forwards` counts a call once, whoever shares it:
tokens over that are what a forward of the machine yields, more in a batch. For one sequence at a
time both are the same; follow-up calls of a rule are in both, the prompt's own in neither.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from hierspec.bench.method_records import PROMPTS_OF_AN_INTERVAL, PairedRatio
from hierspec.bench.methods.base import Run, Unavailable
from hierspec.bench.methods.ours import HierarchyMethod
from hierspec.bench.summary import ratio
from hierspec.errors import HierspecError

from .lab import Lab
from .tables import Curve, Table, TableRow


def written(runs: Sequence[Run]) -> int:
    """Return the number of tokens after the first, which the prompt's own forward gives."""
    return sum(run.num_tokens - 1 for run in runs)


def target_calls(runs: Sequence[Run]) -> int:
    """Count calls of the target, each as often as there were sequences in it."""
    return sum(run.target_calls or 0 for run in runs)


def target_forwards(runs: Sequence[Run]) -> float:
    """Count calls of the target, each once: runs of a batch hold shares of its counters."""
    return sum(run.target["calls"] for run in runs)


def tokens_per_call(runs: Sequence[Run]) -> float:
    """Return the mean acceptance length: :func:`written` over :func:`target_calls`."""
    calls = target_calls(runs)
    return written(runs) / calls if calls else 0.0


def tokens_per_second(runs: Sequence[Run]) -> float:
    """Return tokens after the first over decoding time, all prompts together."""
    return written(runs) / sum(run.decode_seconds or 0.0 for run in runs)


def drafted(runs: Sequence[Run], level: int = -1) -> float:
    """Count the tokens that a level handed up; −1: the one below the target."""
    return sum(run.levels[level]["num_draft_tokens"] for run in runs if run.levels)


def acceptance(runs: Sequence[Run], level: int = -1) -> float | None:
    """Return the share of a level's tokens that the level above kept; ``None``: of no token."""
    offered = drafted(runs, level)
    kept = sum(run.levels[level]["num_accepted_tokens"] for run in runs if run.levels)
    return kept / offered if offered else None


def offered_per_call(runs: Sequence[Run]) -> float:
    """Return how many draft tokens the target verifies in a call."""
    calls = target_calls(runs)
    return drafted(runs) / calls if calls else 0.0


SYNTHETIC = "zoo:large"
INTERVAL = ("speed-up", "low 95", "high 95")  # columns


@dataclass(frozen=True, slots=True)
class Measured:
    """A method's runs, prompt by prompt, and plain decoding's in the same measurement.

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
        """Return how much faster this is than other runs on the same prompts."""
        return ratio([run.ms_per_token for run in others], [run.ms_per_token for run in self.runs])

    @property
    def interval(self) -> tuple[float, float | None, float | None]:
        """The speed-up for a table: :data:`INTERVAL`; no ends for fewer than five prompts."""
        found = self.speedup
        return (found.median, *found.ends)

    @property
    def half_width(self) -> float:
        """Of the 95 % interval of the speed-up; 0 where there is none."""
        low, high = self.speedup.interval or (0.0, 0.0)
        return (high - low) / 2

    @property
    def decode_ms(self) -> float:
        """Milliseconds a token after the first, mean over prompts; 0 with no such token."""
        each = [ms for run in self.runs if (ms := run.decode_ms_per_token) is not None]
        return sum(each) / len(each) if each else 0.0

    @property
    def tokens_per_call(self) -> float:
        """Mean acceptance length."""
        return tokens_per_call(self.runs)

    @property
    def same_as_plain(self) -> int:
        """How many texts are plain decoding's, token for token."""
        pairs = zip(self.runs, self.plain, strict=True)
        return sum(run.token_ids == plain.token_ids for run, plain in pairs)

    def same(self, temperature: float) -> str:
        """Return :attr:`same_as_plain` for a table; nothing where texts are sampled."""
        return "" if temperature else f"{self.same_as_plain} of {len(self.plain)}"

    def acceptance(self, level: int = -1) -> float:
        """Return kept over drafted tokens of a level; −1: the one right below the target."""
        return acceptance(self.runs, level) or 0.0

    def numbers(self, temperature: float, *levels: int) -> tuple[Any, ...]:
        """Return a row: :data:`INTERVAL`, tokens a call, acceptance of ``levels``, equal texts."""
        kept = map(self.acceptance, levels)
        return (*self.interval, self.tokens_per_call, *kept, self.same(temperature))


def side_by_side(
    lab: Lab, methods: Sequence[HierarchyMethod], temperature: float, stage: str
) -> list[Measured]:
    """Measure plain decoding, then every method, all taking turns on every prompt.

    Raises:
        HierspecError: there is no prompt, or plain decoding cannot run.
    """
    lab.require(stage)
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
    """Return the same, where every one of them could run.

    Raises:
        HierspecError: one could not; says why.
    """
    for one in found:
        if one.why:
            raise HierspecError(f"{one.name} cannot run: {one.why}")
    return list(found)


def own_table(
    name: str,
    caption: str,
    label: str,
    rows: Iterable[tuple[str, Sequence[Any]]],
    columns: Sequence[str],
    inputs: dict[str, Any] | None = None,
    notes: Sequence[str] = (),
) -> Table:
    """Return a table of numbers that stand beside none that were printed.

    Args:
        rows: labels, and a number or a text for each of ``columns``.
    """
    own = tuple(TableRow(label, (), tuple(numbers)) for label, numbers in rows)
    extra, remarks = tuple(columns), tuple(notes)
    return Table(name, caption, label, (), own, extra, inputs or {}, compared=False, notes=remarks)


def speedups(
    label: str, x: Iterable[float], found: Sequence[Measured], kind: str = "line"
) -> Curve:
    """Return the speed-ups over ``x``, spread over half their 95 % intervals."""
    medians = tuple(one.speedup.median for one in found)
    return Curve(label, tuple(map(float, x)), medians, kind, tuple(o.half_width for o in found))


def method_of(name: str, lab: Lab, hierarchy: dict[str, Any]) -> HierarchyMethod:
    """Return a hierarchy file's content as a method; its target is the lab's."""
    top = {key: value for key, value in hierarchy.items() if key not in ("target", "levels")}
    return HierarchyMethod(name, lab.models, hierarchy.get("levels", ()), **top)


def notes(lab: Lab) -> tuple[str, ...]:
    """Say how the speed-ups of this lab are to be read."""
    count = len(lab.prompts)
    return (
        "Speed-ups are over our own plain decoding in the same interleaved run: the median of "
        f"paired ratios over {count} prompt{'s' * (count != 1)}, {lab.max_new_tokens} tokens "
        "each, "
        + (
            "with its 95 % bootstrap interval."
            if count >= PROMPTS_OF_AN_INTERVAL
            else "too few for an interval."
        ),
        *model_notes(lab),
    )


def model_notes(lab: Lab) -> tuple[str, ...]:
    """Say what to know of the models, whatever is reported: that one is synthetic."""
    if not any(name.startswith(SYNTHETIC) for name in (lab.target, *lab.models.drafts)):
        return ()
    return (
        f"{SYNTHETIC} is a synthetic cost with a real law (the trained trunk's, moved by eps): "
        "read this as what the method does at such costs and acceptances.",
    )
