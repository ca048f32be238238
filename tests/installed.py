"""Cases of the methods and rules that are there: those of the laboratory may be missing."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any, TypeVar

from hierspec.config import methods
from hierspec.verifiers import registry

LAB = find_spec("hierspec_lab") is not None
Cases = TypeVar("Cases", dict[str, Any], list[Any])


def installed(cases: Cases) -> Cases:
    """Leave out the cases that name a method or a rule that is not installed."""
    known = {*methods.names(), methods.CONCATENATE, *registry.names()}
    if isinstance(cases, list):
        return [case for case in cases if named(case) <= known]
    return {name: case for name, case in cases.items() if named(case) <= known}


def named(case: Any) -> set[str]:
    """The methods and rules that levels name, wherever they are in a case."""
    return set(_named(case))


def _named(case: Any) -> Iterator[str]:
    if isinstance(case, dict):
        yield from (case[key] for key in ("method", "verify") if key in case)
        case = list(case.values())
    if isinstance(case, list | tuple):
        for part in case:
            yield from _named(part)
