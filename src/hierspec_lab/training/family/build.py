"""Build the shipped family: tokenizer, trunk, students, n-gram table, noise of zoo:large, card.

Trainings continue from their last checkpoint, and what else takes long is kept beside it, so the
command can be killed and given again. All randomness comes from the seed.
"""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from hierspec.config.vocabulary import vocabulary_key
from hierspec.drafters.ngram_table import NgramModel
from hierspec.errors import HierspecError
from hierspec.lm.weights import from_directory
from hierspec.utils.files import write_atomically
from hierspec_lab.training import resuming
from hierspec_lab.training.fit import Phase, Schedule, fit
from hierspec_lab.training.models import as_written
from hierspec_lab.training.ngrams import count, num_entries
from hierspec_lab.training.windows import HeldOutWindows

from . import objectives
from .corpus import (
    LIBRARY_COPIES,
    LICENCE,
    Corpus,
    held_out_tokens,
    load_corpus,
    save_tokenizer,
    train_tokenizer,
    training_stream,
)
from .evaluate import calibrate, evaluate, load_llama
from .export import model_card, write_checkpoint
from .model import SHAPES, Llama, Shape, continue_rows

SAMPLE_PROMPT = 'def read_config(path, default=None):\n    """Read the settings from a file."""\n'


@dataclass(frozen=True, slots=True)
class FamilySettings:
    """Everything that decides what is built."""

    trunk: Schedule = objectives.TRUNK_SCHEDULE
    students: Schedule = objectives.STUDENTS_SCHEDULE
    own_text: objectives.OwnTextSettings = field(default_factory=objectives.OwnTextSettings)
    shapes: tuple[tuple[str, Shape], ...] = tuple(SHAPES.items())
    windows: HeldOutWindows = field(default_factory=HeldOutWindows)
    max_files: int | None = None  # of the corpus
    max_order: int = 3
    compile: bool = True
    sample_tokens: int = 160

    @property
    def vocab_size(self) -> int:
        return self.shapes[0][1].vocab


def _quick() -> FamilySettings:
    """Return a plan so small that a test can run it."""
    phases = (Phase(0.5, 2, 32), Phase(1.0, 1, 64))
    schedule = Schedule(steps=6, phases=phases, warmup_steps=2)
    size = {"heads": 2, "intermediate": 64, "vocab": 384, "max_length": 256}
    return FamilySettings(
        trunk=schedule,
        students=schedule,
        own_text=objectives.OwnTextSettings(rows=4, prompt=8, length=64, rounds=1),
        shapes=tuple((n, Shape(32, s.layers, **size)) for n, s in SHAPES.items()),
        windows=HeldOutWindows(2, 32),
        max_files=60,
        compile=False,
        sample_tokens=8,
    )


FULL, QUICK = FamilySettings(), _quick()


def train(
    out_dir: str | Path,
    seed: int = 0,
    trunk_steps: int | None = None,
    student_steps: int | None = None,
    checkpoints: str | Path | None = None,
    resume: bool = True,
    quick: bool = False,
    stop_after: int | None = None,
    notes: str = "",
) -> dict[str, Any]:
    """Build the shipped family in ``out_dir``; return what ``metrics.json`` holds.

    Args:
        checkpoints: where the trainings keep their state; default ``out_dir/.training``.
        resume: continue an interrupted training; otherwise begin anew.
        quick: seconds instead of an hour, and useless models; for tests.
        stop_after: stop the trunk's training after so many steps, as if interrupted.
        notes: a sentence for the model card.

    Raises:
        HierspecError: ``checkpoints`` holds a training with another seed, or other files.
        KeyboardInterrupt: stopped; the same call continues where it stopped.
    """
    settings = QUICK if quick else FULL
    if trunk_steps:
        settings = dataclasses.replace(
            settings, trunk=dataclasses.replace(settings.trunk, steps=trunk_steps)
        )
    if student_steps:
        students = dataclasses.replace(settings.students, steps=student_steps)
        settings = dataclasses.replace(settings, students=students)
    out = Path(out_dir)
    work = Path(checkpoints) if checkpoints else out / ".training"
    _validate_output(out, work)
    if not resume:
        resuming.give_up(work)
    identity = {"seed": seed, "quick": quick}
    resuming.validate_settings(work, identity, "--no-resume")
    resuming.save_settings(work, identity)
    corpus = load_corpus(max_files=settings.max_files)
    tokenizer = _build_tokenizer(corpus, settings, out, work)
    stream = training_stream(corpus, tokenizer, seed)
    shapes = dict(settings.shapes)

    model = objectives.build_trunk(seed, shapes["trunk"])
    objective = objectives.trunk_objective(model, stream, settings.compile)
    runs = {
        "trunk": fit(model, objective, settings.trunk, work, seed, "trunk", stop_after=stop_after)
    }
    write_checkpoint(model, out / "trunk")

    teacher = model.bfloat16().requires_grad_(False)
    own_text = objectives.write_own_text(teacher, stream, settings.own_text, work / "own.pt", seed)
    students = objectives.build_students(seed, shapes)
    objective = objectives.distill_objective(teacher, students, stream, own_text, settings.compile)
    runs["students"] = fit(students, objective, settings.students, work, seed, "students")
    for name, student in students.items():
        assert isinstance(student, Llama)
        write_checkpoint(student, out / name)

    table = count(stream.documents, settings.vocab_size, settings.max_order)
    table.vocabulary = vocabulary_key(tokenizer)
    write_atomically(out / "ngram.safetensors", table.save, "the table")
    (out / "ngram.safetensors").chmod(0o644)  # safetensors writes files for the owner alone
    metrics = measure(out, corpus, tokenizer, settings, seed)
    metrics |= {"training": runs, "plan": as_written(settings), "notes": notes}
    write_atomically(out / "metrics.json", json.dumps(metrics, indent=1) + "\n", "metrics")
    write_atomically(out / "MODEL_CARD.md", model_card("family", metrics), "the model card")
    return metrics


