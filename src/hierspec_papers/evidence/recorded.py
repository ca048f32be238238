"""Runs that ``hierspec reproduce`` recorded, read as an experiment's file.

Its results lie beside the folder of evidence and keep every run, so a claim can be decided by them
as by an experiment that was planned for it. Its prompts were fixed beforehand: one look.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .experiments import RECORDED, Experiment


def read(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the recorded experiments by name, as far as their files lie in a folder."""
    out = {}
    for name, one in RECORDED.items():
        path = folder / one.file
        if path.exists():
            out[name] = as_experiment(json.loads(path.read_text()), one)
    return out


def as_experiment(found: Mapping[str, Any], experiment: Experiment) -> dict[str, Any]:
    """Return a result's runs at the experiment's temperature, as an experiment's file holds them.

    Raises:
        ValueError: the file has no runs at that temperature.
    """
    at = f"temperature {experiment.temperature:g}"
    every = [runs for title, runs in found["record"].items() if title.endswith(f"runs at {at}")]
    if len(every) != 1:
        raise ValueError(f"{experiment.file} records no runs at {at}")
    given = found["measured_on"]
    count = given["prompts"]["count"]
    return {
        "experiment": experiment.name,
        "settings": {
            "target": given["target"],
            "temperature": experiment.temperature,
            "max_new_tokens": given["max_new_tokens"],
            "together": 1,
            "looks": [count],
        },
        "prompts": [{} for _ in range(count)],
        "environment": [given["environment"]],
        "prices": {},
        "runs": [
            {
                "method": method,
                "prompt": number,
                "tokens": len(run["token_ids"]),
                "target_calls": run["target_calls"],
                "decode_seconds": run["decode_seconds"],
            }
            for method, runs in every[0].items()
            for number, run in enumerate(runs)
        ],
    }
