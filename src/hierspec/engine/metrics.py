"""What a run counts, per level and in all, in vLLM's words (MATH §0, DESIGN §3)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class LevelStats:
    """Counters of one level. ``accepted``: kept by the level above.

    Attributes:
        calls: forwards of its model (a batch of sequences is one call).
        num_drafts: rounds; several drafts of one place are one.
        num_draft_tokens: of all drafts, also of several.
        accepted_per_pos: how often the token at each draft position was kept.
        forward_seconds: inside the model's forward.
        verify_seconds: verifying drafts of the level below; without the forward and the laws.
        seconds: forward, laws, draws and verification together.
    """

    name: str
    calls: int = 0
    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    accepted_per_pos: list[int] = field(default_factory=list)
    forward_seconds: float = 0.0
    verify_seconds: float = 0.0
    seconds: float = 0.0

    def observe(self, drafted: int, accepted: int, offset: int = 0) -> None:
        """One draft of this level was verified; it began at position ``offset`` of its round."""
        self.num_drafts += 1
        self.num_draft_tokens += drafted
        self.num_accepted_tokens += accepted
        self.accepted_per_pos += [0] * (offset + drafted - len(self.accepted_per_pos))
        for i in range(offset, offset + accepted):
            self.accepted_per_pos[i] += 1

    @property
    def acceptance_rate(self) -> float:
        """Kept tokens over drafted tokens; 0 where nothing was drafted."""
        return self.num_accepted_tokens / self.num_draft_tokens if self.num_draft_tokens else 0.0

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "calls": self.calls,
            "num_drafts": self.num_drafts,
            "num_draft_tokens": self.num_draft_tokens,
            "num_accepted_tokens": self.num_accepted_tokens,
            "acceptance_rate": self.acceptance_rate,
            "num_accepted_tokens_per_pos": list(self.accepted_per_pos),
            "seconds": self.seconds,
            "forward_seconds": self.forward_seconds,
            "verify_seconds": self.verify_seconds,
        }


@dataclass(slots=True)
class Metrics:
    """Counters of one run: the levels by node index, and the rounds of the target."""

    levels: Mapping[int, LevelStats]
    target_calls: int = 0
    emitted: int = 0

    def reset(self) -> None:
        """Forget what was counted so far (the prefill, for one)."""
        for stats in self.levels.values():
            stats.__init__(stats.name)  # type: ignore[misc]
        self.target_calls = self.emitted = 0

    @property
    def forward_seconds(self) -> float:
        return sum(stats.forward_seconds for stats in self.levels.values())
