"""Count the rooms that a prompt, a proposal, a plan's options and a bench's options pass.

    PYTHONPATH=CHECKOUT/src python benchmarks/rooms.py -o FILE [--before FILE OF AN OLDER LAYOUT]

Four command lines run in this process while a profiler looks at the arguments of every function of
the packages under ``src/``. A file is passed when one of its functions is handed the thing itself,
or an object or collection that holds it directly; a room is what stands at the top of the package:
a folder, or a file beside them. Options are followed by values that nothing else has (paths, a
seed, a temperature), so small integers and switches are not. Nothing here imports the packages
except through their command line, so that older layouts can be counted too.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

PROMPT = "def wanderer_of_rooms(doors):"
SEED, TEMPERATURE, ROUNDS = 90210, 0.731, 611
MARK = "followed-"  # begins the names of this script's files


def is_prompt(value: object) -> bool:
    """Return whether ``value`` is the prompt's text, or a sequence that begins with its ids."""
    if isinstance(value, str):
        return PROMPT in value
    return isinstance(value, list | tuple) and len(IDS) > 0 and list(value[: len(IDS)]) == IDS


def is_proposal(value: object) -> bool:
    """Return whether ``value`` is a draft that is handed up."""
    return type(value).__name__ == "Proposal"


def is_option(value: object) -> bool:
    """Return whether ``value`` is one of the options that only the command line had."""
    if isinstance(value, str | Path):
        return MARK in str(value)
    return type(value) in (int, float) and value in (SEED, TEMPERATURE, ROUNDS)


IDS: list[int] = []  # of PROMPT, once tokenized


def walk_contents(value: object) -> Iterator[object]:
    """Yield ``value`` and what it holds directly."""
    yield value
    if isinstance(value, dict):
        yield from list(value.values())[:64]
    elif isinstance(value, list | tuple | set | frozenset):
        yield from list(value)[:64]
    elif not isinstance(value, type):
        with contextlib.suppress(Exception):
            yield from list(vars(value).values())
        for kind in type(value).__mro__:
            for name in getattr(kind, "__slots__", ()):
                with contextlib.suppress(Exception):
                    yield object.__getattribute__(value, name)


class Follower:
    """A profiler that collects the files whose functions are handed what ``is_it`` recognises."""

    def __init__(self, source: Path, is_it: Callable[[object], bool]):
        self.source = str(source) + os.sep
        self.is_it = is_it
        self.files: list[str] = []
        self._inside: dict[CodeType, str] = {}

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        if event != "call":
            return
        code = frame.f_code
        file = self._inside.get(code)
        if file is None:
            name = code.co_filename
            is_ours = name.startswith(self.source) and code.co_name != "<module>"
            file = self._inside[code] = name[len(self.source) :] if is_ours else ""
        if not file or file in self.files:
            return
        count = code.co_argcount + code.co_kwonlyargcount
        flags = bool(code.co_flags & 4) + bool(code.co_flags & 8)  # *args, **kwargs
        for name in code.co_varnames[: count + flags]:
            if any(self.is_it(item) for item in walk_contents(frame.f_locals.get(name))):
                self.files.append(file)
                return


def follow(source: Path, is_it: Callable[[object], bool], arguments: list[str]) -> dict[str, Any]:
    """Run a command line and return what it passed."""
    from hierspec.cli import main

    follower = Follower(source, is_it)
    out, errors, status = io.StringIO(), io.StringIO(), None
    threading.setprofile(follower)
    sys.setprofile(follower)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
            main(arguments)
    except SystemExit as end:  # the command's own way to end
        status = end.code
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    if status:
        raise SystemExit(f"hierspec {' '.join(arguments)}: {errors.getvalue() or out.getvalue()}")
    rooms = list(dict.fromkeys("/".join(Path(file).parts[:2]) for file in follower.files))
    return {"files": len(follower.files), "rooms": len(rooms), "passed": follower.files}


