"""Prompts to load a server with: built-in texts, a file, or random words."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

from hierspec.errors import HierspecError
from hierspec.profiling.texts import CODE, PROSE
from hierspec.utils.prompts import read_prompt_file

DATASETS = ("built-in", "custom", "random")
_WORDS = sorted(set(re.findall("[a-z]+", " ".join((*PROSE, *CODE)).lower())))


def choose(
    dataset: str,
    path: Path | None,
    count: int,
    *,
    input_len: int = 256,
    seed: int = 0,
    tokenizer: Any = None,
) -> tuple[list[str], dict[str, Any]]:
    """Choose ``count`` prompts; return them and what identifies them in a result.

    Args:
        dataset: ``built-in``, ``custom`` (of ``path``, from its beginning, repeated where it is
            too short) or ``random``.
        input_len: length of random prompts, in tokens with a tokenizer and in words without.

    Raises:
        HierspecError: no such dataset, or its options do not fit it.
    """
    if dataset not in DATASETS:
        raise HierspecError(f"--dataset-name must be one of {', '.join(DATASETS)}, not {dataset!r}")
    if (dataset == "custom") != (path is not None):
        raise HierspecError(
            "--dataset-name custom reads its prompts from a file: name it with --dataset-path"
            if path is None
            else f"--dataset-path goes with --dataset-name custom, not {dataset}"
        )
    if path is not None:
        file = read_prompt_file(path)
        return _repeated(file.prompts, count), {"file": file.name, "sha256": file.sha256}
    if dataset == "random":
        rng = np.random.default_rng(seed)
        texts = [_random_text(rng, input_len, tokenizer) for _ in range(count)]
        return texts, {"random": "words" if tokenizer is None else "tokens", "length": input_len}
    return _repeated((*PROSE, *CODE), count), {"file": "built in", "sha256": None}


def _repeated(texts: tuple[str, ...], count: int) -> list[str]:
    return [texts[i % len(texts)] for i in range(count)]


def _random_text(rng: np.random.Generator, length: int, tokenizer: Any) -> str:
    """Draw random words, so that prompts share no prefix; with a tokenizer, ``length`` tokens.

    A server may count one more, where it adds a token at the front.
    """
    text = " ".join(_WORDS[i] for i in rng.integers(len(_WORDS), size=length))
    if tokenizer is None:
        return text
    ids = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
    return tokenizer.decode(ids[:length])
