"""Streamed text equals decoding everything at once and cutting at the first stop string."""

from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from hierspec.engine.detokenize import ByteDetokenizer, Detokenizer, detokenizer, special_ids
from hierspec.engine.stopping import StopConditions, TextStream

REPLACEMENT = "\ufffd"
EOS = "<|endoftext|>"
TURN = "<|im_end|>"  # special, and no end by itself


def byte_level() -> Tokenizer:
    """Byte-level BPE with a few merges, some of which cut characters in the middle."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {piece: i for i, piece in enumerate(alphabet)}
    encode = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str
    merges = []
    for text in ("ab", "bc", "abc", "\n\n", " a", "a€", "é", "st", "op", "stop", "€b", "😀"):
        pieces = list(encode(text)[0][0])
        while len(pieces) > 1:
            merged = pieces[0] + pieces[1]
            if merged not in vocab:
                vocab[merged] = len(vocab)
                merges.append((pieces[0], pieces[1]))
            pieces[:2] = [merged]
            if text == "😀" and len(pieces) == 2:
                break  # three of its four bytes make a token
    tokenizer = Tokenizer(models.BPE(vocab, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([EOS, TURN])
    return tokenizer


def sentencepiece_like() -> Tokenizer:
    """As Llama 2's: ▁ for a space, bytes as a fallback, the first space stripped."""
    pieces = [EOS, *(f"<0x{i:02X}>" for i in range(256)), "▁", *"abcd,.'", "▁a", "▁ab", "cd", "▁▁"]
    tokenizer = Tokenizer(models.BPE({p: i for i, p in enumerate(pieces)}, [], byte_fallback=True))
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.add_special_tokens([EOS, TURN])
    return tokenizer


BYTES = byte_level()
PIECES = sentencepiece_like()
NUM_BYTES = BYTES.get_vocab_size() - 1  # the last two are special
EOS_BYTES = BYTES.token_to_id(EOS)
FAST = PreTrainedTokenizerFast(tokenizer_object=BYTES, eos_token=EOS)

# Texts that collide with the stop strings often, and that contain characters of 1 to 4 bytes.
TEXTS = st.text(st.sampled_from("abcstop \n€é😀" + REPLACEMENT), max_size=40)
STOPS = st.lists(st.text(st.sampled_from("abcstop\n€😀"), min_size=1, max_size=4), max_size=3).map(
    tuple
)


def split(data: bytes, cuts: list[bool]) -> list[int]:
    """Tokens for ``data``: greedily the longest, unless a cut is wanted first."""
    vocab = BYTES.get_vocab()
    letters = _letters()
    chars = "".join(letters[b] for b in data)
    out, at = [], 0
    for cut in itertools.chain(cuts, itertools.repeat(False)):
        if at == len(chars):
            return out
        sizes = [1] if cut else range(min(8, len(chars) - at), 0, -1)
        size = next(s for s in sizes if chars[at : at + s] in vocab)
        out.append(vocab[chars[at : at + size]])
        at += size
    return out


