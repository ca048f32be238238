"""The profile file: written and read.

One JSON object; ``docs/profiles.md`` describes it and :mod:`.schema` declares it. Measurements are
kept per temperature, so a profile grows when it is measured at another one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from hierspec.config.schema import TargetConfig
from hierspec.errors import HierspecError
from hierspec.planner.estimates import Chain, Estimates
from hierspec.utils import schema
from hierspec.utils.files import json_digest, read_text, write_atomically
from hierspec.utils.records import FrozenRecord
from hierspec.utils.schema import Integer

from .estimates import estimates
from .schema import (
    RULE,
    RULE_FOR_SEVERAL_DRAFTS,
    AtTemperature,
    MeasuredModel,
    MeasuredSettings,
    TargetObject,
    TemperatureKey,
)

KIND, SCHEMA_VERSION = "hierspec-profile", 1
DESCRIPTION = "the profile"  # in refusals to write one
_CHECKSUM = "checksum"  # of the other keys


class Profile(FrozenRecord):
    """A finished profile file in memory; ``models``: cheapest first, the target last."""

    kind: Literal["hierspec-profile"]
    schema_version: Literal[1]
    request: str = ""
    hardware: dict[str, Any]
    target: TargetObject
    prompts: dict[str, Any] = Field(default_factory=dict)
    settings: MeasuredSettings
    temperatures: Annotated[dict[TemperatureKey, AtTemperature], Field(min_length=1)]
    models: Annotated[list[MeasuredModel], Field(min_length=1)]
    memory: dict[str, Integer]

    @property
    def target_config(self) -> TargetConfig:
        return schema.validate(TargetConfig, self.target, "target")

    @property
    def measured_at(self) -> list[float]:
        """The temperatures, ascending."""
        return sorted(map(float, self.temperatures))

    @property
    def max_measured(self) -> int:
        """The largest budget that was measured; curves and costs are extrapolated beyond it."""
        return self.settings.max_speculative_tokens

    def nearest(self, temperature: float) -> float:
        """Return the measured temperature to plan with: greedy for greedy, else the closest."""
        measured = self.measured_at
        comparable = [t for t in measured if (t == 0) == (temperature == 0)] or measured
        return min(comparable, key=lambda t: abs(t - temperature))

    def measured(self, temperature: float) -> AtTemperature:
        """Return what was measured at exactly this temperature."""
        table = self.temperatures
        return next(table[label] for label in table if float(label) == temperature)

    def estimates(self, temperature: float = 0.0, *, max_budget: int | None = None) -> Estimates:
        """Return what the planner reads, for the measured temperature nearest to this one.

        Raises:
            HierspecError: the profile names models or calls that it does not hold.
        """
        try:
            return estimates(
                self.models,
                self.memory,
                self.measured(self.nearest(temperature)),
                max_budget=max_budget or self.max_measured,
            )
        except HierspecError:
            raise
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:
            raise HierspecError(
                f"the profile is damaged ({type(error).__name__}: {error}): measure it again"
            ) from error

    def hierarchy(self, chain: Chain) -> dict[str, Any]:
        """Return a chain of this profile's models as a hierarchy file."""
        several = not chain.plain and self.models[chain.models[0]].makes_several
        return {
            "target": dict(self.target),
            "levels": self._levels(chain),
            "verify": RULE_FOR_SEVERAL_DRAFTS if several else RULE,
        }

    def _levels(self, chain: Chain) -> list[dict[str, Any]]:
        def level(i: int, budget: int, verifies: bool) -> dict[str, Any]:
            measured_level = self.models[i].level
            assert measured_level is not None, "the target drafts for nobody"
            fields: dict[str, Any] = {"num_speculative_tokens": budget}
            if verifies:
                fields |= {"verify": RULE}
                fields |= {"bonus": False} if i in chain.dropped_bonus else {}
            return {**measured_level, **fields}

        def concatenate(parts: list[list[dict[str, Any]]], **repeat: int) -> dict[str, Any]:
            return {"method": "concatenate", "parts": parts, **repeat}

        return chain.levels_below(level, concatenate)


def load_profile(path: str | Path) -> Profile:
    """Read a profile.

    Raises:
        HierspecError: no such file, or not a profile.
    """
    text = read_text(Path(path), DESCRIPTION)
    return from_dict(schema.parse_json(text, str(path)), str(path))


def from_dict(data: Any, name: str = "profile") -> Profile:
    """Read a profile from its JSON object.

    Raises:
        HierspecError: it is none, or not finished, or of another version, or damaged.
    """
    if not isinstance(data, Mapping) or data.get("kind") != KIND:
        raise HierspecError(f"{name} is not a profile: hierspec profile -o FILE writes one")
    if (version := data.get("schema_version")) != SCHEMA_VERSION:
        raise HierspecError(
            f"{name} has schema version {version!r}, this hierspec reads {SCHEMA_VERSION}: "
            "measure it again with hierspec profile"
        )
    if data.get("unfinished"):
        raise HierspecError(f"{name} is not finished: give the same hierspec profile command again")
    try:
        return schema.validate(Profile, data, "")
    except HierspecError as error:
        raise HierspecError(
            f"{name} is damaged: {error}; measure it again with hierspec profile"
        ) from None


def save(data: Mapping[str, Any], path: Path) -> None:
    """Write a profile, finished or not; what was there stays until the new one is whole."""
    checked = {**data, _CHECKSUM: json_digest(data)}
    write_atomically(path, json.dumps(checked) + "\n", DESCRIPTION)


def is_intact(data: dict[str, Any]) -> bool:
    """Take the checksum out of a file's object, and return whether the rest is as it was saved.

    Older versions saved none.
    """
    checksum = data.pop(_CHECKSUM, None)
    return checksum is None or checksum == json_digest(data)
