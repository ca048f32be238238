"""Faults in calls: all functions that a piece of work calls are found by watching it, and each can
be made to fail.

A function is found by the code that ran, and wrapped wherever a module or a class of the package
names it. So no list of calls has to be kept.
"""

from __future__ import annotations

import collections
import functools
import importlib
import inspect
import pkgutil
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any


class InjectedError(Exception):
    """A fault of the kind ``error``."""


def _raise_error() -> None:
    raise InjectedError("injected")


def _raise_memory_error() -> None:
    raise MemoryError("injected")


def _exit() -> None:
    raise SystemExit("injected")


# ``late``: the call does its work, and its caller gets an error all the same.
KINDS = ("error", "memory", "exit", "late", "slow")
_RAISE = {"memory": _raise_memory_error, "exit": _exit}


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault in the ``number``-th call (the first is 1) of a function."""

    function: str
    number: int
    kind: str


class Watch:
    """Counts the calls of the package's functions in some threads.

    Attributes:
        counts: by the code that ran.
    """

    def __init__(self, in_thread: Callable[[], bool], modules: Sequence[str]) -> None:
        self.counts = collections.Counter[CodeType]()
        self._in_thread, self._modules = in_thread, tuple(modules)

    def __call__(self, frame: Any, event: str, _: Any) -> None:
        module = frame.f_globals.get("__name__", "")
        if event == "call" and module.startswith(self._modules) and self._in_thread():
            self.counts[frame.f_code] += 1

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch this thread, and those that are started meanwhile."""
        threading.setprofile(self)
        sys.setprofile(self)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)


class Injector:
    """Wraps functions of the package, so that calls can be made to fail.

    Args:
        codes: of the functions.
        in_thread: whether the running thread is one whose calls may fail.
        slow: seconds that a slow call takes.

    Attributes:
        functions: names of the functions that were found.
        happened: faults that took place.
        calls: how often each function was called since :meth:`faults` was entered.
    """

    def __init__(
        self, codes: Sequence[CodeType], in_thread: Callable[[], bool], slow: float = 0.05
    ) -> None:
        self._in_thread, self._slow = in_thread, slow
        self._planned: dict[str, list[Fault]] = {}
        self._undo: list[Callable[[], None]] = []
        self._lock = threading.Lock()
        self.happened: list[Fault] = []
        self.functions: list[str] = []
        self.calls = collections.Counter[str]()
        places = _places()
        for code in codes:
            found = places.get(code, ())
            if not found:  # a function within a function: its caller is wrapped
                continue
            name = _name_of(found[0][2])
            self.functions.append(name)
            for owner, attribute, value in found:
                self._wrap(name, owner, attribute, value)

    @contextmanager
    def faults(self, *faults: Fault) -> Iterator[None]:
        """Let these faults happen inside."""
        self.happened, self.calls = [], collections.Counter()
        planned: dict[str, list[Fault]] = {}
        for fault in faults:
            planned.setdefault(fault.function, []).append(fault)
        self._planned = planned
        try:
            yield
        finally:
            self._planned = {}

    def remove(self) -> None:
        """Take all wrappers away."""
        while self._undo:
            self._undo.pop()()

    def _wrap(self, name: str, owner: Any, attribute: str, value: Any) -> None:
        if isinstance(value, property):
            new: Any = property(self._wrapper(name, value.fget), value.fset, value.fdel)
        elif isinstance(value, staticmethod | classmethod):
            new = type(value)(self._wrapper(name, value.__func__))
        else:
            new = self._wrapper(name, value)
        setattr(owner, attribute, new)
        self._undo.append(functools.partial(setattr, owner, attribute, value))

    def _wrapper(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        is_coroutine = inspect.iscoroutinefunction(function)

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            fault = self._count(name) if self._in_thread() else None
            if fault is None:
                return function(*args, **kwargs)
            if fault.kind == "slow":
                time.sleep(self._slow)
                return function(*args, **kwargs)
            if fault.kind == "late" and not is_coroutine:
                function(*args, **kwargs)
            return _RAISE.get(fault.kind, _raise_error)()

        return call

    def _count(self, name: str) -> Fault | None:
        """Count a call; return its fault, if there is one."""
        with self._lock:
            self.calls[name] += 1
            number, due = self.calls[name], None
            for fault in self._planned.get(name, ()):
                if fault.number == number:
                    due = fault
                    self.happened.append(fault)
            return due


def _places() -> dict[CodeType, list[tuple[Any, str, Any]]]:
    """Find where each function of the package is named: (module or class, attribute, value)."""
    places: dict[CodeType, list[tuple[Any, str, Any]]] = {}
    for module in [m for name, m in list(sys.modules.items()) if m and name.startswith("hierspec")]:
        owners = [module, *(v for v in vars(module).values() if isinstance(v, type))]
        for owner in owners:
            if owner is not module and not owner.__module__.startswith("hierspec"):
                continue
            for attribute, value in list(vars(owner).items()):
                function = _function_of(value)
                if function is None:
                    continue
                found = places.setdefault(function.__code__, [])
                if all((owner, attribute) != (o, a) for o, a, _ in found):
                    found.append((owner, attribute, value))
    return places


def _function_of(value: Any) -> FunctionType | None:
    if isinstance(value, property):
        value = value.fget
    elif isinstance(value, staticmethod | classmethod):
        value = value.__func__
    if not callable(value) or isinstance(value, type):
        return None
    value = inspect.unwrap(value)
    return value if isinstance(value, FunctionType) else None


def _name_of(value: Any) -> str:
    function = _function_of(value)
    assert function is not None
    return f"{function.__module__}.{function.__qualname__}".removeprefix("hierspec.")


def import_all(*packages: str) -> None:
    """Import the modules of these packages, so that what they name is found."""
    for package in packages:
        found = importlib.import_module(package)
        for module in pkgutil.iter_modules(found.__path__, package + "."):
            importlib.import_module(module.name)
