"""Texts to train and measure heads on: files, the shipped family's corpus, or the model's own.

All of them become token ids in two parts: one to train on, and one to measure on, which no training
batch contains. Duplicates count once. If the model writes the texts, the two parts continue
different beginnings. Of conversations only the answers count, and all answers to one prompt are in
the same part.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch

from hierspec.api import Hierarchy
from hierspec.config.build import build
from hierspec.config.checkpoints import Loaded
from hierspec.config.schema import HierarchyConfig, TargetConfig
from hierspec.errors import HierspecError
from hierspec.lm.backend import Backend
from hierspec.profiling.settings import ReportProgress
from hierspec.profiling.texts import builtin
from hierspec.utils.files import json_digest, write_atomically
from hierspec.utils.json_lines import read_line
from hierspec.zoo import registry
from hierspec_lab.families.code import FAMILY
from hierspec_lab.training.family.corpus import load_corpus
from hierspec_lab.training.models import WritingPace
from hierspec_lab.training.texts import AnyText, PlainText, key_of
from hierspec_lab.training.windows import HeldOutWindows

from .settings import TrainingSettings
from .states import Piece

HELD_OUT_SHARE = 0.1
OWN_LENGTH = 256  # tokens that the model adds to each beginning
_OWN_BATCH = 16  # texts that the model writes side by side
_HELD_OUT = (14, 15)  # beginnings to measure on: one of code and one of prose
_CHARACTERS_PER_TOKEN = 4  # roughly
_MAX_CONVERSATION = 2048  # tokens read of one
_UNKNOWN_DOMAIN = "other"  # of conversations


@dataclass(frozen=True, slots=True)
class TrainingData:
    """Texts to learn from, and others to measure on.

    Attributes:
        source: what the report says of them: their name, hash and numbers of tokens.
        beyond_limit: texts beyond the token limit, used only to find the most frequent tokens.
    """

    train: list[Piece]
    held_out: list[Piece]
    source: dict[str, Any]
    beyond_limit: list[Piece] = field(default_factory=list)


def choose_texts(
    model: str,
    backend: Backend,
    tokenizer: Any,
    settings: TrainingSettings,
    paths: Sequence[Path],
    file_texts: Sequence[AnyText],
    folder: Path,
    report_progress: ReportProgress,
) -> TrainingData:
    """Return the files' texts; else the shipped family's training text; else what the model writes.

    Args:
        paths: files and folders; their names are reported.
        file_texts: what :func:`~hierspec_lab.training.texts.from_files` has read of them.
        folder: keeps the texts that the model has written, for an interrupted training.
    """
    limit, width, seed = settings.tokens, settings.width, settings.seed
    windows = HeldOutWindows(settings.held_out, width)
    report_progress("reading texts", 0.0)
    if paths:
        name = ", ".join(path.name for path in paths)
        longest = min(backend.max_length, _MAX_CONVERSATION)
        return _split_file_texts(file_texts, name, tokenizer, settings, longest)
    if registry.family(model) == FAMILY:
        corpus = load_corpus()
        held_out_limit = max(int(HELD_OUT_SHARE * limit), width + 1)
        train_texts = {document.text: None for document in corpus.train}
        held_out_texts = [d.text for d in corpus.held_out if d.text not in train_texts]
        train_rows = encode_excerpts(train_texts, tokenizer, limit - held_out_limit, width, seed)
        held_out = encode_excerpts(held_out_texts, tokenizer, held_out_limit, width, seed)
        name = f"standard library of Python {corpus.python_version}"
        return split_texts(train_rows, held_out, windows, {"name": name})
    write = _writer(model, backend, tokenizer, seed)
    path = folder / f"own-{json_digest([model, seed, str(backend.dtype)])}.jsonl"
    train_rows, held_out = write_own_texts(
        write, limit, path, report_progress, _HELD_OUT, width + 1
    )
    return split_texts(train_rows, held_out, windows, {"name": "written by the model itself"})


def _split_file_texts(
    texts: Sequence[AnyText],
    name: str,
    tokenizer: Any,
    settings: TrainingSettings,
    longest: int,
) -> TrainingData:
    """Split plain texts and conversations in two parts each."""
    plain = [text.content for text in texts if isinstance(text, PlainText)]
    conversations = [text for text in texts if not isinstance(text, PlainText)]
    train, held_out, beyond_limit = split_conversations(conversations, tokenizer, settings, longest)
    limit = settings.tokens - sum(len(piece.ids) for piece in (*train, *held_out))
    if plain and (not conversations or limit > 4 * settings.width):
        rows = encode_excerpts(plain, tokenizer, limit, settings.width, settings.seed)
        windows = HeldOutWindows(settings.held_out, settings.width)
        data = split_texts(rows, None, windows, {})
        train, held_out = [*train, *data.train], [*held_out, *data.held_out]
    if not train or not held_out:
        raise HierspecError(
            f"too few conversations: {len(train)} to train on and {len(held_out)} to measure on; "
            "give more"
        )
    return TrainingData(train, held_out, _source({"name": name}, train, held_out), beyond_limit)


def split_conversations(
    conversations: Sequence[AnyText],
    tokenizer: Any,
    settings: TrainingSettings,
    longest: int,
) -> tuple[list[Piece], list[Piece], list[Piece]]:
    """Split conversations into those to train on, to measure on, and beyond the token limit.

    A tenth of the prompts is held out, by their hash, so the parts stay the same if a file grows;
    the first of these in every domain are measured on, equally many of each.
    """
    train: list[Piece] = []
    beyond_limit: list[Piece] = []
    held_out: dict[str, list[Piece]] = {}
    tokens_left = settings.tokens
    num_domains = max(1, len({conversation.domain for conversation in conversations}))
    for conversation in {key_of(one): one for one in conversations}.values():
        domain = conversation.domain or _UNKNOWN_DOMAIN
        digest = hashlib.sha256(conversation.prompt.encode()).digest()
        is_held_out = int.from_bytes(digest[:4]) < HELD_OUT_SHARE * 2**32
        same_domain = held_out.setdefault(domain, [])
        is_full = len(same_domain) * num_domains >= settings.held_out or tokens_left <= 0
        if is_held_out and is_full:
            continue
        all_ids, answers = conversation.tokenize(tokenizer)
        # Positions whose next token belongs to an answer.
        positions = [p for low, high in answers for p in range(low - 1, min(high - 1, longest))]
        if not positions:
            continue
        ids = torch.tensor(all_ids[: positions[-1] + 1], dtype=torch.int32)
        piece = Piece(ids, torch.tensor(positions), domain)
        part = same_domain if is_held_out else train if tokens_left > 0 else beyond_limit
        part.append(piece)
        tokens_left -= len(ids)
    return train, [piece for pieces in held_out.values() for piece in pieces], beyond_limit


def _writer(
    model: str, backend: Any, tokenizer: Any, seed: int
) -> Callable[[int], list[list[int]]]:
    """Return ``write(number)``: it generates a batch of plain continuations at temperature 1."""
    target = TargetConfig(model=model, backend="hf")
    loaded = Loaded()
    loaded.add(target, backend, tokenizer)
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
    distinct, limit = list(dict.fromkeys(texts)), max(limit, 0)
    length = width * max(1, math.ceil(limit / max(1, len(distinct)) / width))
    while True:
        rows = _excerpts(distinct, tokenizer, limit, length, seed)
        if sum(map(len, rows)) >= limit or all(len(row) < length for row in rows):
            return rows
        length *= 2


def _excerpts(
    texts: list[str], tokenizer: Any, limit: int, length: int, seed: int
) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    rows, tokens_left = [], limit
    for i in torch.randperm(len(texts), generator=generator).tolist():
        text, start_share = texts[i], float(torch.rand((), generator=generator))
        start = int(start_share * max(0, len(text) - length * _CHARACTERS_PER_TOKEN))
        excerpt = text[start : start + length * 2 * _CHARACTERS_PER_TOKEN]
        ids = tokenizer(excerpt, verbose=False)["input_ids"][: min(length, tokens_left)]
        rows.append(torch.tensor(ids, dtype=torch.int32))
        tokens_left -= len(ids)
        if tokens_left <= 0:
            break
    return rows


def write_own_texts(
    write: Callable[[int], list[list[int]]],
    limit: int,
    path: Path,
    report_progress: ReportProgress,
    held_out: Collection[int] = (),
    min_held_out: int = 0,
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Let the model write texts, batch after batch, kept in ``path`` (JSON lines).

    An interrupted call leaves whole batches behind, and the next one goes on after them.

    Args:
        write: returns the token ids of batch 0, 1, …: a text for each of the same beginnings.
        limit: tokens to write at least.
        held_out: beginnings whose texts are to be measured on, by their index in a batch.
        min_held_out: tokens to write at least to measure on.

    Returns:
        Texts to train on, and to measure on, without duplicates.
    """
    batches: list[list[list[int]]] = []
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else ()
    for line in lines:
        batch = read_line(list[list[int]], line)
        if batch is None:
            break  # cut short while it was written
        batches.append(batch)
    write_atomically(path, "".join(json.dumps(batch) + "\n" for batch in batches), "the texts")
    pace: WritingPace | None = None
    with path.open("a", encoding="utf-8") as file:
        while True:
            parts = _split_own_texts(batches, held_out)
            num_train, num_held_out = (sum(map(len, part)) for part in parts)
            if num_train + num_held_out >= limit and num_held_out >= min_held_out:
                break
            written = num_train + num_held_out
            pace = pace or WritingPace(written, limit, "tokens")
            stage = f"the model writes texts: {pace.text(written)}"
            report_progress(stage, min(1.0, written / max(1, limit)))
            batches.append(write(len(batches)))
            if not any(batches[-1]):
                raise HierspecError("the model wrote no text of its own: give some with --texts")
            file.write(json.dumps(batches[-1]) + "\n")
            file.flush()
            if _split_own_texts(batches, held_out) == parts:
                break  # the model only repeats itself
    train, measure = ([torch.tensor(row, dtype=torch.int32) for row in part] for part in parts)
    return train, measure


