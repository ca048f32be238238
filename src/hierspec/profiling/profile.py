"""From what was measured to what the planner reads: curves made whole, samples made smooth.

The profile file: what was measured, on what, and the planner's view of it.

One JSON object; ``docs/profiles.md`` describes it. Measurements are kept per temperature, so a
profile grows when it is measured at another one.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hierspec.errors import HierspecError
from hierspec.planner.estimates import LONGEST, Chain, Estimates
from hierspec.utils import machine
from hierspec.utils.files import write_whole
from hierspec.zoo import fingerprint

Rows = Sequence[Mapping[str, Any]]


def estimates(
    models: Sequence[Mapping[str, Any]],
    memory: Mapping[str, int],
    measured: Mapping[str, Any],
    *,
    max_budget: int,
    context: float | None = None,
    rule: str = "block",
) -> Estimates:
    """The planner's view of one temperature's measurements.

    Args:
        context: tokens before a call; default: as long as those that were timed.
        rule: whose survival curves, ``block`` or ``tokenwise``.
    """
    count, size = len(models), LONGEST + 1
    costs = _Costs(measured, count, context)
    draft_ms, cold = costs.drafts(size)
    checks = costs.checks(size) + cold[:, :, None]
    target, per_token = count - 1, measured["token_ms"]

    def of(curves: Sequence[tuple[int, int, Mapping[str, Any]]]) -> Estimates:
        survival = np.full((count, count, size), np.nan)
        windows: dict[int, np.ndarray] = {}
        for i, k, curve in curves:
            survival[i, k] = extended(np.asarray(curve[rule]), size)
            if curve.get("joint") is not None:
                joint = np.asarray(curve["joint"][rule])
                windows.setdefault(i, np.zeros((count, *joint.shape)))[k] = joint
        verify_ms = checks.copy()
        # A token also costs what the caller's loop does with it; a call yields E[tokens] of them.
        verify_ms[:, target] += per_token * np.nan_to_num(survival[:, target]).cumsum(-1)
        return Estimates(
            names=tuple(model["name"] for model in models),
            survival=survival,
            draft_ms=draft_ms,
            verify_ms=verify_ms,
            plain_ms=costs.single(target) + per_token,
            max_budget=max_budget,
            owners=tuple(model["owner"] for model in models),
            memory=dict(memory),
            windows=windows,
        )

    pairs = measured["pairs"]
    whole = of(
        [(p["drafter"], p["verifier"], {**p["survival"], "joint": p.get("joint")}) for p in pairs]
    )
    kinds = min((len(pair["classes"]) for pair in pairs), default=1)
    if kinds < 2:
        return whole
    parts = [
        of([(p["drafter"], p["verifier"], p["classes"][c]) for p in pairs]) for c in range(kinds)
    ]
    return dataclasses.replace(whole, classes=tuple(parts))


def extended(curve: np.ndarray, size: int) -> np.ndarray:
    """A survival curve [M+1] carried on to ``size`` entries at its last rate of survival."""
    out = np.empty(size)
    measured = min(len(curve), size)
    out[:measured] = curve[:measured]
    if measured < size:
        back = min(4, measured - 1)
        start, end = out[measured - 1 - back], out[measured - 1]
        rate = (end / start) ** (1 / back) if start > 0 and back else 0.0
        out[measured:] = end * rate ** np.arange(1, size - measured + 1)
    return out


class _Costs:
    """Mean times as functions of the number of tokens, moved to a context length.

    Times are straight lines in the length of the context, whose slopes are noisy: they are taken
    between 0 and what would make the time vanish without a context.
    """

    def __init__(self, measured: Mapping[str, Any], count: int, context: float | None) -> None:
        self.count = count
        self.rows = {(row["drafter"], row["verifier"]): row for row in measured["costs"]}
        base = measured["context"]
        self.tokens = base["tokens"]
        self.extra = 0.0 if context is None else max(context, 0.0) - self.tokens
        self.slopes = {row["model"]: row for row in base["slopes"]}

    def drafts(self, size: int) -> tuple[np.ndarray, np.ndarray]:
        """[K+1, size] for n tokens in a row; and [K+1, K+1], what a pair's first step adds."""
        out = np.zeros((self.count, size))
        cold = np.zeros((self.count, self.count))
        lengths = np.arange(size)
        for i in range(self.count):
            seen = {k: _points(row["draft"]) for (j, k), row in self.rows.items() if j == i}
            seen = {k: points for k, points in seen.items() if len(points[0])}
            if not seen:
                out[i] = lengths * self.single(i) if (None, i) in self.rows else 0.0
                continue
            curves = {k: _line(points, lengths) for k, points in seen.items()}
            whole = np.stack(list(curves.values()))
            first = whole[:, 1].min()
            out[i, 1:] = first + np.median(whole[:, 1:] - whole[:, 1:2], axis=0)
            for k, (at, values) in seen.items():
                drafted = at > 0
                gap = values[drafted] - out[i][at[drafted]]
                cold[i, k] = float(np.median(gap)) if drafted.any() else 0.0
            out[i] += self._shift(out[i], lengths * self._per_token(i, 0))
        return out, cold

    def checks(self, size: int) -> np.ndarray:
        """[K+1, K+1, size] for one call on n tokens."""
        out = np.zeros((self.count, self.count, size))
        lengths = np.arange(size)
        for (i, k), row in self.rows.items():
            if i is None:
                continue
            at, values = _points(row["check"])
            # Without a draft it is the same call whoever found none, and not a saving by noise.
            at, values = np.append(0, at[at > 0]), np.append(self._alone(k), values[at > 0])
            ms = _line((at, values), lengths)
            zero, eight = self._per_token(k, 0), self._per_token(k, 8)
            out[i, k] = ms + self._shift(ms, zero + lengths / 8 * (eight - zero))
        return out

    def single(self, k: int) -> float:
        """One call of model k without a draft."""
        ms = np.array(self._alone(k))
        return float(ms + self._shift(ms, np.array(self._per_token(k, 0))))

    def _alone(self, k: int) -> float:
        return self.rows[None, k]["check"]["0"]["mean"]

    def _per_token(self, k: int, tokens: int) -> float:
        """Milliseconds that a token of context adds to a call on so many tokens."""
        slopes = self.slopes.get(k)
        return slopes[f"ms_per_token_{tokens}"] if slopes else 0.0

    def _shift(self, ms: np.ndarray, slopes: np.ndarray) -> np.ndarray:
        """What the other context adds to times; the same shape."""
        return self.extra * np.clip(slopes, 0.0, np.maximum(ms, 0.0) / self.tokens)


