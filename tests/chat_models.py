"""A tiny model that chats: random weights, the tokenizer of ``zoo:tiny``, a chat template."""

from pathlib import Path

import torch
from tiny_models import save_tiny
from transformers import AutoTokenizer

from hierspec.zoo import registry

TEMPLATE = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}answer:"
TURNS = (  # a text of it begins every longer one, as training wants
    "{% for m in messages %}<u>{{ m['role'] }} {{ m['content'] }}</u>{% endfor %}"
    "{% if add_generation_prompt %}<u>assistant {% endif %}"
)


def save_chat(folder: Path, template: str = TEMPLATE, **changes) -> str:
    """The model's folder."""
    save_tiny("llama", folder, dtype=torch.float32, vocab_size=4096, **changes)
    tokenizer = AutoTokenizer.from_pretrained(registry.resolve("zoo:tiny").tokenizer_path)
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    return str(folder)
