"""The figures that README and other pages quote, recomputed from the result files.

A claim is a piece of a page with ``{}`` where figures stand, and a function that gives them as
they must be printed. To quote a figure, write it on the page and add a line here; a figure of
the measured parts of README and docs/measured.md without a claim fails the tests, as does any digit
changed on a page.
"""

from __future__ import annotations

import dataclasses
import json
import math
import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from hierspec.bench import results
from hierspec.bench.records import BenchResults, MethodRecord, PairedRatio
from hierspec.bench.summary import ratio

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
README_PAGE, MEASURED = "README.md", "docs/measured.md"
CHATS = "smollm2"  # the bench on a released model


@dataclass(frozen=True)
class Claim:
    """``said`` stands on ``page`` once its gaps are filled with what ``figures`` computes."""

    page: str
    said: str
    figures: Callable[[], Iterable[object]] = tuple

    def text(self) -> str:
        return flat(self.said.format(*self.figures()))


def flat(text: str) -> str:
    """Text as a line: pages break lines where they like."""
    return " ".join(text.split())


@cache
def data(name: str) -> Any:
    """A result file of a script."""
    return json.loads((RESULTS / f"{name}.json").read_text())


@cache
def bench(name: str) -> BenchResults:
    """A result file of ``hierspec bench``."""
    return results.read(RESULTS / f"{name if name == CHATS else f'bench-eps-{name}'}.json")


def method(file: str, temperature: float, name: str) -> MethodRecord:
    (cell,) = (cell for cell in bench(file).cells if cell.temperature == temperature)
    (found,) = (one for one in cell.measured if one.name == name)
    return found


def speedup(file: str, temperature: float, name: str) -> str:
    """Over plain decoding, as in ``2.68× [2.22, 3.35]``."""
    found = method(file, temperature, name).summed.speedup
    assert found is not None
    return found.said()


def over_best_single(file: str, temperature: float, name: str) -> str:
    """Over the single draft whose median time is the least, paired per prompt."""
    (cell,) = (cell for cell in bench(file).cells if cell.temperature == temperature)
    singles = [one for one in cell.measured if one.name in ("branch", "speculative")]
    single = min(singles, key=lambda one: one.summed.ms_per_token.median)
    found: PairedRatio = ratio(_times(single), _times(method(file, temperature, name)))
    return found.said()


def _times(record: MethodRecord) -> list[float]:
    return [run.ms_per_token for run in sorted(record.runs, key=lambda run: run.prompt)]


def cells(name: str, methods: dict[float, str] | None = None, file: str = "0.2") -> list[str]:
    """A row of the table: ms a token and speed-up, greedy and at temperature 1."""
    out = []
    for temperature in (0.0, 1.0):
        chosen = (methods or {}).get(temperature, name)
        found = method(file, temperature, chosen).summed
        assert found.speedup is not None
        out.append(f"{found.ms_per_token.median:.1f} · {found.speedup.said()}")
    return out


def fastest_of_transformers() -> list[str]:
    """The row of transformers' fastest way to speculate, by median time at each temperature."""
    names = {}
    for cell in bench("0.2").cells:
        ways = [one for one in cell.measured if one.name.startswith("transformers-")]
        names[cell.temperature] = min(ways, key=lambda one: one.summed.ms_per_token.median).name
    return cells("", names)


PAIRED = ("branch", "speculative", "hierarchy", "planned")


def overheads(temperature: float, machine: str, files: Iterable[str]) -> str:
    """The range of median milliseconds a token outside forwards, as in ``0.11–0.38``."""
    values = []
    for name in files:
        if machine not in bench(name).environment.cpu:
            continue
        for cell in bench(name).cells:
            if cell.temperature == temperature:
                found = {one.name: one.summed.overhead_ms_per_token for one in cell.measured}
                values += [found[key].median for key in ("hierarchy", "planned") if found.get(key)]
    return f"{min(values):.2f}–{max(values):.2f}"


def all_benches() -> list[str]:
    return sorted(path.stem.removeprefix("bench-eps-") for path in RESULTS.glob("bench-eps-*.json"))


