"""``hierspec profile``: measure acceptance rates and costs once, for the planner."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from hierspec.cli.options import (
    METHODS,
    MODEL,
    Device,
    Dtype,
    Threads,
    json_option,
    load_tokenizer,
    split_values,
    target_config,
)
from hierspec.errors import HierspecError

from .options import PromptsOption, TargetOrDefault, Temperatures, output_option, parse_temperatures


def profile(
    more_candidates: Annotated[
        list[str] | None,
        typer.Argument(help="Further candidates, as after --candidates.", metavar="CANDIDATES"),
    ] = None,
    *,
    output: Annotated[Path, output_option("File to write; an interrupted run is continued.")],
    target: TargetOrDefault = None,
    candidates: Annotated[
        list[str] | None,
        typer.Option(
            help=f"What may draft, one or several: models ({MODEL}) or {METHODS}; options after "
            "commas: zoo:small,temperature=0.8, zoo:mid,window=entropy or zoo:small,num_drafts=4. "
            "Default: the shipped family; for any other target what copies text, its quantized "
            "copies and whatever ships for it.",
        ),
    ] = None,
    prompts: PromptsOption = None,
    temperature: Temperatures = None,
    max_speculative_tokens: Annotated[
        int,
        typer.Option(
            min=1, max=32, help="Longest draft to measure, in tokens; plans use no longer ones."
        ),
    ] = 15,
    num_prompts: Annotated[int, typer.Option(min=1, help="Prompts to use.")] = 16,
    tokens: Annotated[
        int, typer.Option(min=8, help="Tokens that the target adds to each prompt at most.")
    ] = 128,
    places: Annotated[
        int,
        typer.Option(min=1, help="Average number of places in a text at which drafts are tried."),
    ] = 6,
    repeats: Annotated[int, typer.Option(min=1, help="How often each cost is timed.")] = 6,
    chat: Annotated[
        bool,
        typer.Option(
            "--chat", help="Treat prompts as questions, and apply the target's chat template."
        ),
    ] = False,
    dtype: Dtype = None,
    device: Device = None,
    threads: Threads = None,
    as_json: Annotated[
        bool, json_option("Print the profile, one JSON object, instead of tables.")
    ] = False,
) -> int:
    """Measure how often models agree and what their calls cost here, for hierspec plan.

    Example:

      hierspec profile --target zoo:large --candidates ngram zoo:small zoo:trunk -o p.json
    """
    from hierspec.presets.defaults import default_target
    from hierspec.profiling.profile import KIND

    if output.is_file() and (content := output.read_bytes()) and KIND.encode() not in content:
        raise HierspecError(f"{output} is no profile, and would be replaced: name another file")
    target = target or default_target()
    target_settings = target_config(target, dtype, device)

    from hierspec.cli.rendering import interruptible, notes, progress, say, warnings_as_notes
    from hierspec.profiling.candidates import default_names, parse
    from hierspec.profiling.noise import busy_message
    from hierspec.profiling.profile import from_dict
    from hierspec.profiling.settings import ProfileSettings
    from hierspec.profiling.texts import CHATS, builtin
    from hierspec.utils.files import locked
    from hierspec.utils.prompts import apply_chat, read_prompt_file
    from hierspec.utils.threads import use_threads
    from hierspec_lab.planning.thorough import measure

    from .profile_output import show

    settings = ProfileSettings(
        max_speculative_tokens=max_speculative_tokens,
        tokens=tokens,
        places=places,
        prompts=num_prompts,
        repeats=repeats,
    )
    temperatures = parse_temperatures(temperature)
    use_threads(threads)
    values = (*(candidates or ()), *(more_candidates or ()))
    words = [word for value in values for word in _split_at_spaces(value)]
    chosen = [parse(name) for name in split_values(words) or default_names(target_settings)]
    texts: Sequence[str | list[int]] = CHATS if chat else builtin(target)
    source = {"name": "built in"}
    if prompts is not None:
        file = read_prompt_file(prompts)
        texts, source = file.prompts, {"name": file.name, "sha256": file.sha256}
    if chat:
        tokenizer = load_tokenizer(target)
        texts = [apply_chat(tokenizer, str(text)) for text in texts]
    console = notes()
    busy_file = f"another process is measuring into {output}: wait for it, or name another file"
    with (
        locked(output, "the profile", busy_file),
        interruptible(console),
        warnings_as_notes(console),
        progress(console, f"profiling {target}") as report,
    ):
        data = measure(
            target_settings,
            chosen,
            texts,
            temperatures,
            settings,
            path=output,
            source=source,
            report=report,
        )
    if as_json:
        print(json.dumps(data))
        return 0
    measured = from_dict(data)
    show(measured, console)
    if busy := busy_message(measured.temperatures.values()):
        say(console, busy)
    say(console, f"written to {output}; next: hierspec plan {output}")
    return 0


def _split_at_spaces(value: str) -> list[str]:
    """Return the candidates of one argument; JSON is not split."""
    return [value] if value.lstrip().startswith("{") else value.split()
