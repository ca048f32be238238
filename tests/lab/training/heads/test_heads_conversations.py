"""Conversations that heads learn from: read from files, answers found in the ids."""

import pytest
from fakes.tokenizers import Letters

from hierspec_lab.training.conversations import Conversation
from hierspec_lab.training.heads.conversations import tokenize_conversation


def conversation(*contents: str, domain: str = "other") -> Conversation:
    roles = ("user", "assistant")
    said = [{"role": roles[i % 2], "content": text} for i, text in enumerate(contents)]
    return Conversation.from_row({"messages": said, "domain": domain})


def test_answers_are_found_in_the_ids() -> None:
    """A position counts where the token after it is the answer's, its end included."""
    found = tokenize_conversation(conversation("q", "one", "r", "up", "s"), Letters())
    text = "".join(map(chr, found.ids))
    assert text == "<u:q>\n<a:one>\n<u:r>\n<a:up>\n"
    assert "".join(text[p + 1] for p in found.answer_positions) == "one>up>"


def test_a_tokenizer_without_a_template_is_refused() -> None:
    with pytest.raises(ValueError, match="no chat template"):
        tokenize_conversation(conversation("q", "a"), None)
