"""``--hierarchy auto``: measure once on a machine, keep the profile, plan from it from then on."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from hierspec.config.checkpoints import Loaded, load_tokenizer, load_tokenizer_of
from hierspec.config.in_memory import ModelInMemory, fingerprint_of, put_back
from hierspec.config.schema import HierarchyConfig, TargetConfig
from hierspec.errors import HierspecError
from hierspec.lm.native import compiler, library
from hierspec.planner.estimates import Chain
from hierspec.planner.latency import latency
from hierspec.planner.online.candidates import extend_chain
from hierspec.planner.plan import Plan
from hierspec.planner.search import ALL_VARIATIONS, plan
from hierspec.sampling.parameters import SamplingParams
from hierspec.utils import machine
from hierspec.utils.documents import read_json
from hierspec.utils.files import (
    cache_folder,
    json_digest,
    validate_writable,
    without_folders,
    write_atomically,
)
from hierspec.zoo import fingerprint, registry

from .candidates import Candidate, choose_candidates, load
from .measure import measure
from .noise import BusyWarning, busy_message
from .profile import DESCRIPTION, Profile, from_dict, is_intact
from .settings import QUICK, ReportProgress
from .texts import builtin, chats

CLOSE = 0.15  # largest difference from a measured temperature at which a profile is used
_AGAIN = "--measure-again, or measure_again=True from Python"
_HINT = "set HIERSPEC_CACHE to a folder that can be written"


@dataclass(frozen=True, slots=True, eq=False)
class AutoChoice:
    """The result of ``auto``.

    Attributes:
        config: the plan's hierarchy, for a run without control.
        control: the chain for online control: the plan's, or that with one more level
            (:func:`control_chain`).
        in_memory: loaded models by the names that the profile has of them.
    """

    config: HierarchyConfig
    plan: Plan
    control: Chain
    profile: Profile
    loaded: Loaded
    measured_now: bool
    path: Path
    in_memory: Mapping[str, ModelInMemory]

    def hierarchy(self, chain: Chain) -> HierarchyConfig:
        """Return the hierarchy of a chain of the profile's models."""
        return _hierarchy(self.profile, chain, self.in_memory)


def choose(
    target: TargetConfig | None = None,
    names: Sequence[str] = (),
    *,
    temperature: float = 0.0,
    chat: bool = False,
    measure_again: bool = False,
    report: ReportProgress = lambda stage, share: None,
) -> AutoChoice:
    """Choose the fastest hierarchy for these models on this machine.

    Args:
        names: candidates as :func:`hierspec.profiling.candidates.parse` reads them; models are
            measured beside drafters that need no model of the user's
            (:func:`hierspec.profiling.candidates.choose_candidates`). Default: the shipped family,
            or for any other target those drafters.
        temperature: of the requests to come; 0 is greedy.
        chat: measure on questions in the target's chat template, as the requests will be.
        measure_again: measure anew, whatever is kept.

    Raises:
        HierspecError: a model that cannot be loaded, or a cache that cannot be written.
    """
    target = target or TargetConfig(model=registry.DEFAULT_TARGET)
    temperature = SamplingParams.make(temperature=temperature).temperature
    expected = library.is_expected()
    candidates = choose_candidates(target, names)
    models = [name for name in (target.model, *names) if isinstance(name, ModelInMemory)]
    in_memory = {str(model): model for model in models}
    if len(in_memory) < len(models):
        raise HierspecError(
            "two loaded models have the same name: change config.name_or_path of one"
        )
    loaded = Loaded()
    if not all(map(_is_local, _file_names(target, candidates))):
        load(target, candidates, loaded)  # downloads: the cache key hashes the files
    path = cache_path(target, candidates, chat)
    if measure_again:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
    profile, measured_now = _cached(path, temperature), False
    if profile is None:
        validate_writable(path, DESCRIPTION, _HINT)
        with _measuring_lock(path, report):
            profile = _cached(path, temperature)  # another process may have measured meanwhile
            if measured_now := profile is None:
                so_far = _PlanSoFar(path, temperature, report)
                try:
                    with so_far.kept():
                        data = measure(
                            target,
                            candidates,
                            _prompts_for(target.model, chat),
                            [temperature],
                            QUICK,
                            path=path,
                            loaded=loaded,
                            report=so_far.report,
                            so_far=so_far.update,
                        )
                except HierspecError:
                    others = choose_candidates(target, names)
                    if not expected or library.is_expected() or others == candidates:
                        raise
                else:
                    profile = from_dict(data, str(path))
                    if busy := busy_message(profile.temperatures.values()):
                        warnings.warn(f"{busy} ({_AGAIN})", BusyWarning, stacklevel=2)
    if profile is None:  # the kernels do not compile here after all: other drafts can be tried
        return choose(target, names, temperature=temperature, chat=chat, report=report)
    best = plan_of(profile, temperature)
    config = _hierarchy(profile, best.best.chain, in_memory)
    control = control_chain(profile, best)
    return AutoChoice(config, best, control, profile, loaded, measured_now, path, in_memory)


def plan_of(profile: Profile, temperature: float) -> Plan:
    """Return the fastest hierarchy of a profile's models, of any shape."""
    return plan(profile.estimates(temperature), variations=ALL_VARIATIONS)


