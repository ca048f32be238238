"""Spec-Bench's questions in, and answers in its form out (github.com/hemingkx/Spec-Bench).

The fields are those that its ``evaluation/eval.py`` writes and its ``evaluation/speed.py`` reads.
That script takes a file for one method and another for the baseline, so each method gets its own.

Which prompts a bench measures on and which it tunes on; none is both.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hierspec.errors import HierspecError
from hierspec.profiling import texts
from hierspec.utils.files import write_whole
from hierspec.utils.prompts import read_prompt_file

from . import prompts as spec_bench
from .turns import whole_batches


@dataclass(frozen=True, slots=True)
class Question:
    """A question by its first turn: later ones need the answer to it in a chat."""

    id: int
    category: str
    prompt: str


def read(path: Path) -> list[Question] | None:
    """The questions of a file, or ``None`` where it is not of Spec-Bench's form.

    Raises:
        ValueError: it cannot be read.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except UnicodeDecodeError:
        return None
    except OSError as error:
        raise HierspecError(f"cannot read prompts from {path}: {error.strerror}") from None
    questions = []
    for line in lines:
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            return None
        if not isinstance(row, dict) or not {"question_id", "category", "turns"} <= set(row):
            return None
        if not isinstance(row["turns"], list) or not row["turns"]:
            return None
        questions.append(Question(row["question_id"], row["category"], row["turns"][0]))
    return questions or None


def in_turn(questions: Sequence[Question]) -> list[Question]:
    """One of each category, then the next of each: the file is sorted by category, and the first
    few would all be of one kind."""
    rows: dict[str, list[Question]] = {}
    for question in questions:
        rows.setdefault(question.category, []).append(question)
    longest = max((len(row) for row in rows.values()), default=0)
    return [row[i] for i in range(longest) for row in rows.values() if i < len(row)]


def write(
    results: Mapping[str, Any],
    path: Path,
    tokenizer: Any,
    questions: Sequence[Question] = (),
) -> list[Path]:
    """Answer files beside ``path``: ``NAME-METHOD-temperature-T.jsonl``, one line per prompt.

    ``accept_lengths`` holds the mean tokens a call once per call, for only sums are kept; the
    script takes no more than its mean. ``wall_time`` counts the prompt's reading, as theirs does.

    Args:
        questions: of the measured prompts; others get their number and the category ``prompts``.

    Raises:
        ValueError: a file cannot be written.
    """
    written = []
    for cell in results["cells"]:
        for record in cell["methods"]:
            if not record["runs"]:
                continue
            name = f"{path.stem}-{record['name']}-temperature-{cell['temperature']:g}"
            file = path.with_name(f"{name}{path.suffix or '.jsonl'}")
            lines = [
                json.dumps(_answer(record["name"], run, results, tokenizer, questions))
                for run in record["runs"]
            ]
            write_whole(file, "\n".join(lines) + "\n", "answers")
            written.append(file)
    return written


def _answer(
    method: str,
    run: Mapping[str, Any],
    results: Mapping[str, Any],
    tokenizer: Any,
    questions: Sequence[Question],
) -> dict[str, Any]:
    number = run["prompt"]
    known = questions[number] if number < len(questions) else Question(number, "prompts", "")
    calls = run["target_calls"]
    lengths = [run["mean_acceptance_length"]] * round(calls) if calls else []
    return {
        "question_id": known.id,
        "category": known.category,
        "model_id": method,
        "choices": [
            {
                "index": 0,
                "turns": [tokenizer.decode(run["token_ids"])],
                "decoding_steps": [calls if calls is not None else run["num_tokens"]],
                "new_tokens": [run["num_tokens"]],
                "wall_time": [run["seconds"]],
                "accept_lengths": lengths,
            }
        ],
        "tstamp": datetime.datetime.fromisoformat(results["created"]).timestamp(),
    }


NUM_PROMPTS, TUNE_PROMPTS = 16, 4  # where nobody says how many


@dataclass(frozen=True, slots=True)
class Prompts:
    """Texts for a bench: those measured, then those tuned on.

    Attributes:
        identity: ``file`` and ``sha256``.
        asked: Spec-Bench's questions behind the measured ones; empty for other prompts.
        notes: on the choice, for the results file.
    """

    measured: tuple[str, ...]
    tuning: tuple[str, ...]
    identity: dict[str, Any]
    asked: tuple[spec_bench.Question, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Source:
    texts: Sequence[str]
    identity: dict[str, Any]
    notes: tuple[str, ...]
    asked: Sequence[spec_bench.Question] = ()


def choose(
    target: str,
    path: Path | None = None,
    measured: int | None = None,
    tuning: int | None = None,
    batch_size: int = 1,
) -> Prompts:
    """The first prompts to measure on, the next to tune on; of a category each, where they have
    categories.

    Args:
        target: whose built-in texts there are without a file.
        measured: how many. Default: 16 (of those built in: all but the others), whole batches.
        tuning: how many. Default: 4, or the next multiple of ``batch_size``.

    Raises:
        ValueError: too few, or no whole number of batches.
    """
    source = _built_in(target) if path is None else _of_file(path)
    found, notes = source.texts, [*source.notes]
    if tuning is None:
        tuning = -(-TUNE_PROMPTS // batch_size) * batch_size
    if measured is None:
        default = len(found) - tuning if path is None else NUM_PROMPTS
        measured = max(batch_size, default // batch_size * batch_size)
        if measured < default:
            notes.append(f"{measured} prompts, not {default}: whole batches of {batch_size}")
    whole_batches(measured, batch_size)
    needed = measured + tuning
    if len(found) < needed:
        raise HierspecError(
            f"{source.identity['file']}: {len(found)} prompts, but {measured} to measure on and "
            f"{tuning} others to tune on are {needed}: lower --num-prompts or --tune-prompts, or "
            "give --prompts with more"
        )
    return Prompts(
        tuple(found[:measured]),
        tuple(found[measured:needed]),
        source.identity,
        tuple(source.asked[:measured]),
        tuple(notes),
    )


def _built_in(target: str) -> _Source:
    note = "prompts are those built in; --prompts takes others"
    return _Source(_mixed(texts.builtin(target)), {"file": "built in", "sha256": None}, (note,))


def _mixed(built_in: Sequence[str]) -> list[str]:
    """Both halves in turn: the first may be code and the second prose."""
    half = len(built_in) // 2
    pairs = zip(built_in[:half], built_in[half:], strict=True)
    return [text for pair in pairs for text in pair]


def _of_file(path: Path) -> _Source:
    file = read_prompt_file(path)
    identity = {"file": file.name, "sha256": file.sha256}
    if file.name == "-" or not (read := spec_bench.read(path)):
        return _Source(file.prompts, identity, ())
    asked = spec_bench.in_turn(read)
    note = "Spec-Bench questions by their first turn, one of each category in turn"
    return _Source([question.prompt for question in asked], identity, (note,), asked)
