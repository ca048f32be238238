"""Planning problems as JSON: acceptance rates and costs that no profile measured.

``{"costs": [..], "acceptance": [[..]], "names": [..], "max_speculative_tokens": 15,
"latency_model": "exact", "memory_bytes": [..]}``

Models come smallest first, the target last. ``acceptance[i][j]``, i < j, is the share of model i's
tokens that model j accepts; ``null`` where i cannot draft for j; entries with i ≥ j are ignored,
and the last row may be missing. Only ``costs`` and ``acceptance`` are needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field, Strict

from hierspec.errors import HierspecError
from hierspec.planner.estimates import LONGEST_DRAFT, Estimates, ideal
from hierspec.utils.schema import NonEmptyString, checked_dataclass, parse_json, validate

from .plans import LatencyModel

MAX_SPECULATIVE_TOKENS = 100  # the graph of P1's formula grows with its square
CallCost = Annotated[float, Strict(), Field(gt=0, le=1e100)]
Rate = Annotated[float, Strict(), Field(ge=0, le=1, allow_inf_nan=False)]
Bytes = Annotated[int, Strict(), Field(ge=0)]
LargestBudget = Annotated[int, Strict(), Field(ge=1, le=MAX_SPECULATIVE_TOKENS)]
_NOISE = 0.02  # three rates written with two digits are off by 0.015 together


@checked_dataclass
class ProblemFile:
    """The problem file's schema; ``description`` is for people."""

    costs: Annotated[list[CallCost], Field(min_length=1)]
    acceptance: list[list[Any]] | None = None
    names: list[NonEmptyString] | None = None
    max_speculative_tokens: LargestBudget = 15
    latency_model: LatencyModel = "exact"
    memory_bytes: list[Bytes] | None = None
    description: Any = None


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """A problem file as estimates, with warnings about entries that are probably mistakes."""

    estimates: Estimates
    latency_model: LatencyModel = "exact"
    warnings: tuple[str, ...] = ()


def load_json(path: str | Path) -> Mapping[str, Any]:
    """Read the JSON object in a file.

    Raises:
        HierspecError: it cannot be read, or holds no JSON object.
    """
    try:
        text = Path(path).read_bytes()
    except OSError as error:
        raise HierspecError(f"cannot read {str(path)!r}: {error.strerror}") from None
    return validate(dict[str, Any], parse_json(text, str(path)), str(path))


def parse_problem(data: Mapping[str, Any]) -> Problem:
    """Parse a problem from its JSON object.

    Raises:
        HierspecError: naming the entry that is wrong, and what belongs there.
    """
    file = validate(ProblemFile, data, "")
    names = _names(file)
    rates = _rates(file, names)
    top, sizes = file.max_speculative_tokens, file.memory_bytes
    if sizes is not None and len(sizes) != len(names):
        raise HierspecError(
            f"memory_bytes must be a list of {len(names)} sizes, one for each model"
        )
    estimates = ideal(
        file.costs,
        rates.tolist(),
        names,
        top,
        longest=max(LONGEST_DRAFT, 4 * top),
        memory=sizes,
    )
    return Problem(estimates, file.latency_model, tuple(_warnings(file.costs, rates, names)))


def _names(file: ProblemFile) -> list[str]:
    names = file.names
    if names is None:
        return [f"model {i}" for i in range(len(file.costs))]
    if len(names) != len(file.costs):
        raise HierspecError(
            f"names must be a list of {len(file.costs)} strings, one for each of costs"
        )
    for i, name in enumerate(names):
        if not name.strip():
            raise HierspecError(f"names[{i}] must be a non-empty string, not {name!r}")
        if name in names[:i]:
            raise HierspecError(f"names[{i}]: {name!r} is the name of another model already")
    return names


def _rates(file: ProblemFile, names: list[str]) -> np.ndarray:
    """Return acceptance rates [K+1, K+1], NaN where nothing is drafted."""
    count, rows = len(names), file.acceptance
    rates = np.full((count, count), np.nan)
    if rows is None and count == 1:
        return rates
    if rows is None or len(rows) not in (count - 1, count):
        raise HierspecError(
            f"acceptance must be a list of {count} rows, one for each of costs (the last one may "
            f"be left out), not {rows if rows is None else f'of {len(rows)}'}"
        )
    for i, row in enumerate(rows):
        if len(row) != count:
            raise HierspecError(
                f"acceptance[{i}] must be a row of {count} rates, one for each model; null where "
                "there is none"
            )
        for j in range(i + 1, count):
            if row[j] is not None:
                entry = f"acceptance[{i}][{j}] ({names[i]} by {names[j]})"
                rates[i, j] = validate(Rate, row[j], entry)
    return rates


def _warnings(costs: list[float], rates: np.ndarray, names: list[str]) -> list[str]:
    warnings = []
    drops = [i for i in range(1, len(costs)) if costs[i] < costs[i - 1]]
    if drops:
        i = drops[0]
        warnings.append(
            f"costs should rise from the smallest drafter to the target, but {names[i]} "
            f"({costs[i]:g}) is cheaper than {names[i - 1]} ({costs[i - 1]:g}) before it"
        )
    if len(costs) > 1 and not np.nan_to_num(rates).any():
        warnings.append(
            "no model keeps any token of a smaller one: acceptance[i][j], i < j, is how often "
            "model j keeps model i's tokens (entries below the diagonal are ignored)"
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
        warnings.append(
            f"acceptance of {names[i]} by {names[k]} is {rates[i, k]:g}, but at least "
            f"{rates[i, k] + excess.max():g} follows from their rates with {names[j]} (1 - "
            "acceptance is a distance, so P1's triangle inequality holds on one text): were these "
            "rates measured on the same text?"
        )
    return warnings
