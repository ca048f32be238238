"""``hierspec serve --replicas``: the deployments on Ray, from start to graceful shutdown."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Callable

from hierspec.errors import HierspecError
from hierspec.server.settings import ServeSettings

from .deployments import REPLICA, application
from .ray import connect, ray, ray_serve

NAME = "hierspec"


def run(
    settings: ServeSettings,
    bounds: tuple[int, int],
    address: str | None,
    on_ready: Callable[[str], None],
) -> None:
    """Serve until SIGTERM or Ctrl-C; then let running requests finish.

    Args:
        bounds: of the number of replicas.
        address: of a Ray cluster; ``None``: one on this machine.
        on_ready: called with the address once requests are accepted.
    """
    port = settings.port or _free_port(settings.host)
    stop_requested = threading.Event()
    connect(address)
    serve = ray_serve()
    try:
        http = {"host": settings.host, "port": port}
        serve.start(proxy_location="HeadOnly", http_options=http)
        # On one machine torch's threads share the cores; on a cluster Ray places replicas by them.
        resources = {"num_cpus": 0 if address is None else (settings.threads or 1)}
        try:
            serve.run(application(settings, bounds, resources), name=NAME, route_prefix="/")
        except RuntimeError as error:  # the cause is in the deployment's message
            replicas = serve.status().applications[NAME].deployments[REPLICA]
            if "RUNNING" not in replicas.replica_states:  # else one died, and Ray starts another
                cause = replicas.message.strip().rpartition("\n")[2]
                cause = cause.removeprefix("hierspec.errors.HierspecError: ")
                raise HierspecError(cause or str(error)) from None
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stop_requested.set())
        on_ready(f"http://{settings.host}:{port}")
        stop_requested.wait()
        serve.delete(NAME)
        serve.shutdown()
    finally:
        ray().shutdown()


def _free_port(host: str) -> int:
    with socket.create_server((host, 0)) as server:
        return server.getsockname()[1]