def measure(
    out: Path, corpus: Corpus, tokenizer: Tokenizer, settings: FamilySettings = FULL, seed: int = 0
) -> dict[str, Any]:
    """Choose the noise with which zoo:large is made of the trunk; measure all on held-out text."""
    held_out = held_out_tokens(corpus, tokenizer)
    sources = {name: from_directory(out / name, out) for name in ("small", "mid", "trunk")}
    with torch.no_grad():
        calibrate(sources["trunk"], out, held_out)
        windows = settings.windows.cut(held_out)
        table = NgramModel.load(out / "ngram.safetensors")
        result = evaluate(sources, table, out, windows)
    characters = sum(len(document.text) for document in corpus.held_out)
    return {
        "seed": seed,
        "corpus": {
            "python_version": corpus.python_version,
            "licence": LICENCE,
            "sha256": corpus.sha256,
            "train_files": len(corpus.train),
            "held_out_files": len(corpus.held_out),
            "held_out_tokens": len(held_out),
            "library_copies": LIBRARY_COPIES,
        },
        "tokenizer": {
            "vocab_size": tokenizer.get_vocab_size(),
            "characters_per_token": round(characters / len(held_out), 3),
        },
        "models": {name: _model_size(out / name, dict(settings.shapes)[name]) for name in sources}
        | {"ngram": _table_size(out / "ngram.safetensors", table)},
        "windows": f"{len(windows)} windows of {windows.shape[1] - 1} tokens, in bfloat16",
        "evaluation": result,
        "sample": _sample(out, tokenizer, settings, seed),
        "hardware": describe_processor(),
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
    }


def _validate_output(out: Path, work: Path) -> None:
    """Refuse a folder with files of others, which models of the same names would replace."""
    if not out.exists() or (out / "metrics.json").is_file() or resuming.holds_one(work):
        return
    if not out.is_dir() or any(entry != work for entry in out.iterdir()):
        raise HierspecError(f"{out} holds other files: name a new folder")


def describe_processor() -> str:
    """Return the class of this machine, without naming it."""
    capability = torch.backends.cpu.get_cpu_capability()
    return f"{os.cpu_count()} CPU cores, {platform.machine()}, {capability}, no accelerator used"


def _build_tokenizer(corpus: Corpus, settings: FamilySettings, out: Path, work: Path) -> Tokenizer:
    """Train the tokenizer once, keep it with the checkpoints and copy it beside the models."""
    folder = work / "tokenizer"
    if not (folder / "tokenizer_config.json").is_file():
        # Tests have names of their own, but must not dominate the merges: a third of them.
        tests = [d.text for d in corpus.train if d.is_test][::3]
        library = [d.text for d in corpus.train if not d.is_test]
        save_tokenizer(train_tokenizer(library + tests, settings.vocab_size), folder)
    out.mkdir(parents=True, exist_ok=True)
    for file in folder.iterdir():
        shutil.copy(file, out / file.name)
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


def _sample(out: Path, tokenizer: Tokenizer, settings: FamilySettings, seed: int) -> dict[str, Any]:
    model = load_llama(from_directory(out / "trunk", out))
    prompt = torch.tensor([tokenizer.encode(SAMPLE_PROMPT).ids])[:, -64:]
    length = min(prompt.shape[1] + settings.sample_tokens, model.shape.max_length)
    generator = torch.Generator().manual_seed(seed)
    tokens = continue_rows(model, prompt, length, torch.tensor([0.6]), generator)
    return {"temperature": 0.6, "text": tokenizer.decode(tokens[0].tolist())}


def _model_size(folder: Path, shape: Shape) -> dict[str, Any]:
    files = [file.stat().st_size for file in folder.glob("*.safetensors")]
    parameters = sum(p.numel() for p in Llama(shape).parameters())
    sizes = {"layers": shape.layers, "hidden": shape.hidden, "parameters": parameters}
    return sizes | {"bytes": sum(files), "largest_file": max(files)}


def _table_size(path: Path, table: NgramModel) -> dict[str, Any]:
    size = path.stat().st_size
    sizes = {"layers": 0, "hidden": 0, "parameters": num_entries(table)}
    return sizes | {"bytes": size, "largest_file": size, "max_order": table.max_order}
