"""Text to ask questions about that every machine with Python has, under free licences.

It is docstrings and functions of Python's standard library (PSF licence), descriptions of installed
packages (their own free licences), and manual pages where there are some.
"""

from __future__ import annotations

import ast
import gzip
import importlib.metadata
import re
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hierspec.errors import HierspecError

_MANUALS = (Path("/usr/share/man/man1"), Path("/usr/share/man/man7"))
_MAX_MANUALS = 300
_MIN_SPACES = 35  # a passage has more
_LENGTH = range(220, 1400)  # characters
_MACRO = re.compile(r"^[.'].*$|\\f.|\\[&|%]|\\-", re.MULTILINE)
_NOT_IN_PROSE = ("http", "|", "<", ">>>")


@dataclass(frozen=True, slots=True)
class FunctionSource:
    """A function's name, its parameters and its docstring."""

    name: str
    parameters: str
    docstring: str


@dataclass(frozen=True, slots=True)
class Passages:
    """Passages of prose, and functions to be written; each once, in a fixed order."""

    prose: tuple[str, ...]
    functions: tuple[FunctionSource, ...]


def collect(library: Path | None = None) -> Passages:
    """Collect all passages on this machine.

    Args:
        library: folder of Python sources; default: the standard library.

    Raises:
        HierspecError: no sources are there.
    """
    library = library or Path(sysconfig.get_path("stdlib"))
    prose: dict[str, None] = {}
    functions: dict[FunctionSource, None] = {}
    for tree in _sources(library):
        for node in ast.walk(tree):
            if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                continue
            text = ast.get_docstring(node)
            if not text:
                continue
            if _is_passage(text):
                prose[text] = None
            if not isinstance(node, ast.FunctionDef) or node.name.startswith("_"):
                continue
            if 30 < len(text) < 500:
                parameters = re.sub(r"\bself(, )?", "", ast.unparse(node.args))
                functions[FunctionSource(node.name, parameters, text)] = None
    for text in (*_packages(), *_manuals()):
        prose[text] = None
    if not prose or not functions:
        raise HierspecError(
            f"{library} holds no Python sources to make prompts from: use a Python that has its "
            "standard library beside it"
        )
    return Passages(tuple(prose), tuple(functions))


def _sources(library: Path) -> Iterator[ast.Module]:
    for file in sorted([*library.glob("*.py"), *library.glob("*/*.py")]):
        if any(part in ("test", "tests", "idlelib", "site-packages") for part in file.parts):
            continue
        try:
            yield ast.parse(file.read_text(encoding="utf-8"))
        except (SyntaxError, ValueError, OSError):
            continue


def _packages() -> Iterator[str]:
    """Yield paragraphs of installed packages' descriptions."""
    for package in importlib.metadata.distributions():
        metadata: Any = package.metadata
        text = metadata.get_payload()
        for paragraph in re.split(r"\n\s*\n", text if isinstance(text, str) else ""):
            flat = " ".join(paragraph.split())
            if _is_passage(flat):
                yield flat


def _manuals() -> Iterator[str]:
    """Yield paragraphs of manual pages, without their markup."""
    files = [file for folder in _MANUALS for file in sorted(folder.glob("*.gz"))]
    for file in files[:_MAX_MANUALS]:
        try:
            text = gzip.decompress(file.read_bytes()).decode("utf-8", "ignore")
        except (OSError, EOFError):
            continue
        for paragraph in re.split(r"\n\.(?:PP|LP|P|SH.*|TP.*)\n", text):
            flat = " ".join(_MACRO.sub("", paragraph).split())
            if _is_passage(flat):
                yield flat


def _is_passage(text: str) -> bool:
    is_prose = not any(sign in text for sign in _NOT_IN_PROSE)
    return is_prose and len(text) in _LENGTH and text.count(" ") > _MIN_SPACES
