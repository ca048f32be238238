"""The conversation of ``hierspec chat``: what was said, and the commands that change it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typing_extensions import TypedDict  # pydantic needs this one below Python 3.12

from hierspec.errors import HierspecError, errors_in
from hierspec.sampling.parameters import SamplingParams
from hierspec.utils.documents import read_json
from hierspec.utils.files import expand_user, without_folders, write_atomically
from hierspec.utils.schema import PositiveInteger, nearest_key, validate
from hierspec.utils.terminal import counted
from hierspec.utils.validation import HALF_CHARACTERS

from .rendering import say

if TYPE_CHECKING:
    from rich.console import Console

    from hierspec.api import Session
    from hierspec.engine.results import GenerationResult

QUOTES = '"""'
_SAMPLING = {
    "temperature": 0.0,
    "top_p": None,
    "top_k": None,
    "min_p": None,
    "repetition_penalty": 1.0,
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
}
# What /set changes; without a seed every answer has a fresh one.
DEFAULTS = {**_SAMPLING, "max_new_tokens": 512, "seed": None, "stop": []}
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


def read_settings(
    given: Mapping[str, Any], defaults: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return all settings of a chat.

    Args:
        given: those that differ from the defaults; ``None`` is what a chat has without any.
        defaults: the model's own.

    Raises:
        HierspecError: an unknown setting, or a value that it cannot have.
    """
    from hierspec.config import arguments

    if unknown := given.keys() - DEFAULTS.keys():
        raise HierspecError(f"there is no setting {min(unknown)!r}")
    given = {name: DEFAULTS[name] if v is None else v for name, v in given.items()}
    settings = {**DEFAULTS, **(defaults or {}), **given}
    SamplingParams.make(**{name: settings[name] for name in _SAMPLING})
    arguments.seed(settings["seed"])
    validate(PositiveInteger, settings["max_new_tokens"], "max_new_tokens")
    validate(list[str], settings["stop"], "stop")
    return settings


def _read_setting(settings: Mapping[str, Any], name: str, text: str) -> Any:
    """Read the value of a setting from a text; ``none``: ``None``, for its default."""
    if name not in settings:
        hint = nearest_key(name, settings)
        known = _ELSEWHERE.get(name) or (f"; did you mean {hint}?" if hint else ".")
        raise HierspecError(f"there is no setting {name!r}{known} There are {', '.join(settings)}")
    value: Any = [text]
    if text.lower() == "none":
        value = None
    elif name != "stop":
        try:
            value = json.loads(text)
        except ValueError:
            raise HierspecError(f"{name} takes a number, or none, not {text!r}") from None
    return value


class SavedMessage(TypedDict):
    role: str
    content: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedChat:
    """The file of ``/save``."""

    schema_version: int = 1
    model: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    messages: list[SavedMessage]


class ChatSession:
    """A conversation: its messages, and the commands and questions of what the user enters."""

    def __init__(
        self,
        session: Session,
        model: str,
        system: str | None,
        settings: dict[str, Any],
        request: dict[str, Any],
        console: Console,
        defaults: Mapping[str, Any] | None = None,
    ) -> None:
        self.session, self.model, self.request, self.console = session, model, request, console
        self.settings, self._defaults = settings, defaults
        self.messages: list[SavedMessage] = []
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
                self._answer([*self.messages, SavedMessage(role="user", content=text)])
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
            read = _read_setting(self.settings, name, value or "none")  # names are checked
            if value:
                others = {key: v for key, v in self.settings.items() if key != name}
                changed = others if read is None else {**others, name: read}
                self.settings = read_settings(changed, self._defaults)
        names = [name] if name else self.settings
        self._say("\n".join(f"{key} = {json.dumps(self.settings[key])}" for key in names))

    def _set_system(self, argument: str) -> None:
        if argument:
            self._replace_system(None if argument in ('""', "''") else argument)
        told = self._system()
        self._say(f"the system message: {told[0]['content']}" if told else "no system message")

    def _system(self) -> list[SavedMessage]:
        return [message for message in self.messages[:1] if message["role"] == "system"]

    def _replace_system(self, system: str | None) -> None:
        rest = self.messages[len(self._system()) :]
        told = [] if system is None else [SavedMessage(role="system", content=system)]
        self.messages = [*told, *rest]

    def _retry(self, _: str) -> None:
        asked = [i for i, message in enumerate(self.messages) if message["role"] == "user"]
        if not asked:
            raise HierspecError("there is no message to answer again")
        seed = self.settings["seed"]
        if seed is not None and self.settings["temperature"]:
            self._say(f"the seed is {seed} again: /set seed none for a fresh one")
        self._answer(self.messages[: asked[-1] + 1])

    def _reset(self, _: str) -> None:
        self.messages = self._system()
        self._say("the conversation is forgotten")

    def _save(self, argument: str) -> None:
        path = _file(argument, "/save")
        chat = SavedChat(model=self.model, settings=self.settings, messages=self.messages)
        text = json.dumps(asdict(chat), indent=1, ensure_ascii=False)
        write_atomically(path, text + "\n", "the conversation")
        self._say(f"saved to {path}")

    def _load(self, argument: str) -> None:
        path = _file(argument, "/load")
        chat = read_json(SavedChat, path, "the conversation")
        if chat.schema_version != 1:
            raise HierspecError(f"{path}: schema version {chat.schema_version} is not known here")
        if HALF_CHARACTERS.search(json.dumps(chat.messages, ensure_ascii=False)):
            raise HierspecError(f"{path}: a message holds half a character (a lone surrogate)")
        with errors_in(path):
            self.settings = read_settings(chat.settings, self._defaults)
        self.messages = chat.messages
        self._say(f"{len(self.messages)} messages of {path}; what you write goes on from there")

    def _show_stats(self, _: str) -> None:
        if not self._results:
            self._say("no answer so far")
            return
        tokens = sum(result.num_tokens for result in self._results)
        counts = f"{counted(len(self._results), 'answer')}, {tokens} tokens"
        self._say("; ".join([counts, *_speed(self._results), *_kept(self._results)]))

    def _answer(self, messages: list[SavedMessage]) -> None:
        from .rendering.generation import Painter, run, tell_slowdown

        request = {**self.settings, **self.request}
        try:
            generation = self.session.start(messages, chat=True, **request)
        except HierspecError as error:  # the context is full, or the template refuses
            raise HierspecError(f"{error} (/reset starts again)") from None
        prompt = generation.requests[0].tokens
        num_cached = self.session.cache.overlap(generation.root.model.cache_owner, prompt)
        num_prompt_tokens = len(prompt)  # before the answer is appended to it
        run(generation, Painter(generation))
        (result,) = generation.results()
        self._results.append(result)
        self.messages = [*messages, SavedMessage(role="assistant", content=result.text)]
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
    length = f"{counted(result.num_tokens, 'token')}{endings.get(result.finish_reason, '')}"
    cached = f"{num_cached} of {num_prompt_tokens} prompt tokens were in the cache"
    return f"[{'; '.join([', '.join([length, *_speed([result])]), *_kept([result]), cached])}]"


def _speed(results: Sequence[GenerationResult]) -> list[str]:
    decoded = sum(result.num_tokens - 1 for result in results)  # the first comes with the prompt
    seconds = sum(result.decode_seconds for result in results)
    calls = sum(result.target_calls for result in results)
    if not (decoded > 0 < seconds and calls):
        return []
    return [f"{decoded / seconds:.1f} tokens/s", f"{decoded / calls:.2f} tokens per target call"]


def _kept(results: Sequence[GenerationResult]) -> list[str]:
    kept, drafted = Counter[str](), Counter[str]()
    for level in (level for result in results for level in result.levels):
        name = without_folders(level["name"])
        kept[name] += level["num_accepted_tokens"]
        drafted[name] += level["num_draft_tokens"]
    return [f"{name} {kept[name]}/{total} kept" for name, total in drafted.items() if total]
