"""Running experiments into files, prompt by prompt until all claims are decided; resumable.

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
from hierspec.bench.turns import turn_order
from hierspec.errors import HierspecError
from hierspec.utils.files import write_atomically
from hierspec.utils.machine import environment, load_average
from hierspec_papers.prompts import MAX_PROMPT_TOKENS, Prompt

from . import counting
from .experiments import Experiment
from .sequential import LOOKS

ANSWER = 200  # tokens of a conversation's first turn, which plain decoding writes greedily
KIND, SCHEMA_VERSION = "hierspec-evidence", 1
Data = dict[str, Any]
Decided = Callable[[Data], bool]


def settings(experiment: Experiment) -> Data:
    """Return the settings that must be equal for a file to be resumed."""
    return {
        "target": experiment.family.target,
        "dtype": "float32",
        "temperature": experiment.temperature,
        "max_new_tokens": experiment.tokens,
        "prompt_tokens": None if experiment.chats else MAX_PROMPT_TOKENS,
        "together": experiment.together,
        "seed": experiment.seed,
        "looks": list(experiment.looks) or [n for n in LOOKS if n <= experiment.most],
    }


def begin(experiment: Experiment, files: Sequence[Data], path: Path) -> Data:
    """Return the content of an experiment's file to resume, or of a new one.

    Raises:
        HierspecError: the existing file is of other settings or prompts.
    """
    identity = {"settings": settings(experiment), "files": list(files)}
    if path.exists():
        data = json.loads(path.read_text())
        if {key: data.get(key) for key in identity} != identity:
            raise HierspecError(
                f"{path.name} was measured with other settings or prompts: remove it to begin anew"
            )
        return data
    return {
        "kind": KIND,
        "schema_version": SCHEMA_VERSION,
        "experiment": experiment.name,
        "shows": experiment.shows,
        **identity,
        "prompts": [],
        "environment": [],
        "load": [],
        "methods": {
            name: {"levels": list(spec.levels), **spec.top}
            for name, spec in experiment.methods.items()
        },
        "prices": {},
        "runs": [],
    }


def save(data: Data, path: Path) -> None:
    """Write the file, a run a line."""
    head = {key: value for key, value in data.items() if key != "runs"}
    lines = ",\n  ".join(json.dumps(run, separators=(",", ":")) for run in data["runs"])
    text = json.dumps(head, indent=1)[:-2] + f',\n "runs": [\n  {lines}\n ]\n}}\n'
    write_atomically(path, text, "evidence")


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
    """Run an experiment, or resume it; return whether it is done.

    Args:
        decided: called at every look: whether these runs decide all claims.
        until: deadline by ``time.monotonic``: no group of prompts is begun after it.
        say: called with each line of progress.
        most: stop at this number of prompts, even if further looks are planned.
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
    """Run all methods on the chosen prompts, and add their runs to the data."""
    plain = HierarchyMethod("plain", models, ())

    def answer(ids: list[int]) -> str:
        return plain.hierarchy.generate(ids, max_new_tokens=ANSWER).text

    ids = [prompt.token_ids(models.tokenizer, answer) for prompt in chosen]
    request = Request(experiment.tokens, experiment.temperature, experiment.seed + first)
    began = load_average()
    for index in turn_order(len(methods), first // experiment.together, experiment.seed):
        method = methods[index]
        records = counting.records(method, ids, request, method.name in experiment.entropies)
        if method.name not in data["prices"]:
            data["prices"][method.name] = counting.prices(method)
        for number, record in enumerate(records, first):
            data["runs"].append({"method": method.name, "prompt": number, **record})
    data["prompts"] += [prompt.to_dict() for prompt in chosen]
    data["load"].append([began, load_average()])
