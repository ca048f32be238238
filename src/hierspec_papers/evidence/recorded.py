"""Results of ``hierspec reproduce``, read as experiments' files.

They hold every run, so they can decide a claim as well as an experiment planned for it. Their
prompts were fixed beforehand, so there is one look.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .experiments import RECORDED, Experiment


def read(folder: Path) -> dict[str, dict[str, Any]]:
    """Read the recorded experiments whose files are in ``folder``, and return them by name."""
    return {
        name: as_experiment(json.loads((folder / experiment.file).read_text()), experiment)
        for name, experiment in RECORDED.items()
        if (folder / experiment.file).exists()
    }


def as_experiment(result: Mapping[str, Any], experiment: Experiment) -> dict[str, Any]:
    """Convert a result's runs at the experiment's temperature to an experiment's file.

    Raises:
        ValueError: the file has no runs at that temperature.
    """
    at = f"temperature {experiment.temperature:g}"
    every = [runs for title, runs in result["record"].items() if title.endswith(f"runs at {at}")]
    if len(every) != 1:
        raise ValueError(f"{experiment.file} records no runs at {at}")
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
            for method, runs in every[0].items()
            for number, run in enumerate(runs)
        ],
    }
