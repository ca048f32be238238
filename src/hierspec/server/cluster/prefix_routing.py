"""The router's memory of prompts, in a process that may die without stopping the service.

Ray's own is started once, and when it has died the router waits for it forever. This one is the
same tree under the same name, which Ray restarts; it then learns again which replicas there are.
"""

from __future__ import annotations

import time
from typing import Any

from .ray import ray

_MAX_CHARS = 4_000_000  # of the prompts of a replica; with more, old ones are forgotten
_CHECK_EVERY = 10  # seconds between checks of their number


def start_memory(application: str, deployment: str) -> None:
    """Start the memory before the router of a deployment looks for one."""
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
