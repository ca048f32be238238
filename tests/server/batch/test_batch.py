"""A batch: every line is answered exactly once, whatever is wrong with it and whatever dies."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
from batch_cases import request, write
from fakes.servers import Echo
from starlette.applications import Starlette

from hierspec.errors import HierspecError
from hierspec.server.batch.lines import answer_line, read_lines
from hierspec.server.batch.output import AnswersFile
from hierspec.server.batch.writer import BatchRun, answer_request, in_process_client, run
from hierspec.utils.files import locked


def answers(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def batch(source, target, app=None, at_once=4):
    """Run it; give its progress: how many are answered, how many of these failed."""
    reports = []

    def report(batch):
        reports.append((batch.total - batch.num_left, batch.output.num_failures))

    async def work():
        async with in_process_client(app or Echo()) as client:
            with AnswersFile(target) as output:
                await run(client, BatchRun(source, output, report), at_once)

    asyncio.run(work())
    return reports


def test_every_line_has_its_answer(tmp_path):
    source = write(tmp_path / "in.jsonl", [request(f"r{i}", f"p{i}") for i in range(9)])
    app = Echo()
    reports = batch(source, tmp_path / "new" / "out.jsonl", app)
    found = answers(tmp_path / "new" / "out.jsonl")
    assert {one["custom_id"]: one["response"]["body"]["text"] for one in found} == {
        f"r{i}": f"p{i}" for i in range(9)
    }
    for one in found:
        assert set(one) == {"id", "custom_id", "response", "error"}
        assert one["response"]["status_code"] == 200
        assert one["response"]["request_id"] == "req-1"
        assert one["error"] is None
    assert app.phases == ["startup", "shutdown"]
    assert reports == [(i, 0) for i in range(10)]


def test_answers_that_cannot_be_written_end_the_batch_with_one_error(tmp_path, monkeypatch):
    def full(self, line):
        raise HierspecError("cannot write the answers: no space left")

    monkeypatch.setattr(AnswersFile, "add", full)
    source = write(tmp_path / "in.jsonl", [request(f"r{i}", f"p{i}") for i in range(9)])
    with pytest.raises(HierspecError, match="no space left"):
        batch(source, tmp_path / "out.jsonl")


def test_so_many_at_once_and_no_more(tmp_path):
    lines = [request(f"r{i}", "p", sleep=0.005) for i in range(12)]
    app = Echo()
    batch(write(tmp_path / "in.jsonl", lines), tmp_path / "out.jsonl", app, at_once=3)
    assert app.most == 3


BAD = {
    "not JSON": '{"custom_id": "a"',
    "not a JSON object": '["a"]',
    "custom_id must be": json.dumps({**request("", "p")}),
    "is used in an earlier line": json.dumps(request("good", "p")),
    "method must be": json.dumps({**request("m", "p"), "method": "GET"}),
    "url must be one of": json.dumps({**request("u", "p"), "url": "/v1/embeddings"}),
    "body must be": json.dumps({**request("b", "p"), "body": "p"}),
    "stream has no meaning": json.dumps(request("s", "p", stream=True)),
    "unknown key 'boddy'; did you mean 'body'?": json.dumps({**request("k", "p"), "boddy": {}}),
    "not JSON: ": "[" * 100_000,
    "custom_id holds half a character": json.dumps(request("\ud83d", "p")),
}


def test_bad_lines_become_error_lines(tmp_path):
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    lines = [json.dumps(request("good", "p")), *BAD.values(), "", json.dumps(request("end", "p"))]
    source.write_bytes("\n".join(lines).encode() + b'\n{"custom_id": "\xff"}\n')
    batch(source, target)
    found = sorted(answers(target), key=lambda one: one["id"])
    assert len(found) == len(BAD) + 3
    assert [one["response"] is None for one in found] == [False, *[True] * len(BAD), False, True]
    for number, (said, one) in enumerate(zip(BAD, found[1:], strict=False), 2):
        assert said in one["error"]["message"]
        assert one["error"]["message"].startswith(f"line {number}: ")
    assert "not UTF-8" in found[-1]["error"]["message"]
    assert [one["custom_id"] for one in found[4:7]] == ["good", "m", "u"]


def test_a_failure_that_is_no_json_object_is_counted_too(tmp_path):
    line = {"id": "a", "custom_id": "a", "error": None}
    rows = [{**line, "response": {"status_code": 502, "request_id": "", "body": "bad gateway"}}]
    rows += [{**line, "id": "b", "response": None, "error": {"code": "server_error"}}]
    (tmp_path / "out.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with AnswersFile(tmp_path / "out.jsonl") as output:
        assert (output.ids, output.num_failures) == ({"a", "b"}, 2)
        assert output.first_failure == "a: "


def test_a_refusal_is_an_answer_and_a_crash_an_error(tmp_path):
    lines = [request("a", "p", status=400), request("b", "p", crash=True), request("c", "p")]
    reports = batch(write(tmp_path / "in.jsonl", lines), tmp_path / "out.jsonl")
    found = {one["custom_id"]: one for one in answers(tmp_path / "out.jsonl")}
    assert found["a"]["response"]["status_code"] == 400
    assert found["a"]["error"] is None
    assert found["b"]["response"] is None
    assert found["b"]["error"]["code"] == "server_error"
    assert found["c"]["response"]["status_code"] == 200
    assert reports[-1][1] == 2
    with AnswersFile(tmp_path / "out.jsonl") as output:
        failed = (found["a"]["id"], found["b"]["id"])
        first = next(one["id"] for one in answers(output.path) if one["id"] in failed)
        assert output.first_failure.startswith(f"{first}: ")
        assert len(output.first_failure) > len(first) + 2


def test_a_full_service_is_asked_again_and_not_forever(tmp_path):
    (line,) = read_lines(write(tmp_path / "in.jsonl", [request("a", "p")]))
    pauses = []

    class Full:
        times = 3

        async def post(self, url, content):
            self.times -= 1
            return httpx.Response(429 if self.times >= 0 else 200, json={})

    async def wait(seconds):
        pauses.append(seconds)

    def status(service):
        return json.loads(asyncio.run(answer_request(service, line, wait)))["response"][
            "status_code"
        ]

    assert status(Full()) == 200
    assert pauses == [0.25, 0.5, 1.0]
    always = Full()
    always.times = 10**6
    assert status(always) == 429
    assert len(pauses) == 3 + 7


def test_what_is_answered_is_not_asked_again(tmp_path):
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    write(source, [request(f"r{i}", f"p{i}") for i in range(6)])
    batch(source, target)
    whole = target.read_bytes()
    lines = whole.splitlines(keepends=True)
    for kept, torn in ((2, b""), (3, lines[3][:-2]), (0, lines[0][:25]), (4, b"\0" * 40)):
        target.write_bytes(b"".join(lines[:kept]) + torn)
        app = Echo()
        reports = batch(source, target, app)
        assert len(app.asked) == 6 - kept
        assert reports[0][0] == kept
        assert sorted(one["custom_id"] for one in answers(target)) == [f"r{i}" for i in range(6)]
        assert sorted(target.read_bytes().splitlines()) == sorted(whole.splitlines())
    app = Echo()
    batch(source, target, app)
    assert app.asked == []


def test_foreign_outputs_are_left_alone(tmp_path):
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    write(source, [request("a", "p"), request("b", "p")])
    for content, said in (
        ("my diary\n", "holds no answers"),
        ("my diary", "holds no answers"),
        ('{"id": 3}\n', "holds no answers"),
    ):
        target.write_text(content)
        with pytest.raises(HierspecError, match=said):
            batch(source, target)
        assert target.read_text() == content
    target.unlink()
    batch(source, target)
    first, second = target.read_text().splitlines(keepends=True)
    for content, said in ((first + first, "there twice"), (f"{first}x\n{second}", "line 2: not")):
        target.write_text(content)
        with pytest.raises(HierspecError, match=said):
            batch(source, target)
        assert target.read_text() == content
    target.write_text(first + second)
    write(source, [request("a", "another"), request("b", "p")])
    with pytest.raises(HierspecError, match="answers another input"):
        batch(source, target)


def test_an_answer_without_its_newline_is_one(tmp_path):
    """Also in another batch's answers, which are not cut before they are refused."""
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    batch(write(source, [request("a", "p"), request("b", "p")]), target)
    whole = target.read_bytes()
    target.write_bytes(whole[:-1])
    write(tmp_path / "other.jsonl", [request("c", "p")])
    with pytest.raises(HierspecError, match="answers another input"):
        batch(tmp_path / "other.jsonl", target)
    assert target.read_bytes() == whole
    target.write_bytes(whole[:-1])
    batch(source, target)
    assert target.read_bytes() == whole


