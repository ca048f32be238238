"""Pages of the guide that quote the result file of a script."""

from __future__ import annotations

import json
import runpy
import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

from hierspec.bench.method_records import PairedRatio

from .base import ROOT, Claim, data, short
from .measured import EVERY, method


def _several_drafts() -> list[Claim]:
    """The table of random pairs in the page about several drafts."""
    names = ("one draft, block", "block-rrs", "traversal", "induced-block", "optimum")

    def figures(cell: dict[str, Any]) -> list[object]:
        means = [f"{cell['mean_tokens'][name]:.3f}" for name in names]
        wins = cell["wins"]
        more, less = "induced-block over traversal", "traversal over induced-block"
        shape = (cell["vocab"], cell["length"], cell["num_drafts"])
        return [*shape, *means, wins[more], wins[less]]

    def kept(number: int) -> list[object]:
        cells = [some[number] for some in data("several-drafts")["one_token"].values()]
        means = (cell["mean_kept"][name] for cell in cells for name in many)
        return [cells[0]["num_drafts"], *map(short, means)]

    def sampled(cell: dict[str, Any]) -> list[object]:
        shape = (cell["vocab"], cell["length"], cell["num_drafts"])
        return [*shape, *(f"{cell['mean_tokens'][name]:.2f}" for name in names[1:])]

    many = ("rrs", "rrs-without-replacement", "induced-block", "optimum")
    row = "| {}, {}, {} | {} | {} | {} | {} | {} | {} : {} |"
    one_token = "| {} | {} | {} | {} | {} | {} | {} | {} | {} |"
    counts = range(len(data("several-drafts")["one_token"]["random"]))
    return [
        *(
            Claim("docs/several-drafts.md", row, lambda cell=cell: figures(cell))
            for cell in data("several-drafts")["cells"]
        ),
        *(
            Claim("docs/several-drafts.md", one_token, lambda number=number: kept(number))
            for number in counts
        ),
        *(
            Claim(
                "docs/several-drafts.md",
                "| {}, {}, {} | {} | {} | {} | {} |",
                lambda cell=cell: sampled(cell),
            )
            for cell in data("several-drafts")["longer"]
        ),
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
        *_deterministic_chats(page),
    ]