def runs_on(machine: str) -> list[str]:
    return [name for name in all_benches() if machine in bench(name).environment.cpu]


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


def bench_predictions(machine: str) -> list[float]:
    """Errors of what benches predicted from their own profiles, minutes old, on a machine."""
    return [
        abs(one.prediction.error)
        for name in runs_on(machine)
        for cell in bench(name).cells
        for one in cell.measured
        if one.prediction is not None and one.name in PAIRED
    ]


def percent(value: float, decimals: int = 1) -> str:
    return f"{100 * value:.{decimals}f} %"


def gains(file: str, name: str, spaced: str = " and ") -> str:
    found = data(file)["temperatures"]
    return spaced.join(f"{found[t][name]['throughput_gain']['median']:.1f}" for t in ("0.0", "1.0"))


def useless(length: int) -> str:
    found = data("harmless")["useless"][f"random drafters, {length} tokens"]["online"]
    return f"{100 * (found['over_plain']['median'] - 1):.0f} %"


def auto_seconds(which: str) -> list[float]:
    return [cell[which]["seconds"] for cell in data("auto")["temperatures"].values()]


def words(number: int) -> str:
    """Small numbers as prose writes them."""
    return {5: "five", 6: "six", 7: "seven", 8: "eight", 9: "nine"}.get(number, str(number))


def near_ties() -> tuple[int, int, int]:
    """Greedy runs in bfloat16 of all benches, ours: all, equal to plain decoding, near-ties."""
    all_runs = equal = ties = 0
    for name in all_benches():
        for cell in bench(name).cells:
            if not cell.greedy:
                continue
            for one in cell.measured:
                if one.group == "peer" or one.name == "plain":
                    continue
                found = cell.compared(one)
                all_runs, equal = all_runs + found.runs, equal + found.equal
                ties += found.near_ties
    return all_runs, equal, ties


def quality_figures() -> tuple[float, ...]:
    """Questions, equal greedy texts; at temperature 1 right answers of both, and the difference."""
    greedy, sampled = (data("quality")["summary"][kind] for kind in ("greedy", "temperature 1"))
    right = (sampled[who]["right"] for who in ("plain", "drafted"))
    points = (100 * value for value in sampled["difference"])
    return (greedy["questions"], greedy["equal"], *right, sampled["questions"], *points)


def chats_settings() -> tuple[object, ...]:
    """Prompts, their domains, tokens of an answer."""
    settings, domains = bench(CHATS).settings, method(CHATS, 0.0, "planned").summed.by_category
    return settings.num_prompts, words(len(domains)), settings.max_new_tokens


def chats_ties() -> tuple[int, int, int]:
    """Greedy runs of ours on the released model: all, equal to plain decoding, near-ties."""
    (cell,) = (cell for cell in bench(CHATS).cells if cell.greedy)
    own = [one for one in cell.measured if one.group != "peer" and one.name != "plain"]
    found = [cell.compared(one) for one in own]
    return (
        sum(one.runs for one in found),
        sum(one.equal for one in found),
        sum(one.near_ties for one in found),
    )


def lengths(name: str) -> list[str]:
    """Tokens a call of the target, greedy and at temperature 1."""
    found = [method(CHATS, t, name).summed.mean_acceptance_length for t in (0.0, 1.0)]
    return [f"{length:.1f}" for length in found if length is not None]


def by_domain(temperature: float) -> str:
    """The planned hierarchy's speed-ups, as in ``chat 2.1×, code 2.2×``."""
    found = method(CHATS, temperature, "planned").summed.by_category
    return ", ".join(f"{name.replace('_', ' ')} {one.speedup:.1f}×" for name, one in found.items())


def over_transformers(temperature: float) -> str:
    """The planned hierarchy over the faster of transformers' ways measured, by median time."""
    (cell,) = (cell for cell in bench(CHATS).cells if cell.temperature == temperature)
    ways = [one for one in cell.measured if one.name.startswith("transformers")]
    best = min(ways, key=lambda one: one.summed.ms_per_token.median)
    return ratio(_times(best), _times(method(CHATS, temperature, "planned"))).said()


