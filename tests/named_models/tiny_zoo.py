"""The tests' own ``zoo:tiny``, ``zoo:tiny-draft`` and ``zoo:tiny-ngram``, found as anybody's are.

Both models have a tokenizer. The draft is the target less a layer, its weights moved a little. As a
script this writes all into the folder that it is given.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from dataclasses import replace
from functools import partial
from pathlib import Path

from hierspec.config.vocabulary import vocabulary_key
from hierspec.lm.weights import from_directory
from hierspec.zoo.registry import Entry

FOLDER = Path(os.environ["HIERSPEC_TINY_ZOO"])  # tests/conftest.py chooses it
SOURCES = ("argparse", "ast", "csv", "inspect", "tarfile", "textwrap", "typing", "unittest/case")
VOCABULARY = 4096


def _open(name, options, device):
    return replace(from_directory(FOLDER / name.removeprefix("zoo:")), name=name)


def _entry(name: str, *candidates: str) -> Entry:
    return Entry(
        f"{name}, of the tests",
        partial(Path, FOLDER / name),
        _open,
        family="tiny",
        candidates=candidates,
        texts=("def add(a, b):\n", "import os\n"),
    )


TINY = _entry("tiny", "zoo:tiny-draft", "exit:1", "prompt-lookup")
DRAFT = _entry("tiny-draft", "exit:1", "prompt-lookup")
NGRAM = Entry("a table, of the tests", partial(Path, FOLDER / "ngram.safetensors"), family="tiny")


def write(folder: Path) -> None:
    """Write both models, each with the tokenizer."""
    import torch
    from ngram_tables import bigrams
    from tiny_models import tiny_model
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    library = Path(sysconfig.get_path("stdlib"))
    texts = [(library / f"{name}.py").read_text(encoding="utf-8") for name in SOURCES]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    size = tokenizer.get_vocab_size()
    ends = dict.fromkeys(("bos_token", "eos_token", "pad_token"), "<|endoftext|>")
    table = bigrams([token for text in texts for token in tokenizer.encode(text).ids], size)
    table.vocabulary = vocabulary_key(tokenizer)
    folder.mkdir(parents=True)
    table.save(folder / "ngram.safetensors")
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **ends)
    options = {"hidden_size": 64, "max_position_embeddings": 2048, "bos_token_id": 0}
    options |= {"eos_token_id": 0, "vocab_size": size}
    target, draft = (tiny_model("llama", 1, n, torch.float32, **options) for n in (3, 2))
    generator = torch.Generator().manual_seed(7)
    of_target = target.state_dict()
    with torch.no_grad():
        for name, weight in draft.named_parameters():
            noise = torch.randn(weight.shape, generator=generator)
            weight.copy_(of_target[name] + 0.05 * noise)
    for name, model in (("tiny", target), ("tiny-draft", draft)):
        model.to(torch.bfloat16).save_pretrained(folder / name)
        wrapped.save_pretrained(folder / name)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
