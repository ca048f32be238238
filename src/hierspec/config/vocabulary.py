"""One vocabulary for all levels: a token id must mean the same text everywhere.

Only the meaning of ids counts. Embeddings padded to different sizes (151936 and 152064 in one
family), or a few more special tokens at the end of one tokenizer, are fine.
"""

from __future__ import annotations

import warnings
from typing import Any

from hierspec.errors import HierspecError, HierspecWarning
from hierspec.utils.files import json_digest

_PADDING = 0.25  # share of an embedding that may plausibly be padding


class VocabularyWarning(HierspecWarning, UserWarning):
    """Two models may not share a vocabulary, and nothing is there to tell."""


def check_same_vocabulary(name: str, tokenizer: Any, other_name: str, other_tokenizer: Any) -> None:
    """Compare two tokenizers on all ids that both could have.

    Args:
        name, other_name: of the models, for the message.
        tokenizer, other_tokenizer: of transformers or ``tokenizers``; ``None`` (a model without
            one) leaves nothing to compare.

    Raises:
        HierspecError: they differ below the size of the smaller one; names the models and the first
            id whose token differs.
    """
    if tokenizer is None or other_tokenizer is None or tokenizer is other_tokenizer:
        return
    vocab, other = tokenizer.get_vocab(), other_tokenizer.get_vocab()
    if vocab == other:
        return
    tokens = {i: token for token, i in vocab.items()}
    others = {i: token for token, i in other.items()}
    for i in range(min(max(tokens, default=-1), max(others, default=-1)) + 1):
        if tokens.get(i) != others.get(i):
            raise HierspecError(
                f"{other_name} and {name} do not share a vocabulary: token {i} is "
                f"{_shown(others.get(i))} in {other_name} and {_shown(tokens.get(i))} in {name}; "
                "use models of one family"
            )


def check_sizes(name: str, size: int, other_name: str, other_size: int) -> None:
    """Warn where a size is all there is to compare, and padding hardly explains the difference."""
    if abs(size - other_size) > _PADDING * max(size, other_size):
        warnings.warn(
            f"{other_name} scores {other_size} tokens and {name} {size}, and without a tokenizer "
            "beside both nobody can tell whether ids mean the same: use models of one family",
            VocabularyWarning,
            stacklevel=2,
        )


def num_ids(tokenizer: Any) -> int:
    """Return a tokenizer's largest id, and one."""
    return max(tokenizer.get_vocab().values(), default=-1) + 1


def vocabulary_key(tokenizer: Any, size: int | None = None) -> str:
    """Return a short hash of which token every id below ``size`` is: others may be added."""
    vocab = tokenizer.get_vocab().items()
    kept = [item for item in vocab if size is None or item[1] < size]
    return json_digest(sorted(kept, key=lambda item: item[1]))


def check_table(
    table: str, size: int, counted_in: str, name: str, tokenizer: Any, target_size: int
) -> None:
    """Compare an n-gram table's vocabulary with the target's.

    Args:
        counted_in: the table's :func:`vocabulary_key`; empty for one that does not say.

    Raises:
        HierspecError: it is larger, or was counted over another tokenizer's ids.
    """
    own = "build one over the target's own tokenizer: hierspec ngram build"
    if tokenizer is not None and counted_in:
        if size > target_size or counted_in != vocabulary_key(tokenizer, size):
            raise HierspecError(
                f"the n-gram table {table} was counted in another vocabulary than that of {name}: "
                + own
            )
        return
    words = target_size if tokenizer is None else num_ids(tokenizer)
    if size > target_size or (tokenizer is not None and size not in (words, target_size)):
        raise HierspecError(
            f"the n-gram table {table} has {size} tokens and {name} has {words}: {own}"
        )
    if tokenizer is None:
        check_sizes(name, target_size, table, size)


def _shown(token: str | None) -> str:
    return "missing" if token is None else repr(token)
