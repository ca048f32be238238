"""Files of users' own Python: drafting methods, rules, adapters.

A mistake in one is the user's: it is said in one line that names the file and the line.
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import os
import sys
import traceback
from collections.abc import Iterable
from functools import cache
from importlib.metadata import EntryPoint, PackageNotFoundError, distribution, entry_points
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from hierspec.errors import HierspecError, first_line

VARIABLE = "HIERSPEC_PLUGINS"  # files with the system's separator of paths, for child processes
_PREFIX = "hierspec_plugin_"  # of the modules that files become
_FILES: dict[str, str] = {}  # of modules that were imported → the name the user gave
REGISTERED: list[Any] = []  # the rules, methods and presets that are no built-in ones


def load_file(file: str | Path, must_register: bool = False) -> ModuleType:
    """Import a Python file, once.

    Raises:
        HierspecError: there is no such file, or importing it raised (names the line), or
            registered nothing where it must.
    """
    path = Path(file).expanduser()
    if path.suffix != ".py" or not path.is_file():
        raise HierspecError(f"no plug-in file {str(file)!r}: give the path of a Python file")
    path = path.resolve()
    # Of one name in every process, so that what its classes make can be pickled between them.
    name = f"{_PREFIX}{path.stem}_{hashlib.sha256(os.fsencode(path)).hexdigest()[:12]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[name] = module  # where dataclasses look for the types of their fields
    _FILES[str(path)] = str(file)
    num_registered = len(REGISTERED)
    try:
        spec.loader.exec_module(module)
        if must_register and len(REGISTERED) == num_registered:
            raise HierspecError(
                "it registers nothing: put @hierspec.register above the class of a rule, or "
                '@hierspec.register_method("NAME") above a drafting method'
            )
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise HierspecError(_import_error(str(file), error)) from None
    return module


def load_inherited() -> None:
    """Import the files that the process was told of by the environment."""
    for file in filter(None, os.environ.get(VARIABLE, "").split(os.pathsep)):
        load_file(file)


@cache
def entry_point_names(group: str) -> dict[str, EntryPoint]:
    """Return what installed packages offer under a group, by name."""
    declared = _declared(group).items()
    return {name: entry for name, entry in declared if find_spec(_package(entry)) is not None}


def load_entry_point(group: str, name: str) -> Any:
    """Import what an installed package offers under a name; ``None`` if none does.

    Raises:
        HierspecError: importing it raised, or the package that it is in is not there.
    """
    entry = entry_point_names(group).get(name)
    if entry is None and name in _declared(group):
        package = _package(_declared(group)[name])
        raise HierspecError(f"{name!r} is in {package}, which is not installed")
    if entry is None:
        return None
    try:
        found = entry.load()
    except (Exception, SystemExit) as error:
        package = entry.dist.name if entry.dist else entry.module
        raise HierspecError(_import_error(f"{name!r} of the package {package}", error)) from None
    file = getattr(sys.modules.get(entry.module), "__file__", None)
    if file and _package(entry) not in _our_packages():  # a bug in ours is no user's mistake
        _FILES[str(Path(file).resolve())] = file
    return found


@cache
def _declared(group: str) -> dict[str, EntryPoint]:
    """Return the entry points of a group, also of a checkout that lacks the package."""
    return {entry.name: entry for entry in entry_points(group=group)}


def _package(entry: EntryPoint) -> str:
    return entry.module.partition(".")[0]


def is_users(kind: Any) -> bool:
    """Return whether a user wrote a class or function: it is in no package of ours."""
    return kind.__module__.partition(".")[0] not in _our_packages()


@cache
def _our_packages() -> frozenset[str]:
    """Return this package, and those that are installed with it."""
    ours = __name__.partition(".")[0]
    offered: Iterable[EntryPoint] = ()
    with contextlib.suppress(PackageNotFoundError):  # run from its folder
        offered = distribution(ours).entry_points
    return frozenset({ours, *map(_package, offered)})


def identity(kind: Any) -> tuple[Any, Any]:
    """Return what a class or function has in common with itself, imported once more.

    A file may be a plug-in, and be imported by its name from another one.
    """
    module = getattr(kind, "__module__", None)
    file = getattr(sys.modules.get(module or ""), "__file__", None)
    return os.path.realpath(file) if file else module, getattr(kind, "__qualname__", kind)


def place_of(error: BaseException) -> str:
    """Return ``FILE, line N`` where an error passed a user's file last; empty if it did not."""
    place = ""
    for frame in traceback.extract_tb(error.__traceback__):
        if frame.filename in _FILES:
            place = f"{_FILES[frame.filename]}, line {frame.lineno}"
    return place


def where(thing: Any) -> str:
    """Return ``FILE, line N`` where a function or class is written; its name if that is unknown."""
    try:
        file, line = inspect.getsourcefile(thing), inspect.getsourcelines(thing)[1]
    except (OSError, TypeError):
        return getattr(thing, "__qualname__", str(thing))
    return f"{_FILES.get(str(file), file)}, line {line}"


def describe(error: BaseException) -> str:
    """Return an error in one line: its type, unless it is ours, and what it says."""
    if isinstance(error, HierspecError):
        return str(error)
    said = first_line(error)
    kind = type(error).__name__
    return said if said == kind else f"{kind}: {said}"


def _import_error(name: str, error: BaseException) -> str:
    if isinstance(error, SyntaxError) and error.filename in (*_FILES, None):
        line = f", line {error.lineno}" if error.lineno else ""
        return f"{name}{line}: {type(error).__name__}: {error.msg}"
    return f"{place_of(error) or name}: {describe(error)}"
