"""What a token costs outside the rounds: text, stop conditions, events."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence

from ..generate import Generation
from ..hierarchy import Verify
from ..params import SamplingParams
from ..stopping import StopConditions
from ..verifiers import base as verifiers
from .candidates import Pool

TOKENS = 24


def token_ms(pool: Pool, prompt: Sequence[int], temperature: float) -> float:
    """Milliseconds a token, from a short plain generation."""
    model = pool.entrants[-1].model
    root = Verify(0, "target", model, 1, verifiers.get("block"), None)
    generation = Generation(
        root,
        [list(prompt)],
        tokenizer=pool.tokenizer,
        params=[SamplingParams(temperature=temperature)],
        stop=StopConditions(
            eos_token_ids=frozenset(),
            ignore_eos=True,
            stop=(),
            max_new_tokens=TOKENS,
            max_length=model.max_length,
            include_stop_str=False,
        ),
        seed=0,
        want_logprobs=False,
        lock=contextlib.nullcontext(),
    )
    inside, answer = 0.0, generation.runtime.round

    def timed(*args, **kwargs):
        nonlocal inside
        began = time.perf_counter()
        out = answer(*args, **kwargs)
        inside += time.perf_counter() - began
        return out

    generation.runtime.round = timed  # type: ignore[method-assign]
    began = time.perf_counter()
    written = sum(1 for _ in generation)  # fewer where the context is full
    return max(1e3 * (time.perf_counter() - began - inside) / max(written, 1), 0.0)
