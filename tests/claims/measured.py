"""README and docs/measured.md: benches of the methods, and what belongs to them."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

from hierspec.bench import results
from hierspec.bench.method_records import MethodRecord, PairedRatio
from hierspec.bench.records import BenchResults
from hierspec.bench.summary import ratio

from .base import RESULTS, Claim, data, percent, words

README_PAGE, MEASURED = "README.md", "docs/measured.md"
# The benches on a released model, by temperature: now, and an earlier version on another machine.
EVERY = {0.0: "smollm2-greedy", 1.0: "smollm2-sampled"}
EARLIER = {0.0: "smollm2-greedy-zen4", 1.0: "smollm2-sampled-zen4"}


@cache
def bench(name: str) -> BenchResults:
    """A result file of ``hierspec bench``."""
    return results.read(
        RESULTS / f"{name if name.startswith('smollm2') else f'bench-eps-{name}'}.json"
    )


def method(file: str, temperature: float, name: str) -> MethodRecord:
    (cell,) = (cell for cell in bench(file).cells if cell.temperature == temperature)
    (found,) = (one for one in cell.measured if one.name == name)
    return found


def speedup(file: str, temperature: float, name: str) -> str:
    """Over plain decoding, as in ``2.68× [2.22, 3.35]``."""
    found = method(file, temperature, name).final_summary.speedup
    assert found is not None
    return found.format()


def over_best_single(file: str, temperature: float, name: str) -> str:
    """Over the single draft whose median time is the least, paired per prompt."""
    (cell,) = (cell for cell in bench(file).cells if cell.temperature == temperature)
    singles = [one for one in cell.measured if one.name in ("branch", "speculative")]
    single = min(singles, key=lambda one: one.final_summary.ms_per_token.median)
    found: PairedRatio = ratio(_times(single), _times(method(file, temperature, name)))
    return found.format()


def _times(record: MethodRecord) -> list[float]:
    return [run.ms_per_token for run in sorted(record.runs, key=lambda run: run.prompt)]


def cells(name: str, methods: dict[float, str] | None = None, file: str = "0.2") -> list[str]:
    """A row of the table: ms a token and speed-up, greedy and at temperature 1."""
    out = []
    for temperature in (0.0, 1.0):
        chosen = (methods or {}).get(temperature, name)
        found = method(file, temperature, chosen).final_summary
        assert found.speedup is not None
        out.append(f"{found.ms_per_token.median:.1f} · {found.speedup.format()}")
    return out


def fastest_of_transformers() -> list[str]:
    """The row of transformers' fastest way to speculate, by median time at each temperature."""
    names = {}
    for cell in bench("0.2").cells:
        ways = [one for one in cell.measured if one.name.startswith("transformers-")]
        names[cell.temperature] = min(
            ways, key=lambda one: one.final_summary.ms_per_token.median
        ).name
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
                found = {one.name: one.final_summary.overhead_ms_per_token for one in cell.measured}
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


def released_predictions() -> list[Any]:
    """Errors on the released model's chats, with costs of either kind."""
    found = data("predict-smollm2")
    (cell,) = (cells["0.0"] for cells in found["targets"].values())
    medians = cell["median_error"], cell["errors_with_earlier_costs"]["median"]
    return [found["prompts"], len(cell["hierarchies"]), *map(percent, medians)]


RELEASED_EQUALITY = ("equality-smollm2-presets", "equality-smollm2-sibling")


def released_equality() -> list[Any]:
    """Greedy texts and sampled ones of every preset that applies to the released model, without a
    draft model and with its sibling."""
    found = [data(name) for name in RELEASED_EQUALITY]
    (given,) = {json.dumps({k: one["settings"][k] for k in ALIKE}) for one in found}
    alike = json.loads(given)
    rows = [row for one in found for row in one["rows"].values() if "prompts" in row]

    def total(key: str) -> Any:
        return sum(one[key] for one in found)

    return [
        *(alike[key] for key in ("prompts", "tokens")),
        *(f"{total(key):,}" for key in ("equal", "outputs")),
        len(rows),
        *(total(key) for key in ("joint_tests_passed", "joint_tests")),
        *(alike[key] for key in ("samples", "chi_prompts")),
        total("false_failure_rate"),
    ]


