"""A text that grows call by call, and the caches that are kept between the calls."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any, Protocol

from .caches import SessionCache
from .generation import Generation
from .results import GenerationResult, TokenEvent


class Generates(Protocol):
    """What a session calls: :class:`hierspec.Hierarchy`."""

    def generate(self, prompt: Any, **options: Any) -> GenerationResult: ...

    def stream(self, prompt: Any = (), **options: Any) -> Iterator[TokenEvent]: ...

    def astream(self, prompt: Any = (), **options: Any) -> AsyncIterator[TokenEvent]: ...

    def start(self, prompts: Any, **options: Any) -> Generation: ...


class Session:
    """A text that grows call by call: the prefix it shares with the last call is not prefilled
    again.

    Give the whole text each time (a conversation with all its messages); the models' caches are
    rewound to where it differs. The output is the same as without a session, up to rounding
    (:class:`~hierspec.engine.caches.SessionCache`). One call at a time; leaving a ``with`` block,
    or :meth:`close`, frees the caches.

    >>> import hierspec
    >>> with hierspec.Hierarchy.from_preset("hierarchy").session() as session:
    ...     first = session.generate("def add(a, b):", max_new_tokens=8)
    ...     second = session.generate("def add(a, b):" + first.text + "\\n", max_new_tokens=8)
    >>> second.num_tokens
    8
    """

    def __init__(self, hierarchy: Generates) -> None:
        self.hierarchy = hierarchy
        self.cache = SessionCache()

    def generate(self, prompt: Any = (), **options: Any) -> GenerationResult:
        return self.hierarchy.generate(prompt, cache=self.cache, **options)

    def stream(self, prompt: Any = (), **options: Any) -> Iterator[TokenEvent]:
        return self.hierarchy.stream(prompt, cache=self.cache, **options)

    def astream(self, prompt: Any = (), **options: Any) -> AsyncIterator[TokenEvent]:
        return self.hierarchy.astream(prompt, cache=self.cache, **options)

    def start(self, prompt: Any = (), **options: Any) -> Generation:
        """See :meth:`hierspec.Hierarchy.start`, for one prompt."""
        return self.hierarchy.start([prompt], cache=self.cache, **options)

    def close(self) -> None:
        """Free the caches. The session may be used again, and then prefills the whole text."""
        self.cache.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
