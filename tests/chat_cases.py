"""A tiny model with a chat template, and a conversation on a pseudo-terminal."""

import os
import pty
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import torch
from loading import own_cache
from tiny_models import save_tiny
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import PreTrainedTokenizerFast

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


def talk(argv, cache, lines):
    """Return what a conversation on a pseudo-terminal shows; each line waits for the prompt."""
    main, side = pty.openpty()
    ours = {"HIERSPEC_CACHE": own_cache(cache), "TERM": "xterm", "COLUMNS": "200"}
    process = subprocess.Popen(
        [sys.executable, "-m", "hierspec", *argv],
        stdin=side,
        stdout=side,
        stderr=side,
        env={**os.environ, **ours},
        close_fds=True,
    )
    os.close(side)
    os.set_blocking(main, False)
    shown = SimpleNamespace(text="", prompts=0)
    until = time.monotonic() + 100

    def read():
        try:
            got = os.read(main, 65536).decode(errors="replace")
        except BlockingIOError:
            time.sleep(0.02)
            return True
        except OSError:  # the process has gone
            return False
        if "\x1b[6n" in got:  # it asks where the cursor is
            os.write(main, b"\x1b[1;1R")
        shown.text += got
        return True

    for i, line in enumerate(lines):
        wanted = i + 1
        while shown.text.count("\x1b[?2004h") < wanted and time.monotonic() < until and read():
            pass
        os.write(main, line.encode())
    while time.monotonic() < until and read():
        pass
    assert process.wait(timeout=20) == 0, shown.text
    os.close(main)
    return shown.text
