"""Count n-grams: of token ids, or of text files for any tokenizer, which becomes a table's file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hierspec.config.vocabulary import num_ids, vocabulary_key
from hierspec.drafters.ngram_table import NgramModel, NgramOrder
from hierspec.errors import HierspecError
from hierspec.profiling.settings import ReportProgress
from hierspec.utils.files import validate_writable, write_atomically

from .texts import PlainText, from_files, key_of

DISCOUNT = 0.6  # taken off every count; absolute discounting
UNIGRAM_FLOOR = 0.5  # added to every token's count
MAX_ENTRIES = {2: 90_000, 3: 150_000}  # stored (context, word) pairs per order
MAX_ENTRIES_HIGHER = 50_000
MIN_COUNT = 2  # of a pair, from order 3 on
_MAX_KEY = 2**63  # n-grams are counted as integers below it
_WHAT = "the n-gram table"


@dataclass(frozen=True, slots=True)
class BuiltTable:
    """A table that was written.

    Attributes:
        texts, tokens: how many were counted.
        entries: stored numbers of all orders.
    """

    path: Path
    texts: int
    tokens: int
    vocab_size: int
    max_order: int
    entries: int


def build(
    texts: Sequence[Path],
    tokenizer: Any,
    output: Path,
    *,
    max_order: int = 3,
    max_entries: int | None = None,
    report_progress: ReportProgress = lambda stage, share: None,
) -> BuiltTable:
    """Count the tokens of text files and folders, and write the table.

    Args:
        tokenizer: of the models that the table will draft for.
        max_order: longest n-gram counted, the predicted token included.
        max_entries: how many (context, token) pairs of each order are kept at most; default: as in
            the shipped table.

    Raises:
        HierspecError: no text, too long n-grams for the vocabulary, or a file that cannot be
            written.
    """
    size = num_ids(tokenizer)
    if max_order < 2 or size**max_order >= _MAX_KEY:
        longest = next(n for n in range(2, 64) if max(size, 2) ** (n + 1) >= _MAX_KEY)
        raise HierspecError(f"max_order must be 2 to {longest} for {size} tokens, not {max_order}")
    validate_writable(output, _WHAT)
    report_progress("reading", 0.0)
    distinct = {key_of(text): text for text in from_files(texts)}.values()
    eos = getattr(tokenizer, "eos_token_id", None)
    end = [eos] if isinstance(eos, int) else []
    documents = []
    for number, text in enumerate(distinct):
        report_progress("tokenizing", 0.1 + 0.6 * number / len(distinct))
        if isinstance(text, PlainText):
            ids = tokenizer(text.content, add_special_tokens=False, verbose=False)["input_ids"]
        else:
            ids, _ = text.tokenize(tokenizer)
        documents.append(np.asarray([*ids, *end], np.int64))
    tokens = sum(map(len, documents))
    if tokens < 2:
        raise HierspecError("there is too little text to count: give more")
    report_progress("counting", 0.7)
    limits = None if max_entries is None else dict.fromkeys(range(2, max_order + 1), max_entries)
    table = count(documents, size, max_order, limits)
    table.vocabulary = vocabulary_key(tokenizer)
    write_atomically(output, table.save, _WHAT)
    report_progress("done", 1.0)
    return BuiltTable(output, len(distinct), tokens, size, table.max_order, num_entries(table))


def num_entries(table: NgramModel) -> int:
    """Return how many numbers a table stores: V and the pairs of all higher orders."""
    return table.vocab_size + sum(len(order.words) for order in table.orders)


def count(
    documents: Iterable[np.ndarray | torch.Tensor],
    vocab_size: int,
    max_order: int = 3,
    max_entries: dict[int, int] | None = None,
) -> NgramModel:
    """Count documents of token ids; keep, per order, the pairs that gain most.

    A pair's gain is in log-likelihood, over backing off: c · log(c/C / p(w|h′)).
    """
    tokens = np.concatenate([np.asarray(document, dtype=np.int64) for document in documents])
    counts = (np.bincount(tokens, minlength=vocab_size) + UNIGRAM_FLOOR).astype(np.float32)
    table = NgramModel(counts)
    limits = MAX_ENTRIES if max_entries is None else max_entries
    for order in range(2, max_order + 1):
        limit = limits.get(order, MAX_ENTRIES_HIGHER)
        counted = _count_order(tokens, table, order, limit)
        if counted is None:
            break
        table = NgramModel(counts, (*table.orders, counted))
    return table


def _count_order(
    tokens: np.ndarray, table: NgramModel, order: int, limit: int
) -> NgramOrder | None:
    """Return the ``limit`` pairs of this order that gain most over ``table``'s lower orders."""
    size = table.vocab_size
    if len(tokens) < order:
        return None
    grams = np.zeros(len(tokens) - order + 1, np.int64)
    for offset in range(order):
        grams = grams * size + tokens[offset : offset + len(grams)]
    grams, counts = np.unique(grams, return_counts=True)
    contexts, words = np.divmod(grams, size)
    first = np.flatnonzero(np.diff(contexts, prepend=-1))
    totals = np.repeat(np.add.reduceat(counts, first), np.diff(first, append=len(grams)))
    kept = counts >= (MIN_COUNT if order > 2 else 1)
    contexts, words, counts, totals = contexts[kept], words[kept], counts[kept], totals[kept]
    gain = counts * np.log(counts / totals / _backoff_probs(table, contexts, words))
    best = np.sort(np.argsort(-gain, kind="stable")[:limit])
    best = best[gain[best] > 0]
    if not len(best):
        return None
    contexts, words = contexts[best], words[best]
    shares = ((counts[best] - DISCOUNT) / totals[best]).astype(np.float16).astype(np.float32)
    first = np.flatnonzero(np.diff(contexts, prepend=-1))
    return NgramOrder(contexts[first], np.append(first, len(contexts)), words, shares)


def _backoff_probs(table: NgramModel, contexts: np.ndarray, words: np.ndarray) -> np.ndarray:
    """Return p(w | h′) of many pairs, context by context; ``contexts`` is sorted."""
    out = np.empty(len(words), np.float32)
    if not table.orders:
        return table.unigram[words]
    size, inner = table.vocab_size, table.max_order - 1
    edges = np.flatnonzero(np.diff(contexts, prepend=-1, append=-1))
    for start, end in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        key = int(contexts[start])
        recent = [key // size**i % size for i in reversed(range(inner))]
        out[start:end] = table.distribution(recent)[words[start:end]]
    return out
