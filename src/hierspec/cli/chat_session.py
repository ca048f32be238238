"""The conversation of ``hierspec chat``: what was said, and the commands that change it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hierspec.errors import HierspecError, errors_in
from hierspec.sampling.parameters import SamplingParams
from hierspec.utils.documents import read_json
from hierspec.utils.files import expand_user, without_folders, write_atomically
from hierspec.utils.schema import PositiveInteger, nearest_key, validate
from hierspec.utils.validation import HALF_CHARACTERS

from .rendering import say

if TYPE_CHECKING:
    from rich.console import Console

    from hierspec.api import Session
    from hierspec.engine.results import GenerationResult

QUOTES = '"""'
SAMPLING = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "frequency_penalty",
    "presence_penalty",
)
HELP = '''/set NAME VALUE  change a setting of answers to come; /set NAME shows it, /set alone all
/system TEXT     tell the model how to answer; /system alone shows it, /system "" takes it away
/retry           answer the last message again
/reset           forget the conversation
/save FILE       write the conversation and the settings to a file; /load FILE goes on with it
/stats           speed and kept drafts of the answers so far
/help            these lines
/bye             leave; so does Ctrl-D. Ctrl-C stops an answer.
"""              begins and ends a message of several lines, or of one that begins with /'''
_WHERE_MEASURED = (
    "--hierarchy autoregressive leaves drafts out, and hierspec generate --chat --hierarchy auto "
    "says what pays here"
)
_ALIASES = {
    "/exit": "/bye",
    "/quit": "/bye",
    "/clear": "/reset",
    "/regen": "/retry",
    "/show": "/set",
    "/?": "/help",
}
_ELSEWHERE = {  # settings of other programs, and what does the same here
    "system": "; /system TEXT sets the system message.",
    "num_predict": "; did you mean max_new_tokens?",
    "num_ctx": "; the context grows as needed, up to the model's limit.",
    "temp": "; did you mean temperature?",
    "info": "; the chat's first line names its model, and /stats shows the speed.",
    "verbose": "; /stats shows the speed.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatSettings:
    """What ``/set`` changes.

    Attributes:
        seed: ``None``: a fresh one for each answer.
    """

    max_new_tokens: int = 512
    sampling: SamplingParams = field(default_factory=SamplingParams)
    seed: int | None = None
    stop: tuple[str, ...] = ()

    def with_value(self, name: str, text: str) -> ChatSettings:
        """Return the settings with one of them read from a text; ``none`` is its default.

        Raises:
            HierspecError: no setting has this name, or it cannot have this value.
        """
        values = self.to_dict()
        if name not in values:
            hint = nearest_key(name, values)
            known = _ELSEWHERE.get(name) or (f"; did you mean {hint}?" if hint else ".")
            raise HierspecError(
                f"there is no setting {name!r}{known} There are {', '.join(values)}"
            )
        if text.lower() == "none":
            del values[name]
        elif name == "stop":
            values[name] = [text]
        else:
            try:
                values[name] = json.loads(text)
            except ValueError:
                raise HierspecError(f"{name} takes a number, or none, not {text!r}") from None
        return ChatSettings.from_dict(values)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> ChatSettings:
        """Return the settings of :meth:`to_dict`; what is left out has its default.

        Raises:
            HierspecError: an unknown setting, or a value that it cannot have.
        """
        from hierspec.config import arguments

        given = {key: value for key, value in values.items() if value is not None}
        sampling = {name: given.pop(name) for name in SAMPLING if name in given}
        if unknown := given.keys() - {"max_new_tokens", "seed", "stop"}:
            raise HierspecError(f"there is no setting {min(unknown)!r}")
        stop = tuple(validate(list[str], given.pop("stop", []), "stop"))
        settings = cls(sampling=SamplingParams.make(**sampling), stop=stop, **given)
        arguments.seed(settings.seed)
        validate(PositiveInteger, settings.max_new_tokens, "max_new_tokens")
        return settings

    def to_dict(self) -> dict[str, Any]:
        return {
            **{name: getattr(self.sampling, name) for name in SAMPLING},
            "max_new_tokens": self.max_new_tokens,
            "seed": self.seed,
            "stop": list(self.stop),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedMessage:
    role: str
    content: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedChat:
    """The file of ``/save``."""

    messages: list[SavedMessage]
    settings: dict[str, Any] = field(default_factory=dict)
    model: str = ""
    schema_version: int = 1


class ChatSession:
    """A conversation: its messages, and the commands and questions of what the user enters."""

    def __init__(
        self,
        session: Session,
        model: str,
        system: str | None,
        settings: ChatSettings,
        request: dict[str, Any],
        console: Console,
    ) -> None:
        self.session, self.model, self.request, self.console = session, model, request, console
        self.settings = settings
        self.messages: list[dict[str, str]] = []
        self._results: list[GenerationResult] = []
        self._commands: dict[str, Callable[[str], None]] = {
            "/set": self._set,
            "/system": self._set_system,
            "/retry": self._retry,
            "/reset": self._reset,
            "/save": self._save,
            "/load": self._load,
            "/stats": self._show_stats,
            "/help": lambda _: self._say(HELP),
        }
        self._replace_system(system)

    def handle(self, entry: str) -> bool:
        """Run a command, or answer; return whether the conversation goes on.

        A line that begins with a slash is a command, or a mistake: a model never reads it. What
        stands in triple quotes is a message, whatever it begins with.
        """
        text = entry.strip()
        is_quoted = text.startswith(QUOTES)
        if is_quoted:
            text = text.removeprefix(QUOTES).removesuffix(QUOTES).strip()
        try:
            if text.startswith("/") and not is_quoted:
                return self._run_command(*_split(text))
            if text:
                self._answer([*self.messages, {"role": "user", "content": text}])
        except HierspecError as error:
            self._say(f"hierspec: error: {error}")
        return True

    def _run_command(self, name: str, argument: str) -> bool:
        name = _ALIASES.get(name, name)
        if name == "/bye":
            return False
        if name not in self._commands:
            hint = nearest_key(name, (*self._commands, "/bye"))
            raise HierspecError(
                f"there is no command {name}{f'; did you mean {hint}?' if hint else ':'} "
                "/help lists them; a message that begins with / goes between triple quotes"
            )
        self._commands[name](argument)
        return True

    def _set(self, argument: str) -> None:
        name, value = _split(argument)
        if name == "parameters" or (name == "parameter" and value):  # as in ollama
            name, value = _split(value)
        if name:
            changed = self.settings.with_value(name, value or "none")  # refuses unknown names
            self.settings = changed if value else self.settings
        shown = self.settings.to_dict()
        names = [name] if name else shown
        self._say("\n".join(f"{key} = {json.dumps(shown[key])}" for key in names))

    def _set_system(self, argument: str) -> None:
        if argument:
            self._replace_system(None if argument in ('""', "''") else argument)
        told = self._system()
        self._say(f"the system message: {told[0]['content']}" if told else "no system message")

    def _system(self) -> list[dict[str, str]]:
        return [message for message in self.messages[:1] if message["role"] == "system"]

    def _replace_system(self, system: str | None) -> None:
        rest = self.messages[len(self._system()) :]
        told = [] if system is None else [{"role": "system", "content": system}]
        self.messages = [*told, *rest]

    def _retry(self, _: str) -> None:
        asked = [i for i, message in enumerate(self.messages) if message["role"] == "user"]
        if not asked:
            raise HierspecError("there is no message to answer again")
        if self.settings.seed is not None and not self.settings.sampling.greedy:
            self._say(f"the seed is {self.settings.seed} again: /set seed none for a fresh one")
        self._answer(self.messages[: asked[-1] + 1])

    def _reset(self, _: str) -> None:
        self.messages = self._system()
        self._say("the conversation is forgotten")

    def _save(self, argument: str) -> None:
        path = _file(argument, "/save")
        content = {
            "schema_version": 1,
            "model": self.model,
            "settings": self.settings.to_dict(),
            "messages": self.messages,
        }
        text = json.dumps(content, indent=1, ensure_ascii=False)
        write_atomically(path, text + "\n", "the conversation")
        self._say(f"saved to {path}")

    def _load(self, argument: str) -> None:
        path = _file(argument, "/load")
        chat = read_json(SavedChat, path, "the conversation")
        if chat.schema_version != 1:
            raise HierspecError(f"{path}: schema version {chat.schema_version} is not known here")
        messages = [{"role": m.role, "content": m.content} for m in chat.messages]
        if HALF_CHARACTERS.search(json.dumps(messages, ensure_ascii=False)):
            raise HierspecError(f"{path}: a message holds half a character (a lone surrogate)")
        with errors_in(path):
            self.settings = ChatSettings.from_dict(chat.settings)
        self.messages = messages
        self._say(f"{len(self.messages)} messages of {path}; what you write goes on from there")

    def _show_stats(self, _: str) -> None:
        if not self._results:
            self._say("no answer so far")
            return
        count, tokens = len(self._results), sum(result.num_tokens for result in self._results)
        decoded = tokens - count  # an answer's first token comes with its prompt
        seconds = sum(result.decode_seconds for result in self._results)
        calls = sum(result.target_calls for result in self._results)
        parts = [f"{count} answer{'s' * (count > 1)}, {tokens} tokens"]
        if decoded > 0 < seconds:
            parts.append(f"{decoded / seconds:.1f} tokens/s")
        if calls:
            parts.append(f"{decoded / calls:.2f} tokens per target call")
        self._say("; ".join([*parts, *_kept(self._results)]))

    def _answer(self, messages: list[dict[str, str]]) -> None:
        from .rendering.generation import make_painter, run, tell_slowdown

        settings = self.settings
        request = {
            "sampling": settings.sampling,
            "max_new_tokens": settings.max_new_tokens,
            "seed": settings.seed,
            "stop": settings.stop,
        }
        try:
            generation = self.session.start(messages, chat=True, **request, **self.request)
        except HierspecError as error:  # the context is full, or the template refuses
            raise HierspecError(f"{error} (/reset starts again)") from None
        prompt = generation.requests[0].tokens
        num_cached = self.session.cache.overlap(generation.root.model.cache_owner, prompt)
        num_prompt_tokens = len(prompt)  # before the answer is appended to it
        run(generation, make_painter(generation))
        (result,) = generation.results()
        self._results.append(result)
        self.messages = [*messages, {"role": "assistant", "content": result.text}]
        self._say(_summarise(result, num_cached, num_prompt_tokens))
        if told := tell_slowdown(result, _WHERE_MEASURED):
            self._say(told)

    def _say(self, text: str) -> None:
        say(self.console, text)


def _split(text: str) -> tuple[str, str]:
    first, *rest = text.split(maxsplit=1) or [""]
    return first, rest[0].strip() if rest else ""


def _file(argument: str, command: str) -> Path:
    if not argument:
        raise HierspecError(f"{command} takes the name of a file, as in {command} chat.json")
    return expand_user(argument)


def _summarise(result: GenerationResult, num_cached: int, num_prompt_tokens: int) -> str:
    """Return speed, drafted and kept tokens by level, and the cached share of the prompt."""
    endings = {"cancelled": ", stopped", "length": ", cut: /set max_new_tokens for more"}
    tokens = "token" if result.num_tokens == 1 else "tokens"
    parts = [f"{result.num_tokens} {tokens}{endings.get(result.finish_reason, '')}"]
    if result.tokens_per_second:  # not of a single token
        parts[0] += (
            f", {result.tokens_per_second:.1f} tokens/s, "
            f"{result.mean_acceptance_length:.2f} tokens per target call"
        )
    parts += _kept([result])
    parts.append(f"{num_cached} of {num_prompt_tokens} prompt tokens were in the cache")
    return f"[{'; '.join(parts)}]"


def _kept(results: Sequence[GenerationResult]) -> list[str]:
    kept, drafted = Counter[str](), Counter[str]()
    for level in (level for result in results for level in result.levels):
        name = without_folders(level["name"])
        kept[name] += level["num_accepted_tokens"]
        drafted[name] += level["num_draft_tokens"]
    return [f"{name} {kept[name]}/{total} kept" for name, total in drafted.items() if total]
