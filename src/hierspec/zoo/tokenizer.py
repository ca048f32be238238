"""A byte-level BPE tokenizer of 4096 tokens for Python sources, in Hugging Face's format."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

VOCAB_SIZE = 4096
MAX_LENGTH = 2048
END_OF_TEXT = "<|endoftext|>"

# Where a token may end. A run of spaces is a piece of its own, so indentation becomes one token;
# a newline belongs to the punctuation before it (":\n", ")\n") but never to the indentation after
# it, so that a prompt that ends with a newline is cut the same way as the text it came from.
PIECES = r" {2,}| ?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+\n*|\n+|\s"


def train_tokenizer(texts: Iterable[str], vocab_size: int = VOCAB_SIZE) -> Tokenizer:
    """Merges learnt from ``texts``; every byte is a token, so every text round-trips."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Write ``tokenizer.json`` and ``tokenizer_config.json`` for ``AutoTokenizer``."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": END_OF_TEXT,
        "eos_token": END_OF_TEXT,
        "pad_token": END_OF_TEXT,
        "clean_up_tokenization_spaces": False,
        "model_max_length": MAX_LENGTH,
        "padding_side": "left",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")


def load_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer that :func:`save_tokenizer` wrote, in the ``tokenizers`` library's form."""
    return Tokenizer.from_file(str(folder / "tokenizer.json"))
