"""The planner's answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .estimates import Chain, Estimates
from .latency import Latency


@dataclass(frozen=True, slots=True)
class PricedChain:
    """A chain and what it is expected to cost."""

    chain: Chain
    latency: Latency

    @property
    def ms(self) -> float:
        return self.latency.ms_per_token


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """The best chain and its runners-up.

    Attributes:
        best: may be plain decoding: then speculation does not pay.
        runners_up: other chains, best first; no two of the same levels.
        stacked: the best priced chain of three levels or more, if ``best`` has fewer; ``None``:
            ``best`` has three or more, or no such chain is possible.
    """

    estimates: Estimates
    best: PricedChain
    runners_up: tuple[PricedChain, ...]
    stacked: PricedChain | None = None

    @property
    def three_levels_note(self) -> str:
        """One sentence if three or more levels do not pay; empty if they do."""
        if self.stacked is None:
            return ""
        names = self.stacked.chain.describe(lambda model, _: self.estimates.names[model])
        slower = 100 * (self.stacked.ms / self.best.ms - 1)
        return f"three levels do not pay here: the best of them, {names}, is {slower:.0f} % slower"

    @property
    def speedup(self) -> float:
        """Of the best chain over plain decoding."""
        return self.estimates.plain_ms / self.best.ms

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON object; latencies in the costs' unit (ms)."""
        return {
            "schema_version": 1,
            **self._choice_to_dict(self.best),
            "speculate": not self.best.chain.plain,
            "plain_latency": self.estimates.plain_ms,
            "priors": list(self.estimates.priors),
            "three_levels": None if self.stacked is None else self._choice_to_dict(self.stacked),
            "runners_up": [self._choice_to_dict(choice) for choice in self.runners_up],
        }

    def _choice_to_dict(self, choice: PricedChain) -> dict[str, Any]:
        chain, latency = choice.chain, choice.latency
        total = latency.ms_per_token
        return {
            "levels": list(chain.models),
            "names": [self.estimates.names[i] for i in chain.models],
            "num_speculative_tokens": list(chain.budgets),
            "order": chain.order,
            "tail": chain.tail,
            "dropped_bonus": list(chain.dropped_bonus),
            "latency": total,
            "speedup": self.estimates.plain_ms / total,
            "tokens_per_target_call": latency.tokens_per_call,
            "share_of_time": [ms / total for ms in latency.spent],
            "memory_bytes": self.estimates.bytes(chain.models),
        }
