"""Options that several of these commands share, and functions that read their values."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

import typer

from hierspec.cli.options import DEFAULT_TARGET, split_values, target_option
from hierspec.errors import HierspecError


def output_option(help_text: str = "File to write.") -> Any:
    return typer.Option("-o", "--output", help=help_text)


TargetOrDefault = Annotated[str | None, target_option(DEFAULT_TARGET)]
PromptsOption = Annotated[
    Path | None,
    typer.Option(help="A .jsonl file with a prompt on each line; default: built-in prompts."),
]
Temperatures = Annotated[
    list[str] | None,
    typer.Option(
        metavar="FLOAT",
        help="Temperatures to measure at (0 is greedy): repeat the option, or separate by commas. "
        "Default: 0 and 1.",
    ),
]
DEFAULT_TEMPERATURES = (0.0, 1.0)
_UNITS = {"": 1} | {
    prefix + suffix: base ** (power + 1)
    for base, suffix in ((1000, "b"), (1024, "ib"))
    for power, prefix in enumerate("kmgt")
}


def parse_temperatures(temperature: list[str] | None) -> tuple[float, ...]:
    """Return the values of ``--temperature``, each once.

    Raises:
        HierspecError: one of them is negative, or not a number.
    """
    from hierspec.utils.validation import validate_temperature

    values: list[float] = []
    for word in split_values(temperature):
        try:
            values.append(float(word))
        except ValueError:
            raise HierspecError(f"--temperature takes numbers, as in 0,1, not {word!r}") from None
    for value in values:
        validate_temperature(value, "--temperature")
    values = values or list(DEFAULT_TEMPERATURES)
    return tuple(dict.fromkeys(value + 0.0 for value in values))  # + 0.0: no negative zero


def parse_size(text: str) -> int:
    """Return the bytes of ``2GiB``, ``500MB``, ``1.5 gib`` or a plain number."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", text.lower())
    unit = None if match is None else _UNITS.get("" if match[2] == "b" else match[2])
    if match is None or unit is None or float(match[1]) <= 0:
        raise HierspecError(f"--memory-budget takes a size such as 2GiB or 500MB, not {text!r}")
    if not float(match[1]) < 1e15:
        raise HierspecError(f"--memory-budget of {text[:20]}… is more than any machine has")
    return int(float(match[1]) * unit)


def options_used(context: typer.Context) -> list[str]:
    """Return the names of the options on the command line, such as ``--prompts``."""
    return [
        param.opts[0]
        for param in context.command.params
        if param.param_type_name == "option"
        and (source := context.get_parameter_source(param.name or ""))
        and source.name != "DEFAULT"
    ]