def layout(source: Path) -> dict[str, int]:
    """Count modules, lines and what stands at the top of the package."""
    modules = list(source.rglob("*.py"))
    top = [path.name for path in (source / "hierspec").iterdir() if path.name != "__pycache__"]
    return {
        "modules": len(modules),
        "modules_over_400_lines": sum(len(lines_of(path)) > 400 for path in modules),
        "lines": sum(len(lines_of(path)) for path in modules),
        "lines_of_hierspec": sum(len(lines_of(p)) for p in (source / "hierspec").rglob("*.py")),
        "entries": len(top),
    }


def lines_of(path: Path) -> list[str]:
    """Return a file's lines."""
    return path.read_text().splitlines()


def journeys(source: Path, folder: Path) -> dict[str, Any]:
    """Follow the four through the packages under ``source``, with files in ``folder``."""
    hierarchy = folder / "hierarchy.json"
    levels = [
        {"method": "draft_model", "model": "zoo:small", "num_speculative_tokens": 3},
        {"method": "draft_model", "model": "zoo:mid", "num_speculative_tokens": 6},
    ]
    hierarchy.write_text(json.dumps({"target": {"model": "zoo:trunk"}, "levels": levels}))
    problem = folder / f"{MARK}problem.json"
    acceptance = [[1, 0.6, 0.5], [0.6, 1, 0.9], [0.5, 0.9, 1]]
    problem.write_text(json.dumps({"costs": [1, 4, 30], "acceptance": acceptance}))
    prompts = folder / f"{MARK}prompts.jsonl"
    texts = [f"def number_{i}(x):" for i in range(4)]
    prompts.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts))

    generate = ["generate", PROMPT, "--hierarchy", str(hierarchy), "--max-new-tokens", "16"]
    plan = ["plan", str(problem), "--simulate", str(ROUNDS)]
    plan += ["--picture", str(folder / f"{MARK}plan.svg"), "--map", str(folder / f"{MARK}map.svg")]
    bench = ["bench", "--target", "zoo:trunk", "--draft", "zoo:small", "--methods", "speculative"]
    bench += ["--prompts", str(prompts), "--num-prompts", "2", "--tune-prompts", "1"]
    bench += ["--max-new-tokens", "8", "--tune-tokens", "8", "--seed", str(SEED)]
    bench += ["--temperature", str(TEMPERATURE), "-o", str(folder / f"{MARK}bench.json")]
    bench += ["--report", str(folder / f"{MARK}report.html")]

    follow(source, is_option, generate)  # loads what is loaded once
    from transformers import AutoTokenizer

    IDS[:] = AutoTokenizer.from_pretrained(tokenizer_folder(source))(PROMPT)["input_ids"]
    return {
        "prompt": follow(source, is_prompt, generate),
        "proposal": follow(source, is_proposal, generate),
        "plan's options": follow(source, is_option, plan),
        "bench's options": follow(source, is_option, bench),
    }


def tokenizer_folder(source: Path) -> Path:
    """Return where the shipped family's tokenizer is."""
    return next(source.rglob("tokenizer.json")).parent


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--before", type=Path, help="what this script wrote of an older layout")
    args = parser.parse_args()
    import hierspec

    source = Path(hierspec.__file__).resolve().parents[1]
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=source, capture_output=True, text=True
    ).stdout.strip()
    with tempfile.TemporaryDirectory() as folder:
        passed = journeys(source, Path(folder))
    version = ".".join(map(str, sys.version_info[:3]))
    report = {"commit": commit, "python": version, "layout": layout(source), "journeys": passed}
    for name, journey in passed.items():
        print(f"{name}: {journey['files']} files in {journey['rooms']} rooms", file=sys.stderr)
    if args.before:
        report = {"before": json.loads(args.before.read_text()), "after": report}
    text = json.dumps(report, indent=1)
    if args.output:
        args.output.write_text(text + "\n")
    else:
        print(text)


if __name__ == "__main__":
    main()
