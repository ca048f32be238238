"""The laboratory's random numbers that split, by their file: no package of it is imported, so that
the engine's laws are enumerated in the product's own run, too."""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

FILE = Path(__file__).resolve().parents[1] / "src" / "hierspec_lab" / "verifiers" / "splitting.py"
WATCHED: dict[str, str] = {}


def outcomes(program):
    pytest.skip("the laboratory follows what the engine draws")


if FILE.is_file():
    spec = spec_from_file_location("splitting_of_the_laboratory", FILE)
    module = sys.modules[spec.name] = module_from_spec(spec)  # classes look for their types there
    spec.loader.exec_module(module)
    WATCHED, outcomes = module.WATCHED, module.outcomes
