"""The number of processes that hold the models."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from hierspec.errors import HierspecError

_MAX_REPLICAS = 4096


@dataclass(frozen=True, slots=True)
class Scale:
    """The number of replicas; if its bounds differ, the load decides."""

    min_replicas: int
    max_replicas: int

    @classmethod
    def from_options(cls, replicas: int | None, autoscale: str | None) -> Scale:
        """Parse ``--replicas N`` or ``--autoscale MIN:MAX``; one replica by default.

        Raises:
            HierspecError: both are given, or the bounds are invalid.
        """
        if autoscale is None:
            return cls(replicas or 1, replicas or 1)
        if replicas is not None:
            raise HierspecError(
                "--replicas fixes the number, --autoscale varies it: give one of them"
            )
        match = re.fullmatch(r"(\d{1,4}):(\d{1,4})", autoscale)
        if not match or not 0 < int(match[1]) <= int(match[2]) <= _MAX_REPLICAS:
            raise HierspecError(f"--autoscale takes MIN:MAX, as 1:4, not {autoscale!r}")
        return cls(int(match[1]), int(match[2]))

    def options(self, target_ongoing_requests: int) -> dict[str, Any]:
        """Return the options of a Ray Serve deployment."""
        if self.min_replicas == self.max_replicas:
            return {"num_replicas": self.min_replicas}
        return {
            "autoscaling_config": {
                "min_replicas": self.min_replicas,
                "max_replicas": self.max_replicas,
                "target_ongoing_requests": target_ongoing_requests,
            }
        }

    def __str__(self) -> str:
        if self.min_replicas != self.max_replicas:
            return f"{self.min_replicas} to {self.max_replicas} replicas"
        return "1 replica" if self.min_replicas == 1 else f"{self.min_replicas} replicas"