def _chats_table() -> list[Claim]:
    rows = {
        "| planned: levels and budgets computed | here, P1": "planned",
        "| planned, adapted while text is written | here": "online",
        "| a copy in 4 bits drafts | QuantSpec": "alone-quantized-4",
        "| a copy in 8 bits drafts | QuantSpec": "quantized",
        "| suffix look-up | SuffixDecoding": "alone-suffix",
        "| prompt look-up |": "prompt-lookup",
        "| EAGLE-3, trained for an hour | EAGLE-3": "alone-smollm2-eagle3",
        "| llama.cpp, plain decoding of the 4-bit file |": "llama.cpp-file",
        "| transformers, prompt look-up |": "transformers-prompt-lookup",
        "| transformers, plain `generate` |": "transformers",
    }
    return [*_rows(rows, CHATS), _plain_row("| **plain decoding, bfloat16** |", CHATS)]


def _rows(rows: dict[str, str], file: str) -> list[Claim]:
    """A claim for each row of a table, by the method it is about."""
    return [
        Claim(MEASURED, f"{row} | {{}} | {{}} |", lambda name=name: cells(name, file=file))
        for row, name in rows.items()
    ]


def _plain_row(begins: str, file: str) -> Claim:
    def figures() -> list[str]:
        found = [method(file, t, "plain").summed.ms_per_token.median for t in (0.0, 1.0)]
        return [f"{ms:.1f}" for ms in found]

    return Claim(MEASURED, begins + " | {} · 1× | {} · 1× |", figures)


_CHATS = "two Zen 5 cores, bfloat16, {} chat prompts of {} domains, answers of {} tokens at most"
_SHORT = (  # rows of that table that README shows
    "| planned", "| a copy", "| hierarchy", "| suffix", "| EAGLE", "| llama.cpp",
    "| transformers", "| **plain",
)  # fmt: skip


def _table() -> list[Claim]:
    rows = {
        "| planned: levels and budgets computed | here, P1": "planned",
        "| hierarchy: three levels | P1": "hierarchy",
        "| horizontal order | P2": "horizontal",
        "| dynamic windows, three models | P5": "dynamic-windows",
        "| one draft, tokenwise |": "speculative",
        "| one draft, block = branch | P4": "branch",
        "| several drafts, block-RRS | P4": "multi-draft",
        "| interleaved order | P2": "interleaved",
        "| self-verify, two models | P5": "self-verify",
        "| Lookahead's n-gram pool, as a drafter |": "lookahead",
        "| LayerSkip: one early exit |": "layerskip",
        "| HiSpec: two early exits | P3": "hispec",
        "| llama.cpp, plain decoding |": "llama.cpp",
        "| transformers, plain `generate` |": "transformers",
    }
    fastest = "| transformers, fastest of its four ways to speculate | | {} | {} |"
    return [
        *_rows(rows, "0.2"),
        Claim(MEASURED, fastest, fastest_of_transformers),
        _plain_row("| **plain decoding** |", "0.2"),
    ]


