"""The service as a process: its address, signals, and graceful shutdown."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import uvicorn
from fastapi import FastAPI

from .logs import log
from .service import Service
from .settings import ServeSettings
from .templates import template_traits


class Server(uvicorn.Server):
    """Refuses new requests after the first signal to stop, and lets running ones finish.

    Meanwhile it keeps listening: clients and load balancers get 503 with a time to retry, instead
    of a refused connection. A second signal stops it at once.
    """

    def __init__(self, config: uvicorn.Config, service: Service, on_ready: Callable[[str], None]):
        super().__init__(config)
        self.service, self.on_ready = service, on_ready
        self._draining = False

    def handle_exit(self, sig: int, frame: Any) -> None:
        if self._draining:
            self.service.engine.drain(0.0)
            super().handle_exit(sig, frame)
            return
        self._draining = True
        count = self.service.engine.num_requests
        if count:
            log.warning(
                "finishing %d request%s (at most %g s); Ctrl-C again stops now",
                *(count, "s" * (count != 1), self.service.settings.shutdown_grace),
            )
        # Sequences end a second before connections are cut, so that clients get an answer.
        grace = max(0.0, self.service.settings.shutdown_grace - 1.0)
        self.service.engine.drain(grace)
        threading.Thread(target=self._exit_when_idle, args=(sig, frame, grace), daemon=True).start()

    def _exit_when_idle(self, sig: int, frame: Any, grace: float) -> None:
        self.service.engine.wait(grace)
        super().handle_exit(sig, frame)

    async def startup(self, sockets: Any = None) -> None:
        # The first chat would wait for it: for some templates transformers is imported, in seconds.
        await self.service.in_background(template_traits, self.service.tokenizer)
        await super().startup(sockets)
        for server in getattr(self, "servers", []):
            for socket in server.sockets:
                host, port = socket.getsockname()[:2]
                self.on_ready(f"http://{f'[{host}]' if ':' in host else host}:{port}")


def make_server(app: FastAPI, settings: ServeSettings, on_ready: Callable[[str], None]) -> Server:
    """Make a server that is not started yet; it runs until SIGTERM or Ctrl-C.

    Args:
        on_ready: called with the address once requests are accepted.

    Raises:
        HierspecError: other machines can reach the address and no API key is set.
    """
    settings.validate_exposure()
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        http="h11",  # limits the size of headers
        log_config=None,
        access_log=False,
        backlog=512,
        timeout_graceful_shutdown=max(1, round(settings.shutdown_grace)),
        server_header=False,
        timeout_keep_alive=30,
        h11_max_incomplete_event_size=64 << 10,
    )
    return Server(config, app.state.service, on_ready)
