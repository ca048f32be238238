"""Cases of the methods and rules that are there: those of the laboratory may be missing."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any, TypeVar

import pytest

from hierspec.config import methods
from hierspec.core.rules import Verifier
from hierspec.utils.plugins import entry_point_names
from hierspec.verifiers import registry

LAB = find_spec("hierspec_lab") is not None
needs_lab = pytest.mark.skipif(not LAB, reason="the laboratory is not installed")
Cases = TypeVar("Cases", dict[str, Any], list[Any])


def installed(cases: Cases) -> Cases:
    """Leave out the cases that name a method, a key of one or a rule that is not installed."""
    known = {*methods.names(), methods.CONCATENATE, *registry.names()}
    known |= entry_point_names(methods.KEYS_GROUP).keys()
    if isinstance(cases, list):
        return [case for case in cases if named(case) <= known]
    return {name: case for name, case in cases.items() if named(case) <= known}


def named(case: Any) -> set[str]:
    """The methods and rules that levels name, wherever they are in a case."""
    return set(_named(case))


def _named(case: Any) -> Iterator[str]:
    if isinstance(case, dict):
        yield from (case[key] for key in ("method", "verify") if key in case)
        yield from ["draft_model.ahead"] if case.get("ahead") else []
        case = list(case.values())
    if isinstance(case, list | tuple):
        for part in case:
            yield from _named(part)


def rules(*names: str, **options: Any) -> list[Verifier]:
    """The rules of these names that are installed, with these options."""
    return [registry.get(name, **options) for name in names if name in registry.names()]
