"""The tokenizer of a GGUF file: its vocabulary, with the ids that llama.cpp gives a text.

Two kinds are read: byte-level BPE (``gpt2``: Llama 3, Qwen, SmolLM, …), whose text is split by name
(:mod:`.pre_tokenizers`), and SentencePiece's BPE (``llama``: Llama 2, Mistral, Gemma, Phi-3), whose
merges follow from the tokens' scores.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from hierspec.errors import HierspecError, first_line

from .header import Header
from .pre_tokenizers import SPLITS, Split

_INSTEAD = "name the folder of its Hugging Face checkpoint with --tokenizer"


class UnreadTokenizerError(HierspecError):
    """A file's tokenizer is of a kind that is not read: another has to stand in for it."""


def has_tokenizer(header: Header) -> bool:
    """Return whether a file says anything of its tokens; some converters leave all of it out."""
    kind = header.fields.get("tokenizer.ggml.model", "none")
    return kind not in ("none", "no_vocab") or "tokenizer.ggml.tokens" in header.fields


_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED = 1, 2, 3, 4  # types of tokens, as llama.cpp has them
_BYTE_LEVEL, _SENTENCE_PIECE = "gpt2", "llama"
_SPACE = "\N{LOWER ONE EIGHTH BLOCK}"  # SentencePiece's
_BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
# Tokens that end a text or a turn wherever they are in a vocabulary, by their text, since many
# files name only one of them. llama.cpp goes by the same names.
_ENDS = frozenset(
    (
        *("<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|im_end|>", "<|endoftext|>", "<|end|>"),
        *("<|return|>", "<|call|>", "<|flush|>", "<|calls|>", "<end_of_turn>", "<turn|>", "<eos>"),
        *("</s>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<end_of_utterance>", "[e~["),
        "<｜end▁of▁sentence｜>",
    )
)
_HTML = "</s>"  # a tag in many byte-level vocabularies, Qwen2's for one, which call it normal
# A vocabulary with these writes its messages in parts, each of which <|end|> ends, but no text.
_PARTS_OF_MESSAGES = ({"<|return|>", "<|call|>"}, {"<|flush|>", "<|calls|>"})
_NOT_STRIPPED = ("<unk>", "<s>", "<|endoftext|>")  # of Phi-3: others take the blanks after them


