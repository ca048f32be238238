"""Random matrices and models in the compiled kernels: under sanitizers, and for other processors.

python benchmarks/sanitize_kernels.py [address thread memcheck AVX2 …] [--count 300] [--seed 0]
    [--formats F32 BF16 …] [--json FILE]

Products and whole layers are compared with float64; every second model's rows are computed one by
one, too, paths of its trees as plain text, and drafts token by token, which must give the same
bits. Sizes are odd: hidden sizes off 16 and 32, heads of 40 to 256, one head of keys, windows,
biases, trees, 1 to 40 rows, 1 to 5 threads. The cases are those of tests/lm/native, whose tests try
a few.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import common

sys.path.insert(0, str(common.ROOT / "tests" / "lm" / "native"))
from kernel_cases import Case, WrongError, check_products, check_refined, shapes_of
from kernels_apart import PROCESSORS, SANITIZERS, Apart, Build, StoppedError, build

from hierspec.lm.native.formats import FORMATS

MOST_WRONG = 10  # then the rest is not tried


def try_out(how: Build, formats: tuple[str, ...], seeds: range) -> dict[str, Any]:
    """Return what was tried with one build and what was wrong."""
    if reason := how.missing():
        return {"skipped": reason}
    wrong, calls, worst = list[str](), 0, 0.0
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        command = build(how, Path(folder), formats, jobs=2)
        built = time.perf_counter()
        kernels = Apart(command, formats)

        def attempt(check: Any, *args: Any) -> Any:
            nonlocal kernels
            try:
                return check(kernels, *args)
            except WrongError as error:
                wrong.append(str(error))
            except StoppedError as error:
                wrong.append(f"{getattr(check, '__self__', args)}: {error}")
                kernels = Apart(command, formats)

        for name in formats:
            for number, shape in enumerate(shapes_of(name)):
                attempt(check_products, name, *shape, number)
                if not FORMATS[name].is_float:
                    attempt(check_products, name, *shape, number, True)
        tried = 0
        for seed in seeds:
            if len(wrong) >= MOST_WRONG:
                break
            case, tried = Case(seed, formats), tried + 1
            calls += attempt(case.check, seed % 2 == 0) or 0
            calls += attempt(case.check_drafts) or 0
            worst = max(worst, case.error)
            if seed % 5 == 0 and {"Q8_0", "Q4_1"} <= set(formats):
                attempt(check_refined, seed)
        try:
            kernels.close()
        except StoppedError as error:
            wrong.append(str(error))
        return {
            "formats": list(formats),
            "models": tried,
            "calls": calls,
            "wrong": wrong,
            "largest_error_of_allowed": round(worst, 3),
            "seconds_to_build": round(built - start, 1),
            "seconds": round(time.perf_counter() - built, 1),
        }


def main() -> None:
    builds = SANITIZERS | PROCESSORS
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("builds", nargs="*", choices=[[], *builds], default=list(builds))
    parser.add_argument("--count", type=int, default=300, help="random models for each build")
    parser.add_argument("--seed", type=int, default=0, help="of the first model")
    parser.add_argument("--formats", nargs="+", choices=FORMATS, default=list(FORMATS))
    parser.add_argument("--json", type=Path, help="write the report there")
    args = parser.parse_args()
    seeds, report = range(args.seed, args.seed + args.count), dict[str, Any]()
    for name in args.builds:
        report[name] = found = try_out(builds[name], tuple(args.formats), seeds)
        print(name, json.dumps(found), flush=True)
    if args.json:
        result = {"environment": common.environment(), "seed": args.seed, "builds": report}
        args.json.write_text(json.dumps(result, indent=2) + "\n")
    sys.exit(any(found.get("wrong") for found in report.values()))


if __name__ == "__main__":
    main()
