"""docs/serving.md and docs/cluster.md: streams, peers, others' tests, kills and restarts."""

from __future__ import annotations

from .base import Claim, data

PAGE = "docs/serving.md"

STREAMS = [
    Claim(
        PAGE,
        "Of {} streams at once, half greedy and half seeded, sent twice on the shipped `zoo:mid` "
        "in float32, {} of {} were what the same request gave alone",
        lambda: (
            data("serving-streams")["settings"]["streams"],
            data("serving-streams")["equal_to_alone"],
            data("serving-streams")["requests"],
        ),
    ),
    Claim(
        PAGE,
        "Of {} seeded answers in bfloat16 {}, {} and {} were those given alone, at 1, 8 and 32 "
        "streams",
        lambda: (
            data("same-seed")["config"]["count"],
            *(_same_seed()[streams] for streams in ("1", "8", "32")),
        ),
    ),
]


def _same_seed() -> dict[str, int]:
    """Answers that equal those alone, by number of streams, in the worst case of the file."""
    found = [case["kernels"]["equal"] for case in data("same-seed")["cases"].values()]
    return {streams: min(equal[streams] for equal in found) for streams in found[0]}


def _throughput() -> list[Claim]:
    """The table of streams, and what is said below it."""
    rows = {row["streams"]: row for row in data("serving-throughput")["rows"]}
    said = [
        Claim(
            PAGE,
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
        Claim(PAGE, "Sixteen streams write {} times", lambda: (f"{more:.2f}",)),
        Claim(
            PAGE,
            "lies within the spread: {} [{}, {}] and {} [{}, {}] of plain decoding",
            lambda: [
                f"{rows[streams]['over_plain'][key]:.2f}"
                for streams in (16, 64)
                for key in ("median", "low95", "high95")
            ],
        ),
        Claim(
            PAGE,
            "among prompts of {} words had their first token after {} s, {} s at the 99th",
            lambda: (
                short["long_words"],
                f"{short['seconds']['median']:.2f}",
                f"{short['seconds']['p99']:.2f}",
            ),
        ),
        Claim(
            PAGE,
            "a chat of {} tokens answers its first token {} times sooner",
            lambda: (prefix["settings"]["tokens"], f"{prefix['sooner']['median']:.1f}"),
        ),
    ]


def _leaks() -> tuple[object, ...]:
    """Requests, growth in per cent; nothing may be left."""
    found = data("serving-leaks")
    assert found["more_threads"] == found["more_files"] == found["failed"] == 0
    return found["settings"]["requests"], f"{100 * found['growth']:.1f}"


PEERS = [
    Claim(
        PAGE,
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
    Claim(PAGE, "tests of chats and Responses {} of {} pass", _comply),
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
        PAGE,
        "Over {} short requests after the first thousand, a tenth of which left early, the process "
        "grew by {} %",
        _leaks,
    )
]
RESTART = [
    Claim(
        PAGE,
        "while {} streams ran, it ended all their connections, and started again was ready after "
        "{} s at most ({} times",
        _restart,
    )
]
SERVING = STREAMS + _throughput() + COMPLY + AUTOSCALE + LEAKS + RESTART + PEERS
