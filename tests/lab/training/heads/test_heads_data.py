"""Texts that heads are trained and measured on."""

from typing import Any

import pytest
import torch

from hierspec.lm.load import load
from hierspec_lab.training.heads.data import encode_excerpts, split_texts, write_own_texts
from hierspec_lab.training.heads.settings import HeadsSettings
from hierspec_lab.training.windows import HeldOutWindows


def test_excerpts_need_a_tokenizer() -> None:
    with pytest.raises(ValueError, match="has no tokenizer"):
        encode_excerpts(["x"], None, 10, 4, 0)


def letters(text: str, verbose: bool) -> dict[str, list[int]]:
    """A tokenizer of four letters a token."""
    return {"input_ids": [ord(text[i]) for i in range(0, len(text), 4)]}


def test_excerpts_come_from_as_many_texts_as_there_are() -> None:
    texts = [chr(65 + i) * 4000 for i in range(20)]
    rows = encode_excerpts(texts, letters, 200, 8, 0)
    assert sum(map(len, rows)) == 200
    assert [len(row) for row in rows[:-1]] == [16] * 12  # 10 a text, in multiples of 8
    assert len({int(row[0]) for row in rows}) == len(rows) == 13
    rows = encode_excerpts(["a" * 40, "b" * 40_000], letters, 1000, 8, 0)
    assert sum(map(len, rows)) == 1000  # the long one makes up for the short one
    assert sum(map(len, encode_excerpts(["a" * 40, "b" * 80], letters, 1000, 8, 0))) == 30
    assert torch.equal(*(torch.cat(encode_excerpts(texts, letters, 200, 8, 3)) for _ in range(2)))
    for limit in (0, -5):  # all that may be used is kept back
        assert sum(map(len, encode_excerpts(texts, letters, limit, 8, 0))) == 0


def test_what_is_measured_is_not_trained_on() -> None:
    rows = [torch.arange(i * 100, i * 100 + 50) for i in range(20)]
    texts = split_texts(rows, None, HeldOutWindows(4, 16), {})
    learnt, measured = (
        {token for piece in part for token in piece.ids.tolist()}
        for part in (texts.train, texts.held_out)
    )
    assert [len(piece.ids) for piece in texts.held_out] == [16] * 4
    assert not learnt & measured
    assert (texts.source["tokens"], texts.source["held_out_tokens"]) == (900, 100)
    with pytest.raises(ValueError, match="too little text"):
        split_texts(rows[:1], None, HeldOutWindows(4, 32), {})


def test_own_texts_go_on_after_an_interruption(tmp_path) -> None:
    calls = []

    def write(number: int) -> list[list[int]]:
        calls.append(number)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return [[number] * 10]

    path = tmp_path / "own.jsonl"
    with pytest.raises(KeyboardInterrupt):
        write_own_texts(write, 40, path, lambda *_: None)
    path.write_text(path.read_text() + "[[2, 2,")  # cut short
    rows, _ = write_own_texts(write, 40, path, lambda *_: None)
    assert [row[0].item() for row in rows] == [0, 1, 2, 3]
    assert calls == [0, 1, 2, 2, 3]
    with pytest.raises(ValueError, match="wrote no text"):
        write_own_texts(lambda _: [[]], 40, tmp_path / "none.jsonl", lambda *_: None)


def test_own_texts_are_measured_on_after_beginnings_of_their_own(tmp_path) -> None:
    def write(number: int) -> list[list[int]]:
        """The third text is the same every time, the last one another's."""
        return [[1, number], [2, number], [3, 9], [1, number]]

    learnt, kept = write_own_texts(
        write, 16, tmp_path / "a.jsonl", lambda *_: None, held_out=(1, 3)
    )
    assert [row.tolist() for row in learnt] == [[3, 9]]
    assert [row.tolist() for row in kept] == [[2, 0], [1, 0], [2, 1], [1, 1], [2, 2], [1, 2],
                                              [2, 3], [1, 3]][: len(kept)]  # fmt: skip
    assert len(kept) * 2 + 2 >= 16
    # Few tokens in all, but enough of those to measure on.
    path = tmp_path / "b.jsonl"
    *_, kept = write_own_texts(write, 1, path, lambda *_: None, (1,), min_held_out=6)
    assert [row.tolist() for row in kept] == [[2, 0], [2, 1], [2, 2]]
    # A model that says one thing only ends: what it said is there once.
    learnt, _ = write_own_texts(lambda _: [[4, 4]], 100, tmp_path / "c.jsonl", lambda *_: None)
    assert [row.tolist() for row in learnt] == [[4, 4]]


def test_no_own_text_is_trained_on_and_measured_on(models, tmp_path, monkeypatch) -> None:
    """Beginnings of several tokens: none of them is on both sides."""
    from hierspec_lab.training.heads import data as choosing

    seen: dict[str, Any] = {}
    monkeypatch.setattr(choosing, "_start_ids", lambda text, *_: [ord(c) % 96 for c in text[:6]])
    monkeypatch.setattr(choosing, "split_texts", lambda *parts: seen.update(parts=parts))
    backend = load(models["llama"], backend="hf")
    settings = HeadsSettings(exits=(1,), tokens=1200, width=32)
    quiet = lambda stage, share: None  # noqa: E731
    choosing.choose_texts(str(models["llama"]), backend, None, settings, (), (), tmp_path, quiet)
    learnt, kept = ({tuple(row.tolist()) for row in part} for part in seen["parts"][:2])
    assert sum(map(len, kept)) > 32
    assert not learnt & kept
    assert len({row[:6] for row in kept}) == 2
    assert not {row[:6] for row in learnt} & {row[:6] for row in kept}


def test_a_text_given_twice_counts_once() -> None:
    texts = ["a" * 400, "b" * 400]
    once, twice = (encode_excerpts(some, letters, 1000, 8, 0) for some in (texts, texts * 2))
    assert sum(map(len, twice)) == sum(map(len, once)) == 200
