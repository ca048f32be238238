"""The service as a process: its address, signals, and graceful shutdown."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import uvicorn
from fastapi import FastAPI

from .service import Service
from .settings import ServeSettings

_BACKLOG = 512


class Server(uvicorn.Server):
    """Refuses new requests once it is to shut down, and lets running ones finish.

    Meanwhile it keeps listening: clients and load balancers get 503 with a time to retry, instead
    of a refused connection. A second signal ends it at once.
    """

    def __init__(self, config: uvicorn.Config, service: Service, ready: Callable[[str], None]):
        super().__init__(config)
        self.service, self.ready = service, ready
        self._draining = False

    def handle_exit(self, sig: int, frame: Any) -> None:
        if self._draining:
            super().handle_exit(sig, frame)
            return
        self._draining = True
        # Sequences end a moment before connections are cut, so that clients get an answer.
        grace = max(0.0, self.service.settings.shutdown_grace - 1.0)
        self.service.engine.drain(grace)
        threading.Thread(target=self._end, args=(sig, frame, grace), daemon=True).start()

    def _end(self, sig: int, frame: Any, grace: float) -> None:
        self.service.engine.wait(grace)
        super().handle_exit(sig, frame)

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        for server in getattr(self, "servers", []):
            for socket in server.sockets:
                host, port = socket.getsockname()[:2]
                self.ready(f"http://{host}:{port}")


def server_of(
    app: FastAPI, settings: ServeSettings, ready: Callable[[str], None] = lambda url: None
) -> Server:
    """Make a server that is not started yet.

    Args:
        ready: called with the address once requests are accepted.

    Raises:
        HierspecError: the address is open to the world and there is no key.
    """
    settings.check_exposure()
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        http="h11",  # bounds the size of headers
        log_config=None,
        access_log=False,
        backlog=_BACKLOG,
        timeout_graceful_shutdown=max(1, round(settings.shutdown_grace)),
        server_header=False,
        timeout_keep_alive=30,
        h11_max_incomplete_event_size=64 << 10,
    )
    return Server(config, app.state.service, ready)


def serve(
    app: FastAPI, settings: ServeSettings, ready: Callable[[str], None] = lambda url: None
) -> None:
    """Serve until SIGTERM or Ctrl-C; arguments as of :func:`server_of`."""
    server_of(app, settings, ready).run()
