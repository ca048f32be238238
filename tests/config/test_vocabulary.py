"""Levels must agree on what an id means; they need not agree on how far ids go."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer, models
from transformers import Gemma3Config, PreTrainedTokenizerFast

from hierspec.config.checkpoints import Loaded
from hierspec.config.vocabulary import validate_same_vocabulary
from hierspec.errors import HierspecError


def tokenizer(*tokens, special=()):
    raw = Tokenizer(models.WordLevel({t: i for i, t in enumerate(tokens)}, unk_token=tokens[0]))
    raw.add_special_tokens(list(special))
    return raw


def test_the_same_vocabulary_passes():
    base = tokenizer("a", "b", "c")
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer("a", "b", "c"))
    validate_same_vocabulary("big", base, "small", base)
    validate_same_vocabulary("big", base, "small", fast)
    validate_same_vocabulary("big", base, "small", tokenizer("a", "b", "c", special=["<pad>"]))
    validate_same_vocabulary("big", tokenizer("a", "b", "c", special=["<x>"]), "small", base)


def test_a_model_without_a_tokenizer_has_nothing_to_compare():
    validate_same_vocabulary("big", None, "small", tokenizer("a"))
    validate_same_vocabulary("big", tokenizer("a"), "small", None)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (("a", "c", "b"), "small and big .* token 1 is 'c' in small and 'b' in big"),
        (("a", "b", "d", "e"), "token 2 is 'd' in small and 'c' in big"),
        (("x",), "token 0 is 'x' in small"),
    ],
)
def test_different_vocabularies_are_refused(other, message):
    with pytest.raises(ValueError, match=message) as error:
        validate_same_vocabulary("big", tokenizer("a", "b", "c"), "small", tokenizer(*other))
    assert "\n" not in str(error.value)


def test_a_hole_in_one_of_them_is_a_difference():
    holey = Tokenizer(models.WordLevel({"a": 0, "c": 2}, unk_token="a"))
    with pytest.raises(ValueError, match="token 1 is missing in small and 'b' in big"):
        validate_same_vocabulary("big", tokenizer("a", "b", "c"), "small", holey)


def test_a_tokenizer_of_a_models_text_is_compared_with_the_size_of_its_text_part(tmp_path):
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer("a", "b", "c"))
    fast.save_pretrained(tmp_path / "tokenizer")
    for size, fits in ((2, False), (3, True)):
        folder = tmp_path / str(size)
        Gemma3Config(text_config={"vocab_size": size}).save_pretrained(folder)
        loaded = Loaded()
        if fits:
            loaded.use_tokenizer(str(folder), str(tmp_path / "tokenizer"))
            assert len(loaded.tokenizers[str(folder)]) == size
        else:
            with pytest.raises(HierspecError, match="3 tokens, and the target scores 2"):
                loaded.use_tokenizer(str(folder), str(tmp_path / "tokenizer"))