def _split_own_texts(
    batches: list[list[list[int]]], held_out: Collection[int]
) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
    """Return texts to train on and to measure on, in the order written, none of them twice."""
    indexed = [(index, tuple(row)) for batch in batches for index, row in enumerate(batch) if row]
    measure = dict.fromkeys(row for index, row in indexed if index in held_out)
    train = dict.fromkeys(row for index, row in indexed if index not in held_out)
    return [row for row in train if row not in measure], list(measure)


def split_texts(
    rows: list[torch.Tensor],
    held_out: list[torch.Tensor] | None,
    windows: HeldOutWindows,
    source: dict[str, Any],
) -> TrainingData:
    """Cut texts into windows to train on and windows to measure on.

    Where ``held_out`` is ``None``, the last tenth of the rows is held out; the border cuts at most
    one text.

    Raises:
        HierspecError: too little text for one window of each.
    """
    if held_out is None:
        ids = torch.cat(rows) if rows else torch.empty(0, dtype=torch.int32)
        border = len(ids) - max(int(HELD_OUT_SHARE * len(ids)), windows.width + 1)
        starts = accumulate(map(len, rows), initial=0)
        rows = [row[: border - n] for row, n in zip(rows, starts, strict=False) if n < border]
        held_out = [ids[max(border, 0) :]]
    num_train = sum(map(len, rows))
    held_out_ids = torch.cat(held_out).long() if held_out else torch.empty(0, dtype=torch.int64)
    if num_train <= windows.width or len(held_out_ids) <= windows.width:
        raise HierspecError(
            f"too little text: {num_train} tokens to train on and {len(held_out_ids)} to measure "
            f"on, where each needs more than {windows.width}; give more texts, or a smaller --width"
        )
    train = [Piece.from_ids(part) for row in rows for part in row.split(windows.width)]
    measure = [Piece.from_ids(window[:-1]) for window in windows.cut(held_out_ids)]
    source = _source(source, train, measure) | {"held_out_tokens": len(held_out_ids)}
    return TrainingData(train, measure, source)


def _source(
    source: dict[str, Any], train: Sequence[Piece], held_out: Sequence[Piece]
) -> dict[str, Any]:
    """Return what is recorded of texts: how many tokens count, by domain, and a hash of them."""
    digest = hashlib.sha256("".join(p.digest() for p in (*train, *held_out)).encode()).hexdigest()
    counts = [sum(len(piece.positions) for piece in part) for part in (train, held_out)]
    domains: dict[str, int] = {}
    for piece in train:
        domains[piece.domain] = domains.get(piece.domain, 0) + len(piece.positions)
    numbers = {"tokens": counts[0], "held_out_tokens": counts[1], "sha256": digest}
    return {**source, **numbers, "domains": domains}