ALIKE = ("prompts", "tokens", "samples", "chi_prompts", "longest")


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


def gains(file: str, name: str, spaced: str = " and ") -> str:
    found = data(file)["temperatures"]
    return spaced.join(f"{found[t][name]['throughput_gain']['median']:.1f}" for t in ("0.0", "1.0"))


def useless(length: int) -> str:
    found = data("harmless")["useless"][f"random drafters, {length} tokens"]["online"]
    return f"{100 * (found['over_plain']['median'] - 1):.0f} %"


def auto_seconds(which: str) -> list[float]:
    return [cell[which]["seconds"] for cell in data("auto")["temperatures"].values()]


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
                found = cell.compare(one)
                all_runs, equal = all_runs + found.runs, equal + found.equal
                ties += found.near_ties
    return all_runs, equal, ties


def quality_figures() -> tuple[float, ...]:
    """Questions, equal greedy texts; at temperature 1 right answers of both, and the difference."""
    greedy, sampled = (data("quality")["summary"][kind] for kind in ("greedy", "temperature 1"))
    right = (sampled[who]["right"] for who in ("plain", "drafted"))
    points = (100 * value for value in sampled["difference"])
    return (greedy["questions"], greedy["equal"], *right, sampled["questions"], *points)


def chats_ties(file: str) -> tuple[int, int, int]:
    """Greedy runs of ours on the released model: all, equal to plain decoding, near-ties."""
    (cell,) = (cell for cell in bench(file).cells if cell.greedy)
    own = [one for one in cell.measured if one.group != "peer" and one.name != "plain"]
    found = [cell.compare(one) for one in own]
    return (
        sum(one.runs for one in found),
        sum(one.equal for one in found),
        sum(one.near_ties for one in found),
    )


def by_domain(temperature: float, file: str) -> str:
    """The planned hierarchy's speed-ups, as in ``chat 2.1×, code 2.2×``."""
    found = method(file, temperature, "planned").final_summary.by_category
    return ", ".join(f"{name.replace('_', ' ')} {one.speedup:.1f}×" for name, one in found.items())


def _rows(rows: dict[str, str], file: str) -> list[Claim]:
    """A claim for each row of a table, by the method it is about."""
    return [
        Claim(MEASURED, f"{row} | {{}} | {{}} |", lambda name=name: cells(name, file=file))
        for row, name in rows.items()
    ]


def _plain_row(begins: str, file: str) -> Claim:
    def figures() -> list[str]:
        found = [method(file, t, "plain").final_summary.ms_per_token.median for t in (0.0, 1.0)]
        return [f"{ms:.1f}" for ms in found]

    return Claim(MEASURED, begins + " | {} · 1× | {} · 1× |", figures)


def _every_table() -> list[Claim]:
    """Each way to decode the released model: time, times plain and tokens a call, twice."""
    rows = {
        "| planned: levels and budgets computed |": "planned",
        "| planned, adapted while text is written |": "online",
        "| a copy in 4 bits drafts |": "alone-quantized-4",
        "| a copy in 8 bits drafts |": "alone-quantized",
        "| three levels: the best of the drafters stacked in twos and threes |": "hierarchy",
        "| suffix look-up |": "alone-suffix",
        "| prompt look-up |": "prompt-lookup",
        "| a small sibling, trained for half an hour |": "alone-smollm2-sibling",
        "| EAGLE-3, trained for an hour |": "alone-smollm2-eagle3",
        "| LayerSkip: one trained exit |": "layerskip",
        "| HiSpec: two trained exits |": "hispec",
        "| llama.cpp on the 4-bit file |": "llama.cpp-file",
        "| llama.cpp on the 4-bit file, prompt look-up |": "llama.cpp-file-prompt-lookup",
        "| llama.cpp in bfloat16 |": "llama.cpp",
        "| llama.cpp in bfloat16, prompt look-up |": "llama.cpp-prompt-lookup",
        "| transformers, plain `generate` |": "transformers",
        "| transformers, prompt look-up |": "transformers-prompt-lookup",
        "| transformers, early exit |": "transformers-early-exit",
    }

    plain = "| **plain decoding, bfloat16** | {:.1f} · 1× · 1.0 | {:.1f} · 1× · 1.0 |"
    return _both_temperatures(MEASURED, rows, plain, _cell)


