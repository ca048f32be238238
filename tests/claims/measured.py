"""docs/measured.md: benches of the methods, and what belongs to them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from typing import Any

from .base import Claim, data, percent, words
from .benches import (
    EVERY,
    TRANSFORMERS,
    all_benches,
    bench,
    both_temperatures,
    by_domain,
    chats_ties,
    every_settings,
    method,
    over,
    over_best_single,
    runs_on,
    speedup,
    table_cell,
    useless,
)
from .reproducible import kernels_beside

MEASURED_PAGE = "docs/measured.md"


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


ALIKE = ("prompts", "tokens", "samples", "chi_prompts", "longest")
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


def gains(file: str, name: str, spaced: str = " and ") -> str:
    found = data(file)["temperatures"]
    return spaced.join(f"{found[t][name]['throughput_gain']['median']:.1f}" for t in ("0.0", "1.0"))


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


def _rows(rows: dict[str, str], file: str) -> list[Claim]:
    """A claim for each row of a table, by the method it is about."""
    return [
        Claim(MEASURED_PAGE, f"{row} | {{}} | {{}} |", lambda name=name: cells(name, file=file))
        for row, name in rows.items()
    ]


def _plain_row(begins: str, file: str) -> Claim:
    def figures() -> list[str]:
        found = [method(file, t, "plain").final_summary.ms_per_token.median for t in (0.0, 1.0)]
        return [f"{ms:.1f}" for ms in found]

    return Claim(MEASURED_PAGE, begins + " | {} · 1× | {} · 1× |", figures)


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
    return both_temperatures(MEASURED_PAGE, rows, plain, table_cell)


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
        over(temperature, TRANSFORMERS, "planned"),
        over(temperature, "llama.cpp-file", "planned"),
        over(temperature, DRAFTERS, "planned"),
        over(temperature, DRAFTERS, "hierarchy"),
        over(temperature, "layerskip", "hispec"),
        tried,
        over(temperature, OWN, "planned"),
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
        Claim(MEASURED_PAGE, fastest, fastest_of_transformers),
        _plain_row("| **plain decoding** |", "0.2"),
    ]


MEASURED = [
    Claim(
        MEASURED_PAGE,
        "two Zen 5 cores, bfloat16, {} chat prompts of {} domains, answers of {} tokens at most",
        every_settings,
    ),
    *_every_table(),
    kernels_beside(MEASURED_PAGE),
    Claim(
        MEASURED_PAGE,
        "Of {} greedy texts {} equal plain decoding's and {} diverge from it at a near-tie.",
        lambda: chats_ties(EVERY[0.0]),
    ),
    *(
        Claim(
            MEASURED_PAGE,
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
        MEASURED_PAGE,
        "Here {} of them, two Xeon cores, bfloat16, {} HumanEval prompts × {} tokens",
        lambda: (
            len({one.name for cell in bench("0.2").cells for one in cell.measured}),
            bench("0.2").settings.num_prompts,
            bench("0.2").settings.max_new_tokens,
        ),
    ),
    *_table(),
    Claim(
        MEASURED_PAGE,
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
        MEASURED_PAGE,
        "the same comparison gave {}× and {}×.",
        lambda: (speedup("0.2-long-zen5", t, "planned").partition("×")[0] for t in (0.0, 1.0)),
    ),
    Claim(
        MEASURED_PAGE,
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
        MEASURED_PAGE,
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
        MEASURED_PAGE,
        "verification takes less than {} % of a round at a vocabulary of {} k",
        lambda: (
            math.ceil(100 * data("verification")["largest_verification_share"]),
            f"{data('verification')['settings']['vocab'] / 1000:.0f}",
        ),
    ),
    Claim(
        MEASURED_PAGE,
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
        MEASURED_PAGE,
        "of {} questions of GSM8K, answered in float32 with the default hierarchy, {} greedy "
        "texts equal plain decoding's token for token. At temperature 1 plain decoding is right "
        "in {} and the hierarchy in {} of {}, a difference of {:.0f} points [{:.0f}, {:.0f}]",
        quality_figures,
    ),
    Claim(
        MEASURED_PAGE,
        "{} of {} equal plain greedy decoding token for token (float32 on the shipped family, "
        "float64 on {} tiny architectures",
        lambda: (
            data("equality")["equal"],
            data("equality")["outputs"],
            words(len({name.split()[0] for name in data("equality")["float64 tiny"]})),
        ),
    ),
    Claim(
        MEASURED_PAGE,
        "On SmolLM2 in float32, {} chats and {} tokens after each, {} of {} texts of {} "
        "hierarchies equal, and {} of {} χ² tests of the first three tokens pass ({} samples of "
        "{} prompts each, false failures {:g} in all)",
        released_equality,
    ),
    Claim(
        MEASURED_PAGE,
        "and of each chat the last {} tokens are read.",
        lambda: (data("equality-smollm2-presets")["settings"]["longest"],),
    ),
    Claim(
        MEASURED_PAGE,
        "Of {} greedy texts of ours in bfloat16, {} equal plain decoding's and {} diverge from it "
        "at a near-tie ({}).",
        lambda: (*near_ties(), percent(near_ties()[2] / near_ties()[0], 0)),
    ),
    Claim(
        MEASURED_PAGE,
        "online control costs {} over 64 tokens and {} over 512",
        lambda: (useless(64), useless(512)),
    ),
]