class _PlanSoFar:
    """The plan of what is known while models are measured, first from priors alone.

    It is in a file of its own beside the profile, which stays if measuring is interrupted.
    """

    def __init__(self, path: Path, temperature: float, report: ReportProgress) -> None:
        self.path, self.temperature = path.with_name(f"{path.stem}-plan.json"), temperature
        self._report, self._text = report, ""

    def update(self, profile: Profile) -> None:
        best = plan_of(profile, self.temperature)
        chain, priors = best.best.chain, best.estimates.priors
        levels = chain.describe(lambda model, _: without_folders(best.estimates.names[model]))
        self._text = f"{levels or 'plain decoding'}, about {best.speedup:.2g}x"
        if priors:
            self._text += f" (not yet measured: {', '.join(priors)})"
        written = best.to_dict() | {"hierarchy": profile.hierarchy(chain)}
        write_atomically(self.path, json.dumps(written) + "\n", "the plan")

    def report(self, stage: str, share: float) -> None:
        self._report(f"{stage}\nso far: {self._text}" if self._text else stage, share)

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Remove the file at the end; name it in whatever interrupts the measuring."""
        try:
            yield
        except BaseException as error:
            if self._text:
                error.add_note(f"--hierarchy {self.path} runs the plan so far ({self._text})")
            raise
        with contextlib.suppress(OSError):
            self.path.unlink()


def _hierarchy(
    profile: Profile, chain: Chain, in_memory: Mapping[str, ModelInMemory]
) -> HierarchyConfig:
    return HierarchyConfig.from_dict(put_back(profile.hierarchy(chain), in_memory))


def control_chain(profile: Profile, best: Plan) -> Chain:
    """Return the plan's chain, with one more level if it has only look-ups or only models.

    How much a look-up gains depends on the text, far more than what a model gains. So look-ups
    alone get the best model above them or before them, and models alone the best look-up below or
    behind; control (:mod:`hierspec.planner.online`) skips the levels that do not help with a text,
    and knows no tails within tails.
    """
    chain, estimates = best.best.chain, best.estimates
    if len(chain.models) > 3:
        chain = dataclasses.replace(chain, tail=0)
    if chain.plain or chain.continues:
        return chain
    models = profile.models[:-1]
    look_ups = {i for i, m in enumerate(models) if m.config and m.config.capabilities.copies}
    used = set(chain.models[:-1])
    unused = set(range(len(models))) - used
    if used <= look_ups:
        unused -= look_ups
    elif used & look_ups:
        return chain
    else:
        unused &= look_ups
    wider = [more for i in sorted(unused) for more in extend_chain(estimates, chain, i)]
    return min(wider, key=lambda c: latency(estimates, c).ms_per_token, default=chain)


def has_near_temperature(profile: Profile, temperature: float) -> bool:
    """Return whether the profile has a measured temperature near enough to plan with."""
    nearest = profile.nearest(temperature)
    return (nearest == 0) == (temperature == 0) and abs(nearest - temperature) <= CLOSE


def _cached(path: Path, temperature: float) -> Profile | None:
    """Read the profile in the cache; ``None`` if there is none for this temperature."""
    try:
        data = read_json(dict[str, Any], path, DESCRIPTION)
        profile = from_dict(data, str(path))
    except HierspecError:  # missing, damaged or unfinished: measuring continues it or starts anew
        return None
    return profile if is_intact(data) and has_near_temperature(profile, temperature) else None


@contextlib.contextmanager
def _measuring_lock(path: Path, report: ReportProgress) -> Iterator[None]:
    """Wait until no other process measures for ``path``; a lock is released with its process.

    Without file locks several processes measure at once, which makes costs less accurate.
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


def _prompts_for(model: str, chat: bool) -> Sequence[str | Sequence[int]]:
    return chats(tokenizer_of(model)) if chat else builtin(model)


def tokenizer_of(model: str) -> Any:
    """Load the tokenizer of a target, before the target is loaded; ``None`` if it has none."""
    if isinstance(model, ModelInMemory):
        return load_tokenizer_of(model.model)
    return load_tokenizer(registry.resolve(model) if registry.can_resolve(model) else model)


def cache_path(target: TargetConfig, candidates: Sequence[Candidate], chat: bool = False) -> Path:
    """Return the file for these models, weights, settings, versions and hardware.

    Raises:
        HierspecError: the target's device is not here, or there is no folder for caches.
    """
    key = [
        target,
        [repr(c) for c in candidates],
        [fingerprint_of(name) for name in _file_names(target, candidates)],
        dataclasses.asdict(QUICK),
        machine.hardware(machine.device(target.device)),
        compiler.version() if library.is_expected() else "",
        "chat" if chat else "",
        *(() if chat else builtin(target.model)),
    ]
    return cache_folder("profiles") / f"{json_digest(key)}.json"


def _file_names(target: TargetConfig, candidates: Sequence[Candidate]) -> list[str]:
    levels = [candidate.level for candidate in candidates]
    names = [target.model, *(level.files for level in levels if level.files)]
    return names + sorted({file for level in levels for file in level.further_files})


def _is_local(name: str) -> bool:
    is_loaded = isinstance(name, ModelInMemory)
    return is_loaded or registry.can_resolve(name) or fingerprint.is_local(name)
