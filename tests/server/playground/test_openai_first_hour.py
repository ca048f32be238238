"""The first hour of who comes from OpenAI's API: a served model, their client, the page."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading

import chromium
import openai
import pytest
from server_cases import TOOL

KEY = "sk-first-hour"
ASK = {"model": "gpt-4o-mini", "messages": [{"role": "user", "content": "hello the"}]}


class Served:
    """`hierspec serve` in a process of its own, with the lines that it says."""

    def __init__(self, *arguments):
        self.lines, self._started = [], threading.Event()
        variables = {**os.environ, "HIERSPEC_SERVE_API_KEY": KEY}
        command = [sys.executable, "-m", "hierspec", "serve", "--port", "0", *arguments]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=variables)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        assert self._started.wait(120)
        assert self.process.poll() is None, self.lines
        (self.line,) = [line for line in self.lines if "serving" in line]
        self.address = re.search(r"a page to try it: (http://\S+)/\n", self.line)[1]

    def _read(self):
        for line in self.process.stderr:
            self.lines.append(line)
            if "serving" in line:
                self._started.set()
        self._started.set()

    def end(self):
        self.process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(30)
        self.process.kill()
        self._reader.join(10)


@pytest.fixture(scope="module")
def served(family):
    served = Served("--model", family["target"], "--draft", family["draft"])
    yield served
    served.end()


def test_with_their_own_client(served):
    assert f"{served.address}/v1;" in served.line
    client = openai.OpenAI(base_url=f"{served.address}/v1", api_key=KEY, max_retries=0, timeout=60)
    with pytest.raises(openai.AuthenticationError, match="not valid"):
        client.with_options(api_key="sk-wrong").models.list()
    (model,) = client.models.list()
    with pytest.raises(openai.NotFoundError, match=f"no model.*{model.id}"):
        client.chat.completions.create(**ASK)
    ask = {**ASK, "model": model.id, "max_tokens": 12, "seed": 1}
    whole = client.chat.completions.create(**ask, reasoning_effort="low", store=False)
    assert whole.usage.completion_tokens <= 12
    stream = client.chat.completions.create(**ask, stream=True)
    parts = [event.choices[0].delta.content or "" for event in stream]
    assert "".join(parts) == whole.choices[0].message.content
    with pytest.raises(openai.BadRequestError, match="did you mean 'temperature'"):
        client.chat.completions.create(**ask, extra_body={"temprature": 0})
    called = client.chat.completions.create(
        **{**ask, "max_tokens": 200},
        tools=[TOOL],
        tool_choice="required",
        parallel_tool_calls=False,
    )
    assert called.choices[0].message.tool_calls[0].function.name == "f"
    response = client.responses.create(
        model=model.id, input="hello the", max_output_tokens=12, reasoning={"effort": "low"}
    )
    assert response.system_fingerprint == whole.system_fingerprint
    line = next(line for line in served.lines if "/chat/completions status=200" in line)
    for field in ("prompt_tokens", "cached_tokens", "output_tokens", "tokens_per_second"):
        assert re.search(rf" {field}=\d", line), line
    assert re.search(r" finish_reason=(stop|length) levels=\S", line)


@pytest.mark.skipif(
    chromium.found() is None, reason="no Chromium is installed (HIERSPEC_CHROMIUM names one)"
)
def test_with_the_page(served):
    with chromium.Chromium() as browser:
        page = browser.open(f"{served.address}/", width=390, height=844)
        page.wait("document.activeElement.id === 'key'")
        page.write("#key", KEY)
        page.press("Enter")
        page.wait("document.activeElement.id === 'prompt'")
        for number, message in enumerate(("hello the", "and then"), 1):
            page.write("#prompt", message)
            page.press("Enter", control=True)
            page.wait(f"document.querySelectorAll('.turn:not(.given)').length === {number}")
            page.wait("/^Done/.test(document.querySelector('#status').textContent)")
        page.wait(
            "document.querySelector('#verdict').textContent.includes('The text is the same.')"
        )
        assert page.run("document.querySelectorAll('.token').length") > 0
        assert "plain" in page.text("#key-of-rounds")
        assert page.run("document.documentElement.scrollWidth") <= 390
        page.problems.clear()  # the browser's own note on status 401
        page.go(f"{served.address}/docs")
        page.wait("document.body.innerText.includes('Authorize')")
        assert page.problems == []
