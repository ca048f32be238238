"""The code family: three small models and a table, trained on Python's standard library.

``zoo:large`` is made of the largest at load time (:mod:`.synthetic`). The data is in this folder;
``hierspec zoo train OUT`` makes it anew.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from hierspec.errors import HierspecError
from hierspec.lm.weights import WeightSource, from_directory
from hierspec.profiling.texts import CODE
from hierspec.zoo.registry import PREFIX, Entry

from .synthetic import DEEPEN, DEFAULT_EPS, WIDEN, inflate

DATA = Path(__file__).parent / "data"
FAMILY = "code"
MID_ACCEPTANCE_NAME = "zoo:mid-acceptance"


def _files(name: str) -> Path:
    path = DATA / name
    if not path.exists():
        raise HierspecError(
            f"{PREFIX}{path.stem} is not in {DATA}: run `hierspec zoo train` to build it"
        )
    return path


def _open_trained(name: str, options: Mapping[str, str], device: str) -> WeightSource:
    checkpoint = from_directory(_files(name.removeprefix(PREFIX)), tokenizer_path=DATA)
    return dataclasses.replace(checkpoint, name=name)


def _open_large(name: str, options: Mapping[str, str], device: str) -> WeightSource:
    trunk = _open_trained("zoo:trunk", {}, device)
    return inflate(trunk, DATA, *_large_options(name, options), device=device)


def _large_options(name: str, options: Mapping[str, str]) -> tuple[float, int, int, int]:
    names = ("eps", "seed", "widen", "deepen")
    if unknown := sorted(set(options) - set(names)):
        raise HierspecError(
            f"zoo:large has no option {unknown[0]!r} in {name!r}; it has: {', '.join(names)}"
        )
    try:
        eps, seed = float(options.get("eps", DEFAULT_EPS)), int(options.get("seed", 0))
        widen, deepen = int(options.get("widen", WIDEN)), int(options.get("deepen", DEEPEN))
    except ValueError:
        raise HierspecError(
            f"an option of {name!r} is not a number (all but eps are integers); write "
            "zoo:large?eps=0.1&seed=1&widen=4&deepen=2"
        ) from None
    if not 0 <= eps < float("inf"):
        raise HierspecError(f"option eps of {name!r} must be finite and at least 0")
    if widen < WIDEN or widen & (widen - 1):
        raise HierspecError(f"option widen of {name!r} must be a power of two, at least {WIDEN}")
    if deepen < DEEPEN:
        raise HierspecError(f"option deepen of {name!r} must be at least {DEEPEN}")
    return eps, seed, widen, deepen


def _trained(name: str, description: str, *candidates: str) -> Entry:
    return Entry(
        description,
        partial(_files, name),
        _open_trained,
        family=FAMILY,
        candidates=("ngram", *candidates, "prompt-lookup"),
        texts=CODE,
    )


NGRAM = Entry(
    "an n-gram table with back-off, from Python's sources: table of method ngram_table",
    partial(_files, "ngram.safetensors"),
    family=FAMILY,
)
SMALL = _trained(
    "small", "2 layers, 1.7 M parameters, distilled from the trunk", "zoo:mid", "zoo:trunk"
)
MID = _trained(
    "mid", "4 layers, 4.1 M parameters, distilled from the trunk", "zoo:small", "zoo:trunk"
)
TRUNK = _trained(
    "trunk",
    "8 layers, 15.7 M parameters, trained on Python's sources; early exits after layers 1, 2 and 4",
    "zoo:small",
    "zoo:mid",
    "exit:1",
    "exit:2",
    "exit:4",
)
LARGE = dataclasses.replace(
    _trained(
        "trunk",
        "16 layers, 116 M parameters made from the trunk at load time: a synthetic cost with a "
        "real distribution; zoo:large?eps=0.1&seed=1 sets how far it moves from the trunk's, "
        "&widen=8&deepen=3 the cost",
        "zoo:small",
        "zoo:mid",
        "zoo:trunk",
    ),
    open=_open_large,
    validate=_large_options,
)
MID_ACCEPTANCE = Entry(
    "a head that predicts what zoo:large keeps of zoo:mid, for an acceptance window",
    partial(_files, "mid-acceptance"),
    family=FAMILY,
)