def _letters() -> dict[int, str]:
    """GPT-2's printable stand-in for every byte."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in plain]
    return {b: chr(b) for b in plain} | {b: chr(256 + i) for i, b in enumerate(others)}


def expected(decode, ids: list[int], conditions: StopConditions) -> tuple[str, int, str | None]:
    """(text, tokens used, reason) by decoding every prefix from scratch."""
    for n in range(1, len(ids) + 1):
        if ids[n - 1] in conditions.eos_token_ids and not conditions.ignore_eos:
            return cut(decode(ids[: n - 1]), conditions), n, "stop"
        last = n == conditions.max_new_tokens
        text = decode(ids[:n])
        seen = text if last else text.rstrip(REPLACEMENT)
        if any(s in seen for s in conditions.stop):
            return cut(seen, conditions), n, "stop"
        if last:
            return text, n, "length"
    return cut(decode(ids), conditions), len(ids), None


def cut(text: str, conditions: StopConditions) -> str:
    found = [(text.find(s), len(s)) for s in conditions.stop if s in text]
    if not found:
        return text
    at, length = min(found)
    return text[: at + length * conditions.include_stop_str]


def run(stream: TextStream, ids: list[int]) -> tuple[str, int, str | None]:
    """Feed up to the end, checking that what was handed out only ever grows."""
    deltas, reason = [], None
    for token in ids:
        delta, reason = stream.feed(token)
        deltas.append(delta)
        assert stream.text == "".join(deltas)
        if reason is not None:
            break
    if reason is None:
        deltas.append(stream.finish())
    assert stream.text == "".join(deltas)
    return stream.text, stream.num_tokens, reason


@settings(max_examples=500, deadline=None)
@given(
    TEXTS,
    STOPS,
    st.lists(st.booleans(), max_size=60),
    st.booleans(),
    st.one_of(st.none(), st.integers(1, 40)),
)
def test_streaming_equals_decoding_at_once(text, stop, cuts, include, limit):
    conditions = StopConditions(stop=stop, include_stop_str=include, max_new_tokens=limit)
    ids = split(text.encode(), cuts)
    assert BYTES.decode(ids) == text
    assert run(TextStream(BYTES, conditions), ids) == expected(BYTES.decode, ids, conditions)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.integers(0, NUM_BYTES),
            st.sampled_from([i for i in range(256) if BYTES.decode([i]) == REPLACEMENT]),
        ),
        max_size=150,
    ),
    STOPS,
)
@example([BYTES.token_to_id(_letters()[0xE2])] * 300, ())
@example([BYTES.token_to_id(_letters()[0x80])] * 101, ())
@example([BYTES.token_to_id(_letters()[b]) for b in b"\xf0\x9f\x98" * 60 + b"\x80"], ("😀",))
def test_any_tokens_at_all(ids, stop):
    """Invalid bytes and special tokens in between included, and the window stays short."""
    conditions = StopConditions(stop=stop)
    assert run(TextStream(BYTES, conditions), ids) == expected(BYTES.decode, ids, conditions)
    text, streamed, longest = Detokenizer(BYTES, (), special_ids(BYTES)), "", 0
    for token in ids:
        streamed += text.add(token)
        longest = max(longest, len(text._window))
    assert longest < 80
    assert streamed + text.flush() == BYTES.decode(ids)


def test_bytes_are_a_table_only_where_decoding_is_joining_them():
    """A subclass that decodes in its own way, or another decoder, is asked for every text."""

    class Shouting(PreTrainedTokenizerFast):
        def decode(self, *args, **options):
            return super().decode(*args, **options).upper()

    assert type(detokenizer(BYTES)) is type(detokenizer(FAST)) is ByteDetokenizer
    loud = Shouting(tokenizer_object=BYTES)
    for other in (loud, PIECES, None):
        assert type(detokenizer(other)) is Detokenizer
    assert run(TextStream(loud), split(b"ab", []))[0] == "AB"


def test_tokens_added_later_are_seen():
    tokenizer = byte_level()
    size = tokenizer.get_vocab_size()
    assert detokenizer(tokenizer).add(size) == ""
    tokenizer.add_tokens(["é \n"])  # stands for itself, as its characters are no bytes
    assert detokenizer(tokenizer).add(size) == tokenizer.decode([size]) == "é \n"


@settings(max_examples=200, deadline=None)
@given(TEXTS, st.lists(st.booleans(), max_size=60), st.integers(0, 30))
def test_text_continues_the_prompt(text, cuts, prompt_length):
    """Also when the prompt ends in the middle of a character."""
    ids = split(text.encode(), cuts)
    prompt, output = ids[:prompt_length], ids[prompt_length:]
    got, _, _ = run(TextStream(FAST, prompt_ids=prompt), output)
    assert BYTES.decode(prompt).rstrip(REPLACEMENT) + got == text or REPLACEMENT in text


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.lists(st.sampled_from(["▁", *"abcd,.'", "▁a", "▁ab", "cd", "▁▁"]), max_size=6),
            st.sampled_from("€é😀").map(lambda c: [f"<0x{b:02X}>" for b in c.encode()]),
            st.just([EOS]),
        ),
        max_size=30,
    )
)
def test_sentencepiece_like_tokenizers(pieces):
    ids = [PIECES.token_to_id(p) for p in itertools.chain.from_iterable(pieces)]
    assert run(TextStream(PIECES), ids)[0] == PIECES.decode(ids)
    prompt = [PIECES.token_to_id(p) for p in ("a", "▁ab", ",")]
    whole = PIECES.decode(prompt + ids)
    assert "a ab," + run(TextStream(PIECES, prompt_ids=prompt), ids)[0] == whole


@pytest.mark.parametrize("text", ["€" * 12 + "b€", "ab" + "😀" * 8 + "é", "é" * 14, "a.€😀é" * 6])
def test_prompts_that_end_in_many_bytes(text):
    """A run of bytes is decoded together: with a part of a character none of it would be one."""
    data = text.encode()
    ids = [PIECES.token_to_id(chr(b) if b < 128 else f"<0x{b:02X}>") for b in data]
    for cut in range(len(ids) + 1):
        before = data[:cut].decode(errors="ignore")
        assert before + run(TextStream(PIECES, prompt_ids=ids[:cut]), ids[cut:])[0] == text


def test_spaces_before_punctuation_are_not_cleaned_up():
    fast = PreTrainedTokenizerFast(tokenizer_object=PIECES, clean_up_tokenization_spaces=True)
    ids = [PIECES.token_to_id(p) for p in ("▁a", "▁", ",", "▁", "'", "▁", "c")]
    assert run(TextStream(fast), ids)[0] == "a , ' c"


def test_a_stop_string_inside_a_token_ends_the_text_inside_it():
    ids = BYTES.encode("abc stop stop").ids
    stream = TextStream(BYTES, StopConditions(stop=("to",)))
    assert run(stream, ids) == ("abc s", len(BYTES.encode("abc stop").ids), "stop")
    stream = TextStream(BYTES, StopConditions(stop=("to",), include_stop_str=True))
    assert run(stream, ids)[0] == "abc sto"


def test_only_a_possible_beginning_is_held_back():
    stream = TextStream(BYTES, StopConditions(stop=("aab",)))
    letters = _letters()
    fed = [stream.feed(BYTES.token_to_id(letters[ord(c)])) for c in "xaaac"]
    assert [delta for delta, _ in fed] == ["x", "", "", "a", "aac"]
    assert stream.finish() == ""


def atoms(text: str) -> list[str]:
    """Characters, and special tokens as one."""
    return re.findall(rf"{re.escape(EOS)}|{re.escape(TURN)}|.", text, re.DOTALL)


def searched(fed: list[str], stop: tuple[str, ...], include: bool) -> tuple[str, int, str | None]:
    """(text, tokens used, reason): a stop string sees the special tokens that it names only."""
    for n in range(1, len(fed) + 1):
        whole, found = [atom for text in fed[:n] for atom in atoms(text)], []
        for one, form in [(text, form) for text in stop for form in (list(text), atoms(text))]:
            seen = [i for i, atom in enumerate(whole) if len(atom) == 1 or atom in form]
            for start in range(len(seen) - len(form) + 1):
                at = seen[start : start + len(form)]
                if [whole[i] for i in at] == form:
                    found.append((at[0], at[-1], one))
        if found:
            start, _, one = min(found)
            shown = "".join(atom for atom in whole[:start] if len(atom) == 1)
            return shown + one * include, n, "stop"
    return "".join(text for text in fed if text not in (EOS, TURN)), len(fed), None


NAMING = st.lists(st.sampled_from(["a", "b", "cd", "€", EOS, TURN]), min_size=1, max_size=3)


@settings(max_examples=250, deadline=None)
@given(
    st.lists(st.sampled_from(["a", "b", "c", "d", "€", EOS, TURN]), max_size=12),
    st.lists(NAMING.map("".join), max_size=3).map(tuple),
    st.lists(st.booleans(), max_size=30),
    st.booleans(),
    st.booleans(),
)
@example(["a", "b", TURN, "c"], (f"b{TURN}c",), [], False, True)
@example(["a", TURN, "b"], ("ab",), [], False, False)
@example([TURN, "a", TURN, EOS, "b"], (f"{TURN}b", EOS + "a"), [], True, True)
@example([*TURN], (TURN,), [], True, True)
def test_stop_strings_may_name_special_tokens(parts, stop, cuts, include, byte_level):
    tokenizer = BYTES if byte_level else PIECES
    fed: list[tuple[int, str]] = []  # a token, and the text that it completes
    for special, run_of in itertools.groupby(parts, lambda part: part in (EOS, TURN)):
        if special or not byte_level:
            vocab = tokenizer.get_vocab()
            fed += [(vocab[part], part) for part in run_of if part in vocab]
            continue
        ids, seen = split("".join(run_of).encode(), cuts), ""
        for n in range(1, len(ids) + 1):
            text = BYTES.decode(ids[:n]).rstrip(REPLACEMENT)
            fed.append((ids[n - 1], text[len(seen) :]))
            seen = text
    conditions = StopConditions(stop=stop, include_stop_str=include)
    got = run(TextStream(tokenizer, conditions), [token for token, _ in fed])
    assert got == searched([text for _, text in fed], stop, include)


@pytest.mark.parametrize("include", [False, True])
@pytest.mark.parametrize("ignore_eos", [False, True])
def test_a_stop_string_that_is_an_end_of_text_token(include, ignore_eos):
    """It ends the text whether or not it does so by itself, and is kept where it is asked for."""
    ids = [*BYTES.encode("ab c").ids, EOS_BYTES]
    for stop, text in (((EOS,), "ab c"), ((f"c{EOS}",), "ab "), ((f"{EOS}?",), "ab c")):
        conditions = StopConditions(
            frozenset({EOS_BYTES}), stop, ignore_eos=ignore_eos, include_stop_str=include
        )
        ends = not ignore_eos or "?" not in stop[0]
        shown = text + stop[0] * (include and "?" not in stop[0])
        got = run(TextStream(BYTES, conditions), ids)
        assert got == (shown, len(ids), "stop" if ends else None)


def test_a_character_cut_short_by_a_special_stop_token_is_replaced_as_by_an_end_of_text():
    ids = [*split("a€".encode()[:-1], [True] * 3), BYTES.token_to_id(TURN)]
    for conditions in (StopConditions(stop=(TURN,)), StopConditions(frozenset({ids[-1]}))):
        assert run(TextStream(BYTES, conditions), ids) == (BYTES.decode(ids), 4, "stop")


@pytest.mark.parametrize("ignore_eos", [False, True])
def test_stop_tokens_stop_whatever_is_said_of_ends_of_text(ignore_eos):
    """Their own text is kept with the stop strings', if they are not special."""
    a, b, turn = (BYTES.token_to_id(one) for one in ("a", "b", TURN))
    eos = frozenset({EOS_BYTES})
    for include in (False, True):
        options = {"ignore_eos": ignore_eos, "include_stop_str": include}
        conditions = StopConditions(eos, stop_token_ids=frozenset({b, turn}), **options)
        assert run(TextStream(BYTES, conditions), [a, b, a])[1:] == (2, "stop")
        assert run(TextStream(BYTES, conditions), [a, b, a])[0] == "ab"[: 1 + include]
        assert run(TextStream(BYTES, conditions), [a, turn, a]) == ("a", 2, "stop")


