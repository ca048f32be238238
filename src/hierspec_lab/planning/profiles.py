"""Profiles that people keep: whether they still hold."""

from __future__ import annotations

from pathlib import Path

from hierspec.config.schema import TargetConfig
from hierspec.errors import HierspecError
from hierspec.profiling.profile import Profile, load_profile
from hierspec.profiling.schema import MeasuredModel
from hierspec.utils import machine
from hierspec.zoo import fingerprint


def load_valid_profile(path: Path, force: bool = False) -> Profile:
    """Read a profile, and check that it is valid here.

    Args:
        force: use it although hardware, versions or weights differ.

    Raises:
        HierspecError: no such file, not a profile, or measured elsewhere; says what differs.
    """
    profile = load_profile(path)
    if not force and (differences := _differences(profile)):
        raise HierspecError(
            f"{path} was measured under other conditions ({'; '.join(differences)}): measure it "
            "again with hierspec profile, or add --force"
        )
    return profile


def _differences(profile: Profile) -> list[str]:
    """Say where hardware, versions or weights are not those of here.

    The number of threads is a choice, like the data type.
    """
    measured, target = profile.hardware, profile.target_config
    name = "cpu"
    if measured.get("device") != "cpu":
        name = target.device.replace("auto", "cuda")
    try:
        device = machine.device(name)
    except HierspecError:
        return [f"device was {measured.get('device')!r}, here there is none"]
    hardware = {k: v for k, v in machine.hardware(device).items() if k != "threads"}
    reasons = [
        f"{key} was {measured.get(key)!r}, here it is {value!r}"
        for key, value in hardware.items()
        if measured.get(key) != value
    ]
    for model in profile.models:
        source = _source(model, target)
        if not model.weights or fingerprint.compute(source) == model.weights:
            continue
        if fingerprint.is_local(source):
            reasons.append(f"the weights of {source!r} have changed")
        else:
            reasons.append(
                f"{source!r} not found from here: run from the folder where it was measured"
            )
        break
    return reasons


def _source(model: MeasuredModel, target: TargetConfig) -> str:
    """Return where a model's files are, which the name of a copy in fewer bits does not say."""
    return model.config.files_on(target.model) if model.config else model.owner
