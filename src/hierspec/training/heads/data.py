"""Texts to train and measure heads on: files, the shipped family's corpus, or the model's own.

All of them become token ids in two parts: one to train on, and one that no training batch contains,
to measure on. Duplicates count once. If the model writes the texts, the two parts continue
different beginnings. Of conversations only the answers count, and all answers to one prompt are in
the same part.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from hierspec.api import Hierarchy
from hierspec.config.build import build
from hierspec.config.checkpoints import Loaded
from hierspec.config.schema import HierarchyConfig, TargetConfig
from hierspec.errors import HierspecError
from hierspec.profiling.settings import Report
from hierspec.profiling.texts import builtin
from hierspec.training.family.corpus import load_corpus
from hierspec.training.windows import HeldOutWindows
from hierspec.utils.conversations import (
    Conversation,
    find_answers,
    holds_conversations,
    read_conversations,
)
from hierspec.utils.files import json_digest
from hierspec.utils.prompts import read_prompt_file
from hierspec.zoo import registry

from .settings import TrainingSettings
from .states import Piece

HELD_OUT_SHARE = 0.1
OWN_LENGTH = 256  # tokens that the model adds to each beginning
_OWN_BATCH = 16  # texts that the model writes side by side
_HELD_OUT = (7, 15)  # beginnings to measure on: one of code and one of prose
_CHARACTERS = 4  # in a token, roughly
_LONGEST = 2048  # tokens read of a conversation


@dataclass(frozen=True, slots=True)
class Texts:
    """Texts to learn from, and others to measure on.

    Attributes:
        further: texts beyond the token limit, used only to find the most frequent tokens.
    """

    train: list[Piece]
    held_out: list[Piece]
    source: dict[str, Any]
    further: list[Piece] = field(default_factory=list)


def choose(
    model: str,
    backend: Any,
    tokenizer: Any,
    settings: TrainingSettings,
    given: tuple[Sequence[str | Conversation], str] | None,
    folder: Path,
    report: Report,
) -> Texts:
    """Return given texts; else the shipped family's training text; else what the model writes.

    Args:
        given: texts, and their name for the report.
        folder: keeps the texts that the model has written, for an interrupted training.
    """
    limit, width, seed = settings.tokens, settings.width, settings.seed
    windows = HeldOutWindows(settings.held_out, width)
    report("reading texts", 0.0)
    if given is not None:
        return _split_given(
            given[0], given[1], tokenizer, settings, min(backend.max_length, _LONGEST)
        )
    if registry.is_shipped(model):
        corpus = load_corpus()
        kept = max(int(HELD_OUT_SHARE * limit), width + 1)
        learnt = {document.text: None for document in corpus.train}
        held_out = [d.text for d in corpus.held_out if d.text not in learnt]
        train_rows, held = (
            encode_excerpts(part, tokenizer, most, width, seed)
            for part, most in ((learnt, limit - kept), (held_out, kept))
        )
        name = f"standard library of Python {corpus.python_version}"
        return split(train_rows, held, windows, {"name": name})
    write = _writer(model, backend, tokenizer, seed)
    path = folder / f"own-{json_digest([model, seed, str(backend.dtype)])}.jsonl"
    train_rows, held = write_own_texts(write, limit, path, report, _HELD_OUT, width + 1)
    return split(train_rows, held, windows, {"name": "written by the model itself"})


def _split_given(
    texts: Sequence[str | Conversation],
    name: str,
    tokenizer: Any,
    settings: TrainingSettings,
    longest: int,
) -> Texts:
    """Split plain texts and conversations in two parts each."""
    plain = [text for text in texts if isinstance(text, str)]
    conversations = [text for text in texts if isinstance(text, Conversation)]
    train, held_out, further = split_conversations(conversations, tokenizer, settings, longest)
    limit = settings.tokens - sum(len(piece.ids) for piece in (*train, *held_out))
    if plain and (not conversations or limit > 4 * settings.width):
        rows = encode_excerpts(plain, tokenizer, limit, settings.width, settings.seed)
        windows = HeldOutWindows(settings.held_out, settings.width)
        found = split(rows, None, windows, {})
        train, held_out = [*train, *found.train], [*held_out, *found.held_out]
    if not train or not held_out:
        raise HierspecError(
            f"too few conversations: {len(train)} to train on and {len(held_out)} to measure on; "
            "give more"
        )
    return Texts(train, held_out, _source({"name": name}, train, held_out), further)


def split_conversations(
    conversations: Sequence[Conversation], tokenizer: Any, settings: TrainingSettings, longest: int
) -> tuple[list[Piece], list[Piece], list[Piece]]:
    """Split conversations into those to train on, to measure on, and beyond the token limit.

    A tenth of the prompts is held out, by their hash, so the parts stay the same if a file grows;
    measured on are the first of these in every domain, equally many of each.
    """
    train: list[Piece] = []
    further: list[Piece] = []
    kept: dict[str, list[Piece]] = {}
    left, most = settings.tokens, settings.held_out
    domains = max(1, len({conversation.domain for conversation in conversations}))
    for conversation in dict.fromkeys(conversations):
        digest = hashlib.sha256(conversation.prompt.encode()).digest()
        measured = int.from_bytes(digest[:4]) < HELD_OUT_SHARE * 2**32
        held = kept.setdefault(conversation.domain, [])
        if measured and (len(held) * domains >= most or left <= 0):
            continue
        found = find_answers(conversation, tokenizer)
        positions = [p for p in found.positions if p < longest]
        if not positions:
            continue
        ids = torch.tensor(found.ids[: positions[-1] + 1], dtype=torch.int32)
        piece = Piece(ids, torch.tensor(positions), conversation.domain)
        (held if measured else train if left > 0 else further).append(piece)
        left -= len(ids)
    return train, [piece for pieces in kept.values() for piece in pieces], further


def _writer(model: str, backend: Any, tokenizer: Any, seed: int) -> Any:
    """Return ``write(number)``: it generates a batch of plain continuations at temperature 1."""
    target = TargetConfig(model=model, backend="hf")
    loaded = Loaded()
    loaded.put(target, backend, tokenizer)
    hierarchy = Hierarchy(build(HierarchyConfig(target=target), loaded))
    texts = builtin(model)
    starts = [_start_ids(texts[i % len(texts)], tokenizer, backend) for i in range(_OWN_BATCH)]
    length = min(OWN_LENGTH, backend.max_length // 2)

    def write(number: int) -> list[list[int]]:
        batch = hierarchy.generate_batch(
            starts, max_new_tokens=length, temperature=1.0, seed=seed * 1_000_003 + number
        )
        return [[*start, *result.token_ids] for start, result in zip(starts, batch, strict=True)]

    return write


def _start_ids(text: str, tokenizer: Any, backend: Any) -> list[int]:
    """Return the ids of a text; without a tokenizer, the id that begins every text."""
    ids = [] if tokenizer is None else tokenizer(text, verbose=False)["input_ids"]
    first = getattr(backend.config, "bos_token_id", None)
    return ids or [first if isinstance(first, int) else 0]


def from_files(paths: Sequence[Path]) -> list[str | Conversation]:
    """Read the texts in files and folders (all text files below them, hidden ones left out).

    A ``.jsonl`` file holds a text a line, as prompts do, or a conversation a line; any other file
    is one text.

    Raises:
        HierspecError: no such file, no text in it, or a folder without any.
    """
    texts: list[str | Conversation] = []
    for path in paths:
        if not path.is_dir():
            texts += _texts_of(path)
            continue
        inside = sorted(file for file in path.rglob("*") if file.is_file())
        visible = [
            file
            for file in inside
            if not any(part[0] == "." for part in file.relative_to(path).parts) and _is_text(file)
        ]
        if not visible:
            raise HierspecError(f"the folder {path} holds no texts: give text or .jsonl files")
        for file in visible:
            texts += _texts_of(file)
    return texts


def _is_text(file: Path) -> bool:
    """Return whether a file in a folder is a text: neither empty nor anything but UTF-8."""
    try:
        return bool(file.read_text(encoding="utf-8").strip())
    except UnicodeDecodeError:
        return False
    except OSError:
        return True  # reading it again raises the error


def _texts_of(file: Path) -> Sequence[str | Conversation]:
    if holds_conversations(file):
        return read_conversations(file)
    return read_prompt_file(file, "text").prompts


def encode_excerpts(
    texts: Iterable[str], tokenizer: Any, limit: int, width: int, seed: int
) -> list[torch.Tensor]:
    """Return ``limit`` tokens (none below 1): an excerpt of each text, in the seed's order.

    Excerpts are as short as the limit allows, since many short ones are more varied than a few long
    ones, and multiples of ``width``, so that training windows are full.
    """
    if tokenizer is None:
        raise HierspecError(
            "the model has no tokenizer beside it, so texts mean nothing to it: put its tokenizer "
            "into its folder"
        )
    # A duplicate could be both trained on and measured on.
    listed, limit = list(dict.fromkeys(texts)), max(limit, 0)
    length = width * max(1, math.ceil(limit / max(1, len(listed)) / width))
    while True:
        rows = _excerpts(listed, tokenizer, limit, length, seed)
        held = sum(map(len, rows))
        if held >= limit or all(len(row) < length for row in rows):
            return rows
        length *= 2


def _excerpts(
    texts: list[str], tokenizer: Any, limit: int, length: int, seed: int
) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    rows, left = [], limit
    for i in torch.randperm(len(texts), generator=generator).tolist():
        text, place = texts[i], float(torch.rand((), generator=generator))
        start = int(place * max(0, len(text) - length * _CHARACTERS))
        part = text[start : start + length * 2 * _CHARACTERS]
        ids = tokenizer(part, verbose=False)["input_ids"][: min(length, left)]
        rows.append(torch.tensor(ids, dtype=torch.int32))
        left -= len(ids)
        if left <= 0:
            break
    return rows


def write_own_texts(
    write: Callable[[int], list[list[int]]],
    limit: int,
    path: Path,
    report: Report,
    held_out: Collection[int] = (),
    least: int = 0,
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Let the model write texts, batch after batch, kept in ``path`` (JSON lines).

    ``write(number)`` returns the token ids of batch ``number``: a text for each of the same
    beginnings. An interrupted call leaves whole batches behind, and the next one goes on after
    them.

    Args:
        limit: tokens wanted in all.
        held_out: beginnings whose texts are to be measured on, by their index in a batch.
        least: tokens wanted of their texts.

    Returns:
        Texts to train on, and to measure on, without duplicates.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    batches: list[list[list[int]]] = []
    with contextlib.suppress(FileNotFoundError, ValueError):  # cut short while it was written
        for line in path.read_text(encoding="utf-8").splitlines():
            batches.append(json.loads(line))
    path.write_text("".join(json.dumps(batch) + "\n" for batch in batches), encoding="utf-8")
    with path.open("a", encoding="utf-8") as file:
        while True:
            parts = _split_own_texts(batches, held_out)
            learnt, kept = (sum(map(len, part)) for part in parts)
            if learnt + kept >= limit and kept >= least:
                break
            report("the model writes texts", min(1.0, (learnt + kept) / max(1, limit)))
            batches.append(write(len(batches)))
            if not any(batches[-1]):
                raise HierspecError("the model wrote no text of its own: give some with --texts")
            file.write(json.dumps(batches[-1]) + "\n")
            file.flush()
            if _split_own_texts(batches, held_out) == parts:
                break  # it only repeats itself
    train, measure = ([torch.tensor(row, dtype=torch.int32) for row in part] for part in parts)
    return train, measure


def _split_own_texts(
    batches: list[list[list[int]]], held_out: Collection[int]
) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
    """Return texts to train on and to measure on, each once and none in both, as first written."""
    placed = [(place, tuple(row)) for batch in batches for place, row in enumerate(batch) if row]
    measure = dict.fromkeys(row for place, row in placed if place in held_out)
    train = dict.fromkeys(row for place, row in placed if place not in held_out)
    return [row for row in train if row not in measure], list(measure)


def split(
    rows: list[torch.Tensor],
    held_out: list[torch.Tensor] | None,
    windows: HeldOutWindows,
    source: dict[str, Any],
) -> Texts:
    """Split texts into what to train on and what to measure on.

    Without a ``held_out`` of its own, the last tenth of the rows is kept back; at most one text is
    cut by the border.

    Raises:
        HierspecError: too little text for one window of each.
    """
    if held_out is None:
        whole = torch.cat(rows) if rows else torch.empty(0, dtype=torch.int32)
        border = len(whole) - max(int(HELD_OUT_SHARE * len(whole)), windows.width + 1)
        rows, held_out = _first_tokens(rows, border), [whole[max(border, 0) :]]
    learnt = sum(map(len, rows))
    kept = torch.cat(held_out).long() if held_out else torch.empty(0, dtype=torch.int64)
    if learnt <= windows.width or len(kept) <= windows.width:
        raise HierspecError(
            f"too little text: {learnt} tokens to train on and {len(kept)} to measure on, where "
            f"each needs more than {windows.width}; give more texts, or a smaller --width"
        )
    train = [Piece.whole(part) for row in rows for part in row.split(windows.width)]
    measured = [Piece.whole(window[:-1]) for window in windows.cut(kept)]
    source = _source(source, train, measured) | {"held_out_tokens": len(kept)}
    return Texts(train, measured, source)


def _source(
    source: dict[str, Any], train: Sequence[Piece], held_out: Sequence[Piece]
) -> dict[str, Any]:
    """Return what is recorded of texts: how many tokens count, and a hash of them."""
    digest = hashlib.sha256("".join(p.digest() for p in (*train, *held_out)).encode()).hexdigest()
    counts = [sum(len(piece.positions) for piece in part) for part in (train, held_out)]
    known = {"tokens": counts[0], "held_out_tokens": counts[1], "sha256": digest}
    domains: dict[str, int] = {}
    for piece in train:
        domains[piece.domain] = domains.get(piece.domain, 0) + len(piece.positions)
    return {**source, **known, "domains": domains}


def _first_tokens(rows: list[torch.Tensor], count: int) -> list[torch.Tensor]:
    """Return the first ``count`` tokens."""
    taken = []
    for row in rows:
        if count <= 0:
            break
        taken.append(row[:count])
        count -= len(row)
    return taken
