"""How much to measure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

from hierspec.errors import HierspecError
from hierspec.utils.checks import is_number
from hierspec.utils.schema import PositiveInteger, read

Report = Callable[[str, float], None]  # stage, share of all work done
MAX_BUDGET = 32  # speculative tokens; the planner's curves end at twice that
_BUDGETS = (1, 2, 3, 4, 6, 8, 12, 16, 24)


@dataclass(frozen=True, slots=True)
class ProfileSettings:
    """How much to measure.

    Attributes:
        max_speculative_tokens: largest budget to know about.
        tokens: of the target's own after each prompt, fewer where its text ends; drafts are tried
            along them.
        places: where along the texts, per text in the mean.
        rounds: drafts at each place.
        classes: most kinds of text, by how easy they are for whom, whose curves are kept apart.
        places_per_class: fewer would make classes differ by chance.
        prompts: how many of the prompts to use.
        repeats: how often every cost is timed, two rounds each; less often where times agree.
        cost_seconds: after which costs that were timed twice are not timed again.
        min_ratio: a model verifies another only if its call costs this many times as much.
        ignore_eos: let the target's texts go on where they end, as requests that ignore it do.

    Raises:
        HierspecError: a number out of range.
    """

    max_speculative_tokens: int = 15
    tokens: int = 128
    places: int = 6
    rounds: int = 2
    classes: int = 12
    places_per_class: int = 16
    prompts: int = 16
    repeats: int = 6
    cost_seconds: int = 600
    min_ratio: float = 1.25
    ignore_eos: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        for field in fields(self):
            if field.name not in ("min_ratio", "ignore_eos", "seed"):
                read(PositiveInteger, getattr(self, field.name), field.name)
        if self.max_speculative_tokens > MAX_BUDGET:
            raise HierspecError(f"max_speculative_tokens must be at most {MAX_BUDGET}")
        if not is_number(self.min_ratio) or self.min_ratio < 0:
            raise HierspecError(f"min_ratio must be a number of at least 0, not {self.min_ratio!r}")

    def budgets(self) -> tuple[int, ...]:
        """Draft lengths whose costs are timed."""
        most = self.max_speculative_tokens
        return (*(n for n in _BUDGETS if n < most), most)


# What ``auto`` measures before its first text, also beside other work: enough to plan with, and
# control while text is written learns the rest (hierspec.planner.online).
QUICK = ProfileSettings(tokens=64, rounds=1, prompts=8, repeats=5, cost_seconds=15)
