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
    """Two models may not share a vocabulary, and there is no tokenizer to compare."""


def validate_same_vocabulary(
    name: str, tokenizer: Any, other_name: str, other_tokenizer: Any
) -> None:
    """Compare two tokenizers on all ids that both could have.

    Args:
        name, other_name: of the models, for the message.
        tokenizer, other_tokenizer: of transformers or ``tokenizers``; nothing is compared if one is
            ``None`` (a model without a tokenizer).

    Raises:
        HierspecError: they differ below the size of the smaller one; names the models and the first
            id whose token differs.
    """
    if tokenizer is None or other_tokenizer is None or tokenizer is other_tokenizer:
        return
    vocab, other_vocab = tokenizer.get_vocab(), other_tokenizer.get_vocab()
    if vocab == other_vocab:
        return
    tokens = {i: token for token, i in vocab.items()}
    other_tokens = {i: token for token, i in other_vocab.items()}
    for i in range(min(max(tokens, default=-1), max(other_tokens, default=-1)) + 1):
        if tokens.get(i) != other_tokens.get(i):
            texts = [repr(t[i]) if i in t else "missing" for t in (other_tokens, tokens)]
            raise HierspecError(
                f"{other_name} and {name} do not share a vocabulary: token {i} is {texts[0]} in "
                f"{other_name} and {texts[1]} in {name}; use models of one family"
            )


def validate_sizes(name: str, size: int, other_name: str, other_size: int) -> None:
    """Warn if two sizes differ by more than padding explains; for models without tokenizers."""
    if abs(size - other_size) > _PADDING * max(size, other_size):
        warnings.warn(
            f"{other_name} scores {other_size} tokens and {name} {size}, and they lack tokenizers "
            "to compare: make sure that their token ids mean the same",
            VocabularyWarning,
            stacklevel=2,
        )


def num_ids(tokenizer: Any) -> int:
    return max(tokenizer.get_vocab().values(), default=-1) + 1


def vocabulary_key(tokenizer: Any, size: int | None = None) -> str:
    """Return a short hash of the tokens whose ids are below ``size``; by default, of all."""
    vocab = tokenizer.get_vocab().items()
    items = [item for item in vocab if size is None or item[1] < size]
    return json_digest(sorted(items, key=lambda item: item[1]))


def validate_table(
    table: str, size: int, key: str, name: str, tokenizer: Any, target_size: int
) -> None:
    """Compare an n-gram table's vocabulary with the target's.

    Args:
        key: the table's :func:`vocabulary_key`; empty if the table does not have one.

    Raises:
        HierspecError: it is larger, or was counted over another tokenizer's ids.
    """
    fix = "build one over the target's own tokenizer: hierspec ngram build"
    if tokenizer is not None and key:
        if size > target_size or key != vocabulary_key(tokenizer, size):
            raise HierspecError(
                f"the n-gram table {table} was counted in another vocabulary than that of {name}: "
                + fix
            )
        return
    expected = target_size if tokenizer is None else num_ids(tokenizer)
    if size > target_size or (tokenizer is not None and size not in (expected, target_size)):
        raise HierspecError(
            f"the n-gram table {table} has {size} tokens and {name} has {expected}: {fix}"
        )
    if tokenizer is None:
        validate_sizes(name, target_size, table, size)
