"""How many processes hold the models."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from hierspec.errors import HierspecError

_MOST = 4096


@dataclass(frozen=True, slots=True)
class Scale:
    """A number of replicas, or its bounds where the load decides."""

    least: int
    most: int

    @classmethod
    def of(cls, replicas: int | None, autoscale: str | None) -> Scale:
        """Parse ``--replicas N`` or ``--autoscale MIN:MAX``; one replica by default.

        Raises:
            HierspecError: both are given, or the bounds are invalid.
        """
        if autoscale is None:
            return cls(replicas or 1, replicas or 1)
        if replicas is not None:
            raise HierspecError("--replicas fixes their number, --autoscale does not: say one")
        match = re.fullmatch(r"(\d{1,4}):(\d{1,4})", autoscale)
        if not match or not 0 < int(match[1]) <= int(match[2]) <= _MOST:
            raise HierspecError(f"--autoscale takes MIN:MAX, as 1:4, not {autoscale!r}")
        return cls(int(match[1]), int(match[2]))

    def options(self, wanted: int) -> dict[str, Any]:
        """Return the options of a Ray Serve deployment.

        Args:
            wanted: target number of running requests a replica; with more, replicas are added.
        """
        if self.least == self.most:
            return {"num_replicas": self.least}
        return {
            "autoscaling_config": {
                "min_replicas": self.least,
                "max_replicas": self.most,
                "target_ongoing_requests": wanted,
            }
        }

    def __str__(self) -> str:
        if self.least != self.most:
            return f"{self.least} to {self.most} replicas"
        return "1 replica" if self.least == 1 else f"{self.least} replicas"