PAGE = [
    Claim(MEASURED, _CHATS, chats_settings),
    *_chats_table(),
    Claim(
        MEASURED,
        "Greedily, the planned hierarchy's median speed-ups by domain: {};",
        lambda: (by_domain(0.0),),
    ),
    Claim(
        MEASURED,
        "tokens a call of the target: {} and {} planned, {} and {} the 4-bit copy, {} and {} the "
        "8-bit one, {} and {} EAGLE-3",
        lambda: (
            length
            for name in ("planned", "alone-quantized-4", "quantized", "alone-smollm2-eagle3")
            for length in lengths(name)
        ),
    ),
    Claim(
        MEASURED,
        "Of {} greedy texts {} equal plain decoding's and {} diverge from it at a near-tie.",
        chats_ties,
    ),
    Claim(
        MEASURED,
        "The planned hierarchy is {} as fast as the faster of transformers' ways greedily and {} "
        "at temperature 1.",
        lambda: (over_transformers(0.0), over_transformers(1.0)),
    ),
    Claim(
        MEASURED,
        "Here {} of them, two Xeon cores, bfloat16, {} HumanEval prompts × {} tokens",
        lambda: (
            len({one.name for cell in bench("0.2").cells for one in cell.measured}),
            bench("0.2").settings.num_prompts,
            bench("0.2").settings.max_new_tokens,
        ),
    ),
    *_table(),
    Claim(
        MEASURED,
        "On more and longer text ({} prompts × {} tokens) the planned hierarchy is {} as fast as "
        "own plain decoding with greedy decoding and {} at temperature 1; its gain over the best "
        "single draft is {} and {}.",
        lambda: (
            bench("0.2-long").settings.num_prompts,
            bench("0.2-long").settings.max_new_tokens,
            *(speedup("0.2-long", t, "planned") for t in (0.0, 1.0)),
            *(over_best_single("0.2-long", t, "planned") for t in (0.0, 1.0)),
        ),
    ),
    Claim(
        MEASURED,
        "the same comparison gave {}× and {}×.",
        lambda: (speedup("0.2-long-zen5", t, "planned").partition("×")[0] for t in (0.0, 1.0)),
    ),
    Claim(
        MEASURED,
        "by {} (eps 0.1, {} prompts, an n-gram table as the lowest level) and, as planned, by {} "
        "and {} (eps 0.05); at temperature 1 hardly: {} and {}. On Zen 5 they won {} and {} there.",
        lambda: (
            over_best_single("0.1", 0.0, "hierarchy"),
            bench("0.1").settings.num_prompts,
            over_best_single("0.1", 0.0, "planned"),
            over_best_single("0.05", 0.0, "planned"),
            over_best_single("0.1", 1.0, "planned"),
            over_best_single("0.05", 1.0, "planned"),
            over_best_single("0.1-zen5", 1.0, "hierarchy"),
            over_best_single("0.05-zen5", 1.0, "hierarchy"),
        ),
    ),
    Claim(
        MEASURED,
        "Outside forward passes a token costs {} ms greedy and {} ms sampling in these "
        "hierarchies, over all {} runs on the Xeon (on Zen 5, {} prompts, {} and {})",
        lambda: (
            overheads(0.0, "Intel", runs_on("Intel")),
            overheads(1.0, "Intel", runs_on("Intel")),
            words(len(runs_on("Intel"))),
            bench("0.2-long-zen5").settings.num_prompts,
            overheads(0.0, "AMD", ["0.2-long-zen5"]),
            overheads(1.0, "AMD", ["0.2-long-zen5"]),
        ),
    ),
    Claim(
        MEASURED,
        "verification takes less than {} % of a round at a vocabulary of {} k",
        lambda: (
            math.ceil(100 * data("verification")["largest_verification_share"]),
            f"{data('verification')['settings']['vocab'] / 1000:.0f}",
        ),
    ),
    Claim(
        MEASURED,
        "Eight ragged sequences together write {} times as many tokens a second as one in plain "
        "decoding (greedy and temperature 1), {} times with one draft, {} in three levels (Zen 5, "
        "whose cores are busy sooner: {}, {} and {}).",
        lambda: (
            gains("batch", "plain"),
            gains("batch", "single draft"),
            gains("batch", "three levels"),
            *(
                gains("batch-zen5", name).partition(" ")[0]
                for name in ("plain", "single draft", "three levels")
            ),
        ),
    ),
    Claim(
        MEASURED,
        "of {} questions of GSM8K, answered in float32 with the default hierarchy, {} greedy "
        "texts equal plain decoding's token for token. At temperature 1 plain decoding is right "
        "in {} and the hierarchy in {} of {}, a difference of {:.0f} points [{:.0f}, {:.0f}]",
        quality_figures,
    ),
    Claim(
        MEASURED,
        "{} of {} equal plain greedy decoding token for token (float32 on the shipped family, "
        "float64 on {} tiny architectures",
        lambda: (
            data("equality")["equal"],
            data("equality")["outputs"],
            words(len({name.split()[0] for name in data("equality")["float64 tiny"]})),
        ),
    ),
    Claim(
        MEASURED,
        "Of {} greedy texts of ours in bfloat16, {} equal plain decoding's and {} diverge from it "
        "at a near-tie ({}).",
        lambda: (*near_ties(), percent(near_ties()[2] / near_ties()[0], 0)),
    ),
    Claim(
        MEASURED,
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
        MEASURED,
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
        MEASURED,
        "The first `auto` took {:.0f}–{:.0f} s, measuring included, later ones {:.0f} s, loading "
        "included",
        lambda: (*sorted(auto_seconds("first")), statistics.fmean(auto_seconds("later"))),
    ),
    Claim(
        MEASURED,
        "online control costs {} over 64 tokens and {} over 512",
        lambda: (useless(64), useless(512)),
    ),
]
README = [
    Claim(
        README_PAGE,
        "it is {} as fast as its own plain decoding and {} as fast as the faster of",
        lambda: (speedup(CHATS, 0.0, "planned"), over_transformers(0.0)),
    ),
    Claim(README_PAGE, _CHATS, chats_settings),
    *(
        dataclasses.replace(claim, page=README_PAGE)
        for claim in _chats_table()
        if claim.said.startswith(_SHORT)
    ),
    Claim(
        README_PAGE,
        "On it {} of {} greedy texts diverge from plain decoding's at a near-tie.",
        lambda: (chats_ties()[2], chats_ties()[0]),
    ),
    Claim(
        README_PAGE,
        "In wider types {} of {} are equal.",
        lambda: (data("equality")["equal"], data("equality")["outputs"]),
    ),
    Claim(
        README_PAGE,
        "Where every draft is useless, adapting costs {} over 64 tokens.",
        lambda: (useless(64),),
    ),
]


