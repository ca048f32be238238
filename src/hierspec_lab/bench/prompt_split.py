"""Which prompts a bench measures on, and which it tunes and profiles on; none is both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hierspec.errors import HierspecError
from hierspec.profiling.settings import ProfileSettings
from hierspec.profiling.texts import builtin
from hierspec.utils.prompts import read_prompt_file

from . import chats, spec_bench
from .chats import ChatTurn, round_robin
from .spec_bench import SpecBenchQuestion
from .turns import refuse_partial_batches

NUM_PROMPTS, TUNE_PROMPTS = 16, 4  # defaults


@dataclass(frozen=True, slots=True)
class Prompts:
    """Prompts of a bench: to measure on, and others to tune and profile on.

    Attributes:
        profiling: those to tune on and further ones, as many as a profile takes by default.
        identity: ``file`` and ``sha256``.
        questions: Spec-Bench's questions behind the measured prompts; empty for others.
        notes: on the choice, for the results file.
        categories: of the measured prompts; empty where they have none.
    """

    measured: tuple[str | ChatTurn, ...]
    tuning: tuple[str | ChatTurn, ...]
    profiling: tuple[str | ChatTurn, ...]
    identity: dict[str, Any]
    questions: tuple[SpecBenchQuestion, ...] = ()
    notes: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Source:
    texts: Sequence[str]
    identity: dict[str, Any]
    notes: tuple[str, ...]
    questions: Sequence[SpecBenchQuestion] = ()


def choose(
    target: str,
    path: Path | None = None,
    measured: int | None = None,
    tuning: int | None = None,
    batch_size: int = 1,
    chat: bool = False,
) -> Prompts:
    """Choose the first prompts to measure on and the next to tune on, categories taking turns.

    Args:
        target: the model whose built-in texts are used without a file.
        measured: how many. Default: 16 (of built-in texts: all others), in whole batches.
        tuning: how many. Default: 4, or the next multiple of ``batch_size``.
        chat: whether the file's rows are chats, of which every turn is a prompt
            (:mod:`hierspec_lab.bench.chats`).

    Raises:
        HierspecError: there are too few, or they do not make full batches.
    """
    if tuning is None:
        tuning = -(-TUNE_PROMPTS // batch_size) * batch_size
    if chat:
        measured = measured or max(batch_size, NUM_PROMPTS // batch_size * batch_size)
        return _choose_chats(path, measured, tuning, batch_size)
    source = _built_in_source(target) if path is None else _read_source(path)
    texts, notes = source.texts, [*source.notes]
    if measured is None:
        default = len(texts) - tuning if path is None else NUM_PROMPTS
        measured = max(batch_size, default // batch_size * batch_size)
        if measured < default:
            notes.append(f"{measured} prompts, not {default}: whole batches of {batch_size}")
    refuse_partial_batches(measured, batch_size)
    needed = measured + tuning
    if len(texts) < needed:
        raise HierspecError(
            f"{source.identity['file']}: {len(texts)} prompts, but {measured} to measure on and "
            f"{tuning} others to tune on are {needed}: lower --num-prompts or --tune-prompts, or "
            "give --prompts with more"
        )
    return Prompts(
        tuple(texts[:measured]),
        tuple(texts[measured:needed]),
        tuple(texts[measured : measured + _num_profiling(tuning)]),
        source.identity,
        tuple(source.questions[:measured]),
        tuple(notes),
        tuple(question.category for question in source.questions[:measured]),
    )


def _choose_chats(path: Path | None, measured: int, tuning: int, batch_size: int) -> Prompts:
    if path is None:
        raise HierspecError("--chat measures on chats: give --prompts FILE.jsonl, or a folder")
    refuse_partial_batches(measured, batch_size)
    available, identity = chats.read(path)
    turns, tuning_turns = chats.choose(available, measured, tuning, _num_profiling(tuning))
    domains = tuple(turn.chat.domain for turn in turns)
    note = "chats, one of each domain in turn; later turns follow plain decoding's greedy answers"
    return Prompts(
        tuple(turns),
        tuple(tuning_turns[:tuning]),
        tuple(tuning_turns),
        identity,
        notes=(note,),
        categories=domains,
    )


def _num_profiling(tuning: int) -> int:
    """Return how many prompts to profile on: look-ups need several to show what they find."""
    return max(tuning, ProfileSettings().prompts)


def _built_in_source(target: str) -> _Source:
    note = "prompts are those built in; --prompts takes others"
    return _Source(builtin(target), {"file": "built in", "sha256": None}, (note,))


def _read_source(path: Path) -> _Source:
    file = read_prompt_file(path)
    identity = {"file": file.name, "sha256": file.sha256}
    if file.name == "-" or not (questions := spec_bench.read(path)):
        return _Source(file.prompts, identity, ())
    questions = round_robin(questions, lambda question: question.category)
    note = "Spec-Bench questions by their first turn, one of each category in turn"
    return _Source([question.prompt for question in questions], identity, (note,), questions)
