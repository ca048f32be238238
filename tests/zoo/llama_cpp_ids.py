"""Writes ``data/llama_cpp_ids.json``: small vocabularies, texts, and the ids that llama.cpp gives.

Run by hand, with the packages llama-cpp-python, gguf and tokenizers: the tests read the file alone,
which says with which version it was written. The two vocabularies are of the kinds that released
models have. They are learnt from text that is not split, so that their merges go across words,
digits and lines: only a right pre-tokenizer, or right scores, give the same ids.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

FILE = Path(__file__).parent / "data" / "llama_cpp_ids.json"
PRE = [
    *("llama-bpe", "dbrx", "glm4", "gpt-2", "smollm", "qwen2", "qwen35", "seed-coder", "tekken"),
    *("gpt-4o", "deepseek-v3", "deepseek-coder"),
]
SPACE = "\N{LOWER ONE EIGHTH BLOCK}"
SPECIAL = ["<|begin|>", "<|end_of_text|>", "<|eot_id|>", "<unk>", "<think>", "</think>", "  \t  "]
KINDS = [3, 3, 3, 2, 4, 4, 4]

TEXTS = [
    "",
    " ",
    "   ",
    "Hello, world!",
    " hello  hello   hello",
    "hello world\n",
    "\n\n\nx\n \n  y\r\n\r\nz\r",
    "a\tb\t\tc \t d",
    "1 12 123 1234 12345 1234567 3.14159 1,000,000 0x1F v2.0",
    "١٢٣ १२३ ½ Ⅷ ²³ 3️⃣",
    "I'm you're he'll WE'VE don't 'tis O'Neill's DON'T 'S 'd",
    "naïve café cafe\u0301 Straße ÉCOLE éa Éa ÅÄÖ ﬁ ǅ",
    "e\u0301\u0302 \u0301x \u200d \u0928\u092e\u0938\u094d\u0924\u0947 ไทย កាន់",
    "我想在apple工作1314151天～ 日本語とカタカナ 한국어 中文，。！",
    "😀😁 👩\u200d👩\u200d👧 🏳️\u200d🌈 🚀!! x😶y",
    "<|begin|>hello<|eot_id|>\n\nthe <|end_of_text|> cat<unk>",
    "<think>the cat</think> <think> 12</think>\n",
    "x  \t  y  \t   z",
    "<|begin|><|begin|> <|begin|>  a",
    "not <|a token|> < |begin|> </s> <s> <think",
    "\x00\x01\x1f\x7f\u0085 \u00a0x\u00a0\u00a0y \u2003z \u3000w \u2028v\u2029",
    'HTTPServer camelCase snake_case x=y+z; a/b//c ~/path\\n "q" `t` (p)[i]{j} <= >= != -> #@$%^&*',
    "def f(x):\n    return x\n\n\tif not x:  # done\n        pass",
    "......!!!!!!?????? ---- ==== ____ ''''''````\"\"\"\"",
    "нещо на Български ПРИВЕТ Ωμέγα שלום مرحبا",
    "ＡＢｃ １２３ ㎡ ℃ \ufeff \ue000 \U0001d400 \U00020000",
    "          ten spaces, and trailing   ",
    "\u2581a \u2581\u2581 b",
    "whole whole wholes 1234567",
    "#\u2028カ \u3000😀 カ\u2028",
]
CORPUS = (
    "the cat sat on the mat. hello world, hello there! don't stop; I'm here and we've won.\n"
    "def add(a, b):\n    return a + b\n\n    if not x:\n        pass\n\n\n1 12 123 1234 12345 3.14 "
    "1000000 1314151 x=y+z; a/b//c HTTPServer camelCase naïve café Straße ÉCOLE Éa "
    "日本語とカタカナ 我想在apple工作天 한국어 中文，。！ 😀😁 👩\u200d👩\u200d👧 🚀!! "
    "нещо на Български ПРИВЕТ\r\n\r\n"
    "e\u0301e\u0301 cafe\u0301 ١٢٣١٢٣ ½½ '''' ==== ---- ...... ???? \t\t\t\t  \t  "
    "hello   hello     hello\n"
) * 8


def byte_level() -> dict[str, list]:
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    trainer = trainers.BpeTrainer(
        vocab_size=256 + 360,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        max_token_length=12,
        show_progress=False,
    )
    # Pieces of one line, so that merges go across words and digits, and over line ends
    backend.train_from_iterator([CORPUS[i : i + 97] for i in range(0, len(CORPUS), 41)], trainer)
    learnt = json.loads(backend.to_str())["model"]
    tokens = [t for t, _ in sorted(learnt["vocab"].items(), key=lambda item: item[1])]
    whole = ["Ġwhole", "whole", "1234567"]  # tokens that no merges make
    return {
        "tokens": [*SPECIAL, *tokens, *(t for t in whole if t not in learnt["vocab"])],
        "types": [*KINDS, *[1] * (len(tokens) + sum(t not in learnt["vocab"] for t in whole))],
        "merges": [m if isinstance(m, str) else " ".join(m) for m in learnt["merges"]],
    }


def sentence_piece() -> dict[str, list]:
    from tokenizers import Tokenizer, models, trainers

    backend = Tokenizer(models.BPE())
    trainer = trainers.BpeTrainer(vocab_size=420, max_token_length=12, show_progress=False)
    corpus = CORPUS.replace(" ", SPACE).replace("😁", "").replace("ß", "")
    backend.train_from_iterator([corpus[i : i + 97] for i in range(0, len(corpus), 41)], trainer)
    learnt = json.loads(backend.to_str())["model"]
    merged = ["".join(m if isinstance(m, list) else m.split(" ")) for m in learnt["merges"]]
    merged = list(dict.fromkeys(merged))
    letters = [t for t in learnt["vocab"] if len(t) == 1]
    start = [*SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256))]
    return {
        "tokens": [*start, *merged, *letters],
        "types": [*KINDS, *[6] * 256, *[1] * (len(merged) + len(letters))],
        # as SentencePiece numbers them: merges, then letters, the later the lower
        "scores": [*[0.0] * len(start), *(-float(i) for i in range(len(merged) + len(letters)))],
    }


def write(path: Path, kind: str, vocabulary: dict[str, list], pre: str, flags: dict) -> None:
    """Write a file of a vocabulary alone."""
    import gguf

    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model(kind)
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(vocabulary["tokens"])
    writer.add_token_types(vocabulary["types"])
    if "merges" in vocabulary:
        writer.add_token_merges(vocabulary["merges"])
    if "scores" in vocabulary:
        writer.add_token_scores(vocabulary["scores"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_unk_token_id(3)
    for key, value in flags.items():
        writer.add_bool(f"tokenizer.ggml.{key}", value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


def ids_of(path: Path, texts: list[str]) -> list[list[int]]:
    import llama_cpp

    model = llama_cpp.Llama(str(path), vocab_only=True, verbose=False)
    return [model.tokenize(text.encode(), add_bos=True, special=True) for text in texts]


def main() -> None:
    import llama_cpp

    vocabularies = {"gpt2": byte_level(), "llama": sentence_piece()}
    cases = [{"model": "gpt2", "pre": pre, "flags": {}} for pre in PRE]
    cases += [
        {"model": "gpt2", "pre": "gpt-2", "flags": {"add_bos_token": True, "add_eos_token": True}},
        {"model": "gpt2", "pre": "llama-bpe", "flags": {"add_bos_token": False}},
        {"model": "llama", "pre": "default", "flags": {}},
        {"model": "llama", "pre": "default", "flags": {"add_space_prefix": False}},
        {
            "model": "llama",
            "pre": "default",
            "flags": {"add_bos_token": False, "add_eos_token": True, "add_space_prefix": True},
        },
    ]
    with tempfile.TemporaryDirectory() as folder:
        for case in cases:
            path = Path(folder) / "vocabulary.gguf"
            write(path, case["model"], vocabularies[case["model"]], case["pre"], case["flags"])
            case["ids"] = ids_of(path, TEXTS)
    data = {
        "llama-cpp-python": llama_cpp.__version__,
        "texts": TEXTS,
        "vocabularies": vocabularies,
        "cases": cases,
    }
    FILE.parent.mkdir(exist_ok=True)
    FILE.write_text(json.dumps(data, ensure_ascii=True, separators=(",", ":")) + "\n")
    print(f"{FILE}: {FILE.stat().st_size} bytes", file=sys.stderr)


if __name__ == "__main__":
    main()
