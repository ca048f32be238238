"""Which texts heads learn from: those given, the shipped family's corpus, or the model's own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hierspec.build import build
from hierspec.checkpoints import Loaded
from hierspec.config import HierarchyConfig, TargetConfig
from hierspec.profiling import fingerprint
from hierspec.profiling.texts import builtin
from hierspec.zoo import registry
from hierspec.zoo.corpus import load_corpus
from hierspec.zoo.evaluate import Windows

from . import data
from .settings import Settings

_OWN_BATCH = 16  # texts that the model writes side by side
_HELD_OUT = (
    7,
    15,
)  # of their beginnings, one of code and one of prose: what follows is measured on


def choose(
    model: str,
    backend: Any,
    tokenizer: Any,
    settings: Settings,
    given: tuple[Sequence[str], str] | None,
    folder: Path,
    report: data.Report,
) -> data.Texts:
    """Texts that were given; else what the shipped family learnt from; else what the model writes.

    Args:
        given: texts and the name to keep of them.
        folder: keeps what an interrupted training has written already.
    """
    limit, width, seed = settings.tokens, settings.width, settings.seed
    windows = Windows(settings.held_out, width)
    report("reading texts", 0.0)
    if given is not None:
        rows = data.encoded(given[0], tokenizer, limit, width, seed)
        return data.split(rows, None, windows, seed, {"name": given[1]})
    if model.startswith(registry.PREFIX):
        corpus = load_corpus()
        kept = max(int(data.HELD_OUT_SHARE * limit), width + 1)
        learnt = {document.text: None for document in corpus.train}
        held_out = [d.text for d in corpus.held_out if d.text not in learnt]
        train_rows, held = (
            data.encoded(part, tokenizer, most, width, seed)
            for part, most in ((learnt, limit - kept), (held_out, kept))
        )
        name = f"standard library of Python {corpus.python_version}"
        return data.split(train_rows, held, windows, seed, {"name": name})
    write = _writer(model, backend, tokenizer, seed)
    path = folder / f"own-{fingerprint.key([model, seed, str(backend.dtype)])}.jsonl"
    train_rows, held = data.own_rows(write, limit, path, report, _HELD_OUT, width + 1)
    return data.split(train_rows, held, windows, seed, {"name": "written by the model itself"})


def _writer(model: str, backend: Any, tokenizer: Any, seed: int) -> Any:
    """``write(number)``: a batch of the model's own continuations at temperature 1, plain."""
    from hierspec.engine import Hierarchy

    target = TargetConfig(model=model, backend="hf")
    loaded = Loaded()
    loaded.put(target, backend, tokenizer)
    hierarchy = Hierarchy(build(HierarchyConfig(target=target), loaded))
    texts = builtin(model)
    starts = [_start(texts[i % len(texts)], tokenizer, backend) for i in range(_OWN_BATCH)]
    length = min(data.OWN_LENGTH, backend.max_length // 2)

    def write(number: int) -> list[list[int]]:
        batch = hierarchy.generate_batch(
            starts, max_new_tokens=length, temperature=1.0, seed=seed * 1_000_003 + number
        )
        return [[*start, *result.token_ids] for start, result in zip(starts, batch, strict=True)]

    return write


def _start(text: str, tokenizer: Any, backend: Any) -> list[int]:
    """Ids of a text; where no tokenizer knows it, the one that begins every text."""
    ids = [] if tokenizer is None else tokenizer(text, verbose=False)["input_ids"]
    first = getattr(backend.config, "bos_token_id", None)
    return ids or [first if isinstance(first, int) else 0]
