"""Options that several commands share, and functions that read their values."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand, TyperOption

from hierspec.errors import HierspecError, errors_in

if TYPE_CHECKING:
    from hierspec.api import Hierarchy
    from hierspec.config.schema import HierarchyConfig, TargetConfig

# In help texts; :class:`Command` replaces those in braces
PRESETS = "{presets}"
MODEL = "directory, hub id, FILE.gguf, or zoo:NAME"
METHODS = "{methods}"
SHIPPED_DRAFTS = "Default for the shipped family: zoo:small and zoo:trunk."
DEFAULT_TARGET = "Default: zoo:smollm2 where its packages are installed, else zoo:large."


class Command(TyperCommand):
    """A command; its help names presets and methods, imported only then, and common options."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        from hierspec.config import methods
        from hierspec.presets import registry

        choices = {PRESETS: registry.PRESETS, METHODS: methods.short_forms()}
        for param in self.params:
            if isinstance(param, TyperOption) and param.help:
                for placeholder, names in choices.items():
                    param.help = param.help.replace(placeholder, ", ".join(names))
        super().format_help(ctx, formatter)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        super().format_options(ctx, formatter)
        anywhere = [p for p in ctx.find_root().command.params if p.name in ("plugin", "debug")]
        with formatter.section("Options of every command"):
            formatter.write_dl([param.get_help_record(ctx) for param in anywhere])


def target_option(note: str, *names: str) -> Any:
    """Return the option that names the target; its help ends in ``note``."""
    names = names or ("--target", "--model", "-m")

    def named(value: str | None) -> str | None:
        if value == "":  # as of a shell's variable that is not set
            raise HierspecError(f"{names[0]} is empty: name a model ({MODEL}), or leave it out")
        return value

    help_text = f"Target model: {MODEL}. {note}".rstrip()
    return typer.Option(*names, callback=named, help=help_text)


def hierarchy_option(note: str = "") -> Any:
    """Return the option ``--hierarchy``, with a note on what there is to choose from."""
    return typer.Option(
        help=f"A preset's name, a .json or .toml file, or inline JSON. {note}Default: the preset "
        "named hierarchy if there are draft models or the target is of the shipped family; else "
        "(also for zoo:smollm2) the drafter that is likely the best and needs no second model."
    )


def draft_option(note: str) -> Any:
    """Return the option ``--draft``; its help ends in ``note``."""
    return typer.Option(
        help=f"Draft models, smallest first: repeat the option, or separate by commas. {note}"
    )


def json_option(help_text: str = "Print one JSON object instead of text.") -> Any:
    return typer.Option("--json", help=help_text)


Target = Annotated[str, target_option("")]
HierarchyOption = Annotated[str | None, hierarchy_option()]
ServedHierarchy = Annotated[str | None, hierarchy_option("auto measures once, then plans. ")]
DraftsOption = Annotated[
    list[str] | None,
    draft_option(f"Without --hierarchy also a method that needs no further model: {METHODS}."),
]


def _known_dtype(value: str | None) -> str | None:
    from hierspec.config.schema import validate_dtype

    if value:
        with errors_in("--dtype"):
            validate_dtype(value)
    return value


