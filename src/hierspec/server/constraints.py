"""Constraints of a request on its text: a response format, tools that must be called."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hierspec.sampling.parameters import Processor

from . import grammar
from .errors import ApiError
from .service import Service
from .wire.common import ResponseFormat


def format_grammar(wanted: ResponseFormat | None) -> str | None:
    """Return the grammar of a response format; ``None`` for plain text.

    Raises:
        ApiError: a schema is missing or cannot be used.
    """
    if wanted is None or wanted.type == "text":
        return None
    if wanted.type == "json_object":
        return grammar.any_object()
    if wanted.json_schema is None or wanted.json_schema.schema_ is None:
        raise ApiError("response_format json_schema needs a schema", param="response_format")
    return grammar.json_schema(wanted.json_schema.schema_)


def processors(
    service: Service, found: str | None, prompts: Sequence[Sequence[int]], n: int
) -> list[list[Processor]]:
    """Make a processor for each of the ``n`` sequences of every prompt; none without a grammar."""
    if found is None:
        return []
    made: list[list[Any]] = []
    grammars = service.grammars()
    for prompt in prompts:
        made += [[grammars.processor(found, len(prompt))] for _ in range(n)]
    return made