def test_eos_stays_out_of_the_text_and_stops():
    ids = [*BYTES.encode("ab").ids, EOS_BYTES]
    conditions = StopConditions(eos_token_ids=frozenset({EOS_BYTES}), stop=("bx",))
    assert run(TextStream(BYTES, conditions), ids) == ("ab", 2, "stop")
    ignored = StopConditions(eos_token_ids=frozenset({EOS_BYTES}), ignore_eos=True)
    assert run(TextStream(BYTES, ignored), ids) == ("ab", 2, None)
    shown = StopConditions(shown_special_ids=special_ids(FAST))
    assert run(TextStream(FAST, shown), ids) == (f"ab{EOS}", 2, None)


def test_stop_wins_over_length_at_the_same_token():
    eos = frozenset({EOS_BYTES})
    conditions = StopConditions(eos_token_ids=eos, max_new_tokens=2)
    assert run(TextStream(BYTES, conditions), [0, EOS_BYTES])[2] == "stop"
    conditions = StopConditions(stop=("b",), max_new_tokens=1)
    assert run(TextStream(BYTES, conditions), BYTES.encode("ab").ids) == ("a", 1, "stop")


def test_limits():
    assert StopConditions(max_new_tokens=5, max_length=9).max_output_tokens(6) == 3
    assert StopConditions(max_new_tokens=5, max_length=19).max_output_tokens(6) == 5
    assert StopConditions().max_output_tokens(6) is None
    with pytest.raises(ValueError, match="prompt has 9 tokens and max_length is 9"):
        TextStream(BYTES, StopConditions(max_length=9), [0] * 9)
    stream = TextStream(BYTES, StopConditions(max_length=9), [0] * 7)
    assert run(stream, BYTES.encode("s t o p").ids) == ("s ", 2, "length")


def test_without_a_tokenizer_there_is_no_text():
    stream = TextStream(None, StopConditions(max_new_tokens=3))
    assert run(stream, [5, 6, 7, 8]) == ("", 3, "length")
    with pytest.raises(ValueError, match="stop strings need a tokenizer"):
        TextStream(None, StopConditions(stop=("x",)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stop": "abc"}, r"write stop=\('abc',\)"),
        ({"stop": ("",)}, "non-empty strings"),
        ({"stop": ("\ud83d",)}, "half a character"),
        ({"max_new_tokens": 0}, "max_new_tokens"),
        ({"max_length": 1.5}, "max_length"),
    ],
)
def test_mistakes(options, message):
    with pytest.raises(ValueError, match=message):
        StopConditions(**options)
