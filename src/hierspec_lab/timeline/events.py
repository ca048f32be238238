"""The events of a trace file, as records; a damaged line is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeAlias, TypeVar, cast

from pydantic import Field, Strict, model_validator
from pydantic import dataclasses as pydantic

from hierspec.errors import HierspecError
from hierspec.utils import schema
from hierspec.utils.files import read_bytes
from hierspec.utils.json_lines import parse_lines

T = TypeVar("T")
AtLeastZero = Annotated[int, Strict(), Field(ge=0)]
Seconds = Annotated[float, Strict(), Field(ge=0)]


@pydantic.dataclass(config=schema.OPEN, frozen=True, kw_only=True)
class _Event:
    """A request of one sequence, and a level's answer to it, as a trace records them."""

    sequence: AtLeastZero
    index: AtLeastZero
    level: str
    base_length: AtLeastZero
    began: Seconds
    seconds: Seconds


@pydantic.dataclass(config=schema.OPEN, frozen=True, kw_only=True)
class DraftEvent(_Event):
    """Tokens that a level drafted; ``others`` are alternatives from the same position."""

    kind: Literal["draft"]
    tokens: list[AtLeastZero]
    others: list[list[AtLeastZero]] = field(default_factory=list)
    leaf: schema.Boolean


@pydantic.dataclass(config=schema.OPEN, frozen=True, kw_only=True)
class CheckEvent(_Event):
    """A verification: the draft, the owner of each token, and what was accepted and emitted."""

    kind: Literal["check"]
    draft: list[AtLeastZero]
    owners: list[AtLeastZero]
    others: list[list[AtLeastZero]] = field(default_factory=list)
    emitted: list[AtLeastZero]
    num_accepted: AtLeastZero

    @model_validator(mode="after")
    def _adds_up(self) -> Self:
        if len(self.owners) != len(self.draft):
            raise ValueError(f"{len(self.draft)} draft tokens have {len(self.owners)} owners")
        longest = max(map(len, [self.draft, *self.others]))
        if self.num_accepted > min(longest, len(self.emitted)):
            raise ValueError(
                f"num_accepted is {self.num_accepted} of {len(self.draft)} draft tokens, with "
                f"{len(self.emitted)} emitted"
            )
        return self

    @property
    def drafts(self) -> Iterator[tuple[list[int], list[int]]]:
        """The draft and its alternatives with each token's owner; a leaf owns alternatives."""
        yield self.draft, self.owners
        for tokens in self.others:
            yield tokens, self.owners[:1] * len(tokens)


@pydantic.dataclass(config=schema.OPEN, frozen=True, kw_only=True)
class RowEvent(_Event):
    """A call for the distribution that a follow-up token is drawn from."""

    kind: Literal["row"]


Event: TypeAlias = DraftEvent | CheckEvent | RowEvent
TraceEvent: TypeAlias = Event | Mapping[str, Any]  # as read from a file, or as a tracer has it
_AGAIN = "write it again with: hierspec generate --trace FILE"
_KINDS = {"draft": DraftEvent, "check": CheckEvent, "row": RowEvent}
_ANY = cast(
    type[Any], Annotated[Any, schema.OneOf("kind", lambda kind, _: _KINDS.get(kind), _KINDS.keys)]
)


def read(path: str | Path) -> list[dict[str, Any]]:
    """Read the events of a trace file, in order, as a tracer records them.

    A last line that was cut off by an interruption is left out.

    Raises:
        HierspecError: the file cannot be read, a line is damaged, or it is empty; names both.
    """
    return _parse(path, lambda line: (as_record(line), line)[1])


def read_records(path: str | Path) -> list[Event]:
    """Read the events of a trace file as :func:`read` does, as records."""
    return _parse(path, as_record)


def _parse(path: str | Path, parse_event: Callable[[Any], T]) -> list[T]:
    path = Path(path)
    body = read_bytes(path, "the trace")
    try:
        events = [event for _, event in parse_lines(body, str(path), parse_event, may_be_cut=True)]
    except HierspecError as error:
        raise HierspecError(f"{error}; {_AGAIN}") from None
    if not events:
        raise HierspecError(f"{path} holds no events; {_AGAIN}")
    return events


def as_record(event: Any) -> Event:
    """Check that an event of a trace can be drawn, and return it as a record.

    Raises:
        HierspecError: it cannot be drawn; with the reason.
    """
    if isinstance(event, Mapping) and "traceEvents" in event:
        raise HierspecError("a timeline that is drawn already, for Perfetto: give it the trace")
    if isinstance(event, Mapping) and not {"began", "seconds"} <= event.keys():
        raise HierspecError(
            "no times (began, seconds): the trace is from an interpreter without a clock or an "
            "older version"
        )
    return schema.validate(_ANY, event, "")
