"""In which order methods take turns: seeded, and each after each other equally often.

A method finds caches, clock rates and memory as the one before it has left them. A rotation keeps
the neighbours, so that one of two methods always has the same predecessor; rows of a Williams
design (E. J. Williams, Aust. J. Sci. Res. A 2, 1949, 149–168) do not.

What a method is, what one run of it came to, and running many of them fairly.

A *method* continues one prompt. Ours, transformers' and other engines' are the same to everything
else here: :mod:`hierspec.bench.methods.ours`, :mod:`hierspec.bench.peers`.

Methods taking turns on groups of prompts, whatever a method throws.

A *group* is as many prompts as run at once: one, or ``--batch-size``. It stands where
:func:`hierspec.bench.turns.interleaved` has a prompt.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from hierspec.errors import HierspecError


def rounds(count: int) -> int:
    """After how many rounds everything is balanced: of as many methods, twice as many if odd."""
    if count < 2:
        return 1
    return 2 * count if count % 2 else count


def order(count: int, number: int, seed: int) -> list[int]:
    """Methods 0 … ``count`` − 1 in the order of round ``number``.

    Of :func:`rounds` rounds from a multiple of it on, every method has every place equally often
    (once; twice if ``count`` is odd), and comes directly after every other equally often
    (likewise). Fewer rounds hold none of these more often. ``seed`` decides which method stands
    where in the design, and shuffles its rows; it and ``number`` are all that the order depends
    on.
    """
    cycle, row = divmod(number, rounds(count))
    rng = random.Random(f"{seed} {cycle}")
    labels, rows = list(range(count)), list(range(rounds(count)))
    rng.shuffle(labels)
    rng.shuffle(rows)
    mirrored, shift = divmod(rows[row], max(1, count))
    steps = [*_zigzag(count)]
    return [labels[(step + shift) % count] for step in (reversed(steps) if mirrored else steps)]


def _zigzag(count: int) -> list[int]:
    """0, −1, 1, −2, 2, … modulo ``count``: where that is even, no two steps are alike; where it is
    odd, the reverse has those that are missing."""
    return [((i + 1) // 2) * (-1) ** i % count for i in range(count)]


class Unavailable(HierspecError):  # noqa: N818 (it is a result of a run as well)
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

    Methods take turns on each prompt in an order of its own (:func:`hierspec.bench.turns.order`),
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


Group = Sequence[Sequence[int]]


def whole_batches(prompts: int, size: int) -> None:
    """Refuse a number of prompts that is no whole number of groups.

    Raises:
        ValueError: a smaller group would be left, whose time a token is that of another batch.
    """
    if prompts % size:
        fewer = prompts // size * size
        near = f"{fewer} or {fewer + size}" if fewer else f"{size}"
        raise HierspecError(
            f"{prompts} prompts are no whole number of batches of {size}, and all must be of one "
            f"size: --num-prompts {near}, or another --batch-size"
        )


def grouped(prompts: Sequence[Sequence[int]], size: int) -> list[Group]:
    """Prompts in groups of ``size``.

    Raises:
        ValueError: as :func:`whole_batches`.
    """
    whole_batches(len(prompts), size)
    return [prompts[i : i + size] for i in range(0, len(prompts), size)]


def tuning_groups(prompts: Sequence[Sequence[int]], size: int) -> list[Group]:
    """Whole groups of ``size``; what is left over is left out. One smaller group, if there are
    fewer prompts than that."""
    size = max(1, min(size, len(prompts)))
    return grouped(prompts[: len(prompts) // size * size], size)


def tuning_notes(prompts: int, size: int) -> list[str]:
    """Where tuning is on other batches than what is measured, or not on all prompts: that it is."""
    if 0 < prompts < size:
        return [
            f"tuned on batches of {prompts}, measured on batches of {size}: --tune-prompts {size} "
            "tunes on such as are measured"
        ]
    if prompts % size:
        return [f"{prompts % size} of {prompts} prompts to tune on are in no whole batch of {size}"]
    return []


def repeated(prompts: Sequence[Sequence[int]], size: int) -> Group:
    """A group of ``size``, in which prompts recur where they are fewer: to warm up on."""
    return [prompts[i % len(prompts)] for i in range(size)]


def turns(
    methods: Sequence[Method],
    groups: Sequence[Group],
    request: Request,
    start: int = 0,
    warm_up: Group | None = None,
) -> Iterator[tuple[int, int, list[Run] | Unavailable]]:
    """Every method on every group from number ``start`` on → (group, method, runs or why not).

    Order, seeds and warming up are those of :func:`interleaved`: they depend on the request's seed
    and the group's number, so that an interrupted bench goes on as if nothing had happened.
    """
    guarded: Any = [Guarded(method) for method in methods]
    prompts: Any = groups
    first: Any = warm_up
    found: Any = interleaved(guarded, prompts, request, warm_up=first, start=start)
    return found


class Guarded:
    """A method on groups, of which every failure is a reason."""

    def __init__(self, method: Method) -> None:
        self.method = method
        self.name = method.name
        self.configuration = method.configuration

    def run(self, group: Group, request: Request) -> list[Run]:
        """One run per prompt of the group.

        Raises:
            Unavailable: also for what the method did not expect: one line, type and message.
        """
        try:
            if len(group) == 1:
                return [self.method.run(group[0], request)]
            together = getattr(self.method, "run_batch", None)
            if together is None:
                raise Unavailable("runs one prompt at a time: measure it with --batch-size 1")
            return together(group, request)
        except Unavailable:
            raise
        except Exception as error:  # other engines raise what they like
            raise Unavailable(reason(error)) from error


def reason(error: BaseException) -> str:
    """An exception in one line."""
    if isinstance(error, Unavailable):
        return " ".join(str(error).split())
    text = " ".join(str(error).split())
    shown = text if len(text) <= 300 else f"{text[:297]}..."
    return f"{type(error).__name__}: {shown}" if shown else type(error).__name__
