"""Files of one JSON or TOML document, read by a declared type."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, TypeVar, overload

from hierspec.errors import HierspecError, errors_in

from .files import read_text
from .schema import json_object, parse_json, validate

T = TypeVar("T")


@overload
def read_json(shape: type[T], path: Path, noun: str, fix: str = "") -> T: ...
@overload
def read_json(shape: Any, path: Path, noun: str, fix: str = "") -> Any: ...
def read_json(shape: Any, path: Path, noun: str, fix: str = "") -> Any:
    """Read a JSON file as ``shape``: a record, a dataclass or any annotated type.

    Args:
        noun: what the file holds, for the error: ``the settings``.
        fix: the end of the error: what to do about it.

    Raises:
        HierspecError: it cannot be read, is not JSON, or not of this type; names the file.
    """
    try:
        data = parse_json(read_text(path, noun), str(path))
        with errors_in(path):
            return validate(shape, data, "")
    except HierspecError as error:
        raise HierspecError(f"{error}{fix}") from None


def read_object(path: Path, noun: str, fix: str) -> dict[str, Any]:
    """Read the object in a file of TOML, if it is named so, or of JSON.

    Args:
        noun: what the file is, for the error: ``settings file``.
        fix: the end of the error of a file that cannot be read.

    Raises:
        HierspecError: it cannot be read, or holds no such object; names the file.
    """
    text = read_text(path, f"the {noun}", fix)
    if path.suffix.lower() != ".toml":
        return json_object(text, str(path), f"a {noun}")
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise HierspecError(f"{path}: nested too deeply to be read") from None
    except tomllib.TOMLDecodeError as error:
        raise HierspecError(f"{path}: not valid TOML: {error}") from None
