"""Prompts of several domains, mixed evenly: code, mathematics, and Spec-Bench's kinds of text."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hierspec.errors import HierspecError
from hierspec.utils.prompts import read_prompt_file

FILES = ("humaneval.jsonl", "gsm8k.jsonl", "spec_bench.jsonl")
CHAT = "chat"  # MT-Bench's eight categories together
MATHEMATICS = ("gsm8k", "math_reasoning")
_TASKS = ("translation", "summarization", "qa", "math_reasoning", "rag")
LONGEST = 64  # tokens: the end of a prompt counts, and reading it should not be what is measured


@dataclass(frozen=True, slots=True)
class Prompt:
    """A text and where it is from: file, line from 1 on, domain."""

    text: str
    file: str
    line: int
    domain: str

    def to_dict(self) -> dict[str, Any]:
        """Return what identifies it, without the text, which is not ours to copy."""
        return {"file": self.file, "line": self.line, "domain": self.domain}


def read(folder: Path, count: int) -> tuple[list[Prompt], list[dict[str, str]]]:
    """Return the first ``count`` prompts in turns of the domains, and the files' sha256.

    Raises:
        HierspecError: a file is missing, or a line holds no prompt.
    """
    by_domain: dict[str, list[Prompt]] = {}
    files = []
    for name in FILES:
        path = folder / name
        if not path.is_file():
            raise HierspecError(
                f"there is no {name} in {folder}: give a folder with {', '.join(FILES)}"
            )
        file = read_prompt_file(path)
        files.append({"file": name, "sha256": file.sha256})
        lines = (
            pair
            for pair in enumerate(path.read_text("utf-8-sig").split("\n"), 1)
            if pair[1].strip()
        )
        for (number, line), text in zip(lines, file.prompts, strict=True):
            domain = _domain(name, json.loads(line))
            by_domain.setdefault(domain, []).append(Prompt(text, name, number, domain))
    rounds = range(max(map(len, by_domain.values())))
    mixed = [some[i] for i in rounds for some in by_domain.values() if i < len(some)]
    return mixed[:count], files


def _domain(name: str, row: Any) -> str:
    if not isinstance(row, dict) or "category" not in row:
        return name.removesuffix(".jsonl")
    return row["category"] if row["category"] in _TASKS else CHAT
