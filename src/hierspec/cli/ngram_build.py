"""Build an n-gram table from text files, for any tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hierspec.config.vocabulary import num_ids, vocabulary_key
from hierspec.drafters.ngram_table import NgramModel
from hierspec.errors import HierspecError
from hierspec.profiling.settings import ReportProgress
from hierspec.utils.files import validate_writable, write_atomically
from hierspec.utils.texts import from_files

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
    distinct = list(dict.fromkeys(from_files(texts)))
    eos = getattr(tokenizer, "eos_token_id", None)
    end = [eos] if isinstance(eos, int) else []
    documents = []
    for number, text in enumerate(distinct):
        report_progress("tokenizing", 0.1 + 0.6 * number / len(distinct))
        ids = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        documents.append(np.asarray([*ids, *end], np.int64))
    tokens = sum(map(len, documents))
    if tokens < 2:
        raise HierspecError("there is too little text to count: give more")
    report_progress("counting", 0.7)
    limits = None if max_entries is None else dict.fromkeys(range(2, max_order + 1), max_entries)
    table = NgramModel.build(documents, size, max_order, limits)
    table.vocabulary = vocabulary_key(tokenizer)
    write_atomically(output, table.save, _WHAT)
    report_progress("done", 1.0)
    return BuiltTable(output, len(distinct), tokens, size, table.max_order, table.num_entries)
