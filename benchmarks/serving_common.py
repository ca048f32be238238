"""A started ``hierspec serve`` for benchmarks: a process of its own on loopback, and requests."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import common

PORT = 8123
_WORDS = ("the", "of", "in", "and", "is", "was", "for", "with", "it", "that", "as", "by", "from")
URL = f"http://127.0.0.1:{PORT}"


@contextlib.contextmanager
def server(
    *options: str, ready: list[float] | None = None, **environment: str
) -> Iterator[subprocess.Popen[bytes]]:
    """Start the command → its process, once it is ready to answer.

    ``ready`` is added how many seconds it took to be.
    """
    began = time.monotonic()
    command = [sys.executable, "-m", "hierspec", "serve", "--port", str(PORT), *options]
    paths = os.pathsep.join([str(common.ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    process = subprocess.Popen(
        [*command, "--set", "log_level=warning"],
        env={**os.environ, "PYTHONPATH": paths, **environment},
    )
    try:
        wait(process)
        if ready is not None:
            ready.append(time.monotonic() - began)
        yield process
    finally:
        end(process)


def end(process: subprocess.Popen[bytes]) -> None:
    """End a server, by force where it takes longer than a minute."""
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(60)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def wait(
    process: subprocess.Popen[bytes],
    seconds: float = 300.0,
    url: str = URL,
    paths: Sequence[str] = ("/health",),
) -> float:
    """Wait until it is healthy, at one of ``paths`` → how long that took.

    Raises:
        RuntimeError: it ended, or never was.
    """
    import httpx

    began = time.monotonic()
    while time.monotonic() - began < seconds:
        if process.poll() is not None:
            raise RuntimeError(f"the server ended with status {process.returncode}")
        with contextlib.suppress(httpx.TransportError):
            if any(httpx.get(url + path, timeout=5).status_code == 200 for path in paths):
                return time.monotonic() - began
        time.sleep(0.05)
    raise RuntimeError("the server never was ready")


def resident(pid: int) -> dict[str, int]:
    """Return bytes in memory, threads and open files of a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    return {
        "bytes": int(fields["VmRSS"].split()[0]) * 1024,
        "threads": int(fields["Threads"]),
        "files": len(list(Path(f"/proc/{pid}/fd").iterdir())),
    }


def quantiles(values: list[float]) -> dict[str, float]:
    """Return the median and the 99th percentile."""
    ordered = sorted(values)
    return {
        "median": ordered[len(ordered) // 2],
        "p99": ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))],
    }


def words(seed: int, count: int) -> str:
    """Return a text of ``count`` common words, another one for every seed."""
    import random

    source = random.Random(seed)
    return " ".join(source.choice(_WORDS) for _ in range(count))


def completion(seed: int, tokens: int, **options: Any) -> dict[str, Any]:
    return {
        "prompt": f"{words(seed, 24)}.",
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
        **options,
    }
