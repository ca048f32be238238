"""The columns of the page's table of methods: speed, acceptance, and correctness."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hierspec_lab.bench.method_records import PLAIN, MethodRecord, PairedRatio, Spread
from hierspec_lab.bench.records import TemperatureRecord


@dataclass(frozen=True, slots=True)
class TableCell:
    """A table's cell: sort key, text, a second line, and a mark: ``good``, ``soft`` or ``bad``."""

    value: float
    text: str
    below: str = ""
    mark: str = ""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of numbers; ``show`` returns ``None`` where a method has none."""

    title: str
    explained: str
    show: Callable[[MethodRecord], TableCell | None]
    largest_first: bool = True


def _speedup(method: MethodRecord) -> TableCell | None:
    if method.final_summary.speedup is None and method.median_speedup is not None:
        return TableCell(method.median_speedup, f"{method.median_speedup:.2f}×")
    return _ratio(method.final_summary.speedup)


def _ratio(ratio: PairedRatio | None) -> TableCell | None:
    return ratio and TableCell(ratio.median, f"{ratio.median:.2f}×", _range(ratio.interval))


def _spread(spread: Spread | None) -> TableCell | None:
    return spread and TableCell(
        spread.median, f"{spread.median:.2f}", _range((spread.q1, spread.q3))
    )


def _range(ends: tuple[float, float] | None) -> str:
    return "" if ends is None else f"[{ends[0]:.2f}, {ends[1]:.2f}]"


def _number(value: float | None, decimals: int, scale: float = 1.0) -> TableCell | None:
    return None if value is None else TableCell(value, f"{value / scale:.{decimals}f}")


def _predicted(method: MethodRecord) -> TableCell | None:
    predicted, error = method.predicted_ms_per_token, method.prediction
    if predicted is None:
        return None
    below = "" if error is None else f"{signed(100 * error.error, 1)} %"
    return TableCell(predicted, f"{predicted:.2f}", below)


def signed(value: float, decimals: int) -> str:
    return f"{value:+.{decimals}f}".replace("-", "−")


COLUMNS = (
    Column(
        "speed-up",
        "over plain decoding; wall time with the prompt's reading, paired per prompt: median and "
        "95 % bootstrap interval",
        _speedup,
    ),
    Column(
        "over best of transformers",
        "the same over the method of transformers whose median ms/token is smallest at this "
        "temperature",
        lambda method: _ratio(method.final_summary.speedup_over_best_transformers),
    ),
    Column(
        "standardized walltime",
        "improvement, as P1 defines it (Table 4)",
        lambda method: _number(method.final_summary.standardized_walltime_improvement, 2),
    ),
    Column(
        "median ms/token",
        "wall time with the prompt's reading, over prompts; below it, the quartiles",
        lambda method: _spread(method.final_summary.ms_per_token),
        largest_first=False,
    ),
    Column(
        "median decoding ms/token",
        "of tokens after the first, over prompts; below it, the quartiles",
        lambda method: _spread(method.final_summary.decode_ms_per_token),
        largest_first=False,
    ),
    Column(
        "median overhead ms/token",
        "of decoding, outside the models' forwards, over prompts; below it, the quartiles",
        lambda method: _spread(method.final_summary.overhead_ms_per_token),
        largest_first=False,
    ),
    Column(
        "tokens / second",
        "wall time, all prompts",
        lambda method: _number(method.final_summary.tokens_per_second, 1),
    ),
    Column(
        "tokens / target call",
        "mean acceptance length: tokens after the first over calls of the target",
        lambda method: _number(method.final_summary.mean_acceptance_length, 2),
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
        lambda method: _number(method.final_summary.peak_memory_bytes, 0, 2**20),
        largest_first=False,
    ),
)


def columns_of(record: TemperatureRecord) -> list[Column]:
    """Return the columns in which some method of this temperature has a number."""
    greedy = (
        "runs that equal plain decoding token for token; near-ties part where the target scores "
        "both tokens alike, as far as its data type can tell"
    )
    sampled = "mean log-likelihood per token less plain decoding's, with its standard error"
    correctness_column = Column(
        "text as plain decoding's" if record.greedy else "log-likelihood less plain decoding's",
        greedy if record.greedy else sampled,
        lambda method: correctness(record, method),
    )
    every = (*COLUMNS, correctness_column)
    return [c for c in every if any(c.show(method) is not None for method in record.measured)]


def correctness(record: TemperatureRecord, method: MethodRecord) -> TableCell | None:
    """Say whether a method's text is the target's; ``None`` where nothing was compared.

    Greedy: runs that equal plain decoding token for token; ``soft`` if all others part from it at
    near-ties. Otherwise: the difference of the mean log-likelihood per token from plain decoding's.
    """
    summary = method.final_summary
    if method.name == PLAIN:
        return None
    if summary.same_as_plain is not None and method.runs:
        equality = record.compare(method)
        ties = f", near-tie {equality.near_ties}" if equality.near_ties else ""
        mark = "bad" if equality.wrong else "soft" if equality.near_ties else "good"
        words = f"{equality.equal} of {equality.runs} equal{ties}"
        return TableCell(equality.equal / equality.runs, words, mark=mark)
    if summary.logprob is None:
        return None
    difference, error = summary.logprob.difference_from_plain, summary.logprob.standard_error
    words = signed(difference, 3) + ("" if error is None else f" ± {error:.3f}")
    return TableCell(difference, words, mark="good" if summary.logprob.within_noise else "bad")


def prediction_errors(record: TemperatureRecord) -> str:
    """Sum up the errors of predictions in a sentence; empty where nothing was predicted."""
    errors = [prediction.error for _, prediction in record.predictions]
    if not errors:
        return ""
    shares = record.errors_over_plain
    as_shares = f"; as shares of plain decoding's time {_sizes(shares)}" if shares else ""
    return f"Errors of predictions: {_sizes(errors)}{as_shares}."


def _sizes(errors: Sequence[float]) -> str:
    sizes = [100 * abs(error) for error in errors]
    return f"{statistics.median(sizes):.1f} % in the median, {max(sizes):.1f} % at worst"


def category_names(methods: Sequence[MethodRecord]) -> list[str]:
    return list(
        dict.fromkeys(name for method in methods for name in method.final_summary.by_category)
    )


def fastest_first(record: TemperatureRecord) -> list[MethodRecord]:
    return sorted(record.measured, key=lambda method: -(method.median_speedup or 0.0))


def fastest(record: TemperatureRecord) -> str:
    """Name the fastest lossless method in a sentence; empty where there is none.

    A method whose text failed the check is not called lossless, whatever it claims.
    """
    for method in fastest_first(record):
        ratio, text = method.final_summary.speedup, correctness(record, method)
        wrong = text is not None and text.mark == "bad"
        if ratio and method.lossless and method.group != "plain" and not wrong:
            times = f"{ratio.median:.2f}× plain decoding {_range(ratio.interval)}".rstrip()
            if ratio.median > 1.0:
                return f"Fastest lossless method: {method.full_name}, {times}."
            return (
                "Nothing beats plain decoding here: the fastest other lossless method, "
                f"{method.full_name}, is {times}."
            )
    return ""
