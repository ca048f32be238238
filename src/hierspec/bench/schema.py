"""What a results file must look like inside, so that nothing that reads one meets a surprise.

``docs/bench.md`` describes the file. A shape is a check of one value, an object of shapes by key
(``?`` behind a key: it may be missing), or a list of a single shape. Keys that no shape names are
let through.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from hierspec.errors import HierspecError
from hierspec.utils.checks import is_number

Shape = Any  # a check, {key: shape} or [shape]
Check = Callable[[Any, str], None]


def check(data: Mapping[str, Any]) -> None:
    """Refuse damaged results; of those without a measurement, the frame alone is looked at.

    Raises:
        ValueError: names the place.
    """
    _hold(data, _FRAME, "")
    if not data["cells"]:
        if data["finished"]:
            raise HierspecError("cells is empty, though the bench is finished")
        return
    _hold(data["settings"], _SETTINGS, "settings")
    for number, cell in enumerate(data["cells"]):
        where = f"cells[{number}]"
        _hold(cell, _CELL, where)
        _runs(cell["methods"], data["settings"]["num_prompts"], f"{where}.methods")


def _runs(methods: list[dict[str, Any]], prompts: int, where: str) -> None:
    """Methods that ran have as many runs as plain decoding, which stands among them."""
    plain = next((method for method in methods if method["name"] == "plain"), None)
    if plain is None:
        raise HierspecError(f"{where} has no method 'plain', which all are compared with")
    for number, method in enumerate(methods):
        at, found = f"{where}[{number}].runs", method["runs"]
        if method["summary"] is not None and not found:
            raise HierspecError(f"{at} is empty, though there is a summary")
        if method["skipped"] is None and len(found) != len(plain["runs"]):
            raise HierspecError(f"{at} has {len(found)} runs, plain decoding {len(plain['runs'])}")
        if any(run["prompt"] >= prompts for run in found):
            raise HierspecError(f"{at} has a prompt beyond the {prompts} that were measured")


def _hold(value: Any, shape: Shape, where: str) -> None:
    """Refuse a value of another shape, naming the place within it."""
    if isinstance(shape, dict):
        _object(value, where)
        for key, part in shape.items():
            name = key.removesuffix("?")
            at = f"{where}.{name}" if where else name
            if name in value:
                _hold(value[name], part, at)
            elif name == key:
                raise HierspecError(f"{at} is missing")
    elif isinstance(shape, list):
        if not isinstance(value, list):
            _wrong(value, where, "a list")
        for number, part in enumerate(value):
            _hold(part, shape[0], f"{where}[{number}]")
    else:
        shape(value, where)


def _wrong(value: Any, where: str, expected: str) -> None:
    shown = repr(value)
    shown = shown if len(shown) <= 40 else f"{shown[:39]}…"
    raise HierspecError(f"{where} must be {expected}, not {shown}")


def _number(value: Any, where: str) -> None:
    if not is_number(value) or not math.isfinite(value):
        _wrong(value, where, "a finite number")


def _positive(value: Any, where: str) -> None:
    """What something is divided by."""
    if not is_number(value) or not 0 < value < math.inf:
        _wrong(value, where, "a number above 0")


def _count(value: Any, where: str) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        _wrong(value, where, "a whole number of at least 0")


def _text(value: Any, where: str) -> None:
    if not isinstance(value, str):
        _wrong(value, where, "a text")


def _flag(value: Any, where: str) -> None:
    if not isinstance(value, bool):
        _wrong(value, where, "true or false")


def _object(value: Any, where: str) -> None:
    if not isinstance(value, Mapping):
        _wrong(value, where or "it", "an object")


def _maybe(shape: Shape) -> Check:
    return lambda value, where: None if value is None else _hold(value, shape, where)


def _by_name(shape: Shape) -> Check:
    """An object whose keys are names of levels or categories."""

    def each(value: Any, where: str) -> None:
        _object(value, where)
        for name, part in value.items():
            _hold(part, shape, f"{where}[{name!r}]")

    return each


def _level(value: Any, where: str) -> None:
    """A level of a hierarchy file, as far as tables name it."""
    _hold(value, {"method": _text}, where)
    if value["method"] == "concatenate":
        _hold(value, {"parts": [[_level]], "repeat?": _count}, where)
        return
    _hold(value, {"num_speculative_tokens": _count}, where)
    if value["method"] == "early_exit":
        _hold(value, {"exit_layer": _count}, where)


def _target(value: Any, where: str) -> None:
    """Counters of the target; other engines tell none."""
    if value != {}:
        _hold(value, _COUNTERS, where)


_SPREAD = {
    "median": _number, "q1": _number, "q3": _number, "n": _count, "mean": _number,
    "standard_error": _maybe(_number),
}  # fmt: skip
_RATIO = dict.fromkeys(("median", "q1", "q3", "low95", "high95"), _number) | {"n": _count}
_COUNTERS = {
    "name": _text, "calls": _number, "num_drafts": _number, "num_draft_tokens": _number,
    "num_accepted_tokens": _number, "num_accepted_tokens_per_pos": [_number], "seconds": _number,
    "forward_seconds": _number,
}  # fmt: skip
_RUN = {
    "prompt": _count, "num_tokens": _count, "seconds": _positive,
    "decode_seconds": _maybe(_number), "ms_per_token": _positive,
    "decode_ms_per_token": _maybe(_number), "overhead_ms_per_token": _maybe(_number),
    "target_calls": _maybe(_number), "mean_acceptance_length": _maybe(_number),
    "same_as_plain": _maybe(_flag), "first_difference_gap?": _maybe(_number),
    "logprob_per_token": _maybe(_number), "token_ids": [_count], "levels": [_COUNTERS],
    "target": _target,
}  # fmt: skip
_SUMMARY = {
    "ms_per_token": _SPREAD,
    "decode_ms_per_token": _maybe(_SPREAD),
    "tokens_per_second": _number,
    "overhead_ms_per_token": _maybe(_SPREAD),
    "mean_acceptance_length": _maybe(_number),
    "speedup": _maybe(_RATIO),
    "speedup_over_best_transformers": _maybe(_RATIO),
    "standardized_walltime_improvement": _maybe(_number),
    "acceptance_per_position": _by_name([_number]),
    "levels": [
        {
            "name": _text, "calls_per_token": _number, "ms_per_token": _number,
            "forward_ms_per_token": _number, "acceptance_rate": _maybe(_number),
        }
    ],
    "same_as_plain": _maybe(_count),
    "logprob": _maybe(
        {
            "mean": _number, "difference_from_plain": _number,
            "standard_error": _maybe(_number), "within_noise": _flag,
        }
    ),
    "peak_memory_bytes": _maybe(_number),
    "by_category?": _by_name({"speedup": _number}),
}  # fmt: skip
_TUNING = {
    "prompts": _count, "batch_size?": _count,
    "trials": [{"configuration": _object, "ms_per_token": _maybe(_number)}],
}  # fmt: skip
_METHOD = {
    "name": _text, "title": _text, "group": _text, "source": _text, "lossless": _flag,
    "configuration": _maybe({"levels?": [_level]}), "skipped": _maybe(_text),
    "tuning": _maybe(_TUNING), "predicted_ms_per_token": _maybe(_number), "runs": [_RUN],
    "summary": _maybe(_SUMMARY),
}  # fmt: skip
_CELL = {
    "temperature": _number,
    "load_average": {"before": _maybe([_number]), "after": _maybe([_number])},
    "near_tie_tolerance?": _number,
    "methods": [_METHOD],
}
_SETTINGS = {
    "target": _text, "dtype": _text, "device": _text, "drafts": [_text], "methods": [_text],
    "temperatures": [_number], "max_new_tokens": _count, "num_prompts": _count,
    "tune_prompts": _count, "tune_tokens": _count, "seed": _count, "batch_size": _count,
    "prompts": {"file?": _text, "sha256?": _maybe(_text)},
}  # fmt: skip
_FLOOR = {
    "weight_bytes": _number, "bytes_per_second": _positive, "ms_per_token": _number,
    "samples?": [_positive],
}  # fmt: skip
_FRAME = {
    "created": _text, "finished": _flag, "environment": {"versions?": _object},
    "settings": _object, "notes": [_text], "floor": _maybe(_FLOOR), "cells": [_object],
}  # fmt: skip
