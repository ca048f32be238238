"""Constraints of a request on its text: a response format, calls of tools."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hierspec.sampling.parameters import Processor

from .errors import ApiError
from .grammar import Constraint, schema_constraint
from .service import Service
from .tools import OfferedTools
from .wire.common import ResponseFormat


def request_constraint(
    response_format: ResponseFormat | None,
    tools: OfferedTools | None = None,
    format_field: str = "response_format",
) -> Constraint | None:
    """Return what a request makes of its text; ``None``: any text.

    Args:
        format_field: the field of the request that holds the format, for errors.

    Raises:
        ApiError: a schema is missing or cannot be used, or a format and a forced call together.
    """
    schema = _schema(response_format, format_field)
    if schema is not None and tools is not None and tools.are_forced:
        raise ApiError(f"{format_field} and a forced tool_choice cannot be used together")
    constraint = None if tools is None else tools.constraint(answer=schema)
    return schema_constraint(schema) if constraint is None and schema is not None else constraint


def _schema(response_format: ResponseFormat | None, field: str) -> dict[str, Any] | None:
    if response_format is None or response_format.type == "text":
        return None
    if response_format.type == "json_object":
        return {"type": "object"}
    schema = response_format.json_schema
    if schema is None or schema.schema_ is None:
        raise ApiError(f"{field} json_schema needs a schema", param=field)
    return schema.schema_


def constraint_processors(
    service: Service, constraint: Constraint | None, prompts: Sequence[Sequence[int]], n: int
) -> list[list[Processor]]:
    """Make a processor for each of the ``n`` sequences of every prompt; none if any text may be."""
    if constraint is None:
        return []
    grammars = service.grammars()
    return [[grammars.processor(constraint, len(prompt))] for prompt in prompts for _ in range(n)]
