"""Options that several commands share, and functions that read their values."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hierspec.errors import HierspecError

if TYPE_CHECKING:
    from hierspec.config.schema import TargetConfig
    from hierspec.sampling.parameters import SamplingParams

MODEL = "directory, hub id, or zoo:NAME"  # in help texts

Target = Annotated[str, typer.Option(help=f"Target model: {MODEL}.")]
Dtype = Annotated[
    str | None,
    typer.Option(
        help="float32, bfloat16, …; default: the checkpoint's, but float32 on a CPU that does not "
        "compute in it."
    ),
]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, …; default: as found.")]
Threads = Annotated[int | None, typer.Option(min=1, help="CPU threads; default: all cores.")]
PromptsOption = Annotated[
    Path | None, typer.Option(help="A .jsonl file, a prompt a line; default: some built in.")
]
TemperatureOption = Annotated[float, typer.Option(help="0 is greedy.")]
TopP = Annotated[float | None, typer.Option(help="Nucleus sampling, as in transformers.")]
TopK = Annotated[int | None, typer.Option(help="Sample from the k likeliest tokens.")]
Temperatures = Annotated[
    list[str] | None,
    typer.Option(
        metavar="FLOAT",
        help="To measure at, 0 is greedy; repeated, or with commas between. Default: 0 and 1.",
    ),
]
DraftsOption = Annotated[
    list[str] | None,
    typer.Option(help="Draft model of a preset, smallest first; repeated, or with commas between."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
ShowList = Annotated[bool, typer.Option("--list", help="List what there is, and do nothing else.")]

DEFAULT_TEMPERATURES = (0.0, 1.0)


def target_config(model: str, dtype: str | None, device: str | None) -> TargetConfig:
    """Return the target that ``--target``, ``--dtype`` and ``--device`` describe.

    Raises:
        HierspecError: no model has that name; known before torch is loaded, which takes seconds.
    """
    from hierspec.config.schema import TargetConfig
    from hierspec.config.target import check_model_name

    check_model_name(model)
    return TargetConfig(model=model, dtype=dtype or "auto", device=device or "auto")


def load_tokenizer(model: str) -> Any:
    """Return a model's tokenizer without loading its weights; ``None`` if it has none."""
    from hierspec.config import checkpoints
    from hierspec.zoo import registry

    return checkpoints.load_tokenizer(
        registry.resolve(model) if registry.can_resolve(model) else model
    )


def split_values(values: Sequence[str] | None) -> list[str]:
    """Return the values of an option that takes several: repeated, or with commas between.

    JSON and paths of existing files are not split; nor is ``,name=value``, an option of the value
    before the comma.
    """
    return [part for value in values or () for part in _split_value(value)]


def _split_value(value: str) -> list[str]:
    if "," not in value or value.lstrip().startswith("{") or os.path.exists(value):
        return [value]
    return [part.strip() for part in re.split(r",(?![a-z_]+=)", value) if part.strip()]


def parse_temperatures(temperature: list[str] | None) -> tuple[float, ...]:
    """Return the values of ``--temperature``, each once.

    Raises:
        HierspecError: one of them is negative, or not a number.
    """
    from hierspec.utils.checks import check_temperature

    values: list[float] = []
    for word in split_values(temperature):
        try:
            values.append(float(word))
        except ValueError:
            raise HierspecError(f"--temperature takes numbers, as in 0,1, not {word!r}") from None
    for value in values:
        check_temperature(value, "--temperature")
    values = values or list(DEFAULT_TEMPERATURES)
    return tuple(dict.fromkeys(value + 0.0 for value in values))  # + 0.0: no negative zero


def options_used(context: typer.Context) -> list[str]:
    """Return the names of the options on the command line, such as ``--prompts``."""
    return [
        param.opts[0]
        for param in context.command.params
        if param.param_type_name == "option"
        and (source := context.get_parameter_source(param.name or ""))
        and source.name != "DEFAULT"
    ]


def note_unused(sampling: SamplingParams) -> None:
    """Print a note on the options that have no effect on greedy decoding."""
    from .rendering import notes, say

    truncation = {"--top-p": sampling.top_p, "--top-k": sampling.top_k, "--min-p": sampling.min_p}
    unused = [name for name, value in truncation.items() if value is not None]
    if sampling.greedy and unused:
        say(
            notes(), f"hierspec: note: {', '.join(unused)}: no effect without --temperature above 0"
        )
