"""Sends requests at a rate and a concurrency, and reads the server's counters around them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hierspec.errors import HierspecError

from .client import Endpoint, RequestOutcome, load_aiohttp, refusal, request
from .counters import Counters, parse

if TYPE_CHECKING:
    import aiohttp

_POLL_SECONDS = 0.25  # between attempts to reach a server


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """How requests arrive.

    Attributes:
        request_rate: requests per second; infinite: all at once, up to ``max_concurrency``.
        burstiness: 1 is a Poisson process, less comes in bursts, more is more even.
        max_concurrency: most requests under way at once.
        num_warmups: requests sent one by one first, and not measured.
        time_limit: seconds after which running requests are abandoned.
    """

    request_rate: float = float("inf")
    burstiness: float = 1.0
    max_concurrency: int = 16
    num_warmups: int = 1
    time_limit: float = 600.0
    seed: int = 0

    def delays(self, count: int) -> list[float]:
        """Draw the seconds from the beginning to each of ``count`` arrivals."""
        if self.request_rate == float("inf"):
            return [0.0] * count
        rng = np.random.default_rng(self.seed)
        scale = 1.0 / (self.request_rate * self.burstiness)
        gaps = rng.gamma(shape=self.burstiness, scale=scale, size=count)
        return [0.0, *np.cumsum(gaps[:-1]).tolist()]


@dataclass(slots=True)
class LoadRun:
    """Outcomes and counters of a measurement under load.

    Attributes:
        outcomes: one per prompt, in order; ``None`` where the time limit ended it.
        duration: seconds from the first request to the end of the last.
        before: the server's counters of drafts; ``None`` where it keeps none.
    """

    outcomes: list[RequestOutcome | None]
    duration: float
    max_concurrent_requests: int
    before: Counters | None
    after: Counters | None


async def run(
    endpoint: Endpoint,
    prompts: Sequence[str],
    max_tokens: int,
    load: Load,
    *,
    headers: dict[str, str] | None = None,
    report: Callable[[int, int], None] = lambda ended, failed: None,
) -> LoadRun:
    """Send all prompts.

    Args:
        report: called with the numbers of requests that have ended and of those that failed.

    Raises:
        HierspecError: a warm-up request failed; with the server's answer.
    """
    aiohttp = load_aiohttp()
    connector = aiohttp.TCPConnector(limit=0)  # the load limits concurrency
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=10)
    async with aiohttp.ClientSession(
        connector=connector, headers=headers, timeout=timeout, trust_env=False
    ) as session:
        for i in range(load.num_warmups):
            outcome = await request(session, endpoint, prompts[i % len(prompts)], max_tokens)
            if outcome.error:
                raise HierspecError(f"{endpoint.url}: the first request failed: {outcome.error}")
        counters_before = await counters(session, endpoint.base_url)
        sender = _Sender(session, endpoint, max_tokens, load, report)
        began = time.perf_counter()
        outcomes = await sender.send_all(prompts)
        duration = time.perf_counter() - began
        counters_after = await counters(session, endpoint.base_url)
    return LoadRun(outcomes, duration, sender.peak, counters_before, counters_after)


class _Sender:
    """Sends requests at their times, and counts them as they run and end."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        endpoint: Endpoint,
        max_tokens: int,
        load: Load,
        report: Callable[[int, int], None],
    ) -> None:
        self.session, self.endpoint, self.max_tokens = session, endpoint, max_tokens
        self.load, self.report = load, report
        self.slots = asyncio.Semaphore(load.max_concurrency)
        self.num_running = self.peak = self.num_ended = self.num_failed = 0

    async def send_all(self, prompts: Sequence[str]) -> list[RequestOutcome | None]:
        delays = self.load.delays(len(prompts))
        tasks = [
            asyncio.create_task(self._send(prompt, delay))
            for prompt, delay in zip(prompts, delays, strict=True)
        ]
        try:
            await asyncio.wait(tasks, timeout=self.load.time_limit)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return [None if task.cancelled() else task.result() for task in tasks]

    async def _send(self, prompt: str, delay: float) -> RequestOutcome:
        await asyncio.sleep(delay)
        async with self.slots:
            self.num_running += 1
            self.peak = max(self.peak, self.num_running)
            try:
                outcome = await request(self.session, self.endpoint, prompt, self.max_tokens)
            finally:
                self.num_running -= 1
        self.num_ended += 1
        self.num_failed += bool(outcome.error)
        self.report(self.num_ended, self.num_failed)
        return outcome


async def counters(session: aiohttp.ClientSession, base_url: str) -> Counters | None:
    """Read the server's counters of drafts from ``/metrics``; ``None`` where it keeps none."""
    aiohttp = load_aiohttp()
    try:
        async with session.get(f"{base_url}/metrics") as response:
            return parse(await response.text()) if response.status == 200 else None
    except (aiohttp.ClientError, OSError, ValueError):
        return None


async def first_model(
    base_url: str, headers: dict[str, str] | None, wait: float, given_name: str | None = None
) -> str:
    """Wait for the server, and return the name of its first model.

    Args:
        wait: seconds to go on trying where no server answers.
        given_name: the model's name where the user gave one, which is then returned.

    Raises:
        HierspecError: no server answers, or it lists no model or refuses to.
    """
    aiohttp = load_aiohttp()
    url, deadline = f"{base_url}/v1/models", time.perf_counter() + wait
    timeout = aiohttp.ClientTimeout(total=10)
    async with aiohttp.ClientSession(headers=headers, timeout=timeout) as session:
        while True:
            try:
                async with session.get(url) as response:
                    if given_name is not None and response.status != 503:
                        return given_name
                    if response.status == 200:
                        return _first_name(await response.json(), url)
                    problem = refusal(response.status, await response.text())
                    if response.status != 503:  # a server that is still loading
                        raise HierspecError(f"{url}: {problem}")
            except (aiohttp.ClientError, TimeoutError) as error:
                cause = getattr(error, "os_error", None)
                problem = getattr(cause, "strerror", None) or str(error) or type(error).__name__
            if time.perf_counter() > deadline:
                raise HierspecError(
                    f"no server answers at {base_url} ({problem}): start one (hierspec serve), or "
                    "name it with --base-url"
                )
            await asyncio.sleep(_POLL_SECONDS)


def _first_name(response: Any, url: str) -> str:
    try:
        return str(response["data"][0]["id"])
    except (KeyError, IndexError, TypeError):
        raise HierspecError(f"{url} lists no model: name one with --model") from None
