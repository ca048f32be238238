"""N-grams that the target writes beside its checks: :mod:`.window`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from hierspec.config.levels import LookUpConfig, TargetInfo
from hierspec.config.methods import register_level
from hierspec.errors import HierspecError
from hierspec.utils.schema import Count, checked_dataclass

if TYPE_CHECKING:
    from hierspec.core.nodes import Verify
    from hierspec.drafters.base import LookUp


@register_level
@checked_dataclass
class LookaheadConfig(LookUpConfig):
    """Copies n-grams that the target writes beside its checks, by Jacobi iterations [Lookahead].

    The only level of a hierarchy, verified by ``rrs`` or another rule for several drafts.

    Attributes:
        num_speculative_tokens: tokens of an n-gram after its first one (their N − 1).
        window_size: columns of guesses (their W).
        max_candidates: n-grams checked in a call (their G).
    """

    method: Literal["lookahead"] = "lookahead"
    window_size: Count = 7
    max_candidates: Count = 7

    @property
    def max_tokens(self) -> int:
        """The largest number of tokens of one draft; the window's paths are longer than n-grams."""
        return self.num_speculative_tokens + max(0, self.window_size - 2)

    @property
    def max_drafts(self) -> int:
        """Columns and candidates; until the window is full it has one more column in each call."""
        return self.window_size + self.num_speculative_tokens - 1 + self.max_candidates

    def make(self, target: TargetInfo) -> LookUp:
        from .window import Lookahead

        return Lookahead(self.num_speculative_tokens + 1, self.window_size, self.max_candidates)

    def complete(self, root: Verify) -> Verify:
        from hierspec.core.nodes import Draft

        if not isinstance(root.below, Draft):
            raise HierspecError(
                "level 'lookahead' learns from the target's checks of its drafts, so it must be "
                "the only level: remove the others"
            )
        if not root.rule.multi_draft:
            raise HierspecError(
                "level 'lookahead' needs a rule for several drafts above it, and "
                f'{root.rule.name!r} takes one: add "verify": "rrs" at the top'
            )
        return root
