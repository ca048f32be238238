"""Planning problems as JSON: rates and costs that somebody has, without a profile.

``{"costs": [..], "acceptance": [[..]], "names": [..], "max_speculative_tokens": 15,
"latency_model": "exact", "memory_bytes": [..]}``

Models come smallest first, the target last. ``acceptance[i][j]``, i < j, is the share of model i's
tokens that model j accepts; ``null`` where i cannot draft for j; entries with i ≥ j are ignored,
and the last row may be missing. Only ``costs`` and ``acceptance`` are needed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from hierspec.errors import HierspecError
from hierspec.utils.checks import is_number
from hierspec.utils.schema import PositiveInteger, closed, read

from .estimates import LONGEST, Estimates, ideal
from .plan import LatencyModel
from .search import LATENCY_MODELS

MOST_TOKENS = 100  # of max_speculative_tokens: the graph of P1's formula grows with its square
_KEYS = [
    "costs",
    "acceptance",
    "names",
    "max_speculative_tokens",
    "latency_model",
    "memory_bytes",
    "description",
]
_NOISE = 0.02  # three rates written with two digits are off by 0.015 together


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """What a problem file says, and what is odd about it."""

    estimates: Estimates
    latency_model: LatencyModel = "exact"
    warnings: tuple[str, ...] = ()


def load_json(path: str | Path) -> Mapping[str, Any]:
    """The JSON object in a file.

    Raises:
        ValueError: it cannot be read, or holds no JSON object.
    """
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise HierspecError(f"cannot read {str(path)!r}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise HierspecError(f"{path}: not valid JSON: {error}") from None
    if not isinstance(data, dict):
        raise HierspecError(f"{path}: a problem is a JSON object, not {type(data).__name__}")
    return data


def parse_problem(data: Mapping[str, Any]) -> Problem:
    """A problem from its JSON object.

    Raises:
        ValueError: naming the entry that is wrong, and what belongs there.
    """
    data = closed(data, _KEYS, "problem")
    costs = _costs(data)
    count = len(costs)
    names = _names(data.get("names"), count)
    rates = _rates(data, names)
    top = data.get("max_speculative_tokens", 15)
    check_tokens(top, "max_speculative_tokens")
    model = data.get("latency_model", "exact")
    if model not in LATENCY_MODELS:
        raise HierspecError(
            f"latency_model must be one of {', '.join(LATENCY_MODELS)}, not {model!r}"
        )
    estimates = ideal(costs, rates.tolist(), names, top, longest=max(LONGEST, 4 * top))
    if data.get("memory_bytes") is not None:
        sizes = _sizes(data["memory_bytes"], names)
        estimates = replace(
            estimates, owners=tuple(names), memory=dict(zip(names, sizes, strict=True))
        )
    return Problem(estimates, model, tuple(_oddities(costs, rates, names)))


def check_tokens(value: Any, where: str) -> None:
    """Refuse what is no largest budget."""
    read(PositiveInteger, value, where)
    if value > MOST_TOKENS:
        raise HierspecError(f"{where} must be at most {MOST_TOKENS}, not {value}")


def _costs(data: Mapping[str, Any]) -> list[float]:
    costs = data.get("costs")
    if not isinstance(costs, list) or not costs:
        raise HierspecError(
            "costs must be a list of one cost per model, smallest first, target last"
        )
    for i, cost in enumerate(costs):
        if not is_number(cost) or not 0 < cost <= 1e100:
            raise HierspecError(f"costs[{i}] must be a finite number above 0, not {_shown(cost)}")
    return [float(cost) for cost in costs]


def _names(names: Any, count: int) -> list[str]:
    if names is None:
        return [f"model {i}" for i in range(count)]
    if not isinstance(names, list) or len(names) != count:
        raise HierspecError(f"names must be a list of {count} texts, one for each of costs")
    for i, name in enumerate(names):
        if not isinstance(name, str) or not name.strip():
            raise HierspecError(f"names[{i}] must be a text of some length, not {name!r}")
        if name in names[:i]:
            raise HierspecError(f"names[{i}]: {name!r} is the name of another model already")
    return names


def _rates(data: Mapping[str, Any], names: list[str]) -> np.ndarray:
    """[K+1, K+1], NaN where nothing is drafted."""
    count, rows = len(names), data.get("acceptance")
    rates = np.full((count, count), np.nan)
    if rows is None and count == 1:
        return rates
    if not isinstance(rows, list) or len(rows) not in (count - 1, count):
        raise HierspecError(
            f"acceptance must be a list of {count} rows, one for each of costs (the last one may "
            f"be left out), not {_shown(rows)}"
        )
    for i, row in enumerate(rows):
        if not isinstance(row, list) or len(row) != count:
            raise HierspecError(
                f"acceptance[{i}] must be a row of {count} rates, one for each model; null where "
                "there is none"
            )
        for j in range(i + 1, count):
            rate, where = row[j], f"acceptance[{i}][{j}] ({names[i]} by {names[j]})"
            if rate is None:
                continue
            if not is_number(rate) or not 0 <= rate <= 1:
                raise HierspecError(
                    f"{where} must be a rate from 0 to 1 or null, not {_shown(rate)}"
                )
            rates[i, j] = rate
    return rates


def _sizes(sizes: Any, names: list[str]) -> list[int]:
    if not isinstance(sizes, list) or len(sizes) != len(names):
        raise HierspecError(
            f"memory_bytes must be a list of {len(names)} sizes, one for each model"
        )
    for i, size in enumerate(sizes):
        if not isinstance(size, int) or isinstance(size, bool) or size < 0:
            raise HierspecError(f"memory_bytes[{i}] must be a whole number of bytes, not {size!r}")
    return sizes


def _oddities(costs: list[float], rates: np.ndarray, names: list[str]) -> list[str]:
    """What does not stop the planner, and is probably a mistake."""
    out = []
    drops = [i for i in range(1, len(costs)) if costs[i] < costs[i - 1]]
    if drops:
        i = drops[0]
        out.append(
            f"costs should rise from the smallest drafter to the target, but {names[i]} "
            f"({costs[i]:g}) is cheaper than {names[i - 1]} ({costs[i - 1]:g}) before it"
        )
    if len(costs) > 1 and not np.nan_to_num(rates).any():
        out.append(
            "no model keeps any token of a smaller one: acceptance[i][j], i < j, is how often "
            "model j keeps model i's tokens (what stands below the diagonal is ignored)"
        )
    distance = 1.0 - rates
    distance = np.where(np.isnan(distance), distance.T, distance)
    # [i, j, k]: how much farther i is from k than by way of j
    excess = np.nan_to_num(
        distance[:, None, :] - distance[:, :, None] - distance[None, :, :], nan=-1.0
    )
    if excess.size and excess.max() > _NOISE:
        i, j, k = (int(x) for x in np.unravel_index(excess.argmax(), excess.shape))
        i, k = min(i, k), max(i, k)
        out.append(
            f"acceptance of {names[i]} by {names[k]} is {rates[i, k]:g}, but at least "
            f"{rates[i, k] + excess.max():g} follows from their rates with {names[j]} (1 - "
            "acceptance is a distance, so P1's triangle inequality holds on one text): were these "
            "rates measured on the same text?"
        )
    return out


def _shown(value: Any) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[str(value)]
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