def test_an_output_that_is_no_file_is_refused():
    """A second run reads it: /dev/stdout would never end."""
    with pytest.raises(HierspecError, match="answers go to a file"):
        AnswersFile(Path("/dev/null"))


def test_an_answer_is_added_once(tmp_path):
    source, target = write(tmp_path / "in.jsonl", [request("a", "p")]), tmp_path / "out.jsonl"
    (line,) = read_lines(source)
    with AnswersFile(target) as output:
        assert output.add(answer_line(line, httpx.Response(200, json={})))
        assert not output.add(answer_line(line, httpx.Response(200, json={})))
    assert len(answers(target)) == 1


def test_two_on_one_output_are_refused(tmp_path):
    target = tmp_path / "out.jsonl"
    with (
        locked(target, "answers", "taken"),
        pytest.raises(HierspecError, match="taken"),
        locked(target, "answers", "taken"),
    ):
        pass


@pytest.mark.parametrize("body", [b"bad gateway", b"\xff", b""])
def test_an_answer_that_is_no_json_is_text(tmp_path, body):
    (line,) = read_lines(write(tmp_path / "in.jsonl", [request("a", "p")]))
    response = json.loads(answer_line(line, httpx.Response(502, content=body)))["response"]
    assert response["body"] == body.decode(errors="replace")
    assert response["request_id"] == line.id  # the answer has none of its own


