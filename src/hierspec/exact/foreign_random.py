"""Random numbers that the enumeration does not give: which generators were drawn from meanwhile."""

from __future__ import annotations

import gc
import os
import pickle
import random
from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
import torch


class ForeignRandomness:
    """A context in which draws from the process's own generators are noticed.

    It compares the states of all generators of numpy and of Python's ``random`` that exist when it
    is entered, module-wide or held by anyone, and of torch's default generator. It sees that
    generators are made: ``random.Random``, and numpy's where they are called by their place in
    ``numpy.random``; and calls of ``os.urandom``, which ``secrets`` and fresh generators make.
    """

    def __enter__(self) -> ForeignRandomness:
        self._states = [(name, state, state()) for name, state in _generators()]
        self._asked_system = False
        system = os.urandom

        def urandom(size: int) -> bytes:
            self._asked_system = True
            return system(size)

        self._made = set[str]()

        def noted(make: Callable[..., Any], name: str) -> Callable[..., Any]:
            def made(*args: Any, **options: Any) -> Any:
                self._made.add(name)
                return make(*args, **options)

            return made

        class RandomState(np.random.RandomState):  # `isinstance` asks for it, too
            __init__ = noted(np.random.RandomState.__init__, "numpy")

        class Generator(np.random.Generator):
            __init__ = noted(np.random.Generator.__init__, "numpy")

        own_seed = noted(random.Random.seed, "Python's random module")  # every new one calls it

        # `random` and, through it, `secrets` and numpy have a name of their own for it.
        self._patches = [
            mock.patch.object(os, "urandom", urandom),
            mock.patch.object(random, "_urandom", urandom),
            mock.patch.object(random.Random, "seed", own_seed),
            mock.patch.object(np.random, "RandomState", RandomState),
            mock.patch.object(np.random, "Generator", Generator),
            mock.patch.object(np.random, "default_rng", noted(np.random.default_rng, "numpy")),
        ]
        for patch in self._patches:
            patch.start()
        return self

    def __exit__(self, *_: object) -> None:
        for patch in self._patches:
            patch.stop()

    def sources(self) -> str:
        """Name what was drawn from since, in words; empty if nothing was."""
        names = [name for name, state, before in self._states if state() != before]
        names += sorted(self._made)
        if self._asked_system:
            names.append("the operating system (os.urandom, secrets, a fresh generator)")
        return " and ".join(dict.fromkeys(names))


def _generators() -> list[tuple[str, Callable[[], Any]]]:
    """Return every generator that exists: what people call it, and a function that reads it."""
    found: list[tuple[str, Callable[[], Any]]] = [
        ("torch's own generator", lambda: bytes(torch.get_rng_state().numpy())),
        ("numpy", lambda: pickle.dumps(np.random.get_state(legacy=False))),
        ("Python's random module", random.getstate),
    ]
    for one in gc.get_objects():  # without those from before a `gc.freeze`
        kind = type(one)
        if issubclass(kind, np.random.Generator):
            found.append(("numpy", lambda one=one: pickle.dumps(one.bit_generator.state)))
        elif issubclass(kind, np.random.RandomState):
            found.append(("numpy", lambda one=one: pickle.dumps(one.get_state(legacy=False))))
        elif issubclass(kind, random.Random) and not issubclass(kind, random.SystemRandom):
            found.append(("Python's random module", one.getstate))
    return found
