"""How long the planner takes: P1's formula and the exact model, for 32 and 80 candidates.

Random problems: costs over four orders of magnitude, rates that fall with the distance in size,
budgets up to 15. One thread; processor time, so that neighbours on the machine count little. The
gap is that of the plan found to the lower bound, no measure of what a longer search would find.

    python benchmarks/search.py [--quick]
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import time
from typing import Any

import common
import numpy as np

from hierspec.planner.estimates import Estimates, ideal
from hierspec_lab.planning.plans import LatencyModel
from hierspec_lab.planning.search import plan


def problem(seed: int, candidates: int) -> Estimates:
    """Return models on a line of quality: the nearer two are, the more often they agree."""
    rng = np.random.default_rng(seed)
    costs = np.sort(10 ** rng.uniform(-2, 2, candidates))
    quality = np.sort(rng.uniform(0.2, 1, candidates))
    rates = 1 - np.abs(quality[:, None] - quality) - rng.uniform(0, 0.2, (candidates, candidates))
    return ideal(costs.tolist(), np.clip(rates, 0, 1).tolist(), max_budget=15)


def measure(candidates: int, model: LatencyModel, problems: int, repeats: int) -> dict[str, Any]:
    """Return the seconds of a search over several problems, each the median of its repeats."""
    seconds, gaps, depths = [], [], []
    for seed in range(problems):
        estimates = problem(seed, candidates)
        times = []
        for _ in range(repeats):
            began = time.process_time()
            answer = plan(estimates, latency_model=model)
            times.append(time.process_time() - began)
        seconds.append(common.spread(times)["median"])
        gaps.append(100 * (answer.best.ms / answer.lower_bound - 1))
        depths.append(len(answer.best.chain.models))
    return {
        "candidates": candidates,
        "latency_model": model,
        "seconds": common.spread(seconds),
        "slowest_seconds": max(seconds),
        "percent_above_lower_bound": common.spread(gaps),
        "models_in_plan": common.spread(depths),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--problems", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="3 problems, once each")
    args = parser.parse_args()
    problems, repeats = (3, 1) if args.quick else (args.problems, args.repeats)
    plan(problem(0, 8))  # imports and first calls
    rows = []
    for candidates in (32, 80):
        for model in ("corollary", "exact"):
            rows.append(measure(candidates, model, problems, repeats))
            median, slowest = rows[-1]["seconds"]["median"], rows[-1]["slowest_seconds"]
            print(f"{candidates} candidates, {model}: {median:.3f} s (slowest {slowest:.3f} s)")
    common.write(
        "search",
        {
            "environment": common.environment(planner_threads=1),
            "clock": "process_time",
            "max_speculative_tokens": 15,
            "problems": problems,
            "repeats": repeats,
            "searches": rows,
        },
    )


if __name__ == "__main__":
    main()
