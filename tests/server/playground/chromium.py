"""A real Chromium without a window, driven over its DevTools protocol.

Source: Chrome DevTools Protocol, domains Target, Page, Runtime, Input and Emulation.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import shutil
import subprocess
import tempfile
import threading
import time
from pathlib import Path

import aiohttp

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
_KEYS = {"Enter": 13, "Escape": 27, "Tab": 9, "ArrowLeft": 37, "ArrowRight": 39}


def found():
    """The program's path; ``None`` where there is none."""
    named = os.environ.get("HIERSPEC_CHROMIUM")
    return named or next((path for name in NAMES if (path := shutil.which(name))), None)


class Chromium:
    """The browser; ``open`` gives a tab. A context manager."""

    def __enter__(self):
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        home = Path(self._folder.name)
        flags = (
            "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
            "--no-first-run", "--remote-debugging-port=0", f"--user-data-dir={home}",
            "--remote-allow-origins=*", "--disable-background-networking", "--hide-scrollbars",
        )  # fmt: skip
        self._process = subprocess.Popen(
            [found(), *flags, "about:blank"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        port = home / "DevToolsActivePort"
        until = time.monotonic() + 60
        while not (port.exists() and len(port.read_text().split()) == 2):
            assert time.monotonic() < until, "Chromium did not start"
            time.sleep(0.05)
        number, path = port.read_text().split()
        self._waiting, self._count, self.pages = {}, 0, {}
        self._run(self._connect(f"ws://127.0.0.1:{number}{path}"))
        return self

    def __exit__(self, *_):
        self._run(self._session.close())
        self._reader.cancel()
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._folder.cleanup()

    def open(self, url, width=1280, height=900, dark=False):
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = Page(self, session)
        self.pages[session] = page
        for domain in ("Page", "Runtime", "Log"):
            page.send(f"{domain}.enable")
        page.look(width, height, dark)
        page.go(url)
        return page

    def send(self, method, session=None, **params):
        return self._run(self._send(method, session, params))

    def _run(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(60)

    async def _connect(self, url):
        self._session = aiohttp.ClientSession()
        self._socket = await self._session.ws_connect(url, max_msg_size=1 << 28)
        self._reader = asyncio.ensure_future(self._read())

    async def _send(self, method, session, params):
        self._count += 1
        message = {"id": self._count, "method": method, "params": params}
        future = self._waiting[self._count] = self._loop.create_future()
        await self._socket.send_json(message | ({"sessionId": session} if session else {}))
        return await asyncio.wait_for(future, 50)

    async def _read(self):
        async for message in self._socket:
            said = json.loads(message.data)
            if "id" not in said:
                self._event(said)
            elif "error" in said:
                self._waiting.pop(said["id"]).set_exception(RuntimeError(said["error"]["message"]))
            else:
                self._waiting.pop(said["id"]).set_result(said["result"])

    def _event(self, said):
        page = self.pages.get(said.get("sessionId"))
        if page is None:
            return
        if said["method"] == "Runtime.exceptionThrown":
            page.problems.append(str(said["params"]["exceptionDetails"]))
        if said["method"] == "Log.entryAdded" and said["params"]["entry"]["level"] == "error":
            page.problems.append(said["params"]["entry"]["text"])


class Page:
    """A tab.

    Attributes:
        problems: what its script threw, and what the browser complained about.
    """

    def __init__(self, browser, session):
        self.browser, self.session, self.problems = browser, session, []

    def send(self, method, **params):
        return self.browser.send(method, self.session, **params)

    def go(self, url):
        self.send("Page.navigate", url=url)
        self.wait("document.readyState === 'complete'")

    def look(self, width, height, dark=False):
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=width < 600,
        )  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])

    def run(self, script):
        """The value of a JavaScript expression."""
        answer = self.send(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait(self, script, seconds=20):
        until = time.monotonic() + seconds
        while not self.run(script):
            assert time.monotonic() < until, f"not within {seconds} s: {script}; {self.problems}"
            time.sleep(0.03)

    def text(self, selector):
        return self.run(f"document.querySelector({json.dumps(selector)}).textContent")

    def write(self, selector, text):
        """Replace a field's content as a person does."""
        self.run(f"document.querySelector({json.dumps(selector)}).select()")
        self.run(f"document.querySelector({json.dumps(selector)}).focus()")
        self.send("Input.insertText", text=text)

    def press(self, key, control=False):
        code = {"key": key, "windowsVirtualKeyCode": _KEYS[key], "modifiers": 2 * control}
        if key == "Enter" and not control:
            code["text"] = "\r"
        self.send("Input.dispatchKeyEvent", type="keyDown", **code)
        self.send("Input.dispatchKeyEvent", type="keyUp", **code)

    def place(self, selector):
        """The middle of an element, scrolled into view."""
        box = self.run(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)}); "
            "e.scrollIntoView({block: 'center'}); const b = e.getBoundingClientRect(); "
            "return [b.x + b.width / 2, b.y + b.height / 2]; })()"
        )
        return {"x": box[0], "y": box[1]}

    def hover(self, selector):
        self.send("Input.dispatchMouseEvent", type="mouseMoved", **self.place(selector))

    def click(self, selector):
        at = self.place(selector)
        for kind in ("mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **at)

    def picture(self, path):
        data = self.send("Page.captureScreenshot", format="png")["data"]
        Path(path).write_bytes(base64.b64decode(data))

    def close(self):
        with contextlib.suppress(RuntimeError):
            self.send("Page.close")
