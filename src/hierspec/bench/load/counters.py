"""A server's counters of drafts, in Prometheus's text format: vLLM's, or ours by level."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

_LINE = re.compile(
    r"^(?:vllm:|hierspec_)spec_decode_(?P<name>\w+?)_total(?:\{(?P<labels>.*)\})?\s+(?P<value>\S+)"
)
_SUMS = ("num_drafts", "num_draft_tokens", "num_accepted_tokens")  # metrics, and fields here
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


@dataclass(slots=True)
class DraftCounts:
    """Counters of what a level drafted for the one above it."""

    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    per_position: Counter[int] = field(default_factory=Counter[int])

    def __sub__(self, earlier: DraftCounts) -> DraftCounts:
        """Return the counts since the earlier ones."""
        return DraftCounts(
            self.num_drafts - earlier.num_drafts,
            self.num_draft_tokens - earlier.num_draft_tokens,
            self.num_accepted_tokens - earlier.num_accepted_tokens,
            Counter({i: n - earlier.per_position[i] for i, n in self.per_position.items()}),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return vLLM's fields: token rates in percent, lengths with the bonus token."""
        drafts, tokens = self.num_drafts, self.num_draft_tokens
        positions = sorted(self.per_position)
        return {
            "spec_decode_acceptance_rate": 100 * self.num_accepted_tokens / tokens if tokens else 0,
            "spec_decode_acceptance_length": 1 + self.num_accepted_tokens / drafts if drafts else 1,
            "spec_decode_num_drafts": drafts,
            "spec_decode_draft_tokens": tokens,
            "spec_decode_accepted_tokens": self.num_accepted_tokens,
            "spec_decode_per_position_acceptance_rates": [
                self.per_position[i] / drafts if drafts else 0.0 for i in positions
            ],
        }


# Level → counters, in the server's order; "" where it has no levels.
Counters = dict[str, DraftCounts]


def parse(text: str) -> Counters | None:
    """Parse an answer of ``/metrics``; counters are summed over all labels but level, position."""
    counters: Counters = {}
    for line in text.splitlines():
        if not (match := _LINE.match(line)):
            continue
        labels = dict(_LABEL.findall(match["labels"] or ""))
        counts = counters.setdefault(labels.get("level", ""), DraftCounts())
        name = match["name"]
        if name in _SUMS:
            setattr(counts, name, getattr(counts, name) + int(float(match["value"])))
        elif name == "num_accepted_tokens_per_pos":
            counts.per_position[int(labels.get("position", 0))] += int(float(match["value"]))
    return counters or None


def spec_decode_fields(before: Counters | None, after: Counters | None) -> dict[str, Any]:
    """Return vLLM's ``spec_decode_*`` fields of the level that drafts for the target.

    Where the server counts each level, ``spec_decode_levels`` has the fields of each.
    """
    if after is None:
        return {}
    before = before or {}
    differences = {
        level: counts - before.get(level, DraftCounts()) for level, counts in after.items()
    }
    fields = list(differences.values())[-1].to_dict()
    if "" not in differences:
        fields["spec_decode_levels"] = {
            level: counts.to_dict() for level, counts in differences.items()
        }
    return fields
