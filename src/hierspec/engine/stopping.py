"""When a generation ends, exact to the token: limits, end-of-text tokens, stop strings.

Stop strings may begin and end in the middle of a token or of a draft. Text that may turn out to
be the beginning of one is held back, so streamed text is never revised, and the token that
completes one is the last token of the output. They may name special tokens (``<|im_end|>``), too,
although the text leaves these out.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from hierspec.errors import HierspecError
from hierspec.utils.validation import HALF_CHARACTERS

from .detokenize import detokenizer, special_texts

_FIRST_SURROGATE, _NUM_SURROGATES = 0xD800, 0x800


@dataclass(frozen=True, slots=True)
class StopConditions:
    """When to stop, and whether stop strings and special tokens are kept in the text.

    Attributes:
        eos_token_ids: any of these tokens ends the output (``"stop"``); it stays in the token ids
            and is left out of the text.
        stop: strings that end the output (``"stop"``), as text or as special tokens.
        stop_token_ids: end the output as ``eos_token_ids`` do, whatever ``ignore_eos`` says; with
            ``include_stop_str`` their text is kept, unless they are special.
        max_new_tokens: the most output tokens (``"length"``).
        max_length: the most prompt and output tokens together (``"length"``).
        shown_special_ids: special tokens that the text does not leave out.
    """

    eos_token_ids: frozenset[int] = frozenset()
    stop: tuple[str, ...] = ()
    stop_token_ids: frozenset[int] = frozenset()
    max_new_tokens: int | None = None
    max_length: int | None = None
    ignore_eos: bool = False
    include_stop_str: bool = False
    shown_special_ids: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        if isinstance(self.stop, str):
            raise HierspecError(f"stop must be a tuple of strings; write stop=({self.stop!r},)")
        for text in cast("tuple[Any, ...]", self.stop):
            if not isinstance(text, str) or not text:
                raise HierspecError(f"stop must hold non-empty strings, got {text!r}")
            if HALF_CHARACTERS.search(text):
                raise HierspecError(f"stop holds half a character, which no text has: {text!r}")
        for name in ("max_new_tokens", "max_length"):
            limit = getattr(self, name)
            if limit is not None and (not isinstance(limit, int) or limit < 1):
                raise HierspecError(f"{name} must be an integer ≥ 1 or None, got {limit!r}")

    @property
    def end_ids(self) -> frozenset[int]:
        """Ids that end the output, be they shown or not."""
        return self.stop_token_ids if self.ignore_eos else self.eos_token_ids | self.stop_token_ids

    def max_output_tokens(self, prompt_length: int) -> int | None:
        """Return how many output tokens a prompt of this length allows; ``None``: no limit.

        Raises:
            HierspecError: the prompt leaves no room within ``max_length``.
        """
        limits = [] if self.max_new_tokens is None else [self.max_new_tokens]
        if self.max_length is not None:
            if prompt_length >= self.max_length:
                raise HierspecError(
                    f"the prompt has {prompt_length} tokens and max_length is {self.max_length}; "
                    "shorten the prompt, raise max_length, or use max_new_tokens"
                )
            limits.append(self.max_length - prompt_length)
        return min(limits, default=None)


class TextStream:
    """The text of one output, fed token by token, up to the first condition that ends it.

    Args:
        tokenizer: of transformers or ``tokenizers``; ``None`` leaves all texts empty.
        conditions: ``None``: nothing ends the stream.
        prompt_ids: if given, the text continues the prompt's (:mod:`hierspec.engine.detokenize`).

    Attributes:
        num_tokens: how many tokens were fed, the one that ended the stream included.
        finish_reason: ``None``, then ``"stop"`` or ``"length"``.
    """

    __slots__ = (
        "_detokenizer",
        "_held_back",
        "_max_tokens",
        "_parts",
        "_search",
        "conditions",
        "finish_reason",
        "num_tokens",
    )

    def __init__(
        self,
        tokenizer: Any,
        conditions: StopConditions | None = None,
        prompt_ids: Sequence[int] = (),
    ) -> None:
        self.conditions = conditions or StopConditions()
        if tokenizer is None and self.conditions.stop:
            raise HierspecError("stop strings need a tokenizer; pass one, or stop at token ids")
        self._max_tokens = self.conditions.max_output_tokens(len(prompt_ids))
        shown = self.conditions.shown_special_ids
        self._detokenizer = detokenizer(tokenizer, prompt_ids, shown)
        self._search = _Search(self.conditions.stop, tokenizer)
        self._held_back = ""  # marked text that may be the beginning of a stop string
        self._parts: list[str] = []
        self.num_tokens = 0
        self.finish_reason: str | None = None

    @property
    def text(self) -> str:
        return "".join(self._parts)

    def feed(self, token_id: int) -> tuple[str, str | None]:
        """Add a token → (text that became final, why the output ends here or ``None``)."""
        assert self.finish_reason is None, "the stream has ended"
        self.num_tokens += 1
        conditions = self.conditions
        is_end = token_id in conditions.eos_token_ids and not conditions.ignore_eos
        is_stop = token_id in conditions.stop_token_ids
        new = ""
        if not is_end and (not is_stop or conditions.include_stop_str):
            new = self._detokenizer.add(token_id)
        # A token with text of its own in the output needs no mark.
        mark = "" if new else self._search.marks.get(token_id, "")
        if is_end or is_stop:
            new += self._detokenizer.flush()
        delta = self._release(new + mark)
        if self.finish_reason is None and (is_end or is_stop):
            self.finish_reason = "stop"
            delta += self._end()
        elif self.finish_reason is None and self.num_tokens == self._max_tokens:
            self.finish_reason = "length"
            delta += self._end()
        return delta, self.finish_reason

    def finish(self) -> str:
        """Return the text that was held back, because something else ended the output."""
        if self.finish_reason is not None:
            return ""
        self.finish_reason = "cancelled"
        return self._end()

    def _end(self) -> str:
        """Return all remaining text; an incomplete last character may complete a stop string."""
        delta = self._release(self._detokenizer.flush())
        rest, self._held_back = _without_marks(self._held_back), ""
        self._parts.append(rest)
        return delta + rest

    def _release(self, new: str) -> str:
        """Add ``new`` to the held back text → all of it that cannot be part of a stop string."""
        text = self._held_back + new
        match = self._search.first(text) if new else None
        if match is None:
            start = self._search.partial(text)
            out, self._held_back = _without_marks(text[:start]), text[start:]
        else:
            start, stop = match
            out, self._held_back = _without_marks(text[:start]), ""
            if start + 1 == len(text) and HALF_CHARACTERS.match(text[start]):
                out += self._detokenizer.flush()  # a character that the special token cut short
            if self.conditions.include_stop_str:
                out += stop
            self.finish_reason = "stop"
        self._parts.append(out)
        return out


class _Search:
    """Finds stop strings in *marked* text.

    A mark stands where the text leaves out a special token that a stop string names: a lone
    surrogate, which no decoded text holds. Each such stop string is looked for in two forms, as it
    is and with marks in place of the names; a form does not see marks that it does not have.
    """

    __slots__ = ("_forms", "marks")

    def __init__(self, stop: tuple[str, ...], tokenizer: Any) -> None:
        self.marks: dict[int, str] = {}
        self._forms = [(text, text) for text in stop]
        if not stop or tokenizer is None:
            return
        texts = special_texts(tokenizer)
        named = {
            id: text for id, text in texts.items() if text and any(text in one for one in stop)
        }
        names = sorted(set(named.values()), key=len, reverse=True)[:_NUM_SURROGATES]
        if names:
            by_name = {name: chr(_FIRST_SURROGATE + i) for i, name in enumerate(names)}
            self.marks = {id: by_name[text] for id, text in named.items() if text in by_name}
            pattern = re.compile("|".join(map(re.escape, names)))
            for text in stop:
                form = pattern.sub(lambda match: by_name[match[0]], text)
                if form != text:
                    self._forms.append((form, text))

    def first(self, text: str) -> tuple[int, str] | None:
        """Return where the first stop string begins, and itself; of several the first to end."""
        matches: list[tuple[int, int, str]] = []
        for form, stop in self._forms:
            seen, places = self._seen(text, form)
            if (start := seen.find(form)) >= 0:
                matches.append((places[start], places[start + len(form) - 1], stop))
        if not matches:
            return None
        start, _, stop = min(matches)
        return start, stop

    def partial(self, text: str) -> int:
        """Return where the longest end of ``text`` begins that a stop string may begin with."""
        first = len(text)
        for form, _ in self._forms:
            seen, places = self._seen(text, form)
            for size in range(min(len(form) - 1, len(seen)), 0, -1):
                if places[len(seen) - size] >= first:
                    break
                if seen.endswith(form[:size]):
                    first = places[len(seen) - size]
                    break
        return first

    def _seen(self, text: str, form: str) -> tuple[str, Sequence[int]]:
        """Return what a form sees of a text, and where in it each character stands."""
        if not self.marks:
            return text, range(len(text))
        places = [i for i, c in enumerate(text) if c in form or not HALF_CHARACTERS.match(c)]
        return "".join(text[i] for i in places), places


def _without_marks(text: str) -> str:
    return HALF_CHARACTERS.sub("", text)
