"""``hierspec timeline``: a picture of a generation from its trace."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from hierspec.errors import HierspecError
from hierspec.timeline import chrome, html, read, stories, svg
from hierspec.timeline.drawing import Texts
from hierspec.utils.files import write_whole

ENDINGS = (".svg", ".html", ".json")


@dataclass(frozen=True, slots=True)
class Options:
    """The command's options, parsed."""

    trace: Path
    output: Path
    sequence: int | None = None
    tokenizer: str | None = None


def run(options: Options) -> int:
    """Write the picture and say what is in it."""
    ending = options.output.suffix.lower()
    if ending not in ENDINGS:
        raise HierspecError(f"{str(options.output)!r}: a timeline ends in {', '.join(ENDINGS)}")
    if options.sequence is not None and ending != ".svg":
        raise HierspecError("--sequence goes with .svg: the other forms show every sequence")
    if options.output.resolve() == options.trace.resolve():
        raise HierspecError(f"{options.output} is the trace itself: choose another output")
    if not (folder := options.output.parent).is_dir():
        raise HierspecError(f"cannot write {options.output}: there is no folder {folder}")
    events = read(options.trace)
    texts = None if options.tokenizer is None else load_texts(options.tokenizer)
    if ending == ".svg":
        out = svg(events, options.sequence or 0, texts)
    elif ending == ".html":
        out = html(events, texts)
    else:
        out = json.dumps(chrome(events, texts)) + "\n"
    write_whole(options.output, out, "the timeline")
    found = stories(events)
    calls = sum(len(story.calls) for story in found)
    many = "1 sequence" if len(found) == 1 else f"{len(found)} sequences"
    print(f"wrote {options.output}; the trace holds {many}, {calls} calls")
    return 0


def load_texts(model: str) -> Texts:
    """Token id → text, by the tokenizer of a model.

    Raises:
        ValueError: there is no tokenizer.
    """
    from hierspec.config.checkpoints import load_tokenizer
    from hierspec.zoo import registry

    tokenizer = load_tokenizer(registry.resolve(model) if model.startswith("zoo:") else model)
    if tokenizer is None:
        raise HierspecError(f"no tokenizer at {model!r}: name the target, a directory or a hub id")
    return lambda token: tokenizer.decode([token], clean_up_tokenization_spaces=False)