def _both_temperatures(
    page: str, rows: dict[str, str], plain: str, cell: Callable[[str, float], str]
) -> list[Claim]:
    """A claim for each row, by the method it is about, and one for plain decoding's."""

    def times() -> list[float]:
        return [method(EVERY[t], t, "plain").final_summary.ms_per_token.median for t in EVERY]

    every = (
        Claim(page, f"{row} {{}} | {{}} |", lambda name=name: [cell(name, t) for t in EVERY])
        for row, name in rows.items()
    )
    return [*every, Claim(page, plain, times)]


def _cell(name: str, temperature: float) -> str:
    """As in ``7.3 · 2.65× [2.50, 2.84] · 13.5``."""
    found = method(EVERY[temperature], temperature, name).final_summary
    length = found.mean_acceptance_length
    assert found.speedup is not None
    return f"{found.ms_per_token.median:.1f} · {found.speedup.format()} · {length:.1f}"


def every_settings() -> tuple[object, ...]:
    """Prompts, their domains, tokens of an answer."""
    settings = bench(EVERY[0.0]).settings
    domains = method(EVERY[0.0], 0.0, "planned").final_summary.by_category
    assert settings.num_prompts == len(method(EVERY[1.0], 1.0, "planned").runs)
    return settings.num_prompts, words(len(domains)), settings.max_new_tokens


def _readme_table() -> list[Claim]:
    """The main rows of that table, each with where the method is from."""
    rows = {
        "| planned: levels and budgets computed | here, P1 |": "planned",
        "| planned, adapted while text is written | here |": "online",
        "| a copy in 4 bits drafts | QuantSpec |": "alone-quantized-4",
        "| a copy in 8 bits drafts | QuantSpec |": "alone-quantized",
        "| three levels, the best of all stacks | P1 |": "hierarchy",
        "| llama.cpp, plain decoding of the 4-bit file | |": "llama.cpp-file",
        "| suffix look-up | SuffixDecoding |": "alone-suffix",
        "| a small sibling, trained for half an hour | |": "alone-smollm2-sibling",
        "| EAGLE-3, trained for an hour | EAGLE-3 |": "alone-smollm2-eagle3",
        "| one early exit with a trained head | LayerSkip |": "layerskip",
        "| two early exits with trained heads | P3 |": "hispec",
        "| transformers, prompt look-up | |": "transformers-prompt-lookup",
        "| transformers, plain `generate` | |": "transformers",
    }

    def cell(name: str, temperature: float) -> str:
        return _cell(name, temperature).rpartition(" · ")[0]

    plain = "| **plain decoding, bfloat16** | | {:.1f} · 1× | {:.1f} · 1× |"
    return _both_temperatures(README_PAGE, rows, plain, cell)


def _over(
    temperature: float, slow: str | Iterable[str], fast: str, files: dict[float, str] = EVERY
) -> str:
    """How many times as fast one way is as another, or as the fastest of several, by prompt."""
    (cell,) = (one for one in bench(files[temperature]).cells if one.temperature == temperature)
    names = {slow} if isinstance(slow, str) else set(slow)
    some = [one for one in cell.measured if one.name in names]
    best = min(some, key=lambda one: one.final_summary.ms_per_token.median)
    return ratio(_times(best), _times(method(files[temperature], temperature, fast))).format()


