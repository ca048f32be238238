"""A tiny model with a chat template."""

from pathlib import Path

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import PreTrainedTokenizerFast

from hierspec.utils.testing import save_tiny

TEMPLATE = (
    "{% if enable_thinking is defined and not enable_thinking %}w93 {% endif %}"
    "{% if tools %}w90 {{ tools | length }} {% endif %}"
    "{% for m in messages %}{{ 'w91' if m.role == 'user' else 'w92' }} {{ m.content }} {% endfor %}"
    "{% if add_generation_prompt %}w92{% endif %}"
)


def save_chat_model(folder: Path) -> Path:
    save_tiny("llama", folder, seed=1, dtype=torch.float32)
    words = Tokenizer(WordLevel({f"w{i}": i for i in range(96)}, unk_token="w3"))
    words.pre_tokenizer = WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, chat_template=TEMPLATE)
    tokenizer.save_pretrained(folder)
    return folder