Dtype = Annotated[
    str | None,
    typer.Option(
        callback=_known_dtype,
        help="Data type of the weights: float32, bfloat16, …; default: as they are stored. What "
        "does not run in the compiled kernels gets float32 on a CPU without arithmetic in that "
        "type; hierspec doctor says which.",
    ),
]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, …; default: a GPU if there is one.")]
Threads = Annotated[
    int | None,
    typer.Option(
        "--threads", "-t", min=1, help="CPU threads; default: torch's choice, usually one a core."
    ),
]
TokenizerOption = Annotated[
    str | None,
    typer.Option(
        help=f"For a target without a tokenizer of its own: a folder with one, or a model: {MODEL}."
    ),
]
BatchSize = Annotated[int, typer.Option(min=1, help="How many prompts are decoded together.")]
MaxNewTokens = Annotated[
    int,
    typer.Option(
        *("--max-new-tokens", "--max-tokens", "--n-predict", "-n"),
        min=1,
        help="Maximum number of tokens per text.",
    ),
]
TemperatureOption = Annotated[
    float, typer.Option("--temperature", "--temp", help="Sampling temperature; 0 is greedy.")
]
TopP = Annotated[float | None, typer.Option(help="Nucleus sampling, as in transformers.")]
TopK = Annotated[int | None, typer.Option(help="Sample from the k likeliest tokens.")]
MinP = Annotated[
    float | None,
    typer.Option(
        help="Leave out tokens less probable than this share of the likeliest one's probability, "
        "as in transformers."
    ),
]
FrequencyPenalty = Annotated[
    float,
    typer.Option(help="Lowers a token's score by this for each time it was written (as in vLLM)."),
]
PresencePenalty = Annotated[
    float,
    typer.Option(help="Lowers the score of every token that was written by this (as in vLLM)."),
]
Deterministic = Annotated[
    bool,
    typer.Option(
        "--deterministic",
        help="Guarantee that a token's scores do not depend, to the last bit, on how many tokens "
        "are scored in the same call; refuse models that cannot. Llama-shaped models on CPUs "
        "with a C compiler always can.",
    ),
]
MeasureAgain = Annotated[
    bool,
    typer.Option(
        "--measure-again",
        help="With --hierarchy auto: measure again, even if a profile is stored.",
    ),
]
StopOption = Annotated[
    list[str] | None,
    typer.Option(help="A string at which the text ends, special tokens included; repeatable."),
]
StopTokenId = Annotated[
    list[int] | None, typer.Option(min=0, help="A token at which the text ends; repeatable.")
]
ChatTemplateKwargs = Annotated[
    str | None,
    typer.Option(
        metavar="JSON",
        help="Further variables of the chat template, as in '{\"enable_thinking\": false}'.",
    ),
]
Seed = Annotated[int, typer.Option(min=0, help="Random seed.")]
FreshSeed = Annotated[
    int | None,
    typer.Option(help="Random seed, of up to 64 bits; -1 is one, too. Default: a fresh one."),
]
AsJson = Annotated[bool, json_option()]
ShowList = Annotated[bool, typer.Option("--list", help="List what is available, and exit.")]

# Of a service, and of what sends it requests
ServedModel = Annotated[str | None, target_option(DEFAULT_TARGET, "--model", "--target", "-m")]
ServiceFile = Annotated[
    Path | None, typer.Option(help="File of settings, .json or .toml; docs/serving.md lists them.")
]
ServiceSettings = Annotated[
    list[str] | None,
    typer.Option("--set", help="Any other setting: NAME=VALUE, as in max_queue=10; repeatable."),
]
REPLICAS: Any = typer.Option(
    min=1, max=4096, help="Number of processes that hold the models, run by Ray."
)
MaxConcurrency = Annotated[
    int, typer.Option(min=1, max=4096, help="Maximum number of requests at a time.")
]


def target_config(model: str, dtype: str | None, device: str | None) -> TargetConfig:
    """Return the target that ``--target``, ``--dtype`` and ``--device`` describe.

    Raises:
        HierspecError: no model has that name; known before torch is loaded, which takes seconds.
    """
    from hierspec.config.schema import TargetConfig
    from hierspec.config.target import validate_model_name

    validate_model_name(model)
    return TargetConfig(model=model, dtype=dtype or "auto", device=device or "auto")


def load_hierarchy(
    config: HierarchyConfig, tokenizer: str | None = None, reads_texts: bool = False
) -> Hierarchy:
    """Load a hierarchy's models; ``tokenizer`` is the value of ``--tokenizer``.

    ``reads_texts``: a folder or hub id without a tokenizer is refused before weights are loaded.
    """
    from hierspec.api import Hierarchy
    from hierspec.config.arguments import require_tokenizer
    from hierspec.config.build import build
    from hierspec.config.checkpoints import Loaded
    from hierspec.zoo import registry

    loaded, target = Loaded(), config.target.model
    if tokenizer is not None:
        loaded.use_tokenizer(target, tokenizer)
    elif reads_texts and not registry.can_resolve(target):
        loaded.tokenizers[target] = load_tokenizer(target)
        require_tokenizer(loaded.tokenizers[target])
    return Hierarchy(build(config, loaded))


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
    out: list[str] = []
    for value in values or ():
        is_one = "," not in value or value.lstrip().startswith("{") or os.path.exists(value)
        parts = () if is_one else map(str.strip, re.split(r",(?![a-z_]+=)", value))
        out += [value] if is_one else filter(None, parts)
    return out


def parse_template_kwargs(text: str | None) -> dict[str, Any] | None:
    """Return the value of ``--chat-template-kwargs``, a JSON object; refuse anything else."""
    if text is None:
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise HierspecError(
            "--chat-template-kwargs takes a JSON object, as in '{\"enable_thinking\": false}', not "
            f"{text[:40]!r}"
        )
    return value
