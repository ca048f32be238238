"""``--hierarchy auto``: measure once on a machine, keep the profile, plan from it ever after."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..build import Loaded
from ..config import HierarchyConfig, TargetConfig
from ..planner.plan import Plan
from ..planner.search import Shapes, plan
from ..presets import DEFAULT_TARGET
from . import fingerprint, texts
from .candidates import Candidate, parse
from .measure import measure
from .profile import Profile, load_profile
from .settings import Report, Settings

CLOSE = 0.15  # a profile serves temperatures as near as this to a measured one


@dataclass(frozen=True, slots=True, eq=False)
class Auto:
    """What ``auto`` decided.

    Attributes:
        measured_now: whether this call had to measure.
        path: where the profile is kept.
    """

    config: HierarchyConfig
    plan: Plan
    profile: Profile
    loaded: Loaded
    measured_now: bool
    path: Path


def choose(
    target: TargetConfig | None = None,
    drafts: Sequence[str] = (),
    *,
    temperature: float = 0.0,
    settings: Settings | None = None,
    report: Report = lambda stage, share: None,
) -> Auto:
    """The fastest hierarchy for these models on this machine.

    Args:
        drafts: candidates as :func:`hierspec.profiling.candidates.parse` reads them; default: the
            shipped family, or prompt lookup alone for any other target.
        temperature: of the requests to come; 0 is greedy.
        report: told how far a measurement is.

    Raises:
        ValueError: a model that cannot be loaded, or a cache that cannot be written.
    """
    target = target or TargetConfig(model=DEFAULT_TARGET)
    candidates = [parse(text) for text in drafts] or default_candidates(target.model)
    settings = settings or Settings()
    path = cache_path(target, candidates)
    loaded, profile = Loaded(), None
    if path.exists():
        try:
            profile = load_profile(path)
        except ValueError:  # damaged or unfinished: measuring continues it or starts anew
            profile = None
    measured_now = profile is None or not serves(profile, temperature)
    if measured_now:
        measure(
            target,
            candidates,
            texts.builtin(target.model),
            [temperature],
            settings,
            path=path,
            loaded=loaded,
            report=report,
        )
        profile = load_profile(path)
    assert profile is not None
    best = plan(profile.estimates(temperature), shapes=Shapes(dropped_bonus=True))
    config = HierarchyConfig.from_dict(profile.hierarchy(best.best.chain))
    return Auto(config, best, profile, loaded, measured_now, path)


def serves(profile: Profile, temperature: float) -> bool:
    """Whether a measured temperature is near enough."""
    nearest = profile.nearest(temperature)
    return (nearest == 0) == (temperature == 0) and abs(nearest - temperature) <= CLOSE


def default_candidates(target: str) -> list[Candidate]:
    """What may draft for a target when the user names nothing."""
    if target == "zoo:trunk":
        names = ["ngram", "zoo:small", "zoo:mid", "exit:1", "exit:2", "exit:4", "prompt-lookup"]
    elif target.startswith("zoo:"):
        names = ["ngram", "zoo:small", "zoo:mid", "zoo:trunk", "prompt-lookup"]
    else:
        names = ["prompt-lookup"]
    return [parse(name) for name in names if name != target]


def cache_path(target: TargetConfig, candidates: Sequence[Candidate]) -> Path:
    """The file for these models, weights, versions and hardware."""
    import torch

    on_gpu = target.device.startswith("cuda") or (
        target.device == "auto" and torch.cuda.is_available()
    )
    device = torch.device("cuda" if on_gpu else "cpu")
    levels = [candidate.level for candidate in candidates]
    names = [getattr(x, "model", None) or getattr(x, "table", "") for x in (target, *levels)]
    what = [
        target,
        [repr(c) for c in candidates],
        [fingerprint.weights(name) for name in names if name],
        fingerprint.hardware(device),
    ]
    return cache_folder() / f"{fingerprint.key(what)}.json"


def cache_folder() -> Path:
    """``$HIERSPEC_CACHE/profiles``, else below the user's cache folder."""
    base = os.environ.get("HIERSPEC_CACHE")
    if base:
        return Path(base) / "profiles"
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "hierspec/profiles"
