"""llama.cpp through llama-cpp-python: plain decoding and its prompt lookup.

The keys and values it keeps are float16 (its default) unless the weights are float32.
"""

from __future__ import annotations

import atexit
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from hierspec.bench.methods.base import Request, Unavailable
from hierspec.bench.methods.entry import MethodEntry
from hierspec.bench.peers.checkpoints import exported
from hierspec.bench.peers.edge import PROMPT_LOOKUP, Peer, Stopwatch, needed
from hierspec.bench.peers.gguf_file import unsupported, write_gguf
from hierspec.bench.peers.hf import LOOKUPS

if TYPE_CHECKING:
    from hierspec.bench.methods.base import Method
    from hierspec.bench.methods.ours import BenchModels

PACKAGE = "llama-cpp-python"
CONTEXT = 2048  # room for tokens at first; a longer request makes more


class LlamaCppMethod(Peer):
    """``Llama.generate`` on token ids; ``configuration``: of ``LlamaPromptLookupDecoding``."""

    package = PACKAGE

    def decode(
        self, prompt: list[int], request: Request, watch: Stopwatch
    ) -> tuple[Sequence[int], int]:
        llama = _llamas(self.models).get(
            speculative=bool(self.configuration), room=len(prompt) + request.max_new_tokens
        )
        finder = llama.draft_model = _finder(self.configuration)
        llama.reset()  # else a prompt seen before would not be read again
        llama.set_seed(request.seed)
        written: list[int] = []
        watch.begin()
        for token in llama.generate(
            prompt, temp=request.temperature, top_k=0, top_p=1.0, min_p=0.0
        ):
            if not written:
                watch.token()
            written.append(int(token))
            if request.ended(written):
                break
        watch.end()
        return written, finder.calls if finder else len(written) - 1


class _Llamas:
    """A ``Llama`` per way of keeping scores: those of all rows only where a draft is verified."""

    def __init__(self, models: BenchModels) -> None:
        self.models = models
        self.made: dict[bool, Any] = {}

    def get(self, speculative: bool, room: int) -> Any:
        """One that holds ``room`` tokens."""
        llama = self.made.get(speculative)
        if llama is None or llama.n_ctx() < room:
            self.made[speculative] = llama = self._make(speculative, room)
        return llama

    def _make(self, speculative: bool, room: int) -> Any:
        import torch

        package = needed("llama_cpp", PACKAGE)
        held = exported(self.models)
        if held.device.type != "cpu":
            raise Unavailable("llama.cpp is run on the CPU only: add --device cpu")
        model = held.hf(held.target)
        longest = model.config.max_position_embeddings
        if room > longest:
            raise Unavailable(f"prompt and text are {room} tokens; {held.target} reads {longest}")
        file = held.scratch() / "target.gguf"
        if not file.exists():
            unfinished = file.with_name("unfinished.gguf")
            write_gguf(model, unfinished)
            unfinished.replace(file)
        exact = package.GGML_TYPE_F32 if held.dtype == torch.float32 else None
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


def _finder(configuration: dict[str, Any]) -> Any:
    """A prompt lookup that counts: it is asked once before every forward after the prompt's."""
    if not configuration:
        return None
    speculative = needed("llama_cpp.llama_speculative", PACKAGE)

    class Counted(speculative.LlamaPromptLookupDecoding):
        calls = 0

        def __call__(self, input_ids: Any, /, **kwargs: Any) -> Any:
            self.calls += 1
            return super().__call__(input_ids, **kwargs)

    return Counted(**configuration)


def plain(models: BenchModels, temperature: float) -> list[Method]:
    _check(models)
    return [LlamaCppMethod("llama.cpp", models, {})]


def prompt_lookup(models: BenchModels, temperature: float) -> list[Method]:
    _check(models)
    return [
        LlamaCppMethod(
            "llama.cpp-prompt-lookup", models, {"num_pred_tokens": n, "max_ngram_size": longest}
        )
        for n, longest in LOOKUPS
    ]


def _check(models: BenchModels) -> None:
    from hierspec.config.target import target_config

    needed("llama_cpp", PACKAGE)
    needed("gguf", "gguf")
    if why := unsupported(target_config(models.target.model), "float32"):
        raise Unavailable(f"no GGUF file of this model is written: {why}")


def entries() -> list[MethodEntry]:
    return [
        MethodEntry(
            "llama.cpp", "llama.cpp", "peer", "",
            "llama.cpp through llama-cpp-python, one token a forward", plain,
        ),
        MethodEntry(
            "llama.cpp-prompt-lookup", "llama.cpp, prompt lookup", "peer", PROMPT_LOOKUP,
            "drafts copied from the context, in llama-cpp-python", prompt_lookup,
        ),
    ]  # fmt: skip
