"""What a bench needs of a method: it continues a prompt, and reports the time and calls it took.

Our methods (:mod:`hierspec_lab.bench.methods.ours`) and those of transformers and other engines
(:mod:`hierspec_lab.bench.peers`) share this protocol.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from hierspec.errors import HierspecError
from hierspec.utils.records import to_json
from hierspec_lab.bench.method_records import LevelCounters, TargetCounters

if TYPE_CHECKING:
    import torch


class Unavailable(HierspecError):  # noqa: N818 (it is also a run's result)
    """A method cannot run here; the message says why, and how to change that where one can."""


@dataclass(frozen=True, slots=True)
class RunRequest:
    """How to continue a prompt.

    Attributes:
        temperature: 0 is greedy; there is no other filter (top-k, top-p).
        eos_token_ids: they end a text and stay in it; if empty, all have ``max_new_tokens``.
    """

    max_new_tokens: int
    temperature: float = 0.0
    seed: int = 0
    eos_token_ids: frozenset[int] = frozenset()

    def is_complete(self, token_ids: Sequence[int]) -> bool:
        """Return whether a text has all its tokens or ends in one of ``eos_token_ids``."""
        last = token_ids[-1] if token_ids else None
        return len(token_ids) == self.max_new_tokens or last in self.eos_token_ids


@dataclass(frozen=True, slots=True)
class Run:
    """A prompt's continuation and what it took.

    Attributes:
        token_ids: of the output, without the prompt.
        seconds: wall time, reading the prompt included.
        decode_seconds: from the first token to the last; ``None`` where unknown.
        target_calls: forwards of the target after the prompt's, ``None`` where unknown.
        levels: counters per level below the target, smallest first; empty for methods that are
            not ours.
        target: the target's counters, ``None`` for methods that are not ours.
    """

    token_ids: tuple[int, ...]
    seconds: float
    decode_seconds: float | None = None
    target_calls: int | None = None
    levels: tuple[LevelCounters, ...] = ()
    target: TargetCounters = None

    @property
    def counters(self) -> tuple[LevelCounters, ...]:
        """Those of all levels, the target's last; empty for methods that are not ours."""
        return (*self.levels, self.target) if self.target else ()

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def ms_per_token(self) -> float:
        """Wall time, the prompt's reading included, over tokens written."""
        return 1e3 * self.seconds / max(1, self.num_tokens)

    @property
    def decode_ms_per_token(self) -> float | None:
        """Mean over the tokens after the first, without reading the prompt."""
        if self.decode_seconds is None or self.num_tokens < 2:
            return None
        return 1e3 * self.decode_seconds / (self.num_tokens - 1)

    @property
    def mean_acceptance_length(self) -> float | None:
        """Tokens after the first per target call, bonus included."""
        return (self.num_tokens - 1) / self.target_calls if self.target_calls else None

    @property
    def forward_seconds(self) -> float | None:
        """The part of ``decode_seconds`` inside models' forwards."""
        if not self.counters:
            return None
        return sum(level.forward_seconds for level in self.counters)

    @property
    def overhead_ms_per_token(self) -> float | None:
        """Decoding time outside models' forwards, per token after the first."""
        if self.forward_seconds is None or self.decode_seconds is None or self.num_tokens < 2:
            return None
        return 1e3 * (self.decode_seconds - self.forward_seconds) / (self.num_tokens - 1)

    def to_dict(self) -> dict[str, Any]:
        """Return the run, ready for JSON."""
        return to_json(Run, self)


class Method(Protocol):
    """A way to continue a prompt.

    Attributes:
        name: unique in a bench.
        configuration: what it runs with, ready for JSON: a hierarchy file's content, or options.
    """

    name: str
    configuration: dict[str, Any]

    def run(self, prompt: Sequence[int], request: RunRequest) -> Run:
        """Continue the prompt.

        Raises:
            Unavailable: it cannot run this request, or on these models.
        """
        ...


@runtime_checkable
class BatchMethod(Method, Protocol):
    """A method that can continue several prompts at once."""

    def run_batch(self, prompts: Sequence[Sequence[int]], request: RunRequest) -> list[Run]:
        """Continue the prompts together; return a run per prompt."""
        ...


@runtime_checkable
class OtherDtypeMethod(Method, Protocol):
    """A method that may compute in another data type than the target."""

    @property
    def dtype(self) -> torch.dtype: ...


def reason(error: BaseException) -> str:
    """Format an exception as one line."""
    text = " ".join(str(error).split())
    if isinstance(error, Unavailable):
        return text
    if len(text) > 300:
        text = f"{text[:297]}..."
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
