"""What a method is, what one run of it came to, and running many of them fairly.

A *method* continues one prompt. Ours, transformers' and other engines' are the same to everything
else here: :mod:`hierspec.bench.ours`, :mod:`hierspec.bench.peers`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from .order import order


class Unavailable(ValueError):  # noqa: N818 (it is a result of a run as well)
    """A method cannot run here; the message says why, and how to change that where one can."""


@dataclass(frozen=True, slots=True)
class Request:
    """How to continue a prompt. End-of-text tokens do not end it: all methods write as many.

    Attributes:
        temperature: 0 is greedy; there is no other filter (top-k, top-p).
    """

    max_new_tokens: int
    temperature: float = 0.0
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Run:
    """One prompt continued.

    Attributes:
        token_ids: what was written, without the prompt.
        seconds: everything, the prompt's reading included.
        decode_seconds: from the first token to the last; ``None`` where a method cannot tell.
        target_calls: forwards of the target after the prompt's, ``None`` where unknown.
        levels: counters per level below the target, smallest first, as ``generate --json`` has
            them; empty for methods that are not ours.
        target: the target's counters.
    """

    token_ids: tuple[int, ...]
    seconds: float
    decode_seconds: float | None = None
    target_calls: int | None = None
    levels: tuple[dict[str, Any], ...] = ()
    target: dict[str, Any] = field(default_factory=dict)

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def ms_per_token(self) -> float:
        """Wall time, the prompt's reading included, over tokens written."""
        return 1e3 * self.seconds / max(1, self.num_tokens)

    @property
    def decode_ms_per_token(self) -> float | None:
        """Of the tokens after the first, the prompt's reading left out."""
        if self.decode_seconds is None or self.num_tokens < 2:
            return None
        return 1e3 * self.decode_seconds / (self.num_tokens - 1)

    @property
    def mean_acceptance_length(self) -> float | None:
        """Tokens after the first per target call, bonus included."""
        return (self.num_tokens - 1) / self.target_calls if self.target_calls else None

    @property
    def forward_seconds(self) -> float | None:
        """Of ``decode_seconds``, inside models' forwards."""
        if not self.target:
            return None
        return sum(part["forward_seconds"] for part in (*self.levels, self.target))

    @property
    def overhead_ms_per_token(self) -> float | None:
        """Of decoding, outside models' forwards."""
        if self.forward_seconds is None or self.decode_seconds is None or self.num_tokens < 2:
            return None
        return 1e3 * (self.decode_seconds - self.forward_seconds) / (self.num_tokens - 1)


class Method(Protocol):
    """A way to continue a prompt.

    Attributes:
        name: unique in a bench.
        configuration: what it runs with, ready for JSON: a hierarchy file's content, or options.
    """

    name: str
    configuration: dict[str, Any]

    def run(self, prompt: Sequence[int], request: Request) -> Run:
        """Continue the prompt.

        Raises:
            Unavailable: it cannot run this request, or on these models.
        """
        ...


def interleaved(
    methods: Sequence[Method],
    prompts: Sequence[Sequence[int]],
    request: Request,
    warm: int = 1,
    *,
    warm_up: Sequence[int] | None = None,
    start: int = 0,
) -> Iterator[tuple[int, int, Run | Unavailable]]:
    """Every method on every prompt, in turns → (prompt, method, what it came to).

    Methods take turns on each prompt in an order of its own (:func:`hierspec.bench.order.order`),
    so that drift of the machine and caches that the one before has filled favour nobody. Prompt i
    is seeded with ``request.seed + i``. A method that cannot run is told about once and left out
    from then on.

    Args:
        warm: how often each method runs before anything counts, with a seed of no counted run.
        warm_up: the prompt of those runs; best one that is not among ``prompts``. Default: the
            last of them, whose turn is furthest off.
        start: number of the first prompt. The turns from there on are those of ``start`` 0, if the
            same methods are left.
    """
    alive = list(range(len(methods)))

    def attempt(which: int, prompt: Sequence[int], number: int) -> Run | Unavailable:
        seeded = Request(request.max_new_tokens, request.temperature, request.seed + number)
        try:
            return methods[which].run(prompt, seeded)
        except Unavailable as error:
            alive.remove(which)
            return error

    if start < len(prompts):
        first = prompts[-1] if warm_up is None else warm_up
        for which in tuple(alive):
            for _ in range(warm):
                if which in alive:
                    found = attempt(which, first, len(prompts))
                    if isinstance(found, Unavailable):
                        yield start, which, found
    for i in range(start, len(prompts)):
        for which in [alive[k] for k in order(len(alive), i, request.seed)]:
            yield i, which, attempt(which, prompts[i], i)
