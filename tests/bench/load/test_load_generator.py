"""Load on a server: what is sent, how much at once, what is measured, what failures become."""

from __future__ import annotations

import asyncio
import json
import socket

import numpy as np
import pytest
from fakes.servers import StubServer, serving

from hierspec import cli
from hierspec.bench.load.client import Endpoint, RequestOutcome, events
from hierspec.bench.load.counters import parse, spec_decode_fields
from hierspec.bench.load.run import Load, run
from hierspec.bench.load.summary import busiest_second, details, summary
from hierspec.errors import HierspecError


def endpoint(url, **changes):
    return Endpoint(**{"base_url": url, "backend": "openai", "model": "stub", **changes})


def measured(stub, prompts, load=None, **changes):
    load = load or Load(num_warmups=0)
    with serving(stub) as url:
        return asyncio.run(run(endpoint(url, **changes), prompts, 8, load))


def bench(capsys, *argv):
    """Exit status and result of ``hierspec bench serve --json``."""
    status = cli.run(["bench", "serve", *argv, "--json"])
    return status, json.loads(capsys.readouterr().out)


def test_every_prompt_is_sent_once_in_the_words_of_its_api():
    stub = StubServer()
    found = measured(stub, ["a", "b", "c"], options={"temperature": 0.5})
    assert sorted(body["prompt"] for body in stub.bodies) == ["a", "b", "c"]
    for body in stub.bodies:
        assert body["stream"] is True
        assert body["stream_options"] == {"include_usage": True}
        assert (body["model"], body["max_tokens"], body["temperature"]) == ("stub", 8, 0.5)
    assert [one.text for one in found.outcomes] == ["w0 w1 w2 w3 "] * 3
    assert [one.num_output_tokens for one in found.outcomes] == [8] * 3
    assert [len(one.itls) for one in found.outcomes] == [3] * 3


def test_a_chat_is_sent_as_messages():
    stub = StubServer()
    found = measured(stub, ["hello"], backend="openai-chat")
    assert stub.bodies[0]["messages"] == [{"role": "user", "content": "hello"}]
    assert found.outcomes[0].text == "w0 w1 w2 w3 "


def test_no_more_are_under_way_than_allowed():
    stub = StubServer(pause=0.005)
    found = measured(stub, ["x"] * 12, Load(max_concurrency=3, num_warmups=0))
    assert stub.most == found.max_concurrent_requests == 3


def test_times_are_those_of_the_stream():
    found = measured(StubServer(pieces=3, pause=0.03), ["x"])
    one = found.outcomes[0]
    assert 0.03 <= one.ttft <= one.latency
    assert all(gap >= 0.025 for gap in one.itls)
    fields = summary(found)
    # Six tokens in three pieces: two gaps between pieces, five tokens after the first.
    assert fields["mean_itl_ms"] >= 25
    assert fields["mean_tpot_ms"] == pytest.approx(1e3 * (one.latency - one.ttft) / 5)
    assert fields["mean_e2el_ms"] == pytest.approx(1e3 * one.latency)
    assert fields["output_throughput"] == pytest.approx(6 / found.duration)


def test_without_usage_the_pieces_are_counted_and_the_result_says_so():
    found = measured(StubServer(usage=False), ["x"])
    fields = summary(found)
    assert (fields["total_output_tokens"], fields["output_tokens_counted_by"]) == (4, "pieces")


def test_failures_are_counted_apart_and_leave_the_rest_alone():
    stub = StubServer(refuse=frozenset("b"), break_off=frozenset("c"))
    found = measured(stub, ["a", "b", "c", "d"])
    fields = summary(found)
    assert (fields["completed"], fields["failed"]) == (2, 2)
    said = {"HTTP 429: too many requests: wait": 1, "the stream broke off": 1}
    assert fields["error_counts"] == said
    assert [bool(error) for error in details(found.outcomes)["errors"]] == [
        False,
        True,
        True,
        False,
    ]


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        ([], "the stream must be an object, not []"),
        ({"choices": [{"text": 5}]}, "the stream.choices[0].text must be a string, not 5"),
        ({"error": {"message": "overloaded"}}, "overloaded"),
    ],
)
def test_a_stream_of_another_kind_is_a_failure(monkeypatch, event, reason):
    monkeypatch.setattr(StubServer, "piece", lambda self, number, body, prompt: event)
    assert [outcome.error for outcome in measured(StubServer(), ["x"]).outcomes] == [reason]


def test_a_request_without_end_is_given_up():
    found = measured(StubServer(pause=5), ["x"], timeout=0.1)
    assert found.outcomes[0].error == "no end within 0.1 s"


