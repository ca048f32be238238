"""Write ``docs/results.md`` and ``docs/papers/results.md`` from the result files, and fill in the
figures of README and the guide (:mod:`report_pages` says how a page asks for one).

No figure is copied by hand; a test compares the pages with the files.

    python benchmarks/report.py
    python benchmarks/report.py --check     # status 1 where a page is not what the files say
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import common
import figures
import report_bench
import report_ground
import report_pages
import report_papers
import report_planning
from paper_evidence.computed import markdown_table

from hierspec_lab.bench import results
from hierspec_lab.bench.records import BenchResults

PAGE = common.ROOT / "docs" / "results.md"

INTRO = """# Results

Written by `python benchmarks/report.py` from the files in `benchmarks/results/`; each section
names the command that measures it. Times are medians on a shared two-core machine: read the
ratios, not the milliseconds. Prompts are HumanEval's (the files record their sha256); none are
part of the package.

`zoo:large` is a **synthetic cost with a real distribution**: the trained trunk, made wider and
deeper at load time until a token costs what 116 M parameters cost, with a law that stays near the
trunk's (eps sets how near; the [model card](../src/hierspec_lab/families/data/MODEL_CARD.md) has
α(trunk, large) for each). It says what a hierarchy does with models of these costs and
acceptances. It does not say that your pair of models has them.
"""


def equality(data: dict[str, Any]) -> str:
    rows = []
    for section, cells in data.items():
        if section.startswith("float32"):
            for name, c in cells.items():
                total = c["prompts"]
                rows.append(
                    [section, name, f"{c['equal_alone']}/{total}", f"{c['equal_batch8']}/{total}"]
                )
    tiny = data["float64 tiny"]
    single = sum(c["equal_alone"] for c in tiny.values())
    batch = sum(c["equal_batch8"] for c in tiny.values())
    total = sum(c["prompts"] for c in tiny.values())
    rows.append(
        [
            "float64, seven tiny architectures",
            "all presets",
            f"{single}/{total}",
            f"{batch}/{total}",
        ]
    )
    return "\n\n".join(
        [
            "## Greedy equality",
            f"`python benchmarks/equality.py --prompts humaneval.jsonl`: {data['equal']} of "
            f"{data['outputs']} outputs equal transformers' plain greedy decoding token for token "
            f"({data['tokens']} tokens on the shipped family).",
            common.provenance(data),
            markdown_table(["models", "preset", "alone", "ragged batch of 8"], rows),
        ]
    )


def benches() -> dict[str, BenchResults]:
    """Return results of ``hierspec bench`` by file name: a released model, then the largest eps."""
    released = [common.RESULTS / f"{name}.json.gz" for name in figures.RELEASED]
    paths = [*released, *sorted(common.RESULTS.glob("bench-eps-*.json.gz"), reverse=True)]
    return {path.name.removesuffix(".gz"): results.read(path) for path in paths}


def draw_pictures(files: dict[str, BenchResults]) -> None:
    """Draw the bench of every system on the shipped family, and write a page on the main bench."""
    from hierspec_lab.bench.report import page
    from hierspec_lab.bench.report.pictures import pictures

    for picture in pictures(files["bench-eps-0.2.json"]):
        if picture.stem in report_bench.SHOWN:
            path = PAGE.parent / report_bench.PICTURES / f"{picture.stem}.svg"
            path.write_bytes(picture.content)
    page.write(files[f"{figures.HONEST[0]}.json"], PAGE.parent / "report.html")


def text(files: dict[str, BenchResults]) -> str:
    parts = [INTRO.strip()]
    parts += [report_bench.bench(name, data) for name, data in files.items()]
    for name, section in (
        ("batch", report_bench.batch),
        ("verification", report_bench.verification),
        ("waiting", report_bench.waiting),
        ("cold", report_bench.cold),
        ("heads", report_bench.heads),
        ("equality", equality),
        ("ground", report_ground.ground),
        ("memory", report_ground.memory),
        ("search", report_planning.search),
        ("predict", report_planning.predict),
        ("predict-16bit", report_planning.predict_chats),
        ("predict-own-bits", report_planning.predict_chats),
        ("harmless", report_planning.harmless),
        ("auto", report_ground.auto),
    ):
        parts.append(section(figures.data(name)))
    parts.append((common.RESULTS / "NOTES.md").read_text().strip())
    return "\n\n".join(parts) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing")
    args = parser.parse_args()
    files = benches()
    pages: dict[Path, str] = {
        PAGE: text(files),
        report_papers.PAGE: report_papers.text(),
        **report_pages.filled(),
    }
    changed = [path for path, content in pages.items() if path.read_text() != content]
    names = ", ".join(str(path.relative_to(common.ROOT)) for path in changed)
    if args.check:
        sys.exit(f"not what the files say: {names}" if changed else 0)
    for path in changed:
        path.write_text(pages[path])
    print(f"wrote {names}" if changed else "the pages are what the files say")
    draw_pictures(files)
    report_papers.draw_figures()


if __name__ == "__main__":
    main()
