"""The profile file: what was measured, on what, and the planner's view of it.

One JSON object; ``docs/profiles.md`` describes it. Measurements are kept per temperature, so a
profile grows when it is measured at another one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..files import write_whole
from ..planner.chain import Chain
from ..planner.estimates import Estimates
from .estimating import estimates

KIND, SCHEMA_VERSION = "hierspec-profile", 1
WHAT = "the profile"  # in refusals to write one
RULES = ("block", "tokenwise")
_PARTS = ("hardware", "target", "memory", "settings", "temperatures")  # objects, every one


@dataclass(frozen=True, slots=True)
class Profile:
    """A profile file in memory. ``data`` is its JSON object."""

    data: Mapping[str, Any]

    @property
    def models(self) -> Sequence[Mapping[str, Any]]:
        """Cheapest first, the target last: ``name``, ``level`` (as in the hierarchy file),
        ``owner`` of the weights, ``weights`` (their hash), ``call_ms``."""
        return self.data["models"]

    @property
    def temperatures(self) -> list[float]:
        return sorted(float(t) for t in self.data["temperatures"])

    @property
    def max_measured(self) -> int:
        """The largest budget that was measured: curves and costs beyond it are carried on."""
        return self.data["settings"]["max_speculative_tokens"]

    def nearest(self, temperature: float) -> float:
        """The measured temperature to plan with: greedy for greedy, else the closest other."""
        measured = self.temperatures
        alike = [t for t in measured if (t == 0) == (temperature == 0)] or measured
        return min(alike, key=lambda t: abs(t - temperature))

    def measured(self, temperature: float) -> Mapping[str, Any]:
        """What was measured at exactly this temperature."""
        table = self.data["temperatures"]
        return table[next(key for key in table if float(key) == temperature)]

    def estimates(
        self,
        temperature: float = 0.0,
        *,
        context: float | None = None,
        max_budget: int | None = None,
        rule: str = "block",
    ) -> Estimates:
        """What the planner reads, for the measured temperature nearest to this one.

        Args:
            context: tokens before a call, prompt and output; default: as timed.
            rule: ``block`` or ``tokenwise``, for all levels.

        Raises:
            ValueError: no such rule, or the profile is damaged.
        """
        if rule not in RULES:
            raise ValueError(f"profiles know the rules {' and '.join(RULES)}, not {rule!r}")
        try:
            return estimates(
                self.models,
                self.data["memory"],
                self.measured(self.nearest(temperature)),
                max_budget=max_budget or self.max_measured,
                context=context,
                rule=rule,
            )
        except (KeyError, TypeError, IndexError, AttributeError) as error:
            raise ValueError(
                f"the profile is damaged ({type(error).__name__}: {error}): measure it again"
            ) from error

    def hierarchy(self, chain: Chain, rule: str = "block") -> dict[str, Any]:
        """A chain of this profile's models as a hierarchy file."""
        return {
            "target": dict(self.data["target"]),
            "levels": _levels(self, chain, rule),
            "verify": rule,
        }


def _levels(profile: Profile, chain: Chain, rule: str) -> list[dict[str, Any]]:
    def level(i: int, budget: int, verify: bool = False, bonus: bool = True) -> dict[str, Any]:
        out = {**profile.models[i]["level"], "num_speculative_tokens": budget}
        if verify:
            out["verify"] = rule
        return out if bonus else {**out, "bonus": False}

    if chain.plain:
        return []
    if chain.order == "chain":
        levels: list[dict[str, Any]] = []
        for at, (i, budget) in enumerate(zip(chain.levels, chain.budgets, strict=False)):
            levels.append(level(i, budget, at > 0, i not in chain.dropped_bonus))
            if at > 0 and chain.tail:
                tail = [level(chain.levels[0], chain.tail)]
                levels = [{"method": "concatenate", "parts": [levels, tail]}]
        return levels
    (small, mid, _), (n, m) = chain.levels, chain.budgets
    if chain.order == "interleaved":
        parts, repeat = [[level(small, n)], [level(mid, 1)]], m
    else:
        parts, repeat = [[level(mid, m)], [level(small, n)]], 1
    return [{"method": "concatenate", "parts": parts, "repeat": repeat}]


def load_profile(path: str | Path, force: bool = False) -> Profile:
    """Read a profile, and check that it holds here.

    Args:
        force: use it although hardware, versions or weights differ.

    Raises:
        ValueError: no such file, not a profile, or measured elsewhere; says what differs.
    """
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"cannot read the profile {str(path)!r}: {error.strerror}") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: not valid JSON: {error}; measure it again") from None
    profile = from_dict(data, str(path))
    if not force and (why := stale(profile)):
        raise ValueError(
            f"{path} was measured under other conditions ({'; '.join(why)}): measure it again "
            "with hierspec profile, or add --force"
        )
    return profile


def from_dict(data: Any, where: str = "profile") -> Profile:
    """A profile from its JSON object; refuses what is none, or is not finished."""
    if not isinstance(data, Mapping) or data.get("kind") != KIND:
        raise ValueError(f"{where} is no profile: hierspec profile -o FILE writes one")
    if data.get("schema_version") != SCHEMA_VERSION:
        raise ValueError(
            f"{where} has schema version {data.get('schema_version')!r}, this hierspec reads "
            f"{SCHEMA_VERSION}: measure it again with hierspec profile"
        )
    if data.get("unfinished"):
        raise ValueError(f"{where} is not finished: give the same hierspec profile command again")
    bad = [key for key in _PARTS if not isinstance(data.get(key), Mapping)]
    models = data.get("models")
    if not isinstance(models, list) or not models or not all(map(_is_model, models)):
        bad.append("models")
    if not bad and not (data["temperatures"] and all(map(_is_temperature, data["temperatures"]))):
        bad.append("temperatures")
    if bad:
        raise ValueError(
            f"{where} is damaged at {bad[0]!r}: measure it again with hierspec profile"
        )
    return Profile(data)


def _is_model(entry: Any) -> bool:
    keys = ("name", "level", "owner", "weights")
    return isinstance(entry, Mapping) and all(key in entry for key in keys)


def _is_temperature(label: str) -> bool:
    try:
        return float(label) >= 0
    except ValueError:
        return False


def stale(profile: Profile) -> list[str]:
    """Why a profile does not hold here: other hardware, versions or weights; [] if it does.

    The number of threads is a choice, like the data type, and no reason.
    """
    from . import fingerprint

    measured = profile.data["hardware"]
    name = "cpu"
    if measured.get("device") != "cpu":
        name = str(profile.data["target"].get("device", "cuda")).replace("auto", "cuda")
    try:
        device = fingerprint.device(name)
    except ValueError:
        return [f"device was {measured.get('device')!r}, here there is none"]
    here = {k: v for k, v in fingerprint.hardware(device).items() if k != "threads"}
    why = fingerprint.differences(measured, here)
    for model in profile.models:
        source = _source(model)
        if not model["weights"] or model["weights"] == fingerprint.weights(source):
            continue
        if fingerprint.found(source):
            why.append(f"the weights of {source!r} have changed")
        else:
            why.append(f"{source!r} not found from here: run from the folder where it was measured")
        break
    return why


def _source(model: Mapping[str, Any]) -> str:
    """Where the files of one of ``models`` are: its owner's name may say a data type as well."""
    level = model["level"] if isinstance(model["level"], Mapping) else {}
    return level.get("model", model["owner"])


def save(data: Mapping[str, Any], path: Path) -> None:
    """Write a profile, finished or not; what was there stays until the new one is whole."""
    write_whole(path, json.dumps(data) + "\n", WHAT)
