"""The training text: Python sources of the standard library of the running interpreter.

It is on every machine that has Python, under the PSF licence, so the shipped family can be rebuilt
anywhere without a download. Nothing here depends on where that library is installed: files are
named by their path relative to it, and the held-out part is chosen by a hash of that name.

Its tokenizer is a byte-level BPE of 4096 tokens in Hugging Face's format.
"""

from __future__ import annotations

import ast
import fnmatch
import hashlib
import json
import os
import sys
import sysconfig
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from hierspec_lab.training.windows import Stream

LICENCE = "PSF-2.0"
HELD_OUT_PERCENT = 3
MAX_FILE_BYTES = 400_000

# Files, relative to the standard library, that are not code written to be read by people.
EXCLUDED = (
    "site-packages/*",
    "dist-packages/*",
    "config-*",  # build settings of this machine
    "_sysconfigdata*",
    "__phello__*",
    "encodings/*",  # mostly tables
    "pydoc_data/*",
    "lib2to3/tests/data/*",
    "lib2to3/pgen2/*.pickle",
    "test/bad*",
    "test/*/data/*",
    "test/test_email/test_asian_codecs.py",
    "test/test_unicode_identifiers.py",
    "idlelib/Icons/*",
)
MAX_TABLE_SHARE = 0.18  # of digits and backslashes; code has about .02, a generated table .3


@dataclass(frozen=True, slots=True)
class Document:
    """One source file: its name relative to the standard library, and its text."""

    name: str
    text: str

    @property
    def is_test(self) -> bool:
        """Tests are easier and more repetitive than the library, and get less weight."""
        parts = Path(self.name).parts[:-1]
        return any(part in ("test", "tests", "idle_test") for part in parts)

    @property
    def held_out(self) -> bool:
        """Whether it is kept for measuring: decided by its name alone."""
        digest = hashlib.sha256(self.name.encode()).digest()
        return int.from_bytes(digest[:8], "big") % 100 < HELD_OUT_PERCENT


@dataclass(frozen=True, slots=True)
class Corpus:
    """Documents to train on and to measure on, each in the order of their names."""

    train: tuple[Document, ...]
    held_out: tuple[Document, ...]
    python_version: str

    @property
    def sha256(self) -> str:
        """Hash of all text, by which a rebuilt family can show that it was trained on the same."""
        digest = hashlib.sha256()
        for document in (*self.train, *self.held_out):
            digest.update(document.name.encode() + b"\0" + document.text.encode() + b"\0")
        return digest.hexdigest()


def read_document(root: Path, name: str) -> Document | None:
    """Read a file as a document; ``None`` if it is excluded, empty, a table, or not UTF-8."""
    if any(fnmatch.fnmatchcase(name, pattern) for pattern in EXCLUDED):
        return None
    path = root / name
    if path.stat().st_size > MAX_FILE_BYTES:
        return None
    try:
        text = path.read_text(encoding="utf-8").replace("\r\n", "\n").replace("\x0c", "")
    except UnicodeDecodeError:
        return None
    marks = sum(text.count(mark) for mark in "0123456789\\")
    is_table = marks > MAX_TABLE_SHARE * len(text)
    return None if not text.strip() or is_table else Document(name, text)


def load_corpus(max_files: int | None = None) -> Corpus:
    """Load all documents of this interpreter's standard library."""
    root = Path(sysconfig.get_path("stdlib"))
    names = sorted(_python_files(root))[:max_files]
    documents = [d for name in names if (d := read_document(root, name)) is not None]
    return Corpus(
        train=tuple(d for d in documents if not d.held_out),
        held_out=tuple(d for d in documents if d.held_out),
        python_version=sys.version.split()[0],
    )


def _python_files(root: Path) -> Iterator[str]:
    """Yield the names of the library's Python files below ``root``, relative to it."""
    for folder, folders, files in os.walk(root):
        inner = Path(folder).relative_to(root)
        # Packages that others installed are excluded anyway, and there may be thousands.
        folders[:] = (name for name in folders if name not in ("site-packages", "dist-packages"))
        prefix = "" if inner == Path() else f"{inner.as_posix()}/"
        yield from (prefix + file for file in files if file.endswith(".py"))


def functions_with_docstrings(document: Document) -> list[str]:
    """Return functions of a file as texts of their own: ``def f(...):``, docstring, body.

    Prompts for code completion often begin like this, so the models also learn from texts that
    start at a ``def``. Methods are left out: they make no sense without their class.
    """
    try:
        tree = ast.parse(document.text)
    except (SyntaxError, ValueError):
        return []
    lines = document.text.splitlines(keepends=True)
    texts = []
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and ast.get_docstring(node):
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            texts.append(textwrap.dedent("".join(lines[first - 1 : node.end_lineno])))
    return texts


VOCAB_SIZE = 4096
MAX_LENGTH = 2048
END_OF_TEXT = "<|endoftext|>"

# Where a token may end. A run of spaces is a piece of its own, so indentation becomes one token;
# a newline belongs to the punctuation before it (":\n", ")\n") but never to the indentation after
# it, so that a prompt that ends with a newline is cut the same way as the text it came from.
PIECES = r" {2,}| ?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+\n*|\n+|\s"


def train_tokenizer(texts: Iterable[str], vocab_size: int = VOCAB_SIZE) -> Tokenizer:
    """Learn merges from ``texts``; every byte is a token, so every text round-trips."""
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


LIBRARY_COPIES = 3  # of each library file in a pass, for one of each test


def encode_texts(tokenizer: Tokenizer, texts: list[str]) -> list[torch.Tensor]:
    """Return an int16 tensor per text (ids < 4096), each beginning with the end-of-text mark."""
    end = tokenizer.token_to_id(END_OF_TEXT)
    rows = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
    return [torch.tensor([end, *row.ids], dtype=torch.int16) for row in rows]


def held_out_tokens(corpus: Corpus, tokenizer: Tokenizer) -> torch.Tensor:
    """Return all held-out text in one row of ids, int64."""
    return torch.cat(encode_texts(tokenizer, [d.text for d in corpus.held_out])).long()


def training_stream(corpus: Corpus, tokenizer: Tokenizer, seed: int) -> Stream:
    """Return library files three times, tests once, and documented functions on their own."""
    library = [d for d in corpus.train if not d.is_test]
    tests = [d.text for d in corpus.train if d.is_test]
    functions = [text for d in library for text in functions_with_docstrings(d)]
    documents = LIBRARY_COPIES * encode_texts(tokenizer, [d.text for d in library])
    documents += encode_texts(tokenizer, tests) + encode_texts(tokenizer, functions)
    return Stream(documents, seed)
