"""The stage ``micro`` of ``gpu_once.py``: calls and drafts on Llama's shapes, random weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from typing import Any

from gpu_stage import TINY, Stage, free, in_one_line, milliseconds

CONTEXTS, ROWS, DRAFT = (300, 2000), (1, 4, 8, 16, 32), 8


def llamas(tiny: bool) -> dict[str, Any]:
    from transformers import LlamaConfig

    if tiny:
        sizes = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
        return {
            TINY: LlamaConfig(
                vocab_size=512, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
                max_position_embeddings=4096, tie_word_embeddings=False, **sizes,
            )
        }  # fmt: skip
    shared = {
        "vocab_size": 128256, "max_position_embeddings": 8192, "rope_theta": 5e5,
        "num_attention_heads": 32, "num_key_value_heads": 8,
    }  # fmt: skip
    return {
        "8B": LlamaConfig(
            hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, head_dim=128,
            tie_word_embeddings=False, **shared,
        ),
        "1B": LlamaConfig(
            hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, head_dim=64,
            tie_word_embeddings=True, **shared,
        ),
    }  # fmt: skip


def micro(stage: Stage) -> None:
    from random_models import RandomWeights

    device = stage.options.device
    sources = {
        name: RandomWeights(name, config, device) for name, config in llamas(stage.tiny).items()
    }
    for name, source in sources.items():
        try:
            calls_of_ours(stage, name, source)
        except Exception as error:
            stage.add(what="ours", model=name, error=in_one_line(error))
        free(stage)
    for compiled in (False, True) if stage.cuda else (False,):
        for name, source in sources.items():
            if compiled and stage.left() < 35:
                stage.add(what="transformers", model=name, error="no time left to compile it")
                continue
            stage.attempt(
                "transformers", lambda s=source, c=compiled: step_of_transformers(stage, s, c)
            )
            free(stage)


def calls_of_ours(stage: Stage, name: str, source: Any) -> None:
    """Time calls of rows and drafts, at each length of text."""
    import torch

    from hierspec.lm.lean.decoder import LeanBackend
    from hierspec.sampling.sampler import Sampler

    backend = LeanBackend(source, torch.bfloat16, stage.options.device)
    vocab, repeats = source.config.vocab_size, 3 if stage.tiny else 15
    samplers = {
        "greedy": Sampler(vocab, 0.0),
        "temperature 1": Sampler(vocab, 1.0),
        "temperature 1, top-p 0.9": Sampler(vocab, 1.0, top_p=0.9),
    }

    def time_it(work: Callable[[], object]) -> float:
        return milliseconds(stage, work, repeats, 5)

    for length in CONTEXTS[:1] if stage.tiny else CONTEXTS:
        where = {"model": name, "context": length, "read_bytes": source.read_bytes}
        text = Text(backend, length)
        stage.add(what="prefill", **where, ms=milliseconds(stage, text.read_prompt, 1, 0))
        works: list[tuple[str, dict[str, Any], Callable[[], object], int]] = [
            ("rows", {"rows": n}, partial(text.check, n), 1) for n in ROWS
        ]
        works += [
            ("draft", {"sampler": label}, partial(text.draft, sampler), DRAFT)
            for label, sampler in samplers.items()
        ]
        for what, how, work, tokens in works:
            stage.attempt(what, partial(_timed, where | how, time_it, work, tokens))
        stage.add(what="shapes recorded", **where, number=text.trunk.graphs.num_recorded)


def _timed(
    record: dict[str, Any], time_it: Callable[..., float], work: Callable[[], object], tokens: int
) -> dict[str, Any]:
    ms = time_it(work)
    return record | ({"ms": ms} if tokens == 1 else {"ms": ms, "ms_per_token": ms / tokens})


class Text:
    """A text in a recording trunk that is continued differently each time."""

    def __init__(self, backend: Any, length: int) -> None:
        from hierspec.lm.base import Slot
        from hierspec.lm.trunk.cuda_graphs import CudaGraphTrunk

        self.trunk, self.slot, self._fresh = CudaGraphTrunk(backend), Slot(), count()
        self.tokens = [5 + (7 * i) % 400 for i in range(length)]

    def _query(self, context: Any, start: int) -> Any:
        from hierspec.lm.base import Query

        return Query(self.slot, context, start)

    def _new(self, n: int) -> tuple[int, ...]:
        return tuple(5 + next(self._fresh) % 400 for _ in range(n))

    def read_prompt(self) -> None:
        from hierspec.core.context import Context

        self.trunk.exit_model(0).score([self._query(Context(self.tokens, ()), len(self.tokens))])

    def check(self, rows: int) -> None:
        """Read so many tokens at once, and score the one after each."""
        from hierspec.core.context import Context

        context = Context([*self.tokens, *self._new(1)], self._new(rows - 1))
        self.trunk.exit_model(0).score([self._query(context, len(self.tokens) + 1)])

    def draft(self, sampler: Any) -> None:
        from hierspec.core.context import Context

        context = Context(self.tokens, self._new(1))
        query = self._query(context, len(context))
        self.trunk.exit_model(0).draft([query], [DRAFT], [sampler], [[0.5] * DRAFT])


def step_of_transformers(stage: Stage, source: Any, compiled: bool) -> dict[str, Any]:
    """Time a step with a static cache after the first context."""
    import torch

    from hierspec.lm.weights import build_hf_model

    model = build_hf_model(source, torch.bfloat16, stage.options.device)
    decoder = StaticDecoder(model, CONTEXTS[0] + 64, compiled)
    vocab = source.config.vocab_size
    decoder.read([5 + (7 * i) % min(400, vocab) for i in range(CONTEXTS[0])])
    token = torch.full((1, 1), 7, device=stage.options.device)
    ms = milliseconds(stage, lambda: decoder.step(token, CONTEXTS[0]), 3 if stage.tiny else 15, 5)
    return {
        "model": source.name, "context": CONTEXTS[0], "compiled": compiled, "ms": ms,
        "read_bytes": source.read_bytes,
    }  # fmt: skip


class StaticDecoder:
    """transformers' model with a cache of fixed size, its step compiled with CUDA graphs or not."""

    def __init__(self, model: Any, length: int, compiled: bool) -> None:
        import torch
        from transformers import StaticCache

        self.model, self.compiled = model, compiled
        self.cache = StaticCache(config=model.config, max_cache_len=length)
        forward = model.forward
        if compiled:
            forward = torch.compile(forward, mode="reduce-overhead", fullgraph=False)
        self._forward = forward

    def read(self, ids: Sequence[int]) -> Any:
        """Read a prompt, eagerly, and return the scores after it, [1, V]."""
        import torch

        self.cache.reset()
        tokens = torch.tensor([list(ids)], device=self.model.device)
        places = torch.arange(tokens.shape[1], device=self.model.device)
        with torch.no_grad():
            out = self.model(
                tokens, past_key_values=self.cache, position_ids=places[None], logits_to_keep=1
            )
        return out.logits[:, -1]

    def step(self, token: Any, place: int) -> Any:
        """Read one token [1, 1] at a place, and return the scores after it, [1, V]."""
        import torch

        places = torch.full((1, 1), place, device=self.model.device)
        if self.compiled:
            torch.compiler.cudagraph_mark_step_begin()
        with torch.no_grad():
            out = self._forward(token, past_key_values=self.cache, position_ids=places)
        return out.logits[:, -1]
