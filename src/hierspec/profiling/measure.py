"""Measure a whole profile; an interrupted run continues from its file.

A pool's members are the loaded candidates, then the target.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from hierspec.config.checkpoints import Loaded
from hierspec.config.in_memory import ModelInMemory, fingerprint_of
from hierspec.config.schema import HierarchyConfig, TargetConfig
from hierspec.errors import HierspecError
from hierspec.utils import machine
from hierspec.utils.documents import read_json
from hierspec.utils.files import json_digest, validate_writable
from hierspec.utils.records import to_json
from hierspec.utils.schema import validate
from hierspec.zoo import fingerprint

from . import costs, priors
from .candidates import Candidate, CandidatePool, load, validate_planned
from .profile import DESCRIPTION, KIND, SCHEMA_VERSION, Profile, from_dict, is_intact, save
from .schema import MeasuredModel
from .settings import ProfileSettings, ReportProgress
from .stages import RunStage, Stages

T = TypeVar("T")


def measure(
    target: TargetConfig,
    candidates: Sequence[Candidate],
    prompts: Sequence[str | Sequence[int]],
    temperatures: Sequence[float],
    settings: ProfileSettings,
    *,
    path: Path | None = None,
    source: dict[str, Any] | None = None,
    loaded: Loaded | None = None,
    report: ReportProgress = lambda stage, share: None,
    so_far: Callable[[Profile], None] = lambda profile: None,
    stages: type[Stages] = Stages,
) -> dict[str, Any]:
    """Measure, and return the profile's JSON object.

    Args:
        prompts: texts, or token ids.
        temperatures: of requests; 0 is greedy. Those in a finished profile at ``path`` are kept.
        path: the file; an interrupted run of the same request on the same machine is continued.
        source: where the prompts are from, for the record.
        loaded: checkpoints to share; missing ones are loaded and added.
        report: called with what is being done.
        so_far: called with what is known of a temperature, first before the models are loaded and
            again whenever more is, until all was measured once; priors are in the places of what is
            missing (:mod:`hierspec.profiling.priors`).
        stages: what is measured.

    Raises:
        HierspecError: nothing to measure, a model or a prompt that cannot be used, or a file that
            cannot be written.
    """
    if not candidates:
        raise HierspecError("there are no candidates: name at least one that may draft")
    validate_planned(candidates)
    if path is not None:
        validate_writable(path, DESCRIPTION)  # before minutes of work
    distinct = dict.fromkeys(float(t) + 0.0 for t in temperatures)  # once each; -0.0 is 0.0
    with contextlib.suppress(HierspecError):  # loading says what is wrong
        so_far(priors.profile(target, candidates, next(iter(distinct)), settings))
    report("loading", 0.0)
    pool = load(target, candidates, loaded)
    run = stages(pool, prompts, settings, report)
    request = {
        "target": target,
        "candidates": [candidate.name for candidate in candidates],
        "weights": [fingerprint_of(member.files) for member in pool.members],
        "settings": dataclasses.asdict(settings),
        "stages": stages.__name__,
        "prompts": list(prompts),
        "hardware": machine.hardware(pool.members[-1].model.device),
    }
    # Its file's JSON object, not a record: what another version wrote in it stays as it is.
    data = _read_started(path, json_digest(request)) or {
        "kind": KIND,
        "schema_version": SCHEMA_VERSION,
        "unfinished": True,
        "request": json_digest(request),
        "hardware": request["hardware"],
        "target": HierarchyConfig(target=target).to_dict()["target"],
        "prompts": {"count": len(run.prompts), **(source or {})},
        "settings": request["settings"],
        "temperatures": {},
    }
    results: dict[str, Any] = data.setdefault("stages", {})

    def keep() -> None:
        if path is not None:
            save(data, path)

    def stage(prefix: str, name: str, shape: type[T], work: Callable[[], T]) -> T:
        name = prefix + name
        if name in results:
            return validate(shape, results[name], f"{path}: stage {name}")
        result = work()
        results[name] = to_json(shape, result)
        keep()
        return result

    _order_models(run, data, partial(stage, ""))
    todo = [t for t in distinct if repr(t) not in data["temperatures"]]
    for number, temperature in enumerate(todo):
        run.share = (number / len(todo), 1 / len(todo))
        label = repr(temperature)
        for measured in run.measure(temperature, partial(stage, f"{label} ")):
            if label not in data["temperatures"]:
                known = {"temperatures": {label: measured.to_dict()}, "unfinished": False}
                so_far(from_dict({**data, **known}))
            if measured.priors:  # never kept
                continue
            data["temperatures"][label] = measured.to_dict()
            if number + 1 == len(todo):  # a plan can be made, should this be interrupted
                data.pop("unfinished", None)
                keep()
    del data["stages"]
    data.pop("unfinished", None)  # nothing was left to do
    keep()
    report("done", 1.0)
    return data


def _order_models(run: Stages, data: dict[str, Any], stage: RunStage) -> None:
    pool = run.pool
    if "models" not in data:
        ms = stage("alone", list[float], lambda: costs.single_calls(pool, run.prompts[0], 0.0))
        order = costs.order(pool, ms)
        run.pool = pool.ordered(order)
        models = [_measured_model(run.pool, i, ms[n]) for i, n in enumerate(order)]
        data["models"] = [model.to_dict() for model in models]
        data["memory"] = run.pool.memory
    else:
        models = validate(list[MeasuredModel], data["models"], f"{DESCRIPTION}'s models")
        *names, _ = [member.name for member in pool.members]
        order = [names.index(model.name) for model in models[:-1]]
        run.pool = pool.ordered([*order, len(names)])
    run.call_ms = [model.call_ms for model in models]


def _measured_model(pool: CandidatePool, number: int, call_ms: float) -> MeasuredModel:
    member = pool.members[number]
    has_weights = member.scores or member.owner == pool.target.model
    has_files = has_weights and not isinstance(member.files, ModelInMemory)
    return MeasuredModel(
        name=member.name,
        level=member.candidate and member.candidate.level_dict(pool.target),
        owner=member.owner,
        weights=fingerprint.compute(member.files) if has_files else None,
        call_ms=round(call_ms, 5),
    )


def _read_started(path: Path | None, request: str) -> dict[str, Any] | None:
    """Read the unfinished or finished profile of the same request; ``None`` if there is none."""
    if path is None:
        return None
    try:
        data = read_json(dict[str, Any], path, "the profile")
    except HierspecError:
        return None  # missing, another kind of file, or damaged: measured anew
    expected = {"kind": KIND, "schema_version": SCHEMA_VERSION, "request": request}
    return data if is_intact(data) and expected.items() <= data.items() else None
