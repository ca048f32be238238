"""``hierspec batch`` as a user runs it: the service's own handling, status, notes, refusals."""

from __future__ import annotations

import asyncio
import json
import time
import warnings
from pathlib import Path

import pytest
from batch_cases import request, write
from server_cases import app_of, save_family

from hierspec import Hierarchy, cli
from hierspec.errors import HierspecWarning
from hierspec.server import loading
from hierspec.server.batch.output import AnswersFile
from hierspec.server.batch.writer import BatchRun, in_process_client, run
from hierspec.utils.files import locked


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    return save_family(tmp_path_factory.mktemp("family"))["target"]


def batch(source, output, target, *more):
    hierarchy = ("--hierarchy", "autoregressive", "--model", target)
    return cli.run(["batch", str(source), str(output), *hierarchy, *more])


def test_answers_are_those_of_the_service(tmp_path, target, capsys):
    options = {"max_tokens": 6, "temperature": 0, "ignore_eos": True}
    lines = [request(f"r{i}", f"text {i}", **options) for i in range(3)]
    for line in lines:
        line["body"]["model"] = Path(target).name
    chat = {"model": "default", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
    lines.append({**request("chat", ""), "url": "/v1/chat/completions", "body": chat})
    source, output = write(tmp_path / "in.jsonl", lines), tmp_path / "out.jsonl"
    assert batch(source, output, target) == 0
    assert "4 answers in" in capsys.readouterr().err
    found = {one["custom_id"]: one["response"] for one in map(json.loads, output.open())}
    alone = Hierarchy.from_preset("autoregressive", target=target)
    for i in range(3):
        text = alone.generate(f"text {i}", max_new_tokens=6, ignore_eos=True).text
        assert found[f"r{i}"]["body"]["choices"][0]["text"] == text
    assert found["chat"]["body"]["choices"][0]["message"]["role"] == "assistant"
    whole = output.read_bytes()
    assert batch(source, output, target) == 0  # nothing is left; no model is loaded
    assert output.read_bytes() == whole
    assert "4 of them were there" in capsys.readouterr().err


def test_warnings_are_notes(tmp_path, target, capsys, monkeypatch):
    def warned(*args):
        warnings.warn("a draft is large", HierspecWarning, stacklevel=2)
        return loading.load(*args)

    monkeypatch.setattr("hierspec.server.app.load", warned)
    source = write(tmp_path / "in.jsonl", [request("a", "x", max_tokens=2)])
    batch(source, tmp_path / "out.jsonl", target)
    assert "hierspec: note: a draft is large\n" in capsys.readouterr().err


def test_what_is_refused_becomes_its_line_and_the_status_says_so(tmp_path, target, capsys):
    lines = [request("a", "x", max_tokens=2, temprature=1), request("b", "x", max_tokens=2)]
    for line in lines:
        line["body"]["model"] = Path(target).name
    source, output = write(tmp_path / "in.jsonl", lines), tmp_path / "out.jsonl"
    assert batch(source, output, target) == 1
    found = {one["custom_id"]: one["response"] for one in map(json.loads, output.open())}
    assert found["a"]["status_code"] == 400
    assert "did you mean 'temperature'" in found["a"]["body"]["error"]["message"]
    assert found["b"]["status_code"] == 200
    assert "1 failed, the first: " in capsys.readouterr().err


def test_an_interrupted_batch_leaves_no_request_running(tmp_path, family):
    endless = {"model": "tiny", "max_tokens": 2000, "ignore_eos": True}
    lines = [request(f"r{i}", "hello", **endless) for i in range(4)]
    source, app, ended = write(tmp_path / "in.jsonl", lines), app_of(family), []
    service = app.state.service
    service.metrics.record = ended.append

    async def work():
        async with in_process_client(app) as client:
            with AnswersFile(tmp_path / "out.jsonl") as output:
                batch = asyncio.ensure_future(
                    run(client, BatchRun(source, output, lambda _: None), max_concurrency=3)
                )
                while len(service.engine.live) < 3:
                    await asyncio.sleep(0.001)
                batch.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await batch
                until = time.monotonic() + 20
                while len(ended) < 3 and time.monotonic() < until:
                    await asyncio.sleep(0.001)
        return [one.finish_reason for one in ended]

    assert asyncio.run(work()) == ["cancelled"] * 3  # before the service was closed
    assert (tmp_path / "out.jsonl").read_bytes() == b""


def test_mistakes_are_one_line(tmp_path, capsys):
    source = write(tmp_path / "in.jsonl", [request("a", "x")])
    output, empty = tmp_path / "out.jsonl", write(tmp_path / "empty.jsonl", [])
    with locked(output, "answers", "taken"):
        assert cli.run(["batch", str(source), str(output)]) == 2
        assert "another batch is writing" in capsys.readouterr().err
    for argv, said in (
        ([source, source], "must be two files"),
        ([tmp_path / "none.jsonl", output], "cannot read requests"),
        ([empty, output], "holds no request"),
        ([source, output, "--replicas", "2"], "--replicas goes with --ray"),
        ([source, output, "--set", "max_quue=3"], "max_queue"),
    ):
        assert cli.run(["batch", *map(str, argv)]) == 2
        shown = capsys.readouterr().err
        assert said in shown, shown
        assert said != "cannot read requests" or not output.exists()
