"""llama.cpp through llama-cpp-python: plain decoding and its prompt lookup.

It runs the target's weights in the data type of their file, where ours may have been widened. Where
that file is a GGUF it also runs the file itself (``llama.cpp-file``), and it runs the weights in
fewer bits, quantized by itself (``llama.cpp-Q8_0``, …): both change the distribution of the text.
Keys and values are float16 (its default) unless the weights are float32.
"""

from __future__ import annotations

import atexit
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hierspec.zoo import registry
from hierspec.zoo.gguf.files import is_gguf, smollm2_file
from hierspec_lab.bench.methods.base import RunRequest, Unavailable
from hierspec_lab.bench.methods.entry import MethodEntry

from .base import PROMPT_LOOKUP, Peer, Stopwatch, import_peer
from .checkpoints import exported
from .gguf_file import quantize_gguf, unsupported, write_gguf
from .hf import LOOKUPS

if TYPE_CHECKING:
    from hierspec_lab.bench.methods.base import Method
    from hierspec_lab.bench.methods.ours import BenchModels

PACKAGE = "llama-cpp-python"
CONTEXT = 2048  # tokens of prompt and text at first; a longer request makes room for more
FILE = "file"  # the target's own GGUF file
QUANTIZED = ("Q8_0", "Q4_0", "Q4_K_M")  # what llama.cpp makes of the weights


@dataclass(eq=False, repr=False)
class LlamaCppMethod(Peer):
    """``Llama.generate`` on token ids; ``configuration``: of ``LlamaPromptLookupDecoding``.

    Attributes:
        kind: what it runs: ``FILE``, one of ``QUANTIZED``, or the weights as they are ("").
    """

    package = PACKAGE
    kind: str = ""

    @property
    def dtype(self) -> Any:
        """The torch dtype that it computes in."""
        return exported(self.models).gguf_dtype

    def decode(
        self, prompt: list[int], request: RunRequest, watch: Stopwatch
    ) -> tuple[Sequence[int], int]:
        llama = _llamas(self.models).get(
            self.kind,
            speculative=bool(self.configuration),
            room=len(prompt) + request.max_new_tokens,
        )
        finder = llama.draft_model = _finder(self.configuration)
        llama.reset()  # else a prompt seen before would not be read again
        llama.set_seed(request.seed)
        token_ids: list[int] = []
        watch.begin()
        for token in llama.generate(
            prompt, temp=request.temperature, top_k=0, top_p=1.0, min_p=0.0
        ):
            if not token_ids:
                watch.token()
            token_ids.append(int(token))
            if request.is_complete(token_ids):
                break
        watch.end()
        return token_ids, finder.calls if finder else len(token_ids) - 1


class _Llamas:
    """A ``Llama`` per file and per kind of scores: of all rows only where drafts are verified."""

    def __init__(self, models: BenchModels) -> None:
        self.models = models
        self.loaded: dict[tuple[str, bool], Any] = {}

    def get(self, kind: str, speculative: bool, room: int) -> Any:
        """Return a ``Llama`` with room for ``room`` tokens, made on first use."""
        llama = self.loaded.get((kind, speculative))
        if llama is None or llama.n_ctx() < room:
            self.loaded[kind, speculative] = llama = self._make(kind, speculative, room)
        return llama

    def _make(self, kind: str, speculative: bool, room: int) -> Any:
        import torch

        package = import_peer("llama_cpp", PACKAGE)
        checkpoints = exported(self.models)
        if checkpoints.device.type != "cpu":
            raise Unavailable("llama.cpp is run on the CPU only: add --device cpu")
        model = checkpoints.hf(checkpoints.target)
        longest = model.config.max_position_embeddings
        if room > longest:
            raise Unavailable(
                f"prompt and text are {room} tokens; {checkpoints.target} reads {longest}"
            )
        dtype = _narrowest(model, checkpoints.gguf_dtype)
        file = self._file(kind, model, dtype)
        exact = package.GGML_TYPE_F32 if dtype == torch.float32 and not kind else None
        threads = torch.get_num_threads()
        llama = package.Llama(
            str(file),
            n_ctx=min(longest, max(CONTEXT, room)),
            n_threads=threads,
            n_threads_batch=threads,
            logits_all=speculative,
            type_k=exact,
            type_v=exact,
            verbose=False,
        )
        atexit.register(llama.close)  # at its own deletion the library may be gone already
        return llama

    def _file(self, kind: str, model: Any, dtype: Any) -> Path:
        """Return the GGUF file of this kind; one that is not there yet is written."""
        if kind == FILE:
            return _own_file(exported(self.models).target)
        file = exported(self.models).scratch() / f"target{kind}.gguf"
        if not file.exists():
            unfinished = file.with_name("unfinished.gguf")
            if kind:
                quantize_gguf(self._file("", model, dtype), unfinished, kind)
            else:
                write_gguf(model, unfinished, str(dtype).removeprefix("torch."))
            unfinished.replace(file)
        return file


