"""How far it is from a call to the kernels, and how much of the tree names one method.

    PYTHONPATH=CHECKOUT/src python benchmarks/hops.py [--list]

Functions of the package are counted that are entered, each once, from ``Hierarchy.generate`` and
from a request for a chat completion to the first call of the compiled kernels: of a second text,
since a first one imports and compiles. Comprehensions and the like do not count. Only public names
and the folder of the kernels are used, so that older checkouts can be counted too. Lines, files
that name a method, and modules under 30 lines are of the checkout's product.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import hierspec

ROOT = Path(hierspec.__file__).parent
KERNELS = ROOT / "lm" / "native" / "model.py"  # whose ``run`` calls them
TARGET, DRAFT = "zoo:trunk", "zoo:small"
METHODS = ("eagle3", "quantized")


def functions_to_kernels(work: Callable[[], Any]) -> list[str]:
    """Return the functions entered until the kernels are called, in any thread."""
    entered: dict[str, None] = {}
    arrived = threading.Event()

    def note(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        file = Path(code.co_filename)
        if event != "call" or arrived.is_set() or not file.is_relative_to(ROOT):
            return
        if not code.co_name.startswith("<"):
            entered[f"{file.relative_to(ROOT)}: {code.co_qualname}"] = None
        if file == KERNELS and code.co_name == "run":
            arrived.set()

    note_everywhere(note)
    try:
        work()
    finally:
        note_everywhere(None)
    if not arrived.is_set():
        raise SystemExit("the kernels were not called: is there a C compiler?")
    return list(entered)


_note: Callable[[FrameType, str, Any], None] | None = None


def note_everywhere(note: Callable[[FrameType, str, Any], None] | None) -> None:
    """Note calls of this thread, and of those that :func:`watch_threads` watches."""
    global _note
    _note = note
    sys.setprofile(note)


def watch_threads() -> None:
    """Let threads that begin from now on note their calls whenever that is asked for."""

    def pass_on(frame: FrameType, event: str, argument: Any) -> None:
        if _note is not None:
            _note(frame, event, argument)

    threading.setprofile(pass_on)


def of_generate(models: hierspec.Hierarchy) -> list[str]:
    models.generate("def f(x):", max_new_tokens=4)
    return functions_to_kernels(lambda: models.generate("def g(y):", max_new_tokens=4))


def of_chat(models: hierspec.Hierarchy) -> list[str]:
    from starlette.testclient import TestClient

    from hierspec.server.app import create_app

    models.tokenizer.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    with TestClient(create_app(hierarchies={"default": models})) as client:

        def ask(text: str) -> None:
            body = {"messages": [{"role": "user", "content": text}], "max_tokens": 4}
            client.post("/v1/chat/completions", json=body).raise_for_status()

        ask("def f(x):")
        return functions_to_kernels(lambda: ask("def g(y):"))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--list", action="store_true", help="the functions, in order")
    listed = parser.parse_args().list
    watch_threads()
    models = hierspec.Hierarchy(TARGET, drafts=[DRAFT])
    for name, found in (("generate", of_generate(models)), ("chat completion", of_chat(models))):
        print(f"{name}: {len(found)} functions to the kernels")
        if listed:
            print("".join(f"  {function}\n" for function in found), end="")
    modules = {path: path.read_text(encoding="utf-8") for path in ROOT.rglob("*.py")}
    lengths = [text.count("\n") for text in modules.values()]
    short = sum(0 < n < 30 for n in lengths)
    print(f"{sum(lengths)} lines, {len(lengths)} modules, {short} of them under 30 lines")
    for method in METHODS:
        print(f"{method}: named in {sum(method in text for text in modules.values())} modules")


if __name__ == "__main__":
    main()
