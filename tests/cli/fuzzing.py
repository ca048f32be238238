"""Random command lines and hierarchy files, and what must hold of each: one true line, no bug.

Models are tiny, and what would measure or train for minutes is stopped where it begins: all that
stands before it is what users get wrong.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
import pkgutil
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from hypothesis import strategies as st
from tiny_zoo import FOLDER

from hierspec.cli import run
from hierspec.errors import HierspecError

STOPPED = "stopped before work begins"
# What measures, trains or serves: where its modules keep it, and where commands import it from.
_WORK = (
    "hierspec.profiling.measure.measure",
    "hierspec.profiling.auto.measure",
    "hierspec.server.process.make_server",
)
_WORK_OF_THE_LAB = (
    "hierspec_lab.training.heads.train.train",
    "hierspec_lab.training.family.build.train",
    "hierspec_lab.cli.bench._measure",
    "hierspec_lab.papers.lab.Lab.load",
)
HAS_THE_LAB = find_spec("hierspec_lab") is not None
_LEFT_OUT = ("--install-completion", "--show-completion", "--help", "-h")  # change or show too much
_OUTPUTS = ("output", "trace", "picture", "heat_map", "report", "plots", "figures", "spec_bench",
            "checkpoints", "out")  # fmt: skip


class Playground:
    """A folder of tiny models and of files, good and damaged; :meth:`call` runs a command in it."""

    def __init__(self, folder: Path) -> None:
        from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

        self.folder = folder
        tokenizer = AutoTokenizer.from_pretrained(FOLDER / "tiny")
        tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
        sizes = {"vocab_size": len(tokenizer), "num_hidden_layers": 2, "num_attention_heads": 2}
        config = LlamaConfig(
            **sizes, hidden_size=8, intermediate_size=8, max_position_embeddings=64
        )
        for name in ("target", "draft"):
            torch.manual_seed(len(name))
            LlamaForCausalLM(config).save_pretrained(folder / name)
            tokenizer.save_pretrained(folder / name)
        self.target, self.draft = str(folder / "target"), str(folder / "draft")
        for name, spoil in _SPOILT.items():
            shutil.copytree(folder / "target", folder / name)
            spoil(folder / name)
        for name, body in _FILES.items():
            (folder / name).write_bytes(body)
        (folder / "good.json").write_text(json.dumps(self.hierarchy()))
        (folder / "empty folder").mkdir()

    def hierarchy(self) -> dict[str, Any]:
        level = {"method": "draft_model", "model": self.draft, "num_speculative_tokens": 2}
        return {"target": {"model": self.target}, "levels": [level], "verify": "block"}

    def models(self) -> st.SearchStrategy[str]:
        names = [self.target, self.draft, *(str(self.folder / name) for name in _SPOILT)]
        known = ["zoo:nope", "zoo:", "zoo:ngram", "zoo:tiny?eps=x", "zoo:tiny-draft?a=b", "ngram",
                 "exit:1", "exit:x", "exit:1,head=no", "prompt-lookup", "suffix", "quantized",
                 "quantized:4", "quantized:5", "eagle3:no", "zoo:smollm2-eagle3",
                 "zoo:smollm2-none", "/nonexistent", "./no", "~/no",
                 "~nobody-of-this-name/x", "a/b/c", "",
                 "no.gguf", str(self.folder / "text.txt"), str(self.folder / "empty folder"),
                 f"{self.target},temperature=x", f"{self.draft},window=entropy"]  # fmt: skip
        return st.sampled_from([*names, *names[:2] * 4, *known])

    def inputs(self) -> st.SearchStrategy[str]:
        names = [*_FILES, "good.json", "target", "empty folder", "none.json", "none/none.jsonl"]
        special = ["/dev/null", "", "x" * 5000]
        return st.sampled_from([*(str(self.folder / name) for name in names), *special])

    def outputs(self) -> st.SearchStrategy[str]:
        names = [
            "out.json",
            "out.svg",
            "out.html",
            "out.png",
            "out.xyz",
            "new/out.jsonl",
            "text.txt/x",
        ]
        places = [*(str(self.folder / "written" / name) for name in names[:-1])]
        special = ["/dev/full", "/dev/null", str(self.folder / "text.txt" / "x"), "", "-"]
        return st.sampled_from([*places, str(self.folder), *special])

    @contextlib.contextmanager
    def open(self) -> Iterator[None]:
        """Stop work before it begins; read a tokenizer once; name a tiny model where none is."""
        from hierspec.config import checkpoints

        def stop(*args: Any, **kwargs: Any) -> Any:
            raise HierspecError(STOPPED)

        load = checkpoints.load_tokenizer
        kept = functools.cache(lambda path: load(path))

        def once(source: Any) -> Any:
            return kept(source) if isinstance(source, str) else load(source)

        with contextlib.ExitStack() as stack:
            stack.enter_context(contextlib.chdir(self.folder))  # where files by any name may lie
            work = (*_WORK, *(_WORK_OF_THE_LAB if HAS_THE_LAB else ()))
            for name in work:  # all imported first: none then keeps another's replacement
                pkgutil.resolve_name(name)
            for name in work:
                stack.enter_context(mock.patch(name, stop))
            stack.enter_context(mock.patch.object(checkpoints, "load_tokenizer", once))
            stack.enter_context(mock.patch("hierspec.presets.defaults.SMOLLM2_NAME", self.target))
            stack.enter_context(
                mock.patch("hierspec.presets.defaults.missing_packages", return_value="")
            )
            cache = {"HIERSPEC_CACHE": str(self.folder / "cache")}
            stack.enter_context(mock.patch.dict(os.environ, cache))
            stack.enter_context(warnings.catch_warnings())
            warnings.simplefilter("ignore")
            yield

    def call(self, argv: list[str]) -> tuple[int, str]:
        """Run a command line; return its exit status and what it says on standard error.

        Raises:
            AssertionError: it fails in another way than a command may.
        """
        out, err = io.StringIO(), io.StringIO()
        stdin = io.TextIOWrapper(io.BytesIO(b"def f(x):\n"))
        try:
            with (
                contextlib.redirect_stdout(out),
                contextlib.redirect_stderr(err),
                mock.patch.object(sys, "stdin", stdin),
            ):
                status = run(argv)
        except BaseException as error:
            raise AssertionError(f"{argv}: {type(error).__name__}: {error}") from error
        said = err.getvalue()
        assert "Traceback" not in said, (argv, said)
        assert "this is a bug" not in said, (argv, said)
        assert status in (0, 1, 2), (argv, status, said)
        if status == 2:
            complaints = [
                line for line in said.splitlines() if line.startswith("hierspec: error: ")
            ]
            assert len(complaints) == 1, (argv, said)
            assert complaints[0] == said.splitlines()[-1], (argv, said)
        return status, said


def _edit(**changes: Any) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        file = folder / "config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))

    return edit


_SPOILT: dict[str, Callable[[Path], Any]] = {
    "more layers": _edit(num_hidden_layers=3),
    "fewer layers": _edit(num_hidden_layers=1),
    "wider": _edit(hidden_size=16),
    "more heads": _edit(num_attention_heads=4),
    "other vocabulary": _edit(vocab_size=99),
    "another family": _edit(model_type="nonsense"),
    "cut weights": lambda folder: (folder / "model.safetensors").write_bytes(b"\x08" * 99),
    "pickled weights": lambda folder: (folder / "model.safetensors").rename(
        folder / "pytorch_model.bin"
    ),
    "cut tokenizer": lambda folder: (folder / "tokenizer.json").write_text('{"a'),
    "no tokenizer": lambda folder: [file.unlink() for file in folder.glob("tokenizer*")],
    "adapter": lambda folder: (folder / "config.json").rename(folder / "adapter_config.json"),
    "config of lists": lambda folder: (folder / "config.json").write_text("[]"),
}
_FILES = {
    "text.txt": b"def f(x):\n    return x\n",
    "empty.txt": b"",
    "latin.txt": b"caf\xe9",
    "deep.json": b"[" * 100_000,
    "deep.toml": b"a = " + b"[" * 5000,
    "deeper.json": b'{"a":' * 100_000,
    "long.json": b"1" * 6000,
    "list.json": b"[1, 2]",
    "null.jsonl": b"null\n",
    "ids.jsonl": b"[1, 2, 3]\n",
    "prompts.jsonl": b'{"prompt": "import os"}\n"x = 1"\n',
    "case.json": b'{"vocab": 2, "models": [], "levels": []}',
    "problem.json": b'{"costs": [1, 4], "acceptance": [[null, 0.5], [null, null]]}',
    "profile.json": b'{"kind": "hierspec-profile", "schema_version": 1}',
    "results.json": b'{"kind": "hierspec-bench", "schema_version": 1}',
    "trace.jsonl": b'{"kind": "draft", "began": 0, "seconds": 1}\n',
    "bytes.json": bytes(range(256)),
    "toml.toml": b'target = "x"\n[[levels]]\nmethod = 3\n',
    "nan.json": b'{"costs": [NaN, 1e999], "acceptance": [[]]}',
    "table.safetensors": b"\0" * 64,
}
_SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 9),
    st.sampled_from([10**30, -(2**63), 2**64, 0.5, -0.0, 1e300, float("nan"), float("inf"), 1e-9]),
    st.text(max_size=6),
)
_JSON = st.recursive(
    _SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=6,
)  # fmt: skip
# What a shell can hand over: no null character, and bytes that are no UTF-8 as lone surrogates.
_TEXTS = st.one_of(
    st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12),
    st.sampled_from(["0", "1", "2", "7", "-1", "1.5", "nan", "inf", "-inf", "1e400", "1e-7", "true",
                     "99999999999999999999", "0x10", "--", "-", "*", "1,2", "2GiB", "1PB", "[bold]",
                     "\udcff", "d\udc80f", "%s", "{", "[]", "{}", "é" * 40]),
)  # fmt: skip


def _values(play: Playground, option: Any, choices: dict[str, list[str]]) -> st.SearchStrategy[str]:
    """Values of an option: mostly of its kind, sometimes anything."""
    name, kind = option.name, str(getattr(option, "bare_type", "")).lower()
    if name in ("target", "draft", "model", "tokenizer", "candidates", "more"):
        right: st.SearchStrategy[str] = play.models()
    elif name == "hierarchy":
        right = st.one_of(st.sampled_from(choices["presets"]), play.inputs(), hierarchies(play))
    elif name in _OUTPUTS:
        right = play.outputs()
    elif "path" in kind or name in ("file", "case", "prompts", "from_", "texts"):
        right = play.inputs()
    elif name == "simulate":  # rounds, each of which is run
        right = st.sampled_from(["2", "9", "1", "0", "-1", "x"])
    elif "int" in kind:
        right = st.sampled_from(["0", "1", "2", "3", "8", "-1", "4294967296", str(2**64)])
    elif "float" in kind:
        right = st.sampled_from(["0", "1", "0.7", "-1", "nan", "inf", "1e-9", "1e300"])
    elif name in ("device", "dtype"):
        right = st.sampled_from(["cpu", "cuda", "meta", "auto", "float32", "bfloat16", "int8", "x"])
    else:
        right = st.one_of(st.sampled_from(choices.get(name, ["x"])), _TEXTS)
    return st.one_of(right, right, right, right if name == "simulate" else _TEXTS)


def command_lines(play: Playground) -> st.SearchStrategy[list[str]]:
    """Command lines of every command: its own options with good and bad values, and strays."""
    import typer.main

    from hierspec.cli.root import app
    from hierspec.presets.registry import AUTO, PRESETS

    papers: tuple[str, ...] = ()
    if HAS_THE_LAB:
        from hierspec_lab.papers import COMPUTED, MEASURED

        papers = (*COMPUTED, *MEASURED)
    choices = {
        "presets": [*PRESETS, AUTO, "nope"],
        "what": [*papers, "all", "p9"],
        "methods": ["all", "papers", "speculative", "nope", "plain,hierarchy"],
        "latency_model": ["exact", "corollary"],
        "exits": ["1", "1,2", "0", "x"],
        "kind": ["transform", "full"],
        "to": ["vllm", "transformers"],
        "acceptances": ["iid", "curves", "recorded"],
        "costs": ["real", "artificial"],
        "memory_budget": ["2GiB", "1B"],
    }

    def leaves(command: Any, words: list[str]) -> Iterator[tuple[list[str], Any]]:
        inner = getattr(command, "commands", None)
        if inner is None:
            yield words, command
            return
        for name, below in inner.items():
            yield from leaves(below, [*words, name])

    commands = list(leaves(typer.main.get_command(app), []))
    generating = [pair for pair in commands if pair[0] == ["generate"]]

    @st.composite
    def line(draw: st.DrawFn) -> list[str]:
        words, command = draw(st.sampled_from([*commands, *generating * 4]))
        argv, most = list(words), draw(st.integers(0, 5))
        options = [p for p in command.params if p.param_type_name == "option"]
        options = [p for p in options if not set(p.opts) & set(_LEFT_OUT)]
        for param in command.params:
            if param.param_type_name == "argument" and draw(st.integers(0, 9)):
                argv.append(draw(_values(play, param, choices)))
            elif param.required and param.param_type_name == "option" and draw(st.integers(0, 9)):
                argv += [param.opts[0], draw(_values(play, param, choices))]
        if words == ["generate"]:  # short, and mostly of models that are there
            argv += ["--max-new-tokens", draw(st.sampled_from(["1", "2", "5", "9", "999"]))]
            if draw(st.integers(0, 9)):
                argv += ["--target", draw(play.models()), "--draft", play.draft]
        for option in draw(st.lists(st.sampled_from(options), max_size=most)) if options else ():
            flag = draw(st.sampled_from([*option.opts, *option.secondary_opts]))
            argv.append(flag)
            if not option.is_flag:
                argv.append(draw(_values(play, option, choices)))
        if not draw(st.integers(0, 9)):
            argv.insert(draw(st.integers(0, len(argv))), draw(_TEXTS))
        return [word for word in argv if word not in _LEFT_OUT]

    strays = st.lists(st.one_of(_TEXTS, st.sampled_from(["generate", "zoo", "heads", "ngram"])))
    return st.one_of(line(), line(), line(), line(), line(), line(), strays)


def hierarchies(play: Playground) -> st.SearchStrategy[str]:
    """Hierarchies as inline JSON: those that run, with anything changed or added anywhere."""
    keys = ["method", "model", "num_speculative_tokens", "verify", "window", "temperature", "bonus",
            "exit_layer", "exit_layers", "max_order", "table", "prompt_lookup_min", "levels",
            "prompt_lookup_max", "num_drafts", "skip", "skip_layers", "repeat", "confidence",
            "skip_attention", "skip_mlp", "search", "unsure",
            "head", "dtype", "backend", "target", "allow_lossy", "top_m", "kind", "threshold",
            "shared", "ngram_min", "ngram_max", "parts", "store", "bits",
            "budget", "chunk_size", "refresh", "window_size", "max_candidates"]  # fmt: skip
    methods = ["ngram_table", "prompt_lookup", "draft_model", "early_exit", "concatenate",
               "layer_skip", "adaptive_exit", "ngram_pool", "suffix", "quantized", "eagle3",
               "lookahead", "retrieval", "nope"]  # fmt: skip
    rules = [
        "block",
        "tokenwise",
        "naive",
        "leading",
        "uncapped",
        "branch",
        "rrs",
        "block-rrs",
        "traversal",
        "induced-block",
        "x",
    ]
    right = {
        "method": st.sampled_from(methods),
        "verify": st.sampled_from(rules),
        "model": play.models(),
        "window": st.fixed_dictionaries(
            {"kind": st.sampled_from(["fixed", "entropy", "confidence", "x"])},
            optional={"threshold": _SCALARS, "floor": _SCALARS},
        ),
        "temperature": st.sampled_from([0, 0.7, 1, -1]),
    }
    level = st.dictionaries(st.sampled_from(keys), _SCALARS, max_size=3)

    @st.composite
    def chosen(draw: st.DrawFn) -> dict[str, Any]:
        out = {"method": draw(right["method"]), "num_speculative_tokens": draw(st.integers(1, 4))}
        if out["method"] == "draft_model":
            out["model"] = play.draft
        needed = {"early_exit": ("exit_layer", 1), "layer_skip": ("skip", 1),
                  "eagle3": ("model", "no"), "adaptive_exit": ("exit_layers", [1]),
                  "concatenate": ("levels", [])}  # fmt: skip
        if out["method"] in needed:
            key, value = needed[out["method"]]
            out[key] = value
        for key in draw(st.lists(st.sampled_from(keys), max_size=2)):
            out[key] = draw(st.one_of(right.get(key, _JSON), _JSON))
        return out

    @st.composite
    def whole(draw: st.DrawFn) -> str:
        data: Any = play.hierarchy()
        data["levels"] = draw(st.lists(st.one_of(chosen(), chosen(), level), max_size=3))
        for _ in range(draw(st.integers(0, 2))):
            key = draw(st.sampled_from(["target", "levels", "verify", "top_m", "allow_lossy", "x"]))
            data[key] = draw(st.one_of(right.get(key, _JSON), _JSON))
        text = json.dumps(data)
        if not draw(st.integers(0, 9)):
            cut = draw(st.integers(0, len(text)))
            text = text[:cut] + draw(_TEXTS)
        return text

    return whole()