TRANSFORMERS = ("transformers", "transformers-prompt-lookup", "transformers-early-exit")
DRAFTERS = tuple(
    f"alone-{name}"
    for name in ("quantized-4", "quantized", "suffix", "smollm2-eagle3", "smollm2-sibling")
)
OWN = (*DRAFTERS, "hierarchy", "prompt-lookup", "layerskip", "hispec")


def _compared(temperature: float) -> list[object]:
    """The plan over others, and hierarchies over single drafts; how many tuning tried."""
    records = [method(EVERY[temperature], temperature, name) for name in OWN]
    tried = sum(len(record.tuning.trials) for record in records if record.tuning)
    return [
        by_domain(temperature, EVERY[temperature]),
        _over(temperature, TRANSFORMERS, "planned"),
        _over(temperature, "llama.cpp-file", "planned"),
        _over(temperature, DRAFTERS, "planned"),
        _over(temperature, DRAFTERS, "hierarchy"),
        _over(temperature, "layerskip", "hispec"),
        tried,
        _over(temperature, OWN, "planned"),
    ]


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
    Claim(
        MEASURED,
        "two Zen 5 cores, bfloat16, {} chat prompts of {} domains, answers of {} tokens at most",
        every_settings,
    ),
    *_every_table(),
    Claim(
        MEASURED,
        "Of {} greedy texts {} equal plain decoding's and {} diverge from it at a near-tie.",
        lambda: chats_ties(EVERY[0.0]),
    ),
    Claim(
        MEASURED,
        "two Zen 4 cores, the same prompts: planned {} plain decoding greedily and {} at "
        "temperature 1, {} and {} the fastest of transformers' ways, {} and {} llama.cpp on the "
        "4-bit file; three levels {} and {} of the best drafter alone.",
        lambda: [
            _over(t, slow, fast, EARLIER)
            for slow, fast in (
                ("plain", "planned"),
                (TRANSFORMERS, "planned"),
                ("llama.cpp-file", "planned"),
                (DRAFTERS, "hierarchy"),
            )
            for t in EARLIER
        ],
    ),
    *(
        Claim(
            MEASURED,
            f"{begins}, the planned hierarchy gains by domain: {{}}. It is {{}} as fast as the "
            "fastest of transformers' ways and {} as fast as llama.cpp on the 4-bit file; over "
            "the best drafter alone it is {}, and the three levels that tuning found {}. HiSpec "
            "is {} as fast as LayerSkip. Of {} hierarchies tried while tuning the best of each "
            "kind was measured; the plan is {} as fast as the best of these.",
            lambda t=t: _compared(t),
        )
        for t, begins in ((0.0, "Greedily"), (1.0, "At temperature 1"))
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
        "On SmolLM2 in float32, {} chats and {} tokens after each, {} of {} texts of {} "
        "hierarchies equal, and {} of {} χ² tests of the first three tokens pass ({} samples of "
        "{} prompts each, false failures {:g} in all)",
        released_equality,
    ),
    Claim(
        MEASURED,
        "and of each chat the last {} tokens are read.",
        lambda: (data("equality-smollm2-presets")["settings"]["longest"],),
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
        MEASURED,
        "On {} others, greedily, {} hierarchies: median error {} with costs timed again between "
        "the runs and {} with the profile's own.",
        released_predictions,
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
        "it is {} as fast as its own plain decoding and {} as fast as the fastest of transformers' "
        "ways",
        lambda: (
            speedup(EVERY[0.0], 0.0, "planned"),
            _over(0.0, TRANSFORMERS, "planned"),
        ),
    ),
    Claim(
        README_PAGE,
        "two Zen 5 cores, bfloat16, {} chat prompts of {} domains, answers of {} tokens at most",
        every_settings,
    ),
    *_readme_table(),
    Claim(
        README_PAGE,
        "On it {} of {} greedy texts diverge from plain decoding's at a near-tie.",
        lambda: (chats_ties(EVERY[0.0])[2], chats_ties(EVERY[0.0])[0]),
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