def _deterministic_chats(page: str) -> list[Claim]:
    """The same of the released model: its best hierarchy in the mode and without."""
    found = data("deterministic-smollm2")
    best = found["hierarchies"]["suffix > copy"]
    plain = found["plain"]
    calls = found["ms_of_a_call"]

    def said(one: dict[str, Any]) -> str:
        return PairedRatio.model_validate(one).format()

    return [
        Claim(
            page,
            "{} of {} greedy texts of four hierarchies, and {} without the mode",
            lambda: (found["equal"]["deterministic"], found["runs"], found["equal"]["usual"]),
        ),
        Claim(
            page,
            "Plain decoding takes {:.1f} ms a token in it and {:.1f} without",
            lambda: [plain["ms_per_token"][k]["median"] for k in ("deterministic", "usual")],
        ),
        Claim(
            page,
            "a suffix look-up below the 4-bit copy {:.1f} and {:.1f}, {} its own plain decoding "
            "and {} the usual one",
            lambda: (
                *(best["ms_per_token"][k]["median"] for k in ("deterministic", "usual")),
                said(best["speedup_over_plain"]["deterministic"]),
                said(best["over_usual_plain"]),
            ),
        ),
        Claim(
            "README.md",
            "plain decoding itself is faster: {:.1f} ms a token without the prompt, where it takes "
            "{:.1f} otherwise, and the best hierarchy {:.1f}.",
            lambda: (
                *(plain["ms_per_token"][k]["median"] for k in ("deterministic", "usual")),
                min(
                    h["ms_per_token"]["deterministic"]["median"]
                    for h in found["hierarchies"].values()
                ),
            ),
        ),
        Claim(
            page,
            "a call for eight rows {:.1f} ms and {:.1f}",
            lambda: [calls[k]["8"] for k in ("deterministic", "usual")],
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


# --- drafters that are trained

ZOO = ROOT / "src" / "hierspec" / "zoo" / "data"
SMOLLM2, HEADS = "docs/smollm2.md", "docs/heads.md"


def _eagle3() -> dict[str, Any]:
    return json.loads((ZOO / "smollm2-eagle3" / "hierspec.json").read_text())


def _exit_heads() -> dict[str, Any]:
    return json.loads((ZOO / "smollm2-heads" / "exit_heads.json").read_text())


def _counted(of: Callable[[], dict[str, Any]]) -> Callable[[], list[int]]:
    return lambda: [of()["parameters"]]


def _by_step(step: int) -> list[str]:
    found = _eagle3()["figures"]["held out"]
    return [short(found[key][step], 3) for key in ("acceptance", "agreement")]


def _by_exit(layer: int) -> list[str]:
    found = _exit_heads()["after"][str(layer)]
    return [short(found[key], 3) for key in ("acceptance", "agreement")]


def _by_domain(domain: str) -> list[str]:
    found = _exit_heads()["domains"][domain]
    layers = (found[str(layer)] for layer in _exit_heads()["exits"])
    return [short(one[key], 2) for one in layers for key in ("acceptance", "agreement")]


def _tokens_per_call() -> list[str]:
    found = _eagle3()["figures"]["held out"]
    return [f"{found[key]:.2f}" for key in ("tokens_per_call", "greedy_tokens_per_call")]


def _drafts_by_domain(domain: str) -> list[str]:
    """Of the EAGLE-3 drafter: steps 1 and 3, and tokens a call."""
    found = _eagle3()["figures"]["by domain"][domain]
    steps = [short(found[key][i], 2) for i in (0, 2) for key in ("acceptance", "agreement")]
    calls = [f"{found[key]:.2f}" for key in ("tokens_per_call", "greedy_tokens_per_call")]
    return [*steps, *calls]


def _coverage() -> list[str]:
    """The mass of the heads' tokens in code and chat."""
    domains = _exit_heads()["domains"]
    return [short(domains[domain]["5"]["coverage"]) for domain in ("code", "chat")]


def _sibling() -> dict[str, Any]:
    return json.loads((ZOO / "smollm2-sibling" / "sibling.json").read_text())


def _siblings_drafts(domain: str) -> list[str]:
    """Of the sibling: acceptance, same choice, and tokens a call."""
    found = _sibling()["figures"][domain]
    calls = [f"{found[key]:.2f}" for key in ("tokens_per_call", "greedy_tokens_per_call")]
    return [*(short(found[key], 2) for key in ("acceptance", "agreement")), *calls]


def _worth(size: str) -> list[str]:
    """Of a size of sibling: acceptance, a call's time in target calls, best draft, gain."""
    found = _sibling()["sizes"][size]
    share = [short(found["acceptance"], 3), short(found["cost"], 3)]
    return [*share, str(found["draft"]), f"{found['speedup']:.2f}"]


def _alone(drafter: str) -> list[str]:
    """Of a drafter alone in the main bench: gain and tokens a call, by temperature."""
    found: list[str] = []
    for temperature, file in EVERY.items():
        summed = method(file, temperature, f"alone-{drafter}").final_summary
        assert summed.speedup is not None
        found += [summed.speedup.format(), f"{summed.mean_acceptance_length:.2f}"]
    return found


def _a_siblings_call() -> list[str]:
    """Milliseconds of one row in the kernels and in torch."""
    one = data("kernels-sibling")["milliseconds"]["1"]
    return [f"{one[road]['median']:.2f}" for road in ("kernels, own weights", "target")]


def _before_and_after(result: dict[str, Any], layer: str) -> list[str]:
    """A row of heads: acceptance, nats and tokens a call, before and after training."""
    held_out = [result["held_out"][when][layer] for when in ("before", "after")]
    calls = result["tokens_per_target_call"][f"exit {layer}, temperature 0"]
    return [
        f"{result['parameters'] / len(result['held_out']['after']) / 1e6:.2f}",
        layer,
        *(f"{one['acceptance']:.3f}" for one in held_out),
        *(f"{one['kl']:.2f}" for one in held_out),
        *(f"{calls[when]:.2f}" for when in ("before", "after")),
    ]


def _moved_by() -> list[str]:
    """Per cent by which tokens a call at temperature 1 changed: least and most."""
    moved = [
        100 * (calls["after"] / calls["before"] - 1)
        for result in data("heads")["results"]
        for name, calls in result["tokens_per_target_call"].items()
        if name.endswith("temperature 1")
    ]
    return [f"{abs(min(moved)):.0f}", f"{max(moved):.0f}"]


TRAINED = [
    Claim(SMOLLM2, "network ([how it works](eagle3.md)) of {:,} parameters", _counted(_eagle3)),
    Claim(SMOLLM2, "trained on {:,} tokens of answers", lambda: [_eagle3()["tokens"]]),
    *(Claim(SMOLLM2, f"| {i + 1} | {{}} | {{}} |", lambda i=i: _by_step(i)) for i in range(5)),
    Claim(
        SMOLLM2,
        "That is {} tokens a call of the target at temperature 1 and {} greedily",
        _tokens_per_call,
    ),
    *(
        Claim(
            SMOLLM2,
            f"| {domain} |" + " {} / {} |" * 3,
            lambda domain=domain: _drafts_by_domain(domain),
        )
        for domain in ("chat", "code", "math", "own", "passage")
    ),
    Claim(SMOLLM2, "layers 5, 10, 15 and 20, {:,} parameters in all", _counted(_exit_heads)),
    Claim(
        SMOLLM2,
        "trained on {:,} tokens of answers. On {:,} held-out tokens:",
        lambda: [_exit_heads()["texts"][key] for key in ("tokens", "held_out_tokens")],
    ),
    *(
        Claim(SMOLLM2, f"| {layer} | {{}} | {{}} |", lambda layer=layer: _by_exit(layer))
        for layer in (5, 10, 15, 20)
    ),
    *(
        Claim(SMOLLM2, f"| {domain} |" + " {} / {} |" * 4, lambda domain=domain: _by_domain(domain))
        for domain in ("chat", "code", "math", "own")
    ),
    Claim(SMOLLM2, "and hold {} of code and {} of chat", _coverage),
    *(
        Claim(
            SMOLLM2,
            f"| {title} |" + " {} | {} |" * 2,
            lambda drafter=drafter: _alone(drafter),
        )
        for title, drafter in (
            ("sibling", "smollm2-sibling"),
            ("suffix look-up", "suffix"),
            ("EAGLE-3", "smollm2-eagle3"),
        )
    ),
    Claim(SMOLLM2, "{:,} parameters. It sees a token", _counted(_sibling)),
    Claim(SMOLLM2, "a call takes {} ms, and {} in torch", _a_siblings_call),
    Claim(
        SMOLLM2, "distribution over {:,} tokens of prompts", lambda: [_sibling()["texts"]["tokens"]]
    ),
    *(
        Claim(
            SMOLLM2,
            f"| {domain} | {{}} / {{}} | {{}} / {{}} |",
            lambda domain=domain: _siblings_drafts(domain),
        )
        for domain in ("all", "chat", "code", "math", "own", "passage")
    ),
    *(
        Claim(
            SMOLLM2,
            f"| {size.replace('x', ' × ')} | {{}} | {{}} | {{}} | {{}}× |",
            lambda size=size: _worth(size),
        )
        for size in _sibling()["sizes"]
    ),
    *(
        Claim(
            HEADS,
            f"| `{result['model']}`, {result['kind']} ({{}} M) | {{}} | {{}} → {{}} | {{}} → {{}} "
            "| {} → {} |",
            lambda result=result, layer=layer: _before_and_after(result, layer),
        )
        for result in data("heads")["results"]
        for layer in result["held_out"]["after"]
    ),
    Claim(HEADS, "(they move by −{} % to +{} %)", _moved_by),
]


# --- sizes, and how threads wait


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

    return [
        Claim(
            page, "forwards is {} to {} times what it was", partial(slowest_and_fastest, "outside")
        ),
        Claim(page, "decoding as a whole {} to {} times", partial(slowest_and_fastest, "whole")),
        *(Claim(page, f"| {said} | {{}} | {{}} |", partial(both, n)) for n, said in counts.items()),
        *(Claim(page, way.format(name), partial(passed, name)) for name in after["journeys"]),
    ]


SIZES = _sizes()
WAITING = [
    Claim(
        "CHANGELOG.md",
        "forwards of the shipped large target take about {} % less on a quiet machine",
        _less_by_spinning,
    )
]
GUIDE = (
    SEVERAL_DRAFTS
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
    + TRAINED
    + SIZES
    + WAITING
    + _rooms()
)
