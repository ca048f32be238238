"""llama.cpp through llama-cpp-python: plain decoding and its prompt lookup.

It runs the target's weights in the data type of their file, where ours may have been widened. Where
that file is a GGUF it also runs the file itself (``llama.cpp-file``), whose quantized arithmetic
changes the distribution of the text. Keys and values are float16 (its default) unless the weights
are float32.
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
from .gguf_file import unsupported, write_gguf
from .hf import LOOKUPS

if TYPE_CHECKING:
    from hierspec_lab.bench.methods.base import Method
    from hierspec_lab.bench.methods.ours import BenchModels

PACKAGE = "llama-cpp-python"
CONTEXT = 2048  # tokens of prompt and text at first; a longer request makes room for more


@dataclass(eq=False, repr=False)
class LlamaCppMethod(Peer):
    """``Llama.generate`` on token ids; ``configuration``: of ``LlamaPromptLookupDecoding``."""

    package = PACKAGE
    original: bool = False  # whether it runs the target's own GGUF file

    @property
    def dtype(self) -> Any:
        """The torch dtype that it computes in."""
        return exported(self.models).gguf_dtype

    def decode(
        self, prompt: list[int], request: RunRequest, watch: Stopwatch
    ) -> tuple[Sequence[int], int]:
        llama = _llamas(self.models).get(
            self.original,
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
        self.loaded: dict[tuple[bool, bool], Any] = {}

    def get(self, original: bool, speculative: bool, room: int) -> Any:
        """Return a ``Llama`` with room for ``room`` tokens, made on first use."""
        llama = self.loaded.get((original, speculative))
        if llama is None or llama.n_ctx() < room:
            self.loaded[original, speculative] = llama = self._make(original, speculative, room)
        return llama

    def _make(self, original: bool, speculative: bool, room: int) -> Any:
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
        file = _own_file(checkpoints.target) if original else checkpoints.scratch() / "target.gguf"
        dtype = _narrowest(model, checkpoints.gguf_dtype)
        if not original and not file.exists():
            unfinished = file.with_name("unfinished.gguf")
            write_gguf(model, unfinished, str(dtype).removeprefix("torch."))
            unfinished.replace(file)
        wide = dtype == torch.float32 and not original
        exact = package.GGML_TYPE_F32 if wide else None
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


def plain(models: BenchModels, original: bool = False) -> list[Method]:
    """Return plain decoding by llama.cpp; ``original``: on the target's own GGUF file."""
    _refuse_unsupported(models, original)
    name = "llama.cpp-file" if original else "llama.cpp"
    return [LlamaCppMethod(name, models, {}, original)]


def prompt_lookup(models: BenchModels, original: bool = False) -> list[Method]:
    _refuse_unsupported(models, original)
    name = "llama.cpp-file-prompt-lookup" if original else "llama.cpp-prompt-lookup"
    return [
        LlamaCppMethod(name, models, {"num_pred_tokens": n, "max_ngram_size": longest}, original)
        for n, longest in LOOKUPS
    ]


def _refuse_unsupported(models: BenchModels, original: bool) -> None:
    from hierspec.config.target import model_config

    if original:
        _own_file(models.target.model)
    import_peer("llama_cpp", PACKAGE)
    import_peer("gguf", "gguf")
    if reason := unsupported(model_config(models.target.model), "float32"):
        raise Unavailable(f"no GGUF file of this model is written: {reason}")


def entries() -> list[MethodEntry]:
    return [
        MethodEntry(
            "llama.cpp", "llama.cpp", "peer", "",
            "llama.cpp through llama-cpp-python, one token a forward",
            lambda models, temperature: plain(models),
        ),
        MethodEntry(
            "llama.cpp-prompt-lookup", "llama.cpp, prompt lookup", "peer", PROMPT_LOOKUP,
            "drafts copied from the context, in llama-cpp-python",
            lambda models, temperature: prompt_lookup(models),
        ),
        MethodEntry(
            "llama.cpp-file", "llama.cpp, the GGUF file itself", "peer", "",
            "llama.cpp on the target's own GGUF file, quantized as it is",
            lambda models, temperature: plain(models, original=True), lossless=False,
        ),
        MethodEntry(
            "llama.cpp-file-prompt-lookup", "llama.cpp, GGUF file, prompt lookup", "peer",
            PROMPT_LOOKUP, "the same, drafts copied from the context",
            lambda models, temperature: prompt_lookup(models, original=True), lossless=False,
        ),
    ]  # fmt: skip