@lru_cache(maxsize=1)
def _llamas(models: BenchModels) -> _Llamas:
    return _Llamas(models)


def _own_file(target: str) -> Path:
    """Return the GGUF file that a target is read from.

    Raises:
        Unavailable: it is read from none.
    """
    if is_gguf(target):
        return Path(target)
    if target == registry.PREFIX + registry.SMOLLM2:
        return smollm2_file()
    raise Unavailable(f"{target} is not read from a GGUF file")


def _narrowest(model: Any, stored: Any) -> Any:
    """Return ``stored`` if it holds every weight of the model exactly, else the model's dtype."""
    exact = all(bool((w.to(stored).to(w.dtype) == w).all()) for w in model.parameters())
    return stored if exact else model.dtype


def _finder(configuration: dict[str, Any]) -> Any:
    """Make a prompt lookup that counts its calls: one before each forward after the prompt's."""
    if not configuration:
        return None
    speculative = import_peer("llama_cpp.llama_speculative", PACKAGE)

    class Counted(speculative.LlamaPromptLookupDecoding):
        calls = 0

        def __call__(self, input_ids: Any, /, **kwargs: Any) -> Any:
            self.calls += 1
            return super().__call__(input_ids, **kwargs)

    return Counted(**configuration)


def plain(models: BenchModels, kind: str = "") -> list[Method]:
    """Return plain decoding by llama.cpp of a ``kind`` as in :class:`LlamaCppMethod`."""
    _refuse_unsupported(models, kind)
    return [LlamaCppMethod(_name(kind), models, {}, kind)]


def prompt_lookup(models: BenchModels, kind: str = "") -> list[Method]:
    _refuse_unsupported(models, kind)
    name = f"{_name(kind)}-prompt-lookup"
    return [
        LlamaCppMethod(name, models, {"num_pred_tokens": n, "max_ngram_size": longest}, kind)
        for n, longest in LOOKUPS
    ]


def _name(kind: str) -> str:
    return f"llama.cpp-{kind}" if kind else "llama.cpp"


def _refuse_unsupported(models: BenchModels, kind: str) -> None:
    from hierspec.config.target import model_config

    if kind == FILE:
        _own_file(models.target.model)
    import_peer("llama_cpp", PACKAGE)
    import_peer("gguf", "gguf")
    if reason := unsupported(model_config(models.target.model), "float32"):
        raise Unavailable(f"no GGUF file of this model is written: {reason}")


def entries() -> list[MethodEntry]:
    what = {
        "": ("llama.cpp", "llama.cpp through llama-cpp-python, one token a forward"),
        FILE: (
            "llama.cpp, the GGUF file itself",
            "llama.cpp on the target's own GGUF file, quantized as it is",
        ),
    }
    what |= {
        kind: (f"llama.cpp, {kind}", f"llama.cpp on the weights that it has quantized to {kind}")
        for kind in QUANTIZED
    }
    found = []
    for kind, (title, summary) in what.items():
        found += [
            MethodEntry(
                _name(kind), title, "peer", "", summary,
                lambda models, temperature, kind=kind: plain(models, kind),
                lossless=not kind,
            ),
            MethodEntry(
                f"{_name(kind)}-prompt-lookup", f"{title}, prompt lookup", "peer", PROMPT_LOOKUP,
                "the same, drafts copied from the context",
                lambda models, temperature, kind=kind: prompt_lookup(models, kind),
                lossless=not kind,
            ),
        ]  # fmt: skip
    return found
