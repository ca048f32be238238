"""A tiny model that chats: random weights, the shipped family's tokenizer, a chat template."""

from pathlib import Path

import torch
from transformers import AutoTokenizer

from hierspec.utils.testing import save_tiny
from hierspec.zoo import registry

TEMPLATE = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}answer:"


def save_chat(folder: Path, **changes) -> str:
    """The model's folder."""
    save_tiny("llama", folder, dtype=torch.float32, vocab_size=4096, **changes)
    tokenizer = AutoTokenizer.from_pretrained(registry.resolve("zoo:small").tokenizer_path)
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    return str(folder)