def _several_drafts() -> list[Claim]:
    """The table of random pairs in the page about several drafts."""
    names = ("one draft, block", "block-rrs", "traversal", "induced-block", "optimum")

    def figures(cell: dict[str, Any]) -> list[object]:
        means = [f"{cell['mean_tokens'][name]:.3f}" for name in names]
        wins = cell["wins"]
        more, less = "induced-block over traversal", "traversal over induced-block"
        shape = (cell["vocab"], cell["length"], cell["num_drafts"])
        return [*shape, *means, wins[more], wins[less]]

    row = "| {}, {}, {} | {} | {} | {} | {} | {} | {} : {} |"
    return [
        Claim("docs/several-drafts.md", row, lambda cell=cell: figures(cell))
        for cell in data("several-drafts")["cells"]
    ]


def first_hour() -> tuple[int, int, int, int]:
    """Families played, ways in that gave transformers' tokens, all ways in, families refused."""
    rows = data("first-hour")["families"]
    ways = [equal for row in rows for equal in row.get("equal", {}).values()]
    refused = [row for row in rows if row.get("one_line")]
    return len([row for row in rows if "equal" in row]), sum(ways), len(ways), len(refused)


SEVERAL_DRAFTS = _several_drafts()
STREAMS = [
    Claim(
        "docs/serving.md",
        "Of {} streams at once, half greedy and half seeded, sent twice on the shipped `zoo:mid` "
        "in float32, {} of {} were what the same request gave alone",
        lambda: (
            data("serving-streams")["settings"]["streams"],
            data("serving-streams")["equal_to_alone"],
            data("serving-streams")["requests"],
        ),
    )
]


def _throughput() -> list[Claim]:
    """The table of streams, and what is said below it."""
    rows = {row["streams"]: row for row in data("serving-throughput")["rows"]}
    said = [
        Claim(
            "docs/serving.md",
            "| {} | {} | {} | {}× |",
            lambda row=row: (
                row["streams"],
                f"{row['service']['median']:.0f}",
                f"{row['plain']['median']:.0f}",
                f"{row['over_plain']['median']:.2f}",
            ),
        )
        for row in rows.values()
    ]
    short, prefix = data("serving-throughput")["short_among_long"], data("serving-prefix")
    more = rows[16]["service"]["median"] / rows[1]["service"]["median"]
    return [
        *said,
        Claim("docs/serving.md", "Sixteen streams write {} times", lambda: (f"{more:.2f}",)),
        Claim(
            "docs/serving.md",
            "lies within the spread: {} [{}, {}] and {} [{}, {}] of plain decoding",
            lambda: [
                f"{rows[streams]['over_plain'][key]:.2f}"
                for streams in (16, 64)
                for key in ("median", "low95", "high95")
            ],
        ),
        Claim(
            "docs/serving.md",
            "among prompts of {} words had their first token after {} s, {} s at the 99th",
            lambda: (
                short["long_words"],
                f"{short['seconds']['median']:.2f}",
                f"{short['seconds']['p99']:.2f}",
            ),
        ),
        Claim(
            "docs/serving.md",
            "a chat of {} tokens answers its first token {} times sooner",
            lambda: (prefix["settings"]["tokens"], f"{prefix['sooner']['median']:.1f}"),
        ),
    ]


