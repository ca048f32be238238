"""Ray itself, on this machine: two replicas, one killed under load; a batch that is killed.

Skipped where the extra ``ray`` is not installed. It starts processes of its own and takes a minute.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

psutil = pytest.importorskip("psutil")
pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="Ray is not installed: pip install '.[ray]'"
)
SRC = Path(__file__).parents[3] / "src"
MODEL = ["--model", "zoo:tiny-draft", "--hierarchy", "autoregressive", "--threads", "1"]
PATIENCE = 300  # seconds, for machines that do other things as well


def start(*argv, **pipes):
    environment = {**os.environ, "PYTHONPATH": str(SRC), "HF_HUB_OFFLINE": "1"}
    return subprocess.Popen([sys.executable, "-m", "hierspec", *argv], env=environment, **pipes)


def end(process):
    process.send_signal(signal.SIGTERM)
    try:
        assert process.wait(60) == 0
    finally:
        process.kill()


def workers(process, title):
    """Processes of Ray below one of ours, by what they call themselves."""
    found = []
    for one in psutil.Process(process.pid).children(recursive=True):
        try:
            if title in " ".join(one.cmdline()):
                found.append(one)
        except psutil.Error:  # it has ended meanwhile
            continue
    return found


def wait_for(what, seconds=PATIENCE):
    until = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < until, "not in time"
        time.sleep(0.2)
    return found


def ask(url, prompt, stream=False):
    """Status, and the answer's text or the error's message."""
    body = {"prompt": prompt, "max_tokens": 24, "temperature": 0, "stream": stream}
    request = urllib.request.Request(
        f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=120) as response:
            text = response.read().decode()
            if not stream:
                return response.status, json.loads(text)["choices"][0]["text"]
            events = [line[6:] for line in text.split("\n") if line.startswith("data: {")]
            last = json.loads(events[-1])
            if "error" in last:
                return 503, last["error"]["message"]
            assert text.endswith("data: [DONE]\n\n")
            return 200, "".join(json.loads(one)["choices"][0]["text"] for one in events)
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())["error"]["message"]


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    log = tmp_path_factory.mktemp("ray") / "log"
    with log.open("w") as stream:
        process = start("serve", "--replicas", "2", *MODEL, "--port", str(port), stderr=stream)
        url = f"http://127.0.0.1:{port}"
        try:
            wait_for(lambda: "serving on" in log.read_text() or process.poll() is not None)
            assert process.poll() is None, log.read_text()
            yield process, url
        finally:
            end(process)


def test_one_replica_is_killed_under_load_and_the_service_goes_on(service):
    process, url = service
    status, expected = ask(url, "def add(a, b):")
    assert status == 200
    killed = threading.Event()

    def client(i):
        out = []
        for j in range(12):
            out.append(ask(url, "def add(a, b):", stream=(i + j) % 2 == 1))
            if (i, j) == (0, 3):
                victims = workers(process, "ServeReplica:hierspec:replica")
                assert len(victims) == 2
                victims[0].kill()
                killed.set()
        return out

    with ThreadPoolExecutor(6) as pool:
        answers = [one for client_ in pool.map(client, range(6)) for one in client_]
    assert killed.is_set()
    assert len(answers) == 72  # every request had its answer, or a clean error
    good = [text for status, text in answers if status == 200]
    assert set(good) == {expected}
    assert len(good) >= 60
    assert all("lost" in text or "full" in text for status, text in answers if status != 200)
    wait_for(lambda: len(workers(process, "ServeReplica:hierspec:replica")) == 2)
    assert ask(url, "def add(a, b):") == (200, expected)


def test_prompts_that_begin_alike_go_to_one_replica(service):
    _, url = service
    prompt = "import os\nimport sys\n\ndef main(argv=None):\n" * 8
    cached = []
    for i in range(5):
        body = {"prompt": f"{prompt}# {i}", "max_tokens": 4, "temperature": 0}
        request = urllib.request.Request(
            f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=120) as response:
            usage = json.loads(response.read())["usage"]
        cached.append(usage["prompt_tokens_details"]["cached_tokens"])
    assert cached[0] == 0
    assert all(tokens > 0 for tokens in cached[1:])


def test_a_batch_through_ray_survives_kills(tmp_path):
    count = 40
    lines = [
        {
            "custom_id": f"r{i}",
            "method": "POST",
            "url": "/v1/completions",
            "body": {"prompt": f"def f{i}(", "max_tokens": 16, "temperature": 0},
        }
        for i in range(count)
    ]
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("".join(json.dumps(line) + "\n" for line in lines))
    command = ["batch", str(source), str(target), "--ray", "--replicas", "2", *MODEL]
    for kept in (4, 12):
        process = start(*command, "--max-concurrency", "4", stderr=subprocess.DEVNULL)
        wait_for(lambda kept=kept: target.exists() and target.read_bytes().count(b"\n") >= kept)
        family = psutil.Process(process.pid).children(recursive=True)
        process.kill()
        process.wait(30)
        psutil.wait_procs(family, 30)
    assert start(*command, stderr=subprocess.DEVNULL).wait(PATIENCE) == 0
    found = [json.loads(line) for line in target.read_text().splitlines()]
    assert sorted(one["custom_id"] for one in found) == sorted(f"r{i}" for i in range(count))
    assert all(one["response"]["status_code"] == 200 for one in found)


@pytest.mark.parametrize("title", ["ray::ServeReplica:hierspec:gateway", "ray::Memory"])
def test_what_stands_before_the_replicas_may_die_too(service, title):
    process, url = service
    [victim] = workers(process, title)
    victim.kill()
    victim.wait(30)
    wait_for(lambda: ask(url, "def add(a, b):")[0] == 200)
    wait_for(lambda: len(workers(process, title)) == 1)
