"""Results of ``hierspec reproduce``, read as experiments' files.

They hold every run, so they can decide a claim as well as an experiment planned for it does. Their
number of prompts was fixed beforehand, so there is one look.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .experiments import RECORDED, Experiment


def read_recorded(folder: Path) -> dict[str, dict[str, Any]]:
    """Read the recorded experiments whose files are in ``folder``, and return them by name."""
    return {
        name: as_experiment(json.loads((folder / experiment.file).read_text()), experiment)
        for name, experiment in RECORDED.items()
        if (folder / experiment.file).exists()
    }


def as_experiment(result: Mapping[str, Any], experiment: Experiment) -> dict[str, Any]:
    """Return a result's runs at the experiment's temperature in the form of an experiment's file.

    Raises:
        ValueError: the file has no runs at that temperature.
    """
    ending = f"runs at temperature {experiment.temperature:g}"
    records = [runs for title, runs in result["record"].items() if title.endswith(ending)]
    if len(records) != 1:
        raise ValueError(f"{experiment.file} records no {ending}")
    measured_on = result["measured_on"]
    count = measured_on["prompts"]["count"]
    return {
        "experiment": experiment.name,
        "settings": {
            "target": measured_on["target"],
            "temperature": experiment.temperature,
            "max_new_tokens": measured_on["max_new_tokens"],
            "together": 1,
            "looks": [count],
        },
        "prompts": [{} for _ in range(count)],
        "environment": [measured_on["environment"]],
        "prices": {},
        "runs": [
            {
                "method": method,
                "prompt": number,
                "tokens": len(run["token_ids"]),
                "target_calls": run["target_calls"],
                "decode_seconds": run["decode_seconds"],
            }
            for method, runs in records[0].items()
            for number, run in enumerate(runs)
        ],
    }
