"""Options that several commands share, declared once, and what follows from them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from hierspec.config.schema import TargetConfig

MODEL = "directory, hub id, or zoo:NAME"  # what stands for a model

Dtype = Annotated[
    str | None,
    typer.Option(
        help="float32, bfloat16, …; default: the checkpoint's, or float32 on a CPU without it."
    ),
]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, …; default: as found.")]
Threads = Annotated[int | None, typer.Option(min=1, help="CPU threads; default: all cores.")]
Prompts = Annotated[
    Path | None, typer.Option(help="A .jsonl file, a prompt a line; default: some built in.")
]
Temperatures = Annotated[
    list[float] | None,
    typer.Option(help="To measure at, 0 is greedy; repeatable. Default: 0 and 1."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
ShowList = Annotated[bool, typer.Option("--list", help="List what there is, and do nothing else.")]

DEFAULT_TEMPERATURES = (0.0, 1.0)


def target_config(model: str, dtype: str | None, device: str | None) -> TargetConfig:
    """Return the target that ``--target``, ``--dtype`` and ``--device`` mean."""
    from hierspec.config.schema import TargetConfig

    return TargetConfig(model=model, dtype=dtype or "auto", device=device or "auto")


def load_tokenizer(model: str) -> Any:
    """Return a model's tokenizer, its weights unread; ``None`` where it has none."""
    from hierspec.config import checkpoints
    from hierspec.zoo import registry

    return checkpoints.load_tokenizer(
        registry.resolve(model) if registry.resolves(model) else model
    )


def to_measure_at(temperature: list[float] | None) -> tuple[float, ...]:
    """Return the values of ``--temperature``, each once.

    Raises:
        HierspecError: one is negative or no number.
    """
    from hierspec.utils.checks import temperature as check

    values = temperature or DEFAULT_TEMPERATURES
    for value in values:
        check(value, "--temperature")
    return tuple(dict.fromkeys(value + 0.0 for value in values))  # + 0.0: no negative zero


def given(context: typer.Context) -> list[str]:
    """Return the options that the command line names, as ``--prompts``."""
    return [
        param.opts[0]
        for param in context.command.params
        if param.param_type_name == "option"
        and (source := context.get_parameter_source(param.name or ""))
        and source.name != "DEFAULT"
    ]
