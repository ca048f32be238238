"""The router's memory of prompts, in a process that may die without stopping the service.

Ray's own is started once, and the router waits for it without end when it is gone. This one is the
same tree under the same name; Ray starts it anew, and it learns again which replicas there are.
"""

from __future__ import annotations

import time
from typing import Any

from .ray import ray

_KEPT = 4_000_000  # characters of prompts of a replica
_LOOK_EVERY = 10  # seconds between looks at how many there are


def keep(application: str, deployment: str) -> None:
    """Start the memory before the router of a deployment looks for one."""
    from ray.llm._internal.serve.routing_policies.prefix_aware.prefix_tree import (  # type: ignore[import-not-found]
        PrefixTree,
    )

    class Memory(PrefixTree):
        """A tree of prompts that trusts the router about which replicas live."""

        def __init__(self) -> None:
            super().__init__()
            self.living: list[str] = []
            self.start_eviction_loop(_KEPT, _KEPT * 9 // 10, _LOOK_EVERY)

        def prefix_match(self, input_text: str, available_tenants: list[str]) -> Any:
            self.add_tenants(available_tenants, time.time())
            self.living = available_tenants
            return super().prefix_match(input_text, available_tenants)

        def get_smallest_tenants(self) -> list[str]:
            sizes = {one: self.tenant_to_char_count[one] for one in self.living}
            return [one for one in sizes if sizes[one] == min(sizes.values())]

    options = {"max_restarts": -1, "max_task_retries": -1, "num_cpus": 0, "lifetime": "detached"}
    ray().remote(Memory).options(
        name="LlmPrefixTreeActor",
        namespace=f"serve::{application}::{deployment}",
        get_if_exists=True,
        **options,
    ).remote()
