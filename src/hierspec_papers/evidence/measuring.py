"""Experiments run into files that can be resumed, prompts added look by look until all is decided.

A file holds what a bench's does: settings, prompts (file, line, sha256), commit, machine, versions,
and every run. Verdicts are not in it: :mod:`.claims` computes them from the runs.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hierspec.bench.methods.base import Request
from hierspec.bench.methods.ours import BenchModels, HierarchyMethod
from hierspec.bench.turns import order
from hierspec.errors import HierspecError
from hierspec.utils.files import write_whole
from hierspec.utils.machine import environment, load_average
from hierspec_papers.prompts import LONGEST, Prompt

from . import counting
from .experiments import Experiment
from .sequential import LOOKS

ANSWER = 200  # tokens of a conversation's first turn, which plain decoding writes greedily
KIND, SCHEMA_VERSION = "hierspec-evidence", 1
Data = dict[str, Any]
Decided = Callable[[Data], bool]


def settings(experiment: Experiment) -> Data:
    """Return what makes two files of an experiment the same."""
    return {
        "target": experiment.family.target,
        "dtype": "float32",
        "temperature": experiment.temperature,
        "max_new_tokens": experiment.tokens,
        "prompt_tokens": None if experiment.chats else LONGEST,
        "together": experiment.together,
        "seed": experiment.seed,
        "looks": list(experiment.looks) or [n for n in LOOKS if n <= experiment.most],
    }


def begin(experiment: Experiment, files: Sequence[Data], path: Path) -> Data:
    """Return the file's content to go on with, or that of a new one.

    Raises:
        HierspecError: the file there is of other settings or prompts.
    """
    found = {"settings": settings(experiment), "files": list(files)}
    if path.exists():
        data = json.loads(path.read_text())
        if {key: data.get(key) for key in found} != found:
            raise HierspecError(
                f"{path.name} was measured with other settings or prompts: remove it to begin anew"
            )
        return data
    return {
        "kind": KIND,
        "schema_version": SCHEMA_VERSION,
        "experiment": experiment.name,
        "shows": experiment.shows,
        **found,
        "prompts": [],
        "environment": [],
        "load": [],
        "methods": {
            name: {"levels": list(way.levels), **way.top}
            for name, way in experiment.methods.items()
        },
        "prices": {},
        "runs": [],
    }


def save(data: Data, path: Path) -> None:
    """Write the file, a run a line."""
    head = {key: value for key, value in data.items() if key != "runs"}
    lines = ",\n  ".join(json.dumps(run, separators=(",", ":")) for run in data["runs"])
    text = json.dumps(head, indent=1)[:-2] + f',\n "runs": [\n  {lines}\n ]\n}}\n'
    write_whole(path, text, "evidence")


def measure(
    experiment: Experiment,
    prompts: Sequence[Prompt],
    files: Sequence[Data],
    path: Path,
    decided: Decided,
    until: float = float("inf"),
    say: Callable[[str], None] = print,
    most: int | None = None,
) -> bool:
    """Run an experiment, or go on with it; return whether it is done.

    Args:
        decided: whether all claims are decided by these runs; asked at every look.
        until: by ``time.monotonic``: no group of prompts is begun after that.
        most: prompts this time, where the planned looks go on.
    """
    data = begin(experiment, files, path)
    models = experiment.family.models()
    kind = counting.ObservedMethod if experiment.gains else HierarchyMethod
    methods = [kind(n, models, w.levels, **w.top) for n, w in experiment.methods.items()]
    looks = data["settings"]["looks"]
    done = len(data["prompts"])
    if done < looks[-1]:
        data["environment"].append({"first_prompt": done, **environment()})
    warm = not experiment.clock
    while done < looks[-1]:
        if done in looks and decided(data):
            break
        if time.monotonic() > until or (most and done >= most):
            return False
        chosen = prompts[done : done + experiment.together]
        if not warm:  # on the last prompt that may be measured
            warm = True
            _add(json.loads(json.dumps(data)), experiment, methods, models, prompts[-1:], done)
        _add(data, experiment, methods, models, chosen, done)
        done = len(data["prompts"])
        save(data, path)
        say(f"{experiment.name}: {done} prompts")
    return True


def _add(
    data: Data,
    experiment: Experiment,
    methods: Sequence[HierarchyMethod],
    models: BenchModels,
    chosen: Sequence[Prompt],
    first: int,
) -> None:
    """Run all methods on some prompts, and add their runs to the data."""
    plain = HierarchyMethod("plain", models, ())

    def answer(ids: list[int]) -> str:
        return plain.hierarchy.generate(ids, max_new_tokens=ANSWER).text

    ids = [one.token_ids(models.tokenizer, answer) for one in chosen]
    request = Request(experiment.tokens, experiment.temperature, experiment.seed + first)
    began = load_average()
    for which in order(len(methods), first // experiment.together, experiment.seed):
        method = methods[which]
        found = counting.records(method, ids, request, method.name in experiment.entropies)
        if method.name not in data["prices"]:
            data["prices"][method.name] = counting.prices(method)
        for number, one in enumerate(found, first):
            data["runs"].append({"method": method.name, "prompt": number, **one})
    data["prompts"] += [one.to_dict() for one in chosen]
    data["load"].append([began, load_average()])
