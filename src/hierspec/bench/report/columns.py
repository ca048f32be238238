"""The columns of numbers in the table of methods."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from .records import error_of_prediction, interval, speedup

Method = Mapping[str, Any]
Shown = tuple[float, str] | None  # what a cell sorts by, and its HTML


@dataclass(frozen=True, slots=True)
class Column:
    """A column of numbers; ``None`` where a method has none."""

    title: str
    explained: str
    show: Callable[[Method], Shown]
    largest_first: bool = True


def _ratio(key: str) -> Callable[[Method], Shown]:
    def show(method: Method) -> Shown:
        found = speedup(method) if key == "speedup" else method["summary"].get(key)
        if not found:
            return None
        return found["median"], f"{found['median']:.2f}×{_below(interval(found))}"

    return show


def _spread(key: str) -> Callable[[Method], Shown]:
    def show(method: Method) -> Shown:
        found = method["summary"].get(key)
        return found and (
            found["median"], f"{found['median']:.2f}" + _below((found["q1"], found["q3"]))
        )  # fmt: skip

    return show


def _below(ends: tuple[float, float] | None) -> str:
    """A range in a second line of the cell."""
    return "" if ends is None else f"<br/><small>[{ends[0]:.2f}, {ends[1]:.2f}]</small>"


def _plain(key: str, form: str, scale: float = 1.0) -> Callable[[Method], Shown]:
    def show(method: Method) -> Shown:
        found = method["summary"].get(key)
        return None if found is None else (found, form.format(found / scale))

    return show


def _predicted(method: Method) -> Shown:
    predicted = method.get("predicted_ms_per_token")
    if predicted is None:
        return None
    error = error_of_prediction(method)
    beside = "" if error is None else f"<br/><small>{signed(100 * error[2], 1)} %</small>"
    return predicted, f"{predicted:.2f}{beside}"


def signed(value: float, decimals: int) -> str:
    return f"{value:+.{decimals}f}".replace("-", "−")


COLUMNS = (
    Column(
        "speed-up",
        "over plain decoding; wall time with the prompt's reading, paired per prompt: median and "
        "95 % bootstrap interval",
        _ratio("speedup"),
    ),
    Column(
        "over best of transformers",
        "the same over the method of transformers whose median ms/token is smallest at this "
        "temperature",
        _ratio("speedup_over_best_transformers"),
    ),
    Column(
        "standardized walltime",
        "improvement, as P1 defines it (Table 4)",
        _plain("standardized_walltime_improvement", "{:.2f}"),
    ),
    Column(
        "median ms/token",
        "wall time with the prompt's reading, over prompts; below it, the quartiles",
        _spread("ms_per_token"),
        largest_first=False,
    ),
    Column(
        "median decoding ms/token",
        "of tokens after the first, over prompts; below it, the quartiles",
        _spread("decode_ms_per_token"),
        largest_first=False,
    ),
    Column(
        "median overhead ms/token",
        "of decoding, outside the models' forwards, over prompts; below it, the quartiles",
        _spread("overhead_ms_per_token"),
        largest_first=False,
    ),
    Column("tokens / second", "wall time, all prompts", _plain("tokens_per_second", "{:.1f}")),
    Column(
        "tokens / target call",
        "mean acceptance length: tokens after the first over calls of the target",
        _plain("mean_acceptance_length", "{:.2f}"),
    ),
    Column(
        "predicted ms/token",
        "by the planner, after the first token; below it, against the measured mean",
        _predicted,
        largest_first=False,
    ),
    Column(
        "peak MiB",
        "peak memory",
        _plain("peak_memory_bytes", "{:.0f}", 2**20),
        largest_first=False,
    ),
)