def test_the_time_limit_ends_it_and_lets_the_server_know():
    stub = StubServer(pause=5)
    load = Load(max_concurrency=2, num_warmups=0, time_limit=0.2)
    found = measured(stub, ["x"] * 4, load)
    assert found.outcomes == [None] * 4
    assert found.duration < 3
    assert stub.cancelled == 2
    assert summary(found)["error_counts"] == {"given up at the time limit": 4}


def test_a_failing_warm_up_ends_it_with_what_the_server_says():
    with pytest.raises(HierspecError, match="the first request failed: HTTP 429: too many"):
        measured(StubServer(refuse=frozenset("x")), ["x"], Load())


def test_arrivals_have_the_rate_and_come_from_the_seed():
    load = Load(request_rate=50, seed=3)
    delays = load.delays(4000)
    assert delays == load.delays(4000) != Load(request_rate=50, seed=4).delays(4000)
    gaps = np.diff(delays)
    # 4,000 gaps of mean and deviation 1/50: five standard errors are 8 %.
    assert np.mean(gaps) == pytest.approx(1 / 50, rel=0.08)
    assert np.std(Load(request_rate=50, burstiness=4).delays(4000)[1:]) > 0
    even = np.diff(Load(request_rate=50, burstiness=100).delays(4000))
    assert np.std(even) < 0.2 / 50 < np.std(gaps)
    assert Load().delays(3) == [0.0, 0.0, 0.0]


def test_events_are_read_however_the_connection_cuts_them():
    text = b'data: {"a": "\xc3\xa4"}\r\n\r\n: comment\n\ndata: [DONE]\n\n'

    async def cut(size):
        async def pieces():
            for at in range(0, len(text), size):
                yield text[at : at + size]

        return [data async for data in events(pieces())]

    for size in range(1, len(text) + 1):
        assert asyncio.run(cut(size)) == ['{"a": "ä"}'.encode(), b"[DONE]"]


LEVELS = """
# TYPE hierspec_spec_decode_num_drafts_total counter
hierspec_spec_decode_num_drafts_total{level="small",model="m"} 10
hierspec_spec_decode_num_drafts_total{level="trunk",model="m"} @
hierspec_spec_decode_num_draft_tokens_total{level="trunk"} @0
hierspec_spec_decode_num_accepted_tokens_total{level="trunk"} @
hierspec_spec_decode_num_accepted_tokens_per_pos_total{level="trunk",position="0"} @
hierspec_spec_decode_num_accepted_tokens_per_pos_total{level="trunk",position="1"} 0
hierspec_spec_decode_num_drafts_created{level="trunk"} 1.7e9
"""


def test_counters_are_what_grew_and_the_highest_level_speaks_for_all():
    before, after = parse(LEVELS.replace("@", "1")), parse(LEVELS.replace("@", "5"))
    fields = spec_decode_fields(before, after)
    assert fields["spec_decode_num_drafts"] == 4
    assert fields["spec_decode_draft_tokens"] == 40
    assert fields["spec_decode_accepted_tokens"] == 4
    assert fields["spec_decode_acceptance_rate"] == pytest.approx(10.0)
    assert fields["spec_decode_acceptance_length"] == pytest.approx(2.0)
    assert fields["spec_decode_per_position_acceptance_rates"] == [1.0, 0.0]
    assert fields["spec_decode_levels"]["small"]["spec_decode_num_drafts"] == 0


def test_vllms_counters_are_read_and_others_are_not():
    text = 'vllm:spec_decode_num_drafts_total{engine="0"} 2.0\nvllm:generation_tokens_total 5\n'
    assert spec_decode_fields(None, parse(text))["spec_decode_num_drafts"] == 2
    assert "spec_decode_levels" not in spec_decode_fields(None, parse(text))
    assert parse("vllm:generation_tokens_total 5\n") is None
    assert spec_decode_fields(None, None) == {}


def test_the_busiest_second():
    one = RequestOutcome(started=10.0, arrivals=[10.1, 10.9, 11.2], num_output_tokens=6)
    assert busiest_second([one]) == 4.0
    assert busiest_second([]) == 0.0


def test_the_command_has_vllms_fields(capsys, tmp_path):
    path = tmp_path / "r.json"
    with serving(StubServer(metrics=LEVELS)) as url:
        argv = ["--base-url", f"{url}/v1/", "--num-prompts", "5", "-o", str(path)]
        status, result = bench(capsys, *argv, "--goodput", "e2el:60000", "--save-detailed")
    assert status == 0
    assert json.loads(path.read_text()) == result
    for metric in ("ttft", "tpot", "itl", "e2el"):
        for kind in ("mean", "median", "std", "p99"):
            assert result[f"{kind}_{metric}_ms"] >= 0
    assert (result["model_id"], result["completed"], result["total_output_tokens"]) == (
        "stub", 5, 40,
    )  # fmt: skip
    assert result["request_goodput"] == result["request_throughput"] > 0
    assert result["spec_decode_num_drafts"] == 5
    assert result["output_lens"] == [8] * 5