THROUGHPUT = _throughput()


def _deterministic() -> list[Claim]:
    """How many texts were equal, and the price."""
    found = data("deterministic")
    prices = [row["price"]["median"] for row in found["hierarchies"].values()]
    page = "docs/reproducible.md"
    return [
        Claim(
            page,
            "{} of {} greedy texts of five hierarchies",
            lambda: (found["equal"]["deterministic"], found["runs"]),
        ),
        Claim(
            page,
            "token for token, {} of {} without the mode",
            lambda: (found["equal"]["usual"], found["runs"]),
        ),
        Claim(
            page,
            "Plain decoding takes {} times as long in it, the hierarchies {} to {} times",
            lambda: (
                f"{found['plain']['price']['median']:.2f}",
                f"{min(prices):.2f}",
                f"{max(prices):.2f}",
            ),
        ),
    ]


def _trees() -> list[Claim]:
    """The table of trees on the released model."""
    shown = {
        "1 drafts": "one draft",
        "4 drafts": "trees of four drafts",
        "8 drafts": "trees of eight",
        "8 drafts, a slot each": "eight drafts, a slot each",
    }

    def figures(name: str) -> list[str]:
        rows = [by[name] for by in data("token-trees-smollm2")["temperatures"].values()]
        return [
            f"{row[key]['median']:.2f}" for row in rows for key in ("tokens_per_call", "over_plain")
        ]

    return [
        Claim(
            "docs/several-drafts.md",
            f"| {title} | {{}} | {{}}× | {{}} | {{}}× |",
            lambda name=name: figures(name),
        )
        for name, title in shown.items()
    ]


DETERMINISTIC, TREES = _deterministic(), _trees()
MATCH = [
    Claim(
        "docs/reproducible.md",
        "are kept with {}, between {} and {}; {} of {} texts",
        lambda: (
            *(
                f"{data('match')['acceptance']['small'][key]:.3f}"
                for key in ("match", "bound", "tokenwise")
            ),
            data("match")["equal"],
            data("match")["runs"],
        ),
    )
]


def _leaks() -> tuple[object, ...]:
    """Requests, growth in per cent; nothing may be left."""
    found = data("serving-leaks")
    assert found["more_threads"] == found["more_files"] == found["failed"] == 0
    return found["settings"]["requests"], f"{100 * found['growth']:.1f}"


PEERS = [
    Claim(
        "docs/serving.md",
        f"| {name} | {{}} | {{}} | {{}} |",
        lambda server=server: tuple(
            f"{row['rate']['median']:.0f}"
            for row in data("serving-peers")["rows"]
            if row["server"] == server
        ),
    )
    for server, name in {
        "hierspec": "`hierspec serve`",
        "llama.cpp": "llama.cpp's server",
        "llama.cpp, Q4_1": "the same on the 4-bit file (Q4_1)",
        "transformers serve": "`transformers serve`",
        "transformers serve, continuous batching": "`transformers serve --continuous-batching`",
    }.items()
]


def _comply() -> tuple[str, ...]:
    """Tests that pass, and all; what else there is, is named."""
    kinds = [data("serving-llm-comply")[kind] for kind in ("openai-chat", "open-responses")]
    tests = [test for kind in kinds for test in kind["results"]]
    rest = {test["id"]: test["status"] for test in tests if test["status"] != "passed"}
    assert sorted(rest.values()) == ["failed", "failed", "skipped", "skipped"]
    assert all("image" in name or "reasoning" in name for name in rest)
    assert data("serving-guidellm")["requests"]["errored"] == 0
    return str(len(tests) - len(rest)), str(len(tests))


