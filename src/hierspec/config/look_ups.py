"""What the levels that copy text have in common."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationInfo, field_validator

from hierspec.core.windows import FixedWindow
from hierspec.errors import HierspecError
from hierspec.utils.schema import checked_dataclass, error_at

from .levels import Capabilities, LevelConfig

# Fields that mean nothing for a level that copies: field → the value that is allowed, and why.
_NOT_OF_LOOK_UPS = {
    "temperature": (None, "copies tokens and scores none, so temperature has no use; remove it"),
    "window": (
        FixedWindow(),
        "copies tokens and has no scores for a window to read; remove it "
        "(num_speculative_tokens limits a draft)",
    ),
    "num_drafts": (1, "makes only one draft; remove num_drafts"),
}


PLANNED_LOOK_UP = Capabilities(verifies=False, copies=True, planned=True, cost=0)


@checked_dataclass
class LookUpConfig(LevelConfig):
    """A level that copies tokens: it has no scores for a temperature or a window."""

    capabilities = Capabilities(verifies=False, copies=True, cost=0)

    @field_validator(*_NOT_OF_LOOK_UPS)
    @classmethod
    def _validate_unused(cls, value: Any, info: ValidationInfo) -> Any:
        allowed, message = _NOT_OF_LOOK_UPS[info.field_name or ""]
        if value != allowed:
            raise ValueError(f"{info.data['method']} {message}")
        return value

    @property
    def only_drafts(self) -> str:
        return f"{self.method} cannot verify drafts, since it only copies text; put it first"

    def weight_bytes(self, model: Any) -> int:
        return 0

    def _validate_range(self, low: str, high: str) -> None:
        if getattr(self, high) < getattr(self, low):
            raise error_at([high], f"{high} must not be below {low}")


def validate_not_of_look_ups(level: LevelConfig) -> None:
    """Refuse what only levels that score may have, of one that turned out to copy."""
    for name, (allowed, message) in _NOT_OF_LOOK_UPS.items():
        if getattr(level, name) != allowed:
            raise HierspecError(f"{name}: {level.method} {message}")
    if level.verify is not None:
        raise HierspecError(
            f"{level.method} cannot verify drafts, since it only copies text; put it first"
        )
