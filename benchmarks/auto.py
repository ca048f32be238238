"""What the first ``--hierarchy auto`` takes on a machine, and what every later one takes.

python benchmarks/auto.py
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from typing import Any

import common


def run(cache: str, temperature: float, tokens: int) -> dict[str, Any]:
    """Run the whole command in a process of its own, loading and generating included."""
    command = [sys.executable, "-c", "from hierspec.cli import main; main()", "generate"]
    command += ["def quicksort(items):", "--hierarchy", "auto", "--seed", "0", "--json"]
    command += ["--temperature", str(temperature), "--max-new-tokens", str(tokens)]
    began = time.perf_counter()
    process = subprocess.run(
        command, env={**os.environ, "HIERSPEC_CACHE": cache}, capture_output=True, text=True
    )
    seconds = time.perf_counter() - began
    if process.returncode:
        raise SystemExit(process.stderr)
    result = json.loads(process.stdout)
    return {"seconds": seconds, "tokens_per_second": result["tokens_per_second"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=64)
    args = parser.parse_args()
    report: dict[str, Any] = {"environment": common.environment(), "temperatures": {}}
    with tempfile.TemporaryDirectory() as cache:
        for temperature in (0.0, 1.0):
            cell = {use: run(cache, temperature, args.tokens) for use in ("first", "later")}
            report["temperatures"][str(temperature)] = cell
            print(temperature, {use: round(c["seconds"], 1) for use, c in cell.items()})
    common.write("auto", report)


if __name__ == "__main__":
    main()
