"""Measure what decides the papers' claims, or write the page of verdicts.

    python benchmarks/evidence.py count --data FOLDER                 # machine may have other work
    python benchmarks/evidence.py clock --data FOLDER --minutes 25    # nothing else may run
    python benchmarks/evidence.py page

FOLDER holds humaneval.jsonl, gsm8k.jsonl and spec_bench.jsonl. Measuring goes on where it was
interrupted; each experiment has a file in ``benchmarks/results/evidence/``.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import common
from filelock import FileLock, Timeout
from paper_evidence import experiments, measuring

from hierspec.errors import HierspecError
from hierspec_lab.papers import prompts

FOLDER = common.RESULTS / "evidence"
PAGE = common.ROOT / "docs" / "papers" / "evidence.md"
LOCK = Path(tempfile.gettempdir()) / "hierspec-evidence"  # of all on this machine


def measure(args: argparse.Namespace) -> int:
    """Run the experiments of a kind, as far as time allows; 1 where some are not done."""
    from paper_evidence.paper_claims import all_decided

    args.results.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + 60 * args.minutes
    chosen = experiments.COUNTING if args.what == "count" else experiments.TIMED
    unfinished = []
    for name, experiment in chosen.items():
        if args.only and name not in args.only:
            continue
        read_prompts = prompts.second_turns if experiment.uses_chats else prompts.read
        texts, files = read_prompts(args.data, experiment.max_prompts + 1)
        path = args.results / f"{name}.json.gz"
        options = {"max_prompts": args.prompts}
        if not measuring.measure(experiment, texts, files, path, all_decided, deadline, **options):
            unfinished.append(name)
    print(f"not done: {', '.join(unfinished)}" if unfinished else "all done", flush=True)
    return int(bool(unfinished))


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure what decides the papers' claims.")
    parser.add_argument("what", choices=("count", "clock", "page"))
    parser.add_argument("--data", type=Path, help="folder with the three files of prompts")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin nothing after")
    parser.add_argument("--only", action="append", default=[], help="an experiment, by name")
    parser.add_argument("--prompts", type=int, help="at most so many prompts this time")
    parser.add_argument("--results", type=Path, default=FOLDER, help="folder of the files")
    args = parser.parse_args()
    if args.what == "page":
        from paper_evidence.page import render_page

        PAGE.write_text(render_page(FOLDER))
        print(f"wrote {PAGE.relative_to(common.ROOT)}")
        return 0
    if args.data is None:
        parser.error("--data FOLDER is needed to measure")
    try:
        with FileLock(f"{LOCK}-{args.what}.lock", timeout=0):
            return measure(args)
    except Timeout:
        print("another measurement of this kind is running", file=sys.stderr)
    except HierspecError as error:
        print(error, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
