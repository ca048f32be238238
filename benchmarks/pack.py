"""Write result files as they are kept: what pages read of them, in as few bytes as that takes.

    python benchmarks/pack.py                  # those in benchmarks/results
    python benchmarks/pack.py FILE.json …      # as `hierspec bench -o` and `reproduce -o` wrote it

Of a bench's runs times, lengths and verdicts stay, to six digits; token ids and the counters of
each level go, which the summaries have summed up. Of a reproduction's record profiles stay, and
runs that evidence is read from. Files of ``results/evidence`` are compressed by the script that
writes them.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent / "results"
WITH_RUNS = {"reproduce-p3-table1"}  # the evidence reads its runs
DIGITS = 6


def pack(name: str, data: dict[str, Any]) -> dict[str, Any]:
    """Return what is kept of a result file's content; ``name``: the file's, without a suffix."""
    if data.get("kind") == "hierspec-bench":
        for cell in data["cells"]:
            for method in cell["methods"]:
                left_out = {"token_ids": [], "levels": [], "target": {}}
                method["runs"] = [rounded(run) | left_out for run in method["runs"]]
    if "record" in data and name not in WITH_RUNS:
        kept = {key: part for key, part in data["record"].items() if key.startswith("profile of ")}
        data = {key: value for key, value in data.items() if key != "record"}
        data |= {"record": kept} if kept else {}
    return data


def rounded(value: Any) -> Any:
    """Round the floats of a document to :data:`DIGITS` significant digits."""
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, dict):
        return {key: rounded(part) for key, part in value.items()}
    if isinstance(value, list):
        return [rounded(part) for part in value]
    return value


def text(data: dict[str, Any]) -> str:
    """Return a document as JSON without blanks, an entry of it on a line."""
    compact = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode
    return "{\n" + ",\n".join(f"{json.dumps(k)}:{compact(v)}" for k, v in data.items()) + "\n}\n"


def write(path: Path, data: dict[str, Any]) -> None:
    """Write a result file as it is kept."""
    path.write_text(text(pack(path.stem, data)), encoding="utf-8")


def main() -> None:
    for path in map(Path, sys.argv[1:] or sorted(RESULTS.glob("*.json"))):
        write(path, json.loads(path.read_text(encoding="utf-8")))


if __name__ == "__main__":
    main()
