"""How a byte-level BPE splits text before its merges, by the name in ``tokenizer.ggml.pre``.

The expressions are those of llama.cpp, so that a file's ids are the same here and there: each cuts
every piece that the one before has left. For ``tekken`` and ``gpt-4o`` they are an approximation of
what the models' own tokenizers do with combining marks and letters outside ASCII.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

_END = r"\s+(?!\S)"  # blanks up to the last before a word
_BLANKS = rf"\s*[\r\n]+|{_END}|\s+"
_SUFFIX = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"  # English contractions
_GPT2 = rf"'s|'t|'re|'ve|'m|'ll|'d| ?\p{{L}}+| ?\p{{N}}+| ?[^\s\p{{L}}\p{{N}}]+|{_END}"


def _words(digits: str, suffix: str = rf"{_SUFFIX}|") -> str:
    """Words with one sign before them, numbers cut as ``digits``, signs with line ends."""
    word = r"[^\r\n\p{L}\p{N}]?\p{L}+"
    return rf"{suffix}{word}|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_BLANKS}"


def _cased_words(digits: str, suffix: str = "") -> str:
    """Words that begin anew at a capital; a letter outside ASCII counts as of either case."""
    upper, lower, sign = r"(?:(?=\p{L})[^a-z])", r"(?:(?=\p{L})[^A-Z])", r"[^\r\n\p{L}\p{N}]?"
    words = rf"{sign}{upper}*{lower}+{suffix}|{sign}{upper}+{lower}*{suffix}"
    return rf"{words}|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_BLANKS}"


@dataclass(frozen=True, slots=True)
class Split:
    """How a vocabulary splits text.

    Attributes:
        patterns: cut one after the other; what they do not match stays in pieces of its own.
        ignore_merges: a piece that is a token is one, whatever merges would make of it.
        add_bos: texts begin with the token of their begin, unless the file says otherwise.
    """

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    add_bos: bool = False

    def pre_tokenizer(self) -> Any:
        """Return it as a pre-tokenizer of ``tokenizers``, bytes spelt as letters."""
        from tokenizers import Regex
        from tokenizers import pre_tokenizers as pre

        steps: list[Any] = [pre.Split(Regex(pattern), "isolated") for pattern in self.patterns]
        return pre.Sequence([*steps, pre.ByteLevel(add_prefix_space=False, use_regex=False)])


_LLAMA3 = Split((_words(r"\p{N}{1,3}"),), ignore_merges=True, add_bos=True)
_LLAMA3_PLAIN = Split(_LLAMA3.patterns)
_WHOLE_NUMBERS = Split((_GPT2,))
_SINGLE_DIGITS = Split((r"\p{N}", _GPT2))
_QWEN2 = Split((_words(r"\p{N}"),))
_GPT_4O = Split((_cased_words(r"\p{N}{1,3}", f"{_SUFFIX}?"),))
_ASCII_SIGNS = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"""
_DEEPSEEK3 = Split(
    (
        r"\p{N}{1,3}",
        r"[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
        rf"{_ASCII_SIGNS}[A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+"
        rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_BLANKS}",
    )
)
_DEEPSEEK_CODER = Split(
    (
        r"[\r\n]",
        r"\s?\p{L}+",
        r"\s?\p{P}+",
        r"(?:(?!\s)[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff])+",
        r"\p{N}",
    )
)
_QWEN35 = (
    rf"{_SUFFIX}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_BLANKS}"
)
_SEED_CODER = (
    rf"{_SUFFIX}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_BLANKS}"
)

SPLITS = {
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "falcon3": _LLAMA3,
    "pixtral": _LLAMA3,
    "midm-2.0": _LLAMA3,
    "dbrx": _LLAMA3_PLAIN,
    "smaug-bpe": _LLAMA3_PLAIN,
    "chatglm-bpe": _LLAMA3_PLAIN,
    "glm4": Split(_LLAMA3.patterns, ignore_merges=True),
    "gpt-2": _WHOLE_NUMBERS,
    "phi-2": _WHOLE_NUMBERS,
    "olmo": _WHOLE_NUMBERS,
    "mpt": _WHOLE_NUMBERS,
    "jais": _WHOLE_NUMBERS,
    "trillion": _WHOLE_NUMBERS,
    "exaone4": _WHOLE_NUMBERS,
    "mellum": _WHOLE_NUMBERS,
    "gigachat": _WHOLE_NUMBERS,
    "a.x-4.0": _WHOLE_NUMBERS,
    "smollm": _SINGLE_DIGITS,
    "starcoder": _SINGLE_DIGITS,
    "refact": _SINGLE_DIGITS,
    "command-r": _SINGLE_DIGITS,
    "codeshell": _SINGLE_DIGITS,
    "exaone": _SINGLE_DIGITS,
    "minerva-7b": _SINGLE_DIGITS,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "kormo": _QWEN2,
    "megrez": _QWEN2,
    "stablelm2": _QWEN2,
    "hunyuan": _QWEN2,
    "qwen35": Split((_QWEN35,)),
    "seed-coder": Split((_SEED_CODER,)),
    "tekken": Split((_cased_words(r"\p{N}"),), ignore_merges=True, add_bos=True),
    "gpt-4o": _GPT_4O,
    "llama4": _GPT_4O,
    "kanana2": _GPT_4O,
    "deepseek-v3": _DEEPSEEK3,
    "hunyuan-dense": _DEEPSEEK3,
    "deepseek-coder": _DEEPSEEK_CODER,
}