def test_the_table_is_for_people(capsys):
    with serving(StubServer()) as url:
        assert cli.run(["bench", "serve", "--base-url", url, "--num-prompts", "3"]) == 0
    shown = capsys.readouterr()
    assert "3 of 3" in shown.out
    assert "time to first token (ttft)" in shown.out
    assert "acceptance" not in shown.out  # this server keeps no counters
    assert "load on" in shown.err


def test_a_key_is_sent_and_never_written(capsys, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    stub = StubServer()
    with serving(stub) as url:
        argv = ["--base-url", url, "--num-prompts", "1", "--header", "X-Who=me"]
        _, result = bench(capsys, *argv, "--extra-body", '{"top_k": 4}')
    assert stub.headers[0]["Authorization"] == "Bearer sk-secret"
    assert stub.headers[0]["X-Who"] == "me"
    assert stub.bodies[0]["top_k"] == 4
    assert "sk-secret" not in json.dumps(result)


def test_prompts_come_from_files_and_from_a_seed(capsys, tmp_path):
    path = tmp_path / "p.jsonl"
    path.write_text('{"prompt": "one"}\n"two"\n')
    stub = StubServer()
    with serving(stub) as url:
        argv = ["--base-url", url, "--num-warmups", "0", "--max-concurrency", "1"]
        bench(capsys, *argv, "--num-prompts", "3", "--dataset-path", str(path))
        assert [body["prompt"] for body in stub.bodies] == ["one", "two", "one"]
        argv += ["--num-prompts", "2", "--dataset-name", "random", "--input-len", "9"]
        for seed in ("1", "1", "2"):
            bench(capsys, *argv, "--seed", seed)
        bench(capsys, *argv, "--tokenizer", "zoo:small")
    first, again, other = (
        [body["prompt"] for body in stub.bodies[at : at + 2]] for at in (3, 5, 7)
    )
    assert first == again != other
    assert first[0] != first[1]
    assert [len(text.split()) for text in first] == [9, 9]
    assert len(stub.bodies[9]["prompt"].split()) <= 9  # nine tokens


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--base-url", "127.0.0.1:8000"], "--base-url is a URL"),
        (["--backend", "grpc"], "--backend must be one of openai, openai-chat"),
        (["--dataset-name", "sharegpt"], "--dataset-name must be one of"),
        (["--dataset-name", "custom"], "name it with --dataset-path"),
        (["--dataset-name", "random", "--dataset-path", "x.jsonl"], "goes with --dataset-name"),
        (["--request-rate", "0"], "must be above 0"),
        (["--temperature", "-1"], "--temperature"),
        (["--goodput", "ttft"], "--goodput takes"),
        (["--header", "x"], "--header takes KEY=VALUE"),
        (["--extra-body", "[]"], "--extra-body: it is a JSON object"),
        (["-o", "/dev/null/x.json"], "cannot write the result"),
    ],
)
def test_mistakes_are_one_line(argv, said, capsys):
    assert cli.run(["bench", "serve", *argv]) == 2
    shown = capsys.readouterr().err
    assert said in shown
    assert shown.count("\n") == 1


def test_no_server_is_one_line_that_says_how_to_start_one(capsys):
    with socket.socket() as taken:  # bound, and nobody listens
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        assert cli.run(["bench", "serve", "--base-url", url]) == 2
    assert "no server answers at" in (shown := capsys.readouterr().err)
    assert "hierspec serve" in shown


def test_where_nothing_was_answered_the_status_says_so(capsys):
    stub = StubServer(break_off=frozenset({"x"}))
    with serving(stub) as url:
        argv = ["--base-url", url, "--num-prompts", "1", "--num-warmups", "0"]
        status, result = bench(capsys, *argv, "--extra-body", '{"prompt": "x"}')
    assert (status, result["failed"]) == (1, 1)


def test_bench_keeps_its_own_options_beside_serve(capsys):
    assert cli.run(["bench", "--list", "--json"]) == 0
    assert "plain" in capsys.readouterr().out
    assert cli.run(["bench", "--methods", "nonsense"]) == 2
    assert "nonsense" in capsys.readouterr().err
    assert cli.run(["bench", "--target", "zoo:small", "serve"]) == 2
    assert "put --target after it" in capsys.readouterr().err
