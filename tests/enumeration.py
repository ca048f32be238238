"""Enumeration is the laboratory's. It is imported where it is asked for, so that of a file of tests
only those that ask for it are skipped where it is not installed."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from hierspec.verifiers.certificate import Certificate


def certify_tree(*arguments: Any, **options: Any) -> Certificate:
    return _of("certificate").certify_tree(*arguments, **options)


def exact_interpreter(*arguments: Any) -> Any:
    return _of("interpreter").ExactInterpreter(*arguments)


def model_law(*arguments: Any) -> Any:
    return _of("output").model_law(*arguments)


def _of(module: str) -> Any:
    return import_module(f"hierspec_lab.exact.{module}")
