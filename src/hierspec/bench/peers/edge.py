"""Where other engines are reached: what their methods share, importing them, and telling what went
wrong in one line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from hierspec.bench.turns import Request, Run, Unavailable

from .checkpoints import first_line

if TYPE_CHECKING:
    from hierspec.bench.methods.ours import Models


@dataclass(eq=False, repr=False)
class Peer:
    """Another engine's way to decode: a :class:`hierspec.bench.turns.Method` once it has ``run``.

    Attributes:
        models: whose weights it runs on.
    """

    name: str
    models: Models
    configuration: dict[str, Any]


def needed(module: str, package: str) -> Any:
    """Import it.

    Raises:
        Unavailable: it is not installed, or does not import; names ``package`` as pip does.
    """
    top = module.partition(".")[0]
    try:
        import_module(top)
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name == top:
            raise Unavailable(f"needs {package}: pip install {package}") from None
        raise Unavailable(f"{package} does not import: {first_line(error)}") from error
    except Exception as error:  # a peer may be built for another torch, another processor, …
        raise Unavailable(f"{package} does not import: {first_line(error)}") from error


@contextmanager
def reported(package: str) -> Iterator[None]:
    """Whatever fails inside becomes ``Unavailable``, so that a bench goes on without it."""
    try:
        yield
    except Unavailable:
        raise
    except Exception as error:
        kind = type(error).__name__
        raise Unavailable(f"{package} failed ({kind}): {first_line(error)}") from error


def complete(package: str, run: Run, request: Request) -> Run:
    """The run, if it wrote as many tokens as were asked for.

    Raises:
        Unavailable: it did not, so that its times would be of another task.
    """
    if run.num_tokens != request.max_new_tokens:
        raise Unavailable(
            f"{package} wrote {run.num_tokens} tokens where {request.max_new_tokens} were asked for"
        )
    return run