def _points(samples: Mapping[str, Mapping[str, float]]) -> tuple[np.ndarray, np.ndarray]:
    at = sorted(int(n) for n in samples)
    return np.array(at, dtype=int), np.array([samples[str(n)]["mean"] for n in at])


def _line(points: tuple[np.ndarray, np.ndarray], lengths: np.ndarray) -> np.ndarray:
    """Straight lines between points; beyond the last one on with the slope from the middle on."""
    at, values = points
    out = np.interp(lengths, at, values)
    if len(at) > 1:
        half = len(at) // 2
        last = min(half, len(at) - 2)
        slope = (values[-1] - values[last]) / (at[-1] - at[last])
        beyond = lengths > at[-1]
        out[beyond] = values[-1] + max(slope, 0.0) * (lengths[beyond] - at[-1])
    return out


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
            raise HierspecError(f"profiles know the rules {' and '.join(RULES)}, not {rule!r}")
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
            raise HierspecError(
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
        raise HierspecError(f"cannot read the profile {str(path)!r}: {error.strerror}") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise HierspecError(f"{path}: not valid JSON: {error}; measure it again") from None
    profile = from_dict(data, str(path))
    if not force and (why := stale(profile)):
        raise HierspecError(
            f"{path} was measured under other conditions ({'; '.join(why)}): measure it again "
            "with hierspec profile, or add --force"
        )
    return profile


def from_dict(data: Any, where: str = "profile") -> Profile:
    """A profile from its JSON object; refuses what is none, or is not finished."""
    if not isinstance(data, Mapping) or data.get("kind") != KIND:
        raise HierspecError(f"{where} is no profile: hierspec profile -o FILE writes one")
    if data.get("schema_version") != SCHEMA_VERSION:
        raise HierspecError(
            f"{where} has schema version {data.get('schema_version')!r}, this hierspec reads "
            f"{SCHEMA_VERSION}: measure it again with hierspec profile"
        )
    if data.get("unfinished"):
        raise HierspecError(
            f"{where} is not finished: give the same hierspec profile command again"
        )
    bad = [key for key in _PARTS if not isinstance(data.get(key), Mapping)]
    models = data.get("models")
    if not isinstance(models, list) or not models or not all(map(_is_model, models)):
        bad.append("models")
    if not bad and not (data["temperatures"] and all(map(_is_temperature, data["temperatures"]))):
        bad.append("temperatures")
    if bad:
        raise HierspecError(
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
    measured = profile.data["hardware"]
    name = "cpu"
    if measured.get("device") != "cpu":
        name = str(profile.data["target"].get("device", "cuda")).replace("auto", "cuda")
    try:
        device = machine.device(name)
    except HierspecError:
        return [f"device was {measured.get('device')!r}, here there is none"]
    here = {k: v for k, v in machine.hardware(device).items() if k != "threads"}
    why = [
        f"{key} was {measured.get(key)!r}, here it is {value!r}"
        for key, value in here.items()
        if measured.get(key) != value
    ]
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
