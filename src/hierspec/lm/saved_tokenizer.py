"""A tokenizer as its file has it, without transformers' layer around it.

That layer takes a second to import and then adds nothing for most Llamas: their texts go to
``tokenizers`` and back as they are. A folder in which it would change anything is left to it. What
else is asked of a tokenizer, a chat template among it, loads it, and from then on it does all:
what is changed in it, added tokens for instance, counts for texts, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Literal

from pydantic import ConfigDict

from hierspec.utils.records import FrozenRecord

from .llama_config import read_values

if TYPE_CHECKING:
    from tokenizers import AddedToken, Tokenizer

_NAMED = ("bos_token", "eos_token", "unk_token", "pad_token")
_FLAGS = ("lstrip", "rstrip", "single_word", "normalized")
# What transformers reads besides: files of older versions, and templates by name.
_OTHER_FILES = (
    "special_tokens_map.json",
    "added_tokens.json",
    "tokenizer.model",
    "additional_chat_templates",
)


_loading = Lock()


class _Settings(FrozenRecord):
    """A ``tokenizer_config.json`` that transformers does not act upon."""

    model_config = ConfigDict(extra="forbid", strict=True)

    tokenizer_class: Literal["PreTrainedTokenizerFast", "TokenizersBackend"]
    backend: Literal["tokenizers"] = "tokenizers"
    bos_token: str | None = None
    eos_token: str | None = None
    unk_token: str | None = None
    pad_token: str | None = None
    added_tokens_decoder: dict[str, dict[str, str | bool]] | None = None
    chat_template: str | None = None
    clean_up_tokenization_spaces: bool = False
    is_local: bool | None = None
    local_files_only: bool | None = None
    model_input_names: list[str] | None = None
    model_max_length: int | float | None = None
    padding_side: Literal["left", "right"] = "right"


class SavedTokenizer:
    """A ``tokenizers.Tokenizer`` with the names of transformers' tokenizers.

    Attributes:
        chat_template: of the model; ``None`` if it has none.
        transformers: transformers' own, loaded when it is first needed.
    """

    def __init__(self, folder: Path, backend: Tokenizer, settings: _Settings) -> None:
        template = folder / "chat_template.jinja"
        own = dict[str, Any](
            backend_tokenizer=backend,
            clean_up_tokenization_spaces=settings.clean_up_tokenization_spaces,
            chat_template=template.read_text(encoding="utf-8")
            if template.is_file()
            else settings.chat_template,
        )
        for name in _NAMED:
            token: str | None = getattr(settings, name)
            own[name] = token
            own[f"{name}_id"] = None if token is None else backend.token_to_id(token)
        ids = (own[f"{name}_id"] for name in _NAMED)
        own["all_special_ids"] = list(dict.fromkeys(i for i in ids if i is not None))
        self.__dict__.update(own, _folder=str(folder), _own=tuple(own))

    @property
    def transformers(self) -> Any:
        with _loading:
            if "_whole" not in self.__dict__:
                # AutoTokenizer would choose this class, and take a second to find it.
                from transformers import PreTrainedTokenizerFast

                self.__dict__["_whole"] = PreTrainedTokenizerFast.from_pretrained(self._folder)
                for name in self._own:  # it is asked for them now, since it may be changed
                    del self.__dict__[name]
        return self._whole

    def __len__(self) -> int:
        return self.backend_tokenizer.get_vocab_size()

    def __call__(self, text: Any, *, add_special_tokens: bool = True, **options: Any) -> Any:
        """Return ``{"input_ids": …}`` of a text, if ``verbose=False`` asks for nothing else; see
        transformers for the rest."""
        if "_whole" in self.__dict__ or not isinstance(text, str) or options != {"verbose": False}:
            return self.transformers(text, add_special_tokens=add_special_tokens, **options)
        encoded = self.backend_tokenizer.encode(text, add_special_tokens=add_special_tokens)
        return {"input_ids": encoded.ids}

    def decode(self, ids: Any, skip_special_tokens: bool = False, **options: Any) -> Any:
        """Return the text of ids; see transformers for the rest."""
        if (
            "_whole" in self.__dict__
            or options != {"clean_up_tokenization_spaces": False}
            or not (isinstance(ids, list | tuple) and all(type(i) is int for i in ids))
        ):
            return self.transformers.decode(ids, skip_special_tokens, **options)
        return self.backend_tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # what copying and pickling look for
            raise AttributeError(name)
        return getattr(self.transformers, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.transformers, name, value)


def read_tokenizer(folder: Path) -> SavedTokenizer | None:
    """Return the tokenizer in a folder, if transformers would add nothing to it."""
    from tokenizers import Tokenizer

    if read_values(folder) is None or any((folder / name).exists() for name in _OTHER_FILES):
        return None  # some other models' settings are replaced
    try:
        settings = _Settings.model_validate_json((folder / "tokenizer_config.json").read_bytes())
        backend = Tokenizer.from_file(str(folder / "tokenizer.json"))
    except Exception:  # tokenizers' are of the plainest kind; transformers says what is wrong
        return None
    added = backend.get_added_tokens_decoder()
    if backend.truncation or backend.padding or not _are_added(settings, added):
        return None
    return SavedTokenizer(folder, backend, settings)


def _are_added(settings: _Settings, added: Mapping[int, AddedToken]) -> bool:
    """Return whether the tokens that the settings name are in the vocabulary in the same way."""
    found: dict[str, Any] = {str(i): token.__getstate__() for i, token in added.items()}
    plain = dict.fromkeys(_FLAGS, False) | {"special": True}
    named = {getattr(settings, name) for name in _NAMED} - {None}
    stated = (settings.added_tokens_decoder or {}).items()
    return all(plain | {"content": token} in found.values() for token in named) and all(
        found.get(i) == token for i, token in stated
    )
