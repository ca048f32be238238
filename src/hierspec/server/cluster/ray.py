"""Ray, an optional dependency: imported, connected to a cluster, and its memory of prompts."""

from __future__ import annotations

import importlib
import os
import time
from typing import Any

from hierspec.errors import HierspecError

_MAX_TRIES = 3  # on a busy machine Ray's processes may start more slowly than Ray waits for
_OBJECT_STORE = 96 << 20  # bytes; only small objects pass through it

_MAX_CHARS = 4_000_000  # of the prompts of a replica; with more, old ones are forgotten
_CHECK_EVERY = 10  # seconds between checks of their number


def ray() -> Any:
    """Import Ray, with its usage reports off unless the user has turned them on.

    Raises:
        HierspecError: it is not installed.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # On a busy machine Ray's agents take longer than the half minute that it gives them.
    os.environ.setdefault("RAY_agent_register_timeout_ms", "300000")
    os.environ.setdefault("RAY_worker_niceness", "0")  # Ray's default of 15 slows the workers down
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault(
        "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH", "hierspec.server.cluster.proxy:middlewares"
    )
    try:
        return importlib.import_module("ray")
    except ImportError:
        raise HierspecError(
            "several replicas need Ray: pip install 'hierspec[ray,server]'"
        ) from None


def ray_serve() -> Any:
    """Import Ray Serve, as :func:`ray`."""
    ray()
    importlib.import_module("ray.serve.exceptions")
    return importlib.import_module("ray.serve")


def connect(address: str | None) -> None:
    """Join a cluster, or start one on this machine, which ends with this process.

    Args:
        address: of the cluster; ``auto``: Ray finds it; ``None``: start one.
    """
    options: dict[str, Any] = {"log_to_driver": False, "namespace": "hierspec"}
    if address is None:
        # Ray reads this when it is imported, and then stays on 127.0.0.1 on Linux too.
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
        options |= {"include_dashboard": False, "object_store_memory": _OBJECT_STORE}
        address = "local"
    for tries_left in reversed(range(_MAX_TRIES)):
        try:
            ray().init(address=address, **options)
            return
        except Exception as error:  # Ray has no class for a slow start
            if not tries_left or "timed out during startup" not in str(error):
                raise
            ray().shutdown()


def start_memory(application: str, deployment: str) -> None:
    """Start the router's memory of prompts before the router of a deployment looks for one.

    Ray's own is started once, and when it has died the router waits for it forever. This one is
    the same tree under the same name, which Ray restarts; it then learns again which replicas
    there are.
    """
    from ray.llm._internal.serve.routing_policies.prefix_aware.prefix_tree import (  # type: ignore[import-not-found]
        PrefixTree,
    )

    class Memory(PrefixTree):
        """A tree of prompts; the router's requests say which replicas are alive."""

        def __init__(self) -> None:
            super().__init__()
            self.live_replicas: list[str] = []
            self.start_eviction_loop(_MAX_CHARS, _MAX_CHARS * 9 // 10, _CHECK_EVERY)

        def prefix_match(self, input_text: str, available_tenants: list[str]) -> Any:
            self.add_tenants(available_tenants, time.time())
            self.live_replicas = available_tenants
            return super().prefix_match(input_text, available_tenants)

        def get_smallest_tenants(self) -> list[str]:
            sizes = {name: self.tenant_to_char_count[name] for name in self.live_replicas}
            return [name for name, size in sizes.items() if size == min(sizes.values())]

    options = {"max_restarts": -1, "max_task_retries": -1, "num_cpus": 0, "lifetime": "detached"}
    ray().remote(Memory).options(
        name="LlmPrefixTreeActor",
        namespace=f"serve::{application}::{deployment}",
        get_if_exists=True,
        **options,
    ).remote()
