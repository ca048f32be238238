"""Constraints of a request on its text: a response format, tools that must be called."""

from __future__ import annotations

from collections.abc import Sequence

from hierspec.sampling.parameters import Processor

from .errors import ApiError
from .grammar import object_grammar, schema_grammar
from .service import Service
from .tools import tools_grammar
from .wire.chat import NamedTool, Tool
from .wire.common import ResponseFormat


def request_grammar(
    response_format: ResponseFormat | None,
    tools: Sequence[Tool] = (),
    tool_choice: str | NamedTool | None = None,
    format_field: str = "response_format",
) -> str | None:
    """Return the grammar that a request imposes on its text; ``None`` if there is none.

    Args:
        format_field: the field of the request that holds the format, for errors.

    Raises:
        ApiError: a schema is missing or cannot be used, an unknown tool is demanded, or a
            format and a call together.
    """
    format_grammar = _format_grammar(response_format, format_field)
    tool_grammar = tools_grammar(tools, tool_choice)
    if (
        format_grammar is not None
        and tool_grammar is not None
        and tool_choice not in (None, "auto")
    ):
        raise ApiError(f"{format_field} and a forced tool_choice exclude each other")
    return format_grammar or tool_grammar


def _format_grammar(response_format: ResponseFormat | None, field: str) -> str | None:
    if response_format is None or response_format.type == "text":
        return None
    if response_format.type == "json_object":
        return object_grammar()
    schema = response_format.json_schema
    if schema is None or schema.schema_ is None:
        raise ApiError(f"{field} json_schema needs a schema", param=field)
    return schema_grammar(schema.schema_)


def grammar_processors(
    service: Service, grammar: str | None, prompts: Sequence[Sequence[int]], n: int
) -> list[list[Processor]]:
    """Make a processor for each of the ``n`` sequences of every prompt; none without a grammar."""
    if grammar is None:
        return []
    grammars = service.grammars()
    return [[grammars.processor(grammar, len(prompt))] for prompt in prompts for _ in range(n)]
