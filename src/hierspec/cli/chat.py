"""``hierspec chat``: a conversation whose caches are kept from one turn to the next."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hierspec.errors import HierspecError

from .options import (
    ChatTemplateKwargs,
    Device,
    DraftsOption,
    Dtype,
    FreshSeed,
    HierarchyOption,
    StopOption,
    StopTokenId,
    TemperatureOption,
    Threads,
    TopK,
    TopP,
    note_unused,
    parse_template_kwargs,
    split_values,
    target_config,
    target_option,
)

if TYPE_CHECKING:
    from rich.console import Console

    from hierspec.config.schema import HierarchyConfig
    from hierspec.engine.results import GenerationResult
    from hierspec.engine.session import Session

HELP = """/reset   forget the conversation
/help    these lines
/exit    leave; so does Ctrl-D. Ctrl-C stops an answer."""


def chat(
    target: Annotated[
        str | None, target_option("Default: zoo:smollm2, where its packages are installed.")
    ] = None,
    draft: DraftsOption = None,
    hierarchy: HierarchyOption = None,
    system: Annotated[
        str | None, typer.Option(help="The system message, which tells the model how to answer.")
    ] = None,
    max_new_tokens: Annotated[
        int, typer.Option(min=1, help="Maximum number of tokens per answer.")
    ] = 512,
    temperature: TemperatureOption = 0.0,
    top_p: TopP = None,
    top_k: TopK = None,
    seed: FreshSeed = None,
    stop: StopOption = None,
    stop_token_id: StopTokenId = None,
    chat_template_kwargs: ChatTemplateKwargs = None,
    dtype: Dtype = None,
    device: Device = None,
    threads: Threads = None,
) -> int:
    """Talk with a model. The caches of all levels are kept, so a turn reads only what is new.

    Reads lines from the terminal, or from standard input. Ctrl-C stops an answer, Ctrl-D leaves;
    /reset forgets the conversation, /help lists the commands.

    Examples:

      hierspec chat --system "Answer in one sentence."

      hierspec chat --target ./Llama-8B --draft ./Llama-1B --temperature 0.7
    """
    from hierspec.sampling.parameters import SamplingParams
    from hierspec.utils.threads import use_threads

    from .rendering import notes, say, warnings_as_notes

    sampling = SamplingParams.make(temperature=temperature, top_p=top_p, top_k=top_k)
    variables = parse_template_kwargs(chat_template_kwargs)
    note_unused(sampling)
    use_threads(threads)
    config = _config(target, tuple(split_values(draft)), hierarchy, dtype, device)
    console = notes()

    from hierspec.api import Hierarchy

    with warnings_as_notes(console):
        models = Hierarchy.from_config(config)
    if not getattr(models.tokenizer, "chat_template", None):
        raise HierspecError(
            f"{config.target.model} has no chat template: chat needs an instruction-tuned model "
            "(hierspec generate continues any text)"
        )
    say(console, f"{config.target.model}; /help lists the commands, Ctrl-D leaves")
    request: dict[str, Any] = {
        "max_new_tokens": max_new_tokens,
        "sampling": sampling,
        "seed": seed,
        "stop": tuple(stop or ()),
        "stop_token_ids": stop_token_id,
        "chat_template_kwargs": variables,
    }
    with models.session() as session:
        conversation = ChatSession(session, system, request, console)
        for line in _user_lines(console):
            if not conversation.handle(line):
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
        chat_target = target_config(target or defaults.SMOLLM2_NAME, dtype, device)
        return defaults.default_hierarchy(chat_target, drafts)
    if hierarchy == AUTO:
        raise HierspecError(
            "chat does not measure: hierspec generate --hierarchy auto --chat says what is fastest "
            "here; name that, or leave --hierarchy out"
        )
    if target is None and not is_file_or_json(hierarchy):
        target = defaults.SMOLLM2_NAME
    return read_hierarchy(hierarchy, target, drafts, dtype, device)


def _user_lines(console: Console) -> Iterator[str]:
    """Yield the user's lines until the end of input; Ctrl-C discards a line."""
    prompt = "> " if sys.stdin.isatty() else ""
    while True:
        try:
            yield input(prompt)
        except EOFError:
            return
        except KeyboardInterrupt:
            console.print()


class ChatSession:
    """A conversation: its messages, and the commands and questions of the user's lines."""

    def __init__(
        self, session: Session, system: str | None, request: dict[str, Any], console: Console
    ) -> None:
        self.session, self.request, self.console = session, request, console
        self._system_messages = [] if system is None else [{"role": "system", "content": system}]
        self.messages: list[dict[str, str]] = list(self._system_messages)

    def handle(self, line: str) -> bool:
        """Run a command or print an answer; return whether the conversation goes on."""
        from .rendering import say

        text = line.strip()
        if text in ("/exit", "/quit"):
            return False
        if text == "/reset":
            self.messages = list(self._system_messages)
            say(self.console, "the conversation is forgotten")
        elif text == "/help" or (text.startswith("/") and " " not in text):
            say(
                self.console,
                HELP if text == "/help" else f"there is no command {text}; there are\n{HELP}",
            )
        elif text:
            self._answer(text)
        return True

    def _answer(self, text: str) -> None:
        from .rendering import say
        from .rendering.generation import make_painter, run

        messages = [*self.messages, {"role": "user", "content": text}]
        try:
            generation = self.session.start(messages, chat=True, **self.request)
        except HierspecError as error:  # the context is full, or the template refuses
            say(self.console, f"hierspec: error: {error} (/reset starts again)")
            return
        prompt = generation.streams[0].sequence.tokens
        num_cached = self.session.cache.overlap(generation.root.model.cache_owner, prompt)
        num_prompt_tokens = len(prompt)  # before the answer is appended to it
        run(generation, make_painter(generation))
        (result,) = generation.results()
        self.messages = [*messages, {"role": "assistant", "content": result.text}]
        say(self.console, _summarise(result, num_cached, num_prompt_tokens))


def _summarise(result: GenerationResult, num_cached: int, num_prompt_tokens: int) -> str:
    """Return speed, drafted and kept tokens by level, and the cached share of the prompt."""
    levels = [
        f"{level['name']} {level['num_accepted_tokens']}/{level['num_draft_tokens']} kept"
        for level in result.levels
        if level["num_draft_tokens"]
    ]
    endings = {"cancelled": ", stopped", "length": ", cut at --max-new-tokens"}
    parts = [
        f"{result.num_tokens} tokens{endings.get(result.finish_reason, '')}, "
        f"{result.tokens_per_second:.1f} tokens/s, "
        f"{result.mean_acceptance_length:.2f} tokens per target call",
        *levels,
        f"{num_cached} of {num_prompt_tokens} prompt tokens were in the cache",
    ]
    return f"[{'; '.join(parts)}]"
