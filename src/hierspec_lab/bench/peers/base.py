"""What methods of other engines share: running, timing and importing them."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar

from hierspec.errors import first_line
from hierspec_lab.bench.methods.base import Run, RunRequest, Unavailable

if TYPE_CHECKING:
    from hierspec_lab.bench.methods.ours import BenchModels

LEVIATHAN = "Leviathan et al. 2023, doi:10.48550/arXiv.2211.17192"
PROMPT_LOOKUP = "Saxena 2023, github.com/apoorvumang/prompt-lookup-decoding"


class Stopwatch:
    """Times a run: ``begin`` when the engine has all it needs, ``token`` when tokens arrive."""

    began = first = ended = 0.0

    def begin(self) -> None:
        self.began = time.perf_counter()

    def token(self) -> None:
        """Record the time of the first token; later calls change nothing."""
        self.first = self.first or time.perf_counter()

    def end(self) -> None:
        self.ended = time.perf_counter()


@dataclass(eq=False, repr=False)
class Peer:
    """Another engine's way to decode: a :class:`hierspec_lab.bench.methods.base.Method`.

    Attributes:
        package: its name for pip and in messages.
        models: the models whose weights it runs on.
    """

    package: ClassVar[str]
    ends_texts: ClassVar[bool] = True  # whether it can stop at the end of a text

    name: str
    models: BenchModels
    configuration: dict[str, Any]

    def run(self, prompt: Sequence[int], request: RunRequest) -> Run:
        """Continue the prompt.

        Raises:
            Unavailable: it fails, or writes fewer tokens than requested: its times would be of
                another task.
        """
        if request.eos_token_ids and not self.ends_texts:
            raise Unavailable(f"{self.package} does not stop at the end of a text")
        watch = Stopwatch()
        with failures_as_unavailable(self.package):
            token_ids, target_calls = self.decode(list(prompt), request, watch)
        if not request.is_complete(token_ids):
            raise Unavailable(
                f"{self.package} wrote {len(token_ids)} tokens where {request.max_new_tokens} were "
                "asked for"
            )
        return Run(
            token_ids=tuple(token_ids),
            seconds=watch.ended - watch.began,
            decode_seconds=watch.ended - watch.first,
            target_calls=target_calls,
        )

    @abstractmethod
    def decode(
        self, prompt: list[int], request: RunRequest, watch: Stopwatch
    ) -> tuple[Sequence[int], int]:
        """Return the output's tokens and the number of the target's forwards after the prompt's.

        Starts and stops ``watch``.
        """


def import_peer(module: str, package: str) -> Any:
    """Import ``module``.

    Raises:
        Unavailable: it is not installed, or does not import; names ``package`` for pip.
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
def failures_as_unavailable(package: str) -> Iterator[None]:
    """Turn whatever fails inside into ``Unavailable``, so that a bench goes on without it."""
    try:
        yield
    except Unavailable:
        raise
    except Exception as error:
        kind = type(error).__name__
        raise Unavailable(f"{package} failed ({kind}): {first_line(error)}") from error


@contextmanager
def seeded(device: Any, seed: int) -> Iterator[None]:
    """Set torch's seed inside, and restore its generators after; gradients are off inside."""
    import torch

    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices), torch.inference_mode():
        torch.manual_seed(seed)
        yield


def draft_models(models: BenchModels) -> tuple[str, ...]:
    """Return the names of the draft models.

    Raises:
        Unavailable: there is none.
    """
    if not models.draft_models:
        raise Unavailable("needs a draft model of the target's family: add --draft")
    return models.draft_models
