"""``--hierarchy auto``: measure once on a machine, keep the profile, plan from it ever after."""

from __future__ import annotations

import contextlib
import dataclasses
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from hierspec.config import exit_heads
from hierspec.config.checkpoints import Loaded, load_tokenizer
from hierspec.config.schema import HierarchyConfig, TargetConfig
from hierspec.planner.plan import Plan
from hierspec.planner.search import Shapes, plan
from hierspec.utils import machine
from hierspec.utils.files import cache_folder, file_key, probe
from hierspec.zoo import fingerprint, registry
from hierspec.zoo.registry import DEFAULT_TARGET

from .candidates import Candidate, chosen, load
from .measure import measure
from .noise import BusyWarning, said
from .profile import WHAT, Profile, from_dict, load_profile
from .settings import QUICK, ProfileSettings, Report
from .texts import builtin, chats

CLOSE = 0.15  # a profile serves temperatures as near as this to a measured one
_HINT = "set HIERSPEC_CACHE to a folder that can be written"


@dataclass(frozen=True, slots=True, eq=False)
class AutoChoice:
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
    chat: bool = False,
    settings: ProfileSettings | None = None,
    report: Report = lambda stage, share: None,
) -> AutoChoice:
    """The fastest hierarchy for these models on this machine.

    Args:
        drafts: candidates as :func:`hierspec.profiling.candidates.parse` reads them; models are
            measured beside what needs none (:func:`hierspec.profiling.candidates.chosen`). Default:
            the shipped family, or for any other target what needs no model beside it.
        temperature: of the requests to come; 0 is greedy.
        chat: whether they are questions in the target's chat template: its answers are measured.
        settings: how much to measure; default: :data:`~hierspec.profiling.settings.QUICK`.
        report: called with how far a measurement is.

    Raises:
        HierspecError: a model that cannot be loaded, or a cache that cannot be written.
    """
    target = target or TargetConfig(model=DEFAULT_TARGET)
    candidates = chosen(target.model, drafts)
    settings = settings or QUICK
    loaded = Loaded()
    if not all(map(_is_here, _names(target, candidates))):
        load(target, candidates, loaded)  # downloads: the key goes by the files
    path = cache_path(target, candidates, settings, chat)
    profile, measured_now = _kept(path, temperature), False
    if profile is None:
        probe(path, WHAT, _HINT)
        with _turn(path, report):
            profile = _kept(path, temperature)  # by another process, meanwhile
            if measured_now := profile is None:
                data = measure(
                    target,
                    candidates,
                    _texts(target.model, chat),
                    [temperature],
                    settings,
                    path=path,
                    loaded=loaded,
                    report=report,
                )
                profile = from_dict(data, str(path))
                if busy := said(data["temperatures"]):
                    warnings.warn(f"{busy} (delete {path})", BusyWarning, stacklevel=2)
    best = plan(profile.estimates(temperature), shapes=Shapes(dropped_bonus=True))
    config = HierarchyConfig.from_dict(profile.hierarchy(best.best.chain))
    return AutoChoice(config, best, profile, loaded, measured_now, path)


def serves(profile: Profile, temperature: float) -> bool:
    """Whether a measured temperature is near enough."""
    nearest = profile.nearest(temperature)
    return (nearest == 0) == (temperature == 0) and abs(nearest - temperature) <= CLOSE


def _kept(path: Path, temperature: float) -> Profile | None:
    """The profile in the cache, if it serves."""
    try:
        profile = load_profile(path)
    except ValueError:  # none, damaged or unfinished: measuring continues it or starts anew
        return None
    return profile if serves(profile, temperature) else None


@contextlib.contextmanager
def _turn(path: Path, report: Report) -> Iterator[None]:
    """Wait until no other process measures for ``path``; the lock ends with its process.

    Where there are no locks several measure at once, which costs accuracy and no results.
    """
    lock = FileLock(f"{path}.lock")
    with contextlib.suppress(OSError, NotImplementedError):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire(blocking=False)
        except Timeout:
            report("another process is measuring these models; waiting", 0.0)
            lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _texts(model: str, chat: bool) -> Sequence[str | Sequence[int]]:
    if not chat:
        return builtin(model)
    source = registry.resolve(model) if registry.resolves(model) else model
    return chats(load_tokenizer(source))


def cache_path(
    target: TargetConfig,
    candidates: Sequence[Candidate],
    settings: ProfileSettings | None = None,
    chat: bool = False,
) -> Path:
    """The file for these models, weights, settings, versions and hardware.

    Raises:
        HierspecError: the target's device is not here, or there is no folder for caches.
    """
    what = [
        target,
        [repr(c) for c in candidates],
        [fingerprint.weights(name) for name in _names(target, candidates)],
        dataclasses.asdict(settings or QUICK),
        machine.hardware(machine.device(target.device)),
        *(["chat"] if chat else []),
    ]
    return cache_folder("profiles") / f"{file_key(what)}.json"


def _names(target: TargetConfig, candidates: Sequence[Candidate]) -> list[str]:
    """Models, tables, and files of trained heads."""
    levels = [candidate.level for candidate in candidates]
    names = [getattr(x, "model", None) or getattr(x, "table", "") for x in (target, *levels)]
    heads = {head for level in levels if (head := getattr(level, "head", None))}
    return [name for name in names if name] + [
        str(exit_heads.locate(head)) for head in sorted(heads)
    ]


def _is_here(name: str) -> bool:
    return registry.resolves(name) or Path(name).exists()