@dataclass(frozen=True)
class Vocabulary:
    """What a file says of its tokens. Creating it refuses what is missing, or cannot be read.

    Raises:
        HierspecError: the tokenizer is of a kind that is not read, or the file lacks a part of it.
    """

    header: Header

    def __post_init__(self) -> None:
        if self.model not in (_BYTE_LEVEL, _SENTENCE_PIECE):
            raise UnreadTokenizerError(
                f"{self.header.name} has a tokenizer of kind {self.model!r}, which is not read "
                f"from GGUF files (read are {_BYTE_LEVEL!r} and {_SENTENCE_PIECE!r}): {_INSTEAD}"
            )
        if not self.tokens:
            raise self.header.damaged("has an empty vocabulary")
        if len(self.kinds) < len(self.tokens):
            raise self.header.damaged("has tokens without a type (tokenizer.ggml.token_type)")
        _ = self.split, self.bos, self.eos, self.adds_bos, self.adds_eos

    @property
    def model(self) -> str:
        return self.header.string("tokenizer.ggml.model")

    @cached_property
    def tokens(self) -> list[str]:
        tokens = self.header.strings("tokenizer.ggml.tokens")
        return [token or f"[EMPTY_{i}]" for i, token in enumerate(tokens)]

    @cached_property
    def ids(self) -> dict[str, int]:
        return {token: i for i, token in enumerate(self.tokens)}

    @cached_property
    def kinds(self) -> list[int]:
        """Return every token's kind; ends of turns are control tokens, even if the file says no."""
        kinds = list(self.header.integers("tokenizer.ggml.token_type"))
        for name in (_ENDS - {_HTML}) & self.ids.keys():
            if self.ids[name] < len(kinds) and kinds[self.ids[name]] == _NORMAL:
                kinds[self.ids[name]] = _CONTROL
        return kinds

    @cached_property
    def split(self) -> Split | None:
        """Return how a byte-level BPE splits text; ``None`` for SentencePiece."""
        if self.model == _SENTENCE_PIECE:
            return None
        name = self.header.string("tokenizer.ggml.pre", "")
        if not name or name == "default":
            raise self.header.refuse(
                "does not say how its tokenizer splits text (tokenizer.ggml.pre), as files of "
                "old converters: fetch or convert a newer one"
            )
        if name not in SPLITS:
            raise UnreadTokenizerError(
                f"{self.header.name} splits text by the pre-tokenizer {name!r}, which is not read "
                f"from GGUF files: {_INSTEAD}"
            )
        return SPLITS[name]

    def token_id(self, key: str, default: int | None = None) -> int | None:
        """Return the id of a token by its role: ``eos``; ``None`` if the file names none."""
        field = f"tokenizer.ggml.{key}_token_id"
        if default is not None and default >= len(self.tokens):
            default = None
        if field not in self.header.fields:
            return default
        token = self.header.integer(field)
        if 0 <= token < len(self.tokens):
            return token
        if key in ("padding", "unknown"):  # of no use to us, and wrong in many files
            return default
        raise self.header.damaged(f"has {field} {token}, but {len(self.tokens)} tokens")

    @cached_property
    def bos(self) -> int | None:
        return self.token_id("bos", 1 if self.split is None else None)

    @cached_property
    def eos(self) -> int | None:
        return self.token_id("eos", 2 if self.split is None else None)

    @cached_property
    def ends(self) -> list[int]:
        """Return the ids that end a text: those of the file's roles, its eos first, and by name."""
        named = {name for name in _ENDS & self.ids.keys() if self._kind(name) != _NORMAL}
        if any(parts <= self.ids.keys() for parts in _PARTS_OF_MESSAGES):
            named -= {"<|end|>"}
        roles = [self.eos, self.token_id("eot"), self.token_id("eom")]
        found = [token for token in roles if token is not None]
        return list(dict.fromkeys([*found, *sorted(self.ids[name] for name in named)]))

    def _kind(self, token: str) -> int:
        return self.kinds[self.ids[token]]

    @cached_property
    def adds_bos(self) -> bool:
        """Return whether a text begins with ``bos``; chat templates write their own."""
        usual = self.split is None or self.split.add_bos
        adds = self.header.flag("tokenizer.ggml.add_bos_token", usual)
        if adds and self.bos is None and "tokenizer.ggml.add_bos_token" in self.header.fields:
            raise self.header.damaged("adds a token at a text's begin, but does not name it")
        return adds and self.bos is not None

    @cached_property
    def adds_eos(self) -> bool:
        adds = self.header.flag("tokenizer.ggml.add_eos_token", False)
        if adds and self.eos is None:
            raise self.header.damaged("adds a token at a text's end, but does not name it")
        return adds


def build_tokenizer(vocabulary: Vocabulary) -> Any:
    """Return a tokenizer of transformers.

    Raises:
        HierspecError: the file lacks merges or scores, or they do not fit its tokens.
    """
    from transformers import PreTrainedTokenizerFast

    try:
        backend = _sentence_piece(vocabulary) if vocabulary.split is None else _bpe(vocabulary)
        _add_tokens(backend, vocabulary)
        _add_ends(backend, vocabulary)
    except HierspecError:
        raise
    except Exception as error:  # the library's exceptions are of no class of their own
        raise vocabulary.header.damaged(
            f"has a vocabulary that contradicts itself ({first_line(error)})"
        ) from None
    roles = {
        "bos_token": vocabulary.bos,
        "eos_token": vocabulary.eos,
        "unk_token": vocabulary.token_id("unknown", 0 if vocabulary.split is None else None),
        "pad_token": vocabulary.token_id("padding"),
    }
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        clean_up_tokenization_spaces=False,
        model_max_length=vocabulary.header.context_length,
        **{name: vocabulary.tokens[i] for name, i in roles.items() if i is not None},
    )
    tokenizer.chat_template = vocabulary.header.string("tokenizer.chat_template", "") or None
    return tokenizer