COMPLY = [
    Claim("docs/serving.md", "tests of chats and Responses {} of {} pass", _comply),
]


def _restart() -> tuple[object, ...]:
    """Streams, the longest wait in seconds, kills."""
    found = data("serving-restart")
    streams = found["settings"]["streams"]
    assert all(sum(each.values()) == streams for each in found["clients"])
    assert all(set(each) == {"RemoteProtocolError"} for each in found["clients"])
    waits = found["ready_again_seconds"]
    return streams, f"{max(waits):.1f}", len(waits)


def _autoscale() -> tuple[object, ...]:
    """Streams, seconds until there were two replicas, answers until then and after it."""
    found = data("serving-ray-autoscale")["autoscale"]
    assert found["replicas_at_first"] == 1
    assert set(found["answers"]) == set(found["later"]) == {"whole answer"}
    seconds = f"{found['seconds_until_there_are_two']:.0f}"
    return (
        found["streams"],
        seconds,
        found["answers"]["whole answer"],
        found["later"]["whole answer"],
    )


def _killed() -> list[int]:
    """Requests; answers of two kills of a replica and one of the gateway, whole and in part."""
    found = data("serving-ray")["serve"]
    first, second, gateway = (list(kill["answers"].values()) for kill in found)
    assert all(kill["later"] == {"whole answer": 10} for kill in found)
    return [found[0]["requests"], *first, *second, *gateway]


AUTOSCALE = [
    Claim(
        "docs/cluster.md",
        "{} requests of 48 tokens, 8 at once, half of them streams): a replica killed, {} whole "
        "answers and {} error events, and again, {} whole answers; the gateway killed, {} whole "
        "answers and {} times 503. Ten requests after each kill were all answered.",
        _killed,
    ),
    Claim(
        "docs/cluster.md",
        "{} streams had a second replica after {} s (Ray waits\n30 before it adds one), and of {} "
        "answers meanwhile and {} after it none was cut",
        _autoscale,
    ),
]
LEAKS = [
    Claim(
        "docs/serving.md",
        "Over {} short requests after the first thousand, a tenth of which left early, the process "
        "grew by {} %",
        _leaks,
    )
]
RESTART = [
    Claim(
        "docs/serving.md",
        "while {} streams ran, it ended all their connections, and started again was ready after "
        "{} s at most ({} times",
        _restart,
    )
]
FIRST_HOUR = [
    Claim("docs/models.md", "relatives, {} in all,", lambda: first_hour()[:1]),
    Claim(
        "docs/models.md",
        "{} of {} gave transformers' own greedy tokens in float32. Another {} families",
        lambda: first_hour()[1:],
    ),
]


def _judged(file: str, method: str) -> tuple[list[float], list[float]]:
    """Entropies of a drafter's tokens that the target kept, and of those that it rejected."""
    runs = data(f"evidence/{file}")["runs"]
    every = [pair for run in runs if run["method"] == method for pair in run["entropies"]]
    return [v for v, good in every if good], [v for v, good in every if not good]


def _separation(file: str, method: str) -> list[str]:
    """A row of P5's page: what was rejected, mean entropies, AUC, shares above the mean."""
    kept, lost = _judged(file, method)
    wins = sum((a > b) + (a == b) / 2 for a in lost for b in kept)
    threshold = statistics.fmean(lost)
    return [
        f"{len(lost)} of {len(kept) + len(lost)}",
        f"{statistics.fmean(kept):.2f} / {threshold:.2f}",
        f"{wins / len(lost) / len(kept):.2f}".lstrip("0"),
        *(f"{100 * statistics.fmean(v > threshold for v in some):.0f}" for some in (kept, lost)),
    ]


