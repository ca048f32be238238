"""A GGUF file's tokenizer gives the ids that llama.cpp gives, and its texts end where they should.

What llama.cpp gives is in ``data/llama_cpp_ids.json``, which ``llama_cpp_ids.py`` writes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from gguf_files import KINDS, TOKENS, add_vocabulary, save, tiny
from transformers import AutoTokenizer, GenerationConfig

from hierspec import Hierarchy
from hierspec.config.checkpoints import Loaded
from hierspec.errors import HierspecError
from hierspec.zoo.gguf.folder import model_folder
from hierspec.zoo.gguf.header import Header
from hierspec.zoo.gguf.pre_tokenizers import SPLITS
from hierspec.zoo.gguf.tokenizer import Vocabulary, build_tokenizer

DATA = json.loads((Path(__file__).parent / "data" / "llama_cpp_ids.json").read_text())
CASES = DATA["cases"]
KEYS = {
    "tokens": "tokens",
    "token_type": "types",
    "merges": "merges",
    "scores": "scores",
}


def vocabulary(case: dict[str, Any], **fields: Any) -> Vocabulary:
    """Return what a file of one of the stored vocabularies says; fields that are ``None`` lack."""
    stored = DATA["vocabularies"][case["model"]]
    said = {key: stored[name] for key, name in KEYS.items() if name in stored}
    said |= {"model": case["model"], "pre": case["pre"], **case["flags"]}
    said |= {"bos_token_id": 0, "eos_token_id": 1, "unknown_token_id": 3, **fields}
    metadata = {f"tokenizer.ggml.{k}": value for k, value in said.items() if value is not None}
    metadata |= {"general.architecture": "llama", "llama.context_length": 128}
    return Vocabulary(Header(Path("tiny.gguf"), metadata, {}))


def case_of(model: str, pre: str, **flags: bool) -> dict[str, Any]:
    return next(c for c in CASES if (c["model"], c["pre"], c["flags"]) == (model, pre, flags))


GPT2, LLAMA3 = case_of("gpt2", "gpt-2"), case_of("gpt2", "llama-bpe")
SPM, GEMMA = case_of("llama", "default"), case_of("llama", "default", add_space_prefix=False)


@pytest.mark.parametrize("case", CASES, ids=lambda c: "-".join([c["model"], c["pre"], *c["flags"]]))
def test_the_ids_are_those_of_llama_cpp(case):
    tokenizer = build_tokenizer(vocabulary(case))
    found = [tokenizer(text)["input_ids"] for text in DATA["texts"]]
    assert dict(zip(DATA["texts"], found, strict=True)) == dict(
        zip(DATA["texts"], case["ids"], strict=True)
    )


def test_every_way_to_split_is_compared():
    compared = {id(SPLITS[case["pre"]]) for case in CASES if case["model"] == "gpt2"}
    assert {id(split) for split in SPLITS.values()} == compared


@pytest.mark.parametrize("case", [GPT2, LLAMA3, SPM, GEMMA])
def test_ids_become_the_text_again(case):
    tokenizer = build_tokenizer(vocabulary(case))
    for text in DATA["texts"]:
        if "\N{LOWER ONE EIGHTH BLOCK}" in text and case["model"] == "llama":
            continue  # SentencePiece's blank itself, which stands for one
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        if case is SPM and any(DATA["vocabularies"]["llama"]["types"][i] in (2, 3, 4) for i in ids):
            continue  # a blank is put after each special token, as by the model's own tokenizer
        assert tokenizer.decode(ids) == text


def test_it_is_saved_and_loaded_as_it_is(tmp_path):
    for number, case in enumerate((LLAMA3, SPM)):
        tokenizer = build_tokenizer(vocabulary(case))
        tokenizer.save_pretrained(tmp_path / str(number))
        again = AutoTokenizer.from_pretrained(tmp_path / str(number))
        for text in DATA["texts"]:
            assert again(text)["input_ids"] == tokenizer(text)["input_ids"]
        assert again.all_special_ids == tokenizer.all_special_ids
        assert (again.bos_token_id, again.eos_token_id) == (0, 1)


def test_kinds_of_tokens():
    tokenizer = build_tokenizer(vocabulary(GPT2))
    control, user_defined = "<|eot_id|>", "<think>"
    ids = tokenizer(f"a{control}b{user_defined}c")["input_ids"]
    assert tokenizer.decode(ids, skip_special_tokens=True) == f"ab{user_defined}c"
    assert tokenizer.decode(ids) == f"a{control}b{user_defined}c"


@pytest.mark.parametrize(
    ("fields", "begins", "ends"),
    [
        ({}, False, False),
        ({"add_bos_token": True}, True, False),
        ({"add_eos_token": True}, False, True),
        ({"add_bos_token": True, "add_eos_token": True}, True, True),
        ({"pre": "llama-bpe"}, True, False),
        ({"pre": "llama-bpe", "add_bos_token": False}, False, False),
        ({"pre": "llama-bpe", "bos_token_id": None}, False, False),
    ],
)
def test_tokens_added_to_a_text(fields, begins, ends):
    tokenizer = build_tokenizer(vocabulary(GPT2, **fields))
    ids = tokenizer("the cat")["input_ids"]
    inner = tokenizer("the cat", add_special_tokens=False)["input_ids"]
    assert ids == [*([0] if begins else []), *inner, *([1] if ends else [])]


@pytest.mark.parametrize(
    ("fields", "renamed", "ends"),
    [
        ({"eos_token_id": 2}, {1: "x1"}, [2]),
        ({"eos_token_id": 0, "eot_token_id": 2}, {1: "x1", 2: "x2"}, [0, 2]),
        ({"eos_token_id": 0, "eom_token_id": 1}, {1: "x1", 2: "x2"}, [0, 1]),
        ({"eos_token_id": 0, "eot_token_id": 1, "eom_token_id": 2}, {}, [0, 1, 2]),
        ({"eos_token_id": 0}, {1: "x1", 2: "<|im_end|>"}, [0, 2]),
        ({"eos_token_id": 0}, {1: "<end_of_turn>", 2: "</s>"}, [0, 1, 2]),
        ({"eos_token_id": None}, {1: "x1", 2: "<|im_end|>"}, [2]),
        # parts of a message, which does not end with the first
        ({"eos_token_id": 1}, {0: "<|end|>", 1: "<|return|>", 2: "<|call|>"}, [1, 2]),
        # a normal token of another's name: a tag in HTML is none, a turn's end is
        ({"eos_token_id": 0}, {1: "x1", 2: "x2", 100: "</s>"}, [0]),
        ({"eos_token_id": 0}, {1: "x1", 2: "x2", 100: "<|im_end|>"}, [0, 100]),
    ],
)
def test_what_ends_a_text(fields, renamed, ends):
    tokens = list(DATA["vocabularies"]["gpt2"]["tokens"])
    for token, name in renamed.items():
        tokens[token] = name
    assert vocabulary(GPT2, tokens=tokens, **fields).ends == ends


def test_phi_3_takes_the_blanks_after_its_tokens():
    def ids(name: str) -> list[int]:
        case = vocabulary(SPM)
        fields = {**case.header.fields, "general.name": name}
        tokenizer = build_tokenizer(Vocabulary(Header(case.header.path, fields, {})))
        return tokenizer("<|eot_id|> \n a")["input_ids"]

    assert (
        ids("Phi-3 Mini 4k Instruct")
        == build_tokenizer(vocabulary(SPM))("<|eot_id|>a")["input_ids"]
    )
    assert ids("Llama 2") != ids("Phi-3 Mini 4k Instruct")


@pytest.mark.parametrize(
    ("case", "fields", "says"),
    [
        (GPT2, {"model": "bert"}, "a tokenizer of kind 'bert'"),
        (GPT2, {"model": "t5"}, "a tokenizer of kind 't5'"),
        (GPT2, {"model": None}, "lacks the field tokenizer.ggml.model"),
        (GPT2, {"pre": None}, "does not say how its tokenizer splits text"),
        (GPT2, {"pre": "default"}, "does not say how its tokenizer splits text"),
        (GPT2, {"pre": "deepseek-llm"}, "'deepseek-llm', which is not read"),
        (GPT2, {"pre": "unheard-of"}, "'unheard-of', which is not read"),
        (GPT2, {"merges": None}, "lacks the field tokenizer.ggml.merges"),
        (GPT2, {"merges": ["zz qq"]}, "contradicts itself"),
        (GPT2, {"merges": [1, 2]}, "tokenizer.ggml.merges that is not a list of texts"),
        (GPT2, {"tokens": None}, "lacks the field tokenizer.ggml.tokens"),
        (GPT2, {"tokens": []}, "an empty vocabulary"),
        (GPT2, {"token_type": None}, "lacks the field tokenizer.ggml.token_type"),
        (GPT2, {"token_type": [1]}, "tokens without a type"),
        (GPT2, {"eos_token_id": 1 << 20}, "has tokenizer.ggml.eos_token_id 1048576"),
        (GPT2, {"eos_token_id": "<|end|>"}, "eos_token_id that is not a whole number"),
        (GPT2, {"add_bos_token": True, "bos_token_id": None}, "does not name it"),
        (GPT2, {"add_eos_token": True, "eos_token_id": None}, "does not name it"),
        (GPT2, {"add_bos_token": 1}, "add_bos_token that is not true or false"),
        (SPM, {"scores": None}, "lacks the field tokenizer.ggml.scores"),
        (SPM, {"scores": [0.5]}, "tokens without a score"),
        (SPM, {"remove_extra_whitespaces": True}, "drops repeated blanks"),
    ],
)
def test_what_cannot_be_read_is_one_line(case, fields, says):
    with pytest.raises(HierspecError, match=says) as caught:
        build_tokenizer(vocabulary(case, **fields))
    assert "\n" not in str(caught.value)


def test_a_padding_token_that_is_none_is_left_out():
    assert build_tokenizer(vocabulary(GPT2, padding_token_id=1 << 20)).pad_token_id is None


def sentence_piece(writer: Any) -> None:
    stored = DATA["vocabularies"]["llama"]
    writer.add_tokenizer_model("llama")
    writer.add_token_list(stored["tokens"])
    writer.add_token_types(stored["types"])
    writer.add_token_scores(stored["scores"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)


@pytest.mark.parametrize(("kind", "pre"), [("bert", "smollm"), ("gpt2", "unheard-of")])
def test_another_tokenizer_stands_in_for_one_that_is_not_read(kind, pre, tmp_path, cache):
    pytest.importorskip("gguf", reason="GGUF files are read by the package gguf (extra smollm2)")

    def unread(writer: Any) -> None:
        add_vocabulary(writer, pre)
        writer.kv_data[0].pop("tokenizer.ggml.model")
        writer.add_tokenizer_model(kind)

    file, other = save(tmp_path / "m.gguf", tiny(), vocabulary=unread), tmp_path / "n.gguf"
    with pytest.raises(HierspecError, match="no tokenizer beside it that is read: name one"):
        Hierarchy(str(file), drafts=[]).generate("hello")
    loaded = Loaded()
    loaded.use_tokenizer(str(file), str(save(other, tiny())))
    assert loaded.tokenizers[str(file)]


def test_a_model_with_it_generates_and_streams(tmp_path, cache, monkeypatch):
    pytest.importorskip("gguf", reason="GGUF files are read by the package gguf (extra smollm2)")
    monkeypatch.setenv("HIERSPEC_KERNELS", "0")  # they would be compiled into the empty cache
    model = tiny(vocab_size=len(DATA["vocabularies"]["llama"]["tokens"]))
    hierarchy = Hierarchy(
        str(save(tmp_path / "m.gguf", model, vocabulary=sentence_piece)), drafts=[]
    )
    options = {"max_new_tokens": 60, "ignore_eos": True}
    whole = hierarchy.generate("the cat 😀", **options)
    assert whole.token_ids
    assert "".join(event.text for event in hierarchy.stream("the cat 😀", **options)) == whole.text
    tokenizer = hierarchy.tokenizer
    ids = tokenizer("the cat 😀")["input_ids"]
    assert ids[0] == 0
    both = tokenizer.decode([*ids, *whole.token_ids], skip_special_tokens=True)
    assert both == "the cat 😀" + whole.text


def test_a_turn_ends_a_text(tmp_path, cache):
    pytest.importorskip("gguf", reason="GGUF files are read by the package gguf (extra smollm2)")

    def edit(writer: Any) -> None:
        add_vocabulary(writer)
        writer.add_eot_token_id(TOKENS.index("<|turn|>"))

    assert KINDS[TOKENS.index("<|turn|>")] == 3
    path = save(tmp_path / "m.gguf", tiny(), vocabulary=edit)
    ends = Hierarchy(str(path), drafts=[]).eos_token_ids()
    assert ends == {TOKENS.index(name) for name in ("<|end|>", "<|turn|>")}
    assert set(GenerationConfig.from_pretrained(model_folder(path)).eos_token_id) == ends
