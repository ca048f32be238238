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
from .scale import Scale

NAME = "hierspec"


def run(
    settings: ServeSettings,
    scale: Scale,
    address: str | None = None,
    ready: Callable[[str], None] = lambda url: None,
) -> None:
    """Serve until told to end (SIGTERM, Ctrl-C); then running requests may finish.

    Args:
        address: of a Ray cluster; ``None``: this machine alone.
        ready: called with the address once requests are accepted.

    Raises:
        HierspecError: Ray is not installed.
    """
    port = settings.port or _free_port(settings.host)
    ended = threading.Event()
    connect(address)
    serve = ray_serve()
    try:
        http = {"host": settings.host, "port": port}
        serve.start(proxy_location="HeadOnly", http_options=http)
        alone = address is None
        # Alone on a machine, torch's threads share the cores; on a cluster Ray places replicas.
        resources = {"num_cpus": 0 if alone else (settings.threads or 1)}
        try:
            serve.run(application(settings, scale, resources), name=NAME, route_prefix="/")
        except RuntimeError as error:  # it says what failed, not why
            replicas = serve.status().applications[NAME].deployments[REPLICA]
            if "RUNNING" not in replicas.replica_states:  # else one died, and Ray makes another
                why = replicas.message.strip().rpartition("\n")[2]
                why = why.removeprefix("hierspec.errors.HierspecError: ")
                raise HierspecError(why or str(error)) from None
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: ended.set())
        ready(f"http://{settings.host}:{port}")
        ended.wait()
        serve.delete(NAME)
        serve.shutdown()
    finally:
        ray().shutdown()


def _free_port(host: str) -> int:
    with socket.create_server((host, 0)) as taken:
        return taken.getsockname()[1]