def test_an_application_that_fails_to_start_says_so():
    @contextlib.asynccontextmanager
    async def broken(app):
        raise RuntimeError("no weights")
        yield

    async def start():
        async with in_process_client(Starlette(lifespan=broken)):
            pass

    with pytest.raises(RuntimeError, match="no weights"):
        asyncio.run(start())


SLOW = """
import asyncio, sys
from pathlib import Path
from fakes.servers import Echo
from test_batch import batch
print("begun", flush=True)
batch(Path(sys.argv[1]), Path(sys.argv[2]), at_once=3)
"""


def test_killed_at_random_moments_and_run_again(tmp_path):
    rng = random.Random(5)
    count = 60
    lines = [request(f"r{i}", f"p{i}", sleep=rng.random() / 50) for i in range(count)]
    source, target = write(tmp_path / "in.jsonl", lines), tmp_path / "out.jsonl"
    here, tests = Path(__file__).parent, Path(__file__).parents[2]
    paths = os.pathsep.join(map(str, (here, tests, tests.parent / "src")))
    command = [sys.executable, "-c", SLOW, str(source), str(target)]
    kept = []
    for _ in range(3):
        process = subprocess.Popen(
            command, env={**os.environ, "PYTHONPATH": paths}, stdout=subprocess.PIPE
        )
        assert process.stdout.readline() == b"begun\n"
        time.sleep(0.02 + 0.06 * rng.random())
        process.send_signal(signal.SIGKILL)
        process.wait(10)
        process.stdout.close()
        kept.append(len(target.read_bytes().splitlines()) if target.exists() else 0)
    assert kept == sorted(kept)
    assert kept[-1] < count  # it was really cut short
    batch(source, target)
    found = answers(target)
    assert sorted(one["custom_id"] for one in found) == sorted(f"r{i}" for i in range(count))
    assert all(one["response"]["body"]["text"] == f"p{one['custom_id'][1:]}" for one in found)
