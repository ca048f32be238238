"""``hierspec chat``: a conversation whose caches are kept from one turn to the next."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from hierspec.errors import HierspecError

from . import options

if TYPE_CHECKING:
    from hierspec.config.schema import HierarchyConfig

_OWN = "Default: the model's own."


def chat(
    ctx: typer.Context,
    target: Annotated[
        str | None, options.target_option("Default: zoo:smollm2, where its packages are installed.")
    ] = None,
    draft: options.DraftsOption = None,
    hierarchy: options.HierarchyOption = None,
    system: Annotated[
        str | None, typer.Option(help="The system message, which tells the model how to answer.")
    ] = None,
    max_new_tokens: options.MaxNewTokens = 512,
    temperature: Annotated[
        float | None, typer.Option("--temperature", "--temp", help=f"0 is greedy. {_OWN}")
    ] = None,
    top_p: options.TopP = None,
    top_k: options.TopK = None,
    min_p: options.MinP = None,
    repetition_penalty: Annotated[
        float | None,
        typer.Option(help=f"Above 1: makes tokens that are in the text less likely. {_OWN}"),
    ] = None,
    frequency_penalty: options.FrequencyPenalty = 0.0,
    presence_penalty: options.PresencePenalty = 0.0,
    seed: options.FreshSeed = None,
    stop: options.StopOption = None,
    stop_token_id: options.StopTokenId = None,
    chat_template_kwargs: options.ChatTemplateKwargs = None,
    tokenizer: options.TokenizerOption = None,
    dtype: options.Dtype = None,
    device: options.Device = None,
    threads: options.Threads = None,
    deterministic: options.Deterministic = False,
) -> int:
    """Talk with a model. The caches of all levels are kept, so a turn reads only what is new.

    Reads lines from the terminal, or from standard input. Ctrl-C stops an answer, Ctrl-D leaves;
    /help lists the commands. Without sampling options the model's own are used, and where it has
    none a temperature of 0.7, a top-p of 0.9 and a repetition penalty of 1.1.

    Examples:

      hierspec chat --system "Answer in one sentence."

      hierspec chat --target ./Llama-8B --draft ./Llama-1B --temperature 0.7
    """
    from hierspec.config import model_defaults
    from hierspec.utils.threads import use_threads

    from .chat_session import DEFAULTS, ChatSession, read_settings
    from .rendering import notes, say, warnings_as_notes

    given = {
        name: value
        for name, value in ctx.params.items()
        if name in DEFAULTS and value not in (None, [], ())
    }
    read_settings(given)  # mistakes are told before a model is loaded
    variables = options.parse_template_kwargs(chat_template_kwargs)
    use_threads(threads)
    config = _config(target, tuple(options.split_values(draft)), hierarchy, dtype, device)
    config = dataclasses.replace(config, deterministic=deterministic or config.deterministic)
    console = notes()

    with warnings_as_notes(console):
        models = options.load_hierarchy(config, tokenizer)
    if models.tokenizer is None:
        raise HierspecError(
            f"{config.target.model} has no tokenizer: name one that has a chat template "
            "(--tokenizer FOLDER)"
        )
    if not getattr(models.tokenizer, "chat_template", None):
        raise HierspecError(
            f"{config.target.model} has no chat template: chat needs an instruction-tuned model "
            "(hierspec generate continues any text)"
        )
    say(console, f"{config.target.model}; /help lists the commands, Ctrl-D leaves")
    defaults = model_defaults.chat_sampling(config.target.model)
    settings = read_settings(given, defaults)
    request = {"stop_token_ids": stop_token_id, "chat_template_kwargs": variables}
    with models.session() as session:
        conversation = ChatSession(
            session, config.target.model, system, settings, request, console, defaults
        )
        for entry in entries(_line_reader()):
            if not conversation.handle(entry):
                break
    return 0


def _config(
    target: str | None,
    drafts: tuple[str, ...],
    hierarchy: str | None,
    dtype: str | None,
    device: str | None,
) -> HierarchyConfig:
    from hierspec.presets import defaults
    from hierspec.presets.registry import AUTO, is_file_or_json, read_hierarchy

    if hierarchy is None:
        chat_target = options.target_config(target or defaults.SMOLLM2_NAME, dtype, device)
        return defaults.default_hierarchy(chat_target, drafts)
    if hierarchy == AUTO:
        raise HierspecError(
            "chat does not measure: make a plan with hierspec profile --chat and hierspec plan -o "
            "FILE and name that file here, or leave --hierarchy out"
        )
    if target is None and not is_file_or_json(hierarchy):
        target = defaults.SMOLLM2_NAME
    return read_hierarchy(hierarchy, target, drafts, dtype, device)


def entries(read_line: Callable[[str], str]) -> Iterator[str]:
    """Yield what the user enters until the end of input; Ctrl-C discards an entry.

    An entry is a line, or the lines from triple quotes to triple quotes, which stay around it.

    Args:
        read_line: shows a prompt and returns a line; EOFError ends the input.
    """
    from .chat_session import QUOTES

    lines: list[str] = []  # of an entry that has begun
    while True:
        try:
            lines.append(read_line("… " if lines else "> "))
        except EOFError:
            if lines:
                yield "\n".join(lines).strip()
            return
        except KeyboardInterrupt:
            lines = []
            continue
        text = "\n".join(lines).strip()
        is_open = len(text) < 2 * len(QUOTES) or not text.endswith(QUOTES)
        if text.startswith(QUOTES) and is_open:
            continue
        yield text
        lines = []


def _line_reader() -> Callable[[str], str]:
    """Return a reader of the terminal's lines, with editing and a history, or of standard input."""
    if not sys.stdin.isatty():

        def read_line(_: str) -> str:
            if not (line := sys.stdin.readline()):
                raise EOFError
            return line.removeprefix("\ufeff").rstrip("\n")  # without a byte order mark

        return read_line

    from prompt_toolkit import PromptSession
    from prompt_toolkit.history import FileHistory, History, InMemoryHistory
    from prompt_toolkit.output import create_output

    from hierspec.utils.files import cache_folder

    history: History = InMemoryHistory()
    with contextlib.suppress(OSError, HierspecError):  # no home, or one that is only read
        file = cache_folder("chat") / "history"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch(mode=0o600)
        if os.access(file, os.W_OK):
            history = FileHistory(file)
    session: PromptSession[str] = PromptSession(
        history=history,
        output=create_output(always_prefer_tty=True),  # > FILE takes the answers alone
    )
    return session.prompt
