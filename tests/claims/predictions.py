"""docs/measured.md: what was predicted, against what was measured."""

from __future__ import annotations

import statistics
from typing import Any

from .base import Claim, data, percent
from .benches import EVERY, bench, runs_on
from .measured import MEASURED_PAGE

PAIRED = ("branch", "speculative", "hierarchy", "planned")


def predictions(key: str = "predicted_ms") -> list[float]:
    """Relative errors of ``predict.json``, by that prediction."""
    return [
        abs(row[key] / row["measured_ms"] - 1)
        for target in data("predict")["targets"].values()
        for cell in target.values()
        if isinstance(cell, dict)
        for row in cell["hierarchies"].values()
    ]


def hierarchies_predicted() -> int:
    """Different hierarchies of ``predict.json``, plain decoding and the plans apart."""
    found = {
        (target, name)
        for target, cells_of in data("predict")["targets"].items()
        for cell in cells_of.values()
        if isinstance(cell, dict)
        for name in cell["hierarchies"]
    }
    return len([name for _, name in found if name not in ("plain", "planned")])


def released_predictions() -> list[Any]:
    """Errors on the released model's chats, with costs of either kind."""
    found = data("predict-smollm2")
    (cell,) = (cells["0.0"] for cells in found["targets"].values())
    medians = cell["median_error"], cell["errors_with_earlier_costs"]["median"]
    return [found["prompts"], len(cell["hierarchies"]), *map(percent, medians)]


def every_prediction(temperature: float) -> list[float]:
    """Errors of what the main bench predicted from its own profile, hours old."""
    cells_of = bench(EVERY[temperature]).cells
    (cell,) = (cell for cell in cells_of if cell.temperature == temperature)
    return [abs(one.prediction.error) for one in cell.measured if one.prediction is not None]


def bench_predictions(machine: str) -> list[float]:
    """Errors of what benches predicted from their own profiles, minutes old, on a machine."""
    return [
        abs(one.prediction.error)
        for name in runs_on(machine)
        for cell in bench(name).cells
        for one in cell.measured
        if one.prediction is not None and one.name in PAIRED
    ]


PREDICTIONS = [
    Claim(
        MEASURED_PAGE,
        "Planning, on Zen 5: {} predictions ({} hierarchies, plain decoding and the plans, two "
        "targets, two temperatures, prompts that were not profiled) against measurement: median "
        "error {}, {} of them within 12 %, the worst {}, with costs timed again between the runs; "
        "with the profile's own, some minutes old, {} and {}.",
        lambda: (
            len(predictions()),
            hierarchies_predicted(),
            percent(statistics.median(predictions())),
            sum(error <= 0.12 for error in predictions()),
            percent(max(predictions()), 0),
            percent(statistics.median(predictions("predicted_ms_with_earlier_costs"))),
            percent(max(predictions("predicted_ms_with_earlier_costs")), 0),
        ),
    ),
    Claim(
        MEASURED_PAGE,
        "In the benches, where costs are the profile's own too, it is {} and {} on the Xeon ({} "
        "predictions) and {} and {} on Zen 5 ({}).",
        lambda: (
            figure
            for machine in ("Intel", "AMD")
            for errors in [bench_predictions(machine)]
            for figure in (percent(statistics.median(errors)), percent(max(errors), 0), len(errors))
        ),
    ),
    Claim(
        MEASURED_PAGE,
        "On SmolLM2, {} and {} hierarchies on {} chats, predicted from one profile made before: "
        "median error {} greedily and {} at temperature 1; the worst, look-ups, whose hits "
        "hang on the text, {} and {}.",
        lambda: (
            *(len(every_prediction(t)) for t in EVERY),
            bench(EVERY[0.0]).settings.num_prompts,
            *(percent(statistics.median(every_prediction(t))) for t in EVERY),
            *(percent(max(every_prediction(t)), 0) for t in EVERY),
        ),
    ),
    Claim(
        MEASURED_PAGE,
        "On {} others, greedily, {} hierarchies: median error {} with costs timed again between "
        "the runs and {} with the profile's own.",
        released_predictions,
    ),
]
