"""Single figures of other pages: families of models, sizes, how threads wait, the layout."""

from __future__ import annotations

import runpy
import statistics
from functools import partial

from .base import ROOT, Claim, data


def first_hour() -> tuple[int, int, int, int]:
    """Families played, ways in that gave transformers' tokens, all ways in, families refused."""
    rows = data("first-hour")["families"]
    ways = [equal for row in rows for equal in row.get("equal", {}).values()]
    refused = [row for row in rows if row.get("one_line")]
    return len([row for row in rows if "equal" in row]), sum(ways), len(ways), len(refused)


FIRST_HOUR = [
    Claim("docs/models.md", "relatives, {} in all,", lambda: first_hour()[:1]),
    Claim(
        "docs/models.md",
        "{} of {} gave transformers' own greedy tokens in float32. Another {} families",
        lambda: first_hour()[1:],
    ),
]


def own_bits() -> list[float | int]:
    """Positions; the largest difference of the file; of other types, with their equal choices."""
    found = data("own-bits")
    results = dict(found["results"])
    file, rounded = results.pop("the file"), results.pop("BF16")
    assert file["equal_argmax"] == 1
    return [
        found["settings"]["positions"],
        file["largest_difference"],
        max(one["largest_difference"] for one in results.values()),
        100 * min(one["equal_argmax"] for one in results.values()),
        rounded["largest_difference"],
        100 * rounded["equal_argmax"],
    ]


OWN_BITS = [
    Claim("docs/models.md", "At {:,} positions of chats", lambda: own_bits()[:1]),
    Claim("docs/models.md", "log-probabilities differ by {:.3f} at most", lambda: own_bits()[1:2]),
    Claim(
        "docs/models.md",
        "it is {:.3f} at most, and the same token at {:.1f} % or more",
        lambda: own_bits()[2:4],
    ),
    Claim(
        "docs/models.md", "rounded like its weights, {:.2f} and {:.1f} %", lambda: own_bits()[4:]
    ),
]


def _sizes() -> list[Claim]:
    """The table of large targets, from their configurations."""
    parameters = runpy.run_path(str(ROOT / "benchmarks" / "gpu.py"))["parameters"]
    return [
        Claim(
            "docs/gpu.md",
            f"| {8 * deepen} × {384 * widen} | {{:,}} | {{:.2f}} GB |",
            lambda widen=widen, deepen=deepen: [
                parameters(widen, deepen),
                2 * parameters(widen, deepen) / 1e9,
            ],
        )
        for widen, deepen in ((2, 2), (4, 2), (4, 4), (8, 2), (8, 3), (8, 4), (16, 2))
    ]


def _stages() -> list[Claim]:
    """How long the stages of the prepared run may take."""
    seconds = runpy.run_path(str(ROOT / "benchmarks" / "gpu_stage.py"))["SECONDS"]
    ends = {
        "env": "4 GB are read", "tests": "the tests marked `gpu`", "micro": "eager and compiled",
        "family": "static and compiled", "summary": "verdicts",
    }  # fmt: skip
    return [
        Claim("docs/gpu.md", f"{end} | {{}} s |", lambda name=name: [seconds[name]])
        for name, end in ends.items()
    ]


def _less_by_spinning() -> list[str]:
    """Per cent that a forward takes less where threads spin, to tens."""
    alone = {how: data("waiting")["ms"][how]["alone"] for how in ("sleep", "spin 6000")}
    less = [1 - alone["spin 6000"][rows] / alone["sleep"][rows] for rows in ("1", "12")]
    return [f"{round(10 * statistics.fmean(less)) * 10}"]


def _rooms() -> list[Claim]:
    """The layout before and after it was made anew."""
    before, after = (data("rooms")[when] for when in ("before", "after"))

    def both(name: str) -> list[object]:
        return [f"{when['layout'][name]:,}" for when in (before, after)]

    def passed(name: str) -> list[object]:
        ways = (when["journeys"][name] for when in (before, after))
        return [way[what] for way in ways for what in ("rooms", "files")]

    page = "docs/adr/0007-rooms.md"
    counts = {
        "modules": "modules",
        "modules_over_400_lines": "files of more than 400 lines",
        "entries": "entries at the top of the package, data files among them",
        "lines": "lines under `src/`",
        "lines_of_hierspec": "lines of `hierspec` itself",
    }
    way = "| rooms (files) passed by a {} | {{}} ({{}}) | {{}} ({{}}) |"

    def slowest_and_fastest(what: str) -> list[str]:
        medians = [
            cell[f"{what}_after_over_before"]["median"] for cell in data("overhead-rooms")["cells"]
        ]
        return [f"{median:.2f}" for median in (min(medians), max(medians))]

    def unchanged(name: str) -> int:
        compared = data("unchanged-compared")
        assert not [line for line in compared["differences"] if line.startswith(f"{name} ")]
        return compared["compared"][name]

    return [
        Claim(
            page, "forwards is {} to {} times what it was", partial(slowest_and_fastest, "outside")
        ),
        Claim(page, "decoding as a whole {} to {} times", partial(slowest_and_fastest, "whole")),
        Claim(
            page,
            "{} runs, {} certificates, {} plans, profiles and a bench recorded on",
            lambda: [unchanged(name) for name in ("runs", "certificates", "plans")],
        ),
        *(Claim(page, f"| {said} | {{}} | {{}} |", partial(both, n)) for n, said in counts.items()),
        *(Claim(page, way.format(name), partial(passed, name)) for name in after["journeys"]),
    ]


WAITING = [
    Claim(
        "CHANGELOG.md",
        "forwards of the shipped large target take about {} % less on a quiet machine",
        _less_by_spinning,
    )
]


def loaded(name: str) -> list[str]:
    """Milliseconds a token of a loaded model, by way."""
    ways = data(f"loaded-{name}")["results"][0]["ways"]
    shown = ("generate", "custom_generate", "Hierarchy, plain")
    return [f"{ways[way]['ms_per_token']['median']:.1f}" for way in shown]


def _texts_equal() -> list[int]:
    result = data("loaded-smollm2")["results"][0]
    return [result["prompts"], result["tokens"], result["ways"]["custom_generate"]["texts_equal"]]


LOADED = [
    Claim(
        "docs/python.md",
        "{} texts of SmolLM2, each {} tokens, {} was the same",
        _texts_equal,
    ),
    *(
        Claim("docs/python.md", f"| {said} | {{}} | {{}} | {{}} |", partial(loaded, name))
        for name, said in {
            "smollm2": "SmolLM2",
            "qwen3": "a small Qwen3, random weights",
            "llama": "a Llama of over a billion weights, random",
        }.items()
    ),
]
GUIDE = [*FIRST_HOUR, *LOADED, *OWN_BITS, *_sizes(), *_stages(), *WAITING, *_rooms()]