def _bpe(vocabulary: Vocabulary) -> Any:
    from tokenizers import Tokenizer, decoders, models

    assert vocabulary.split is not None
    merges: list[tuple[str, str]] = []
    for merge in vocabulary.header.strings("tokenizer.ggml.merges"):
        space = merge.find(" ", 1)  # the first token may begin with one
        merges.append((merge[:space], merge[space + 1 :]))
    backend = Tokenizer(
        models.BPE(
            vocabulary.ids, merges, fuse_unk=False, ignore_merges=vocabulary.split.ignore_merges
        )
    )
    backend.pre_tokenizer = vocabulary.split.pre_tokenizer()
    backend.decoder = decoders.ByteLevel()
    return backend


def _sentence_piece(vocabulary: Vocabulary) -> Any:
    from tokenizers import Tokenizer, decoders, models, normalizers

    if vocabulary.header.flag("tokenizer.ggml.remove_extra_whitespaces", False):
        raise vocabulary.header.refuse(
            "drops repeated blanks from a text (tokenizer.ggml.remove_extra_whitespaces), which "
            "is not read from GGUF files: give the folder of its Hugging Face checkpoint instead"
        )
    unknown = vocabulary.token_id("unknown", 0)
    has_bytes = all(byte in vocabulary.ids for byte in _BYTES)
    backend = Tokenizer(
        models.BPE(
            vocabulary.ids,
            _merges_by_score(vocabulary),
            unk_token=None if unknown is None else vocabulary.tokens[unknown],
            fuse_unk=True,
            byte_fallback=has_bytes,
        )
    )
    spaces = normalizers.Replace(" ", _SPACE)
    steps: list[Any] = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if vocabulary.header.flag("tokenizer.ggml.add_space_prefix", True):
        spaces = normalizers.Sequence([normalizers.Prepend(_SPACE), spaces])
        steps.append(decoders.Strip(" ", 1, 0))
    backend.normalizer = spaces
    backend.decoder = decoders.Sequence(steps)
    return backend


def _merges_by_score(vocabulary: Vocabulary) -> list[tuple[str, str]]:
    scores = vocabulary.header.numbers("tokenizer.ggml.scores")
    if len(scores) < len(vocabulary.tokens):
        raise vocabulary.header.damaged("has tokens without a score (tokenizer.ggml.scores)")
    ids = vocabulary.ids
    order = sorted(ids.items(), key=lambda item: (-scores[item[1]], item[1]))
    return [
        (token[:cut], token[cut:])
        for token, _ in order
        for cut in range(len(token) - 1, 0, -1)
        if token[:cut] in ids and token[cut:] in ids
    ]


def _add_tokens(backend: Any, vocabulary: Vocabulary) -> None:
    """Add the tokens that are found in a text before anything else, whole."""
    from tokenizers import AddedToken

    name = vocabulary.header.string("general.name", "").lower()
    strips = "phi-3" in name or "phi3" in name
    special = (_CONTROL, _UNKNOWN)
    added = [
        AddedToken(
            token,
            normalized=False,
            special=kind in special,
            rstrip=strips and token not in _NOT_STRIPPED,
        )
        for token, kind in zip(vocabulary.tokens, vocabulary.kinds, strict=False)
        if kind in (*special, _USER_DEFINED)
    ]
    backend.add_special_tokens([token for token in added if token.special])
    backend.add_tokens([token for token in added if not token.special])


def _add_ends(backend: Any, vocabulary: Vocabulary) -> None:
    """Let texts begin and end with the tokens that the file adds to them."""
    from tokenizers.processors import TemplateProcessing

    begin = [vocabulary.bos] if vocabulary.adds_bos else []
    end = [vocabulary.eos] if vocabulary.adds_eos else []
    around = {vocabulary.tokens[token]: token for token in (*begin, *end) if token is not None}
    if not around:
        return
    before = [vocabulary.tokens[token] for token in begin if token is not None]
    after = [vocabulary.tokens[token] for token in end if token is not None]
    backend.post_processor = TemplateProcessing(
        single=[*before, "$A", *after],
        pair=[*before, "$A", *after, *before, "$B:1", *after],
        special_tokens=list(around.items()),
    )
