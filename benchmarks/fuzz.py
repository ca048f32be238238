"""Random command lines and hierarchy files: no traceback, no "bug" for a user's mistake.

python benchmarks/fuzz.py [--inputs 5000] [--seed 0]

The strategies are those of tests/cli/test_fuzz.py, which tries fewer.
"""

from __future__ import annotations

import argparse
import collections
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import common
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

sys.path.insert(0, str(common.ROOT / "tests" / "cli"))
from fuzzing import STOPPED, Playground, command_lines, hierarchies

from hierspec_lab.bench.environment import environment

INLINE = ["generate", "def f", "--max-new-tokens", "4", "--hierarchy"]


def try_many(
    strategy: st.SearchStrategy[list[str]],
    call: Callable[[list[str]], None],
    count: int,
    number: int,
) -> None:
    """Call with so many command lines drawn from a strategy, by a seed."""

    @seed(number)
    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def run_example(argv: list[str]) -> None:
        call(argv)

    run_example()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--name", default="fuzz", help="Of the result file.")
    args = parser.parse_args()
    began, statuses = time.monotonic(), collections.Counter[str]()
    failures: dict[str, str] = {}

    def call(play: Playground, argv: list[str]) -> None:
        tried = sum(statuses.values())
        if tried and tried % 250 == 0:
            print(f"{tried} of {args.inputs}", flush=True)
        try:
            status, text = play.call(argv)
        except AssertionError as error:
            statuses["failed"] += 1
            if (text := str(error)[-160:]) not in failures:
                failures[text] = repr(argv)[:400]
                print(f"FAILED {failures[text]}\n  {text}", flush=True)
            return
        statuses["stopped before work" if STOPPED in text else f"status {status}"] += 1

    with tempfile.TemporaryDirectory() as folder:
        play = Playground(Path(folder))
        inputs = [
            command_lines(play),
            hierarchies(play).map(lambda hierarchy: [*INLINE, hierarchy]),
        ]
        with play.open():
            for number, strategy in enumerate(inputs):
                try_many(
                    strategy,
                    lambda argv: call(play, argv),
                    (args.inputs + 1) // 2,
                    args.seed + number,
                )
    report = {
        "environment": environment(),
        "seed": args.seed,
        "inputs": sum(statuses.values()),
        "statuses": dict(statuses),
        "failures": failures,
        "seconds": round(time.monotonic() - began, 1),
    }
    common.write(args.name, report)
    print(f"{dict(statuses)}; {len(failures)} different failures")
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