def _fifths(file: str, method: str) -> list[str]:
    """The share of rejected tokens in fifths of rising entropy."""
    kept, lost = _judged(file, method)
    every = sorted([(v, 0) for v in kept] + [(v, 1) for v in lost])
    n = len(every)
    parts = (every[i * n // 5 : (i + 1) * n // 5] for i in range(5))
    return [f"{statistics.fmean(bad for _, bad in part):.2f}".lstrip("0") for part in parts]


def _offered(file: str, method: str) -> list[str]:
    """Tokens offered to the target a round, and the per cent of them that it keeps."""
    runs = [run for run in data(f"evidence/{file}")["runs"] if run["method"] == method]
    rounds = [pair for run in runs for pair in run["rounds"]]
    offered = sum(number for number, _ in rounds)
    return [
        f"{offered / len(rounds):.1f}",
        f"{100 * sum(kept for _, kept in rounds) / offered:.0f}",
    ]


def _first_rejection(file: str) -> str:
    """The round in which the full system's target rejects for the first time, mean over texts."""
    runs = [run for run in data(f"evidence/{file}")["runs"] if run["method"] == "full"]
    first = [
        next((i for i, (offered, kept) in enumerate(run["rounds"], 1) if kept < offered), None)
        for run in runs
    ]
    return f"{statistics.fmean(one for one in first if one is not None):.1f}"


def _lengths() -> list[str]:
    """Median tokens of a prompt: summarization, GSM8K."""
    (table,) = data("reproduce-p3-figure9")["tables"]
    medians = {row["domain"]: row["median"] for row in table["rows"]}
    return [f"{medians[domain]:.0f}" for domain in ("summarization", "gsm8k")]


_P5 = "docs/papers/p5.md"
PAPERS = [
    Claim(
        "docs/papers/evidence.md",
        "median prompt of summarization {} tokens, of GSM8K {};",
        _lengths,
    ),
    *(
        Claim(
            _P5,
            f"| {models} | {temperature} | {method[-2:]} | {{}} | {{}} | {{}} | {{}} % | {{}} % |",
            lambda file=file, method=method: _separation(file, method),
        )
        for file, models, temperature in (
            ("p5-trunk-0", "trunk", 0),
            ("p5-trunk-1", "trunk", 1),
            ("p5-smollm2-1", "SmolLM2", 1),
        )
        for method in ("vanilla M2", "vanilla M1")
    ),
    Claim(
        _P5,
        "fifths of rising entropy is {}, {}, {}, {}, {} there",
        lambda: _fifths("p5-trunk-1", "vanilla M2"),
    ),
    Claim(
        _P5,
        "it offers the target {} tokens a round, of which {} % are kept, where vanilla M2 offers "
        "{} ({} %)",
        lambda: _offered("p5-trunk-1", "full") + _offered("p5-trunk-1", "vanilla M2"),
    ),
    Claim(
        _P5,
        "On SmolLM2 it offers {} ({} %), vanilla M2 {} ({} %)",
        lambda: _offered("p5-smollm2-1", "full") + _offered("p5-smollm2-1", "vanilla M2"),
    ),
    Claim(
        _P5,
        "first time in round {} on the trunk at temperature 1 and in round {} on SmolLM2",
        lambda: (_first_rejection("p5-trunk-1"), _first_rejection("p5-smollm2-1")),
    ),
]
# Figures of the measured parts that are no measurement: settings, names, aims.
SETTINGS = (
    "(pictures/bench-eps-0.2/speedup-t1.svg)", "116 M parameters", "eps 0.2", "temperature 1",
    "P1", "P2", "P3", "P4", "P5", "95 %", "Zen 5", "float32", "float64", "bfloat16",
    "80 candidates", "SmolLM2-135M-Instruct", "in 4 bits", "in 8 bits", "4-bit", "8-bit", "EAGLE-3",
    "16 bits", "Q4_1", "(`zoo:smollm2`)", "(smollm2.md)",
)  # fmt: skip
CLAIMS = (
    README
    + PAGE
    + SEVERAL_DRAFTS
    + FIRST_HOUR
    + STREAMS
    + THROUGHPUT
    + DETERMINISTIC
    + TREES
    + MATCH
    + COMPLY
    + AUTOSCALE
    + LEAKS
    + RESTART
    + PEERS
    + PAPERS
)
