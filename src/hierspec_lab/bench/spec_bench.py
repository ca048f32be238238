"""Reads Spec-Bench's questions and writes answers as it does (github.com/hemingkx/Spec-Bench).

The fields are those that its ``evaluation/eval.py`` writes and its ``evaluation/speed.py`` reads.
That script takes a file for one method and another for the baseline, so each method gets its own.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from typing_extensions import TypedDict  # pydantic needs this one below Python 3.12

from hierspec.errors import HierspecError
from hierspec.utils.files import read_bytes, write_atomically
from hierspec.utils.json_lines import parse_lines
from hierspec.utils.prompts import PromptTurns
from hierspec.utils.schema import validate

from .method_records import RunRecord
from .records import BenchResults


@dataclass(frozen=True, slots=True)
class SpecBenchQuestion:
    """A question; ``prompt`` is its first turn alone, since later ones need its answer."""

    id: int
    category: str
    prompt: str


class _QuestionRow(TypedDict):
    question_id: Any
    category: str
    turns: PromptTurns


def read(path: Path) -> list[SpecBenchQuestion] | None:
    """Read the questions of a file; ``None`` where its form is not Spec-Bench's.

    Raises:
        HierspecError: the file cannot be read.
    """
    body = read_bytes(path, "prompts")
    try:
        return [question for _, question in parse_lines(body, str(path), _question)] or None
    except HierspecError:
        return None


def _question(row: Any) -> SpecBenchQuestion:
    question = validate(_QuestionRow, row, "")
    return SpecBenchQuestion(question["question_id"], question["category"], question["turns"][0])


def write(
    results: BenchResults,
    path: Path,
    tokenizer: Any,
    questions: Sequence[SpecBenchQuestion] = (),
) -> list[Path]:
    """Write answer files beside ``path``, ``NAME-METHOD-temperature-T.jsonl``; return their paths.

    A file has a line per prompt. ``accept_lengths`` repeats the mean tokens a call, since only sums
    are known and the script takes its mean. ``wall_time`` includes reading the prompt, as there.

    Args:
        questions: of the measured prompts; others get their index and the category ``prompts``.

    Raises:
        HierspecError: a file cannot be written.
    """
    paths = []
    for cell in results.cells:
        for record in cell.methods:
            if not record.runs:
                continue
            name = f"{path.stem}-{record.name}-temperature-{cell.temperature:g}"
            answers = path.with_name(f"{name}{path.suffix or '.jsonl'}")
            lines = [
                json.dumps(_answer(record.name, run, results.created, tokenizer, questions))
                for run in record.runs
            ]
            write_atomically(answers, "\n".join(lines) + "\n", "answers")
            paths.append(answers)
    return paths


def _answer(
    method: str,
    run: RunRecord,
    created: str,
    tokenizer: Any,
    questions: Sequence[SpecBenchQuestion],
) -> dict[str, Any]:
    number = run.prompt
    own = SpecBenchQuestion(number, "prompts", "")
    question = questions[number] if number < len(questions) else own
    calls = run.target_calls
    lengths = [run.mean_acceptance_length] * round(calls) if calls else []
    return {
        "question_id": question.id,
        "category": question.category,
        "model_id": method,
        "choices": [
            {
                "index": 0,
                "turns": [tokenizer.decode(run.token_ids)],
                "decoding_steps": [calls if calls is not None else run.num_tokens],
                "new_tokens": [run.num_tokens],
                "wall_time": [run.seconds],
                "accept_lengths": lengths,
            }
        ],
        "tstamp": datetime.datetime.fromisoformat(created).timestamp(),
    }
