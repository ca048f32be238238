"""Drafters for ``zoo:smollm2``: the model's own answers, then the drafters trained on them.

Every stage keeps its progress and is skipped once it is finished, so the command can be interrupted
and given again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from hierspec.api import Hierarchy
from hierspec.config.exit_heads import FILE
from hierspec.errors import HierspecError
from hierspec.profiling.settings import ReportProgress
from hierspec.utils.documents import read_json
from hierspec.utils.files import json_digest, write_atomically
from hierspec.zoo import sibling
from hierspec_lab.training import resuming, texts
from hierspec_lab.training.eagle3 import train as eagle3_training
from hierspec_lab.training.eagle3.settings import Eagle3Settings
from hierspec_lab.training.family.export import model_card
from hierspec_lab.training.heads import train as heads_training
from hierspec_lab.training.heads.settings import HeadsSettings
from hierspec_lab.training.models import partial_progress

from . import answers
from . import sibling as sibling_training
from .passages import collect
from .sibling import SiblingSettings

ANSWERS = "answers"
REPORT = "report.json"
CARD = "MODEL_CARD.md"


@dataclass(frozen=True, slots=True)
class DraftersSettings:
    """Everything that decides the drafters.

    Attributes:
        dtype: in which the model answers, and heads are trained on it; ``auto``: the bits of its
            file, in the kernels.
    """

    model: str = "zoo:smollm2"
    dtype: str = "auto"
    answers: answers.AnswerSettings = field(default_factory=answers.AnswerSettings)
    heads: HeadsSettings = field(
        default_factory=lambda: HeadsSettings(
            exits=(5, 10, 15, 20),
            kind="mlp",
            vocabulary=8192,
            loss="tv",
            learning_rate=1e-3,
            epochs=8,
            tokens=4_000_000,
            held_out=120,
        )
    )
    eagle3: Eagle3Settings = field(default_factory=lambda: Eagle3Settings(epochs=8))
    sibling: SiblingSettings = field(default_factory=SiblingSettings)


# Of the command, those that decide a stage.
_OPTIONS = {"sibling": "minutes", "heads": "epochs", "eagle3": "epochs"}


def _identity(settings: DraftersSettings, stage: str) -> dict[str, Any]:
    """Return what decides a stage, as the folder keeps it from the stage's beginning on."""
    own, option = asdict(getattr(settings, stage)) | {"seed": None}, _OPTIONS[stage]
    return {f"{stage}.{option}": own.pop(option), stage: json_digest(own)}


# (settings, folder of all that is trained, callback for progress) → the stage's own report
Stage = Callable[[DraftersSettings, Path, ReportProgress], dict[str, Any]]


def train_heads(
    settings: DraftersSettings, out: Path, report_progress: ReportProgress
) -> dict[str, Any]:
    """Train exit heads, into ``smollm2-heads``."""
    path = out / "smollm2-heads" / FILE
    if not path.exists():
        resuming.save_settings(out, _identity(settings, "heads"))
        heads_training.train(
            settings.model,
            settings.heads,
            path,
            [out / ANSWERS],
            dtype=settings.dtype,
            report_progress=report_progress,
        )
    return _read_report(path.with_suffix(".json"))


def train_eagle3(
    settings: DraftersSettings, out: Path, report_progress: ReportProgress
) -> dict[str, Any]:
    """Train an EAGLE-3 network, into ``smollm2-eagle3``."""
    folder = out / "smollm2-eagle3"
    info = folder / "hierspec.json"
    # Also written during training; only the final one has its duration.
    if not info.exists() or "seconds" not in _read_report(info):
        resuming.save_settings(out, _identity(settings, "eagle3"))
        eagle3_training.train(
            settings.model,
            settings.eagle3,
            folder,
            [out / ANSWERS],
            report_progress=report_progress,
        )
    return _read_report(info)


def _read_report(path: Path) -> dict[str, Any]:
    return read_json(dict[str, Any], path, "the training's report", ": delete its folder")


def train_sibling(
    settings: DraftersSettings, out: Path, report_progress: ReportProgress
) -> dict[str, Any]:
    """Train a small model on its tokenizer, into ``smollm2-sibling``."""
    folder = out / "smollm2-sibling"
    if not (folder / sibling.FILE).exists():
        resuming.save_settings(out, _identity(settings, "sibling"))
        sibling_training.train(
            settings.model,
            settings.sibling,
            folder,
            [out / ANSWERS],
            report_progress=report_progress,
        )
    return sibling.read_description(folder)


# In the order of training, by their key in the report.
STAGES: dict[str, Stage] = {
    "sibling": train_sibling,
    "heads": train_heads,
    "eagle3": train_eagle3,
}


def train(
    out: Path,
    settings: DraftersSettings,
    report_progress: ReportProgress = lambda stage, share: None,
) -> dict[str, Any]:
    """Write answers and train drafters in ``out``; return what ``report.json`` there holds.

    Raises:
        HierspecError: the model is not there, the folder holds a training of other settings, or
            something cannot be written. A stage that has not begun may have any, and there may be
            more conversations.
        KeyboardInterrupt: stopped; the same call continues where it stopped.
    """
    identity = {"model": settings.model, "seed": settings.answers.seed, "dtype": settings.dtype}
    identity[ANSWERS] = json_digest(
        asdict(settings.answers) | {"conversations": None, "seed": None}
    )
    every = identity.copy()
    for name in STAGES:
        every |= _identity(settings, name)
    resuming.validate_settings(out, every, "another --output")
    resuming.save_settings(out, identity)

    def stage_progress(number: int) -> ReportProgress:
        num_stages = 1 + len(STAGES)
        return partial_progress(report_progress, number / num_stages, (number + 1) / num_stages)

    summary = {"model": settings.model, "answers": _write_answers(settings, out, stage_progress(0))}
    if not any(text.group for text in texts.read([out / ANSWERS], None, (), 1 << 30)):
        raise HierspecError(
            f"of {settings.answers.conversations} conversations none is held out to measure on "
            "(about one in twenty is): give more --conversations"
        )
    for number, (name, run_stage) in enumerate(STAGES.items(), 1):
        summary[name] = run_stage(settings, out, stage_progress(number))
        write_atomically(out / REPORT, json.dumps(summary, indent=1) + "\n", "the report")
        write_atomically(out / CARD, model_card("smollm2", summary), "the model card")
    return summary


def _write_answers(
    settings: DraftersSettings, out: Path, report_progress: ReportProgress
) -> dict[str, Any]:
    """Write the answers, the stage before all trainings."""

    def write() -> dict[str, Any]:
        report_progress("loading the model", 0.0)
        target = {"model": settings.model, "dtype": settings.dtype}
        hierarchy = Hierarchy.from_config({"target": target, "levels": []})
        start = time.monotonic()
        packed = answers.write(
            out / ANSWERS,
            settings.answers,
            hierarchy,
            collect(),
            report_progress,
        )
        return {
            "conversations": len(packed.texts),
            "tokens": packed.num_tokens,
            "domains": answers.count_domains(packed),
            "seconds": round(time.monotonic() - start),
            "plan": {
                **asdict(settings.answers),
                "temperatures": list(settings.answers.temperatures),
            },
        }

    return resuming.compute_once(
        dict[str, Any], out / f"answers-{settings.answers.conversations}.json", write
    )
