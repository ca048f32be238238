"""The package sequential-speculative-decoding: standard, naive and "capped" steps of P4.

Its steps are driven here as its own ``speculative_generate`` drives them, which takes chat text
only. It keeps no cache: every step reads the whole context again, with both models.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from hierspec.bench.methods.entry import Entry
from hierspec.bench.turns import Request, Run

from .checkpoints import exported
from .edge import Peer, complete, needed, reported
from .hf import LEVIATHAN, drafting

if TYPE_CHECKING:
    from hierspec.bench.methods.ours import Models
    from hierspec.bench.turns import Method

PACKAGE = "sequential-speculative-decoding"
# Its step functions: module and name, by what speculative_generate calls them.
STEPS = {
    "standard": ("standard_sd", "standard_speculative_step"),
    "naive_hsd": ("naive_hsd", "naive_hsd_step"),
    "capped_hsd": ("capped_hsd", "capped_hsd_step"),
}


class SequentialMethod(Peer):
    """One of ``STEPS``, again and again; what goes beyond the last token asked for is cut."""

    def run(self, prompt: Sequence[int], request: Request) -> Run:
        import torch

        with reported(PACKAGE):
            step = step_of(self.configuration["method"])
            held = exported(self.models)
            target = Scored(held.hf(held.target))
            drafter = Scored(held.hf(self.configuration["draft_model"]))
            devices = [held.device] if held.device.type == "cuda" else []
            ids = torch.tensor([prompt], device=held.device)
            end = ids.shape[1] + request.max_new_tokens
            with torch.random.fork_rng(devices), torch.inference_mode():
                torch.manual_seed(request.seed)
                began = first = time.perf_counter()
                while ids.shape[1] < end:
                    ids, _, _ = step(
                        drafter,
                        target,
                        ids,
                        gamma=self.configuration["gamma"],
                        draft_temperature=request.temperature,
                        target_temperature=request.temperature,
                    )
                    if first == began:
                        first = time.perf_counter()
                written = ids[0, len(prompt) : end].tolist()
                ended = time.perf_counter()
        run = Run(
            token_ids=tuple(written),
            seconds=ended - began,
            decode_seconds=ended - first,
            target_calls=target.calls,
        )
        return complete(PACKAGE, run, request)


class Scored:
    """A model as the package calls it, counted, and its scores in float32.

    Its laws are softmaxes in the scores' own dtype: in bfloat16 they would have three digits.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        self.calls = 0

    def __call__(self, input_ids: Any) -> Any:
        self.calls += 1
        out = self.model(input_ids)
        out.logits = out.logits.float()
        return out


def step_of(method: str) -> Callable[..., Any]:
    """The package's function.

    Raises:
        Unavailable: the package is missing, or has no such function (any more).
    """
    module, name = STEPS[method]
    with reported(PACKAGE):
        return getattr(needed(f"seqspecdecod.{module}", PACKAGE), name)


def _candidates(method: str) -> Callable[[Models, float], list[Method]]:
    def candidates(models: Models, temperature: float) -> list[Method]:
        step_of(method)  # says what to install
        return [
            SequentialMethod(
                f"sequential-{method.replace('_', '-')}",
                models,
                {"method": method, "draft_model": draft, "gamma": n},
            )
            for draft, n in drafting(models)
        ]

    return candidates


def entries() -> list[Entry]:
    told = (
        ("standard", LEVIATHAN, "tokenwise verification", True),
        ("naive_hsd", "P4", "naive branch resampling", True),
        (
            "capped_hsd",
            "P4",
            "capped branch resampling, off by one position",
            False,
        ),
    )
    return [
        Entry(
            f"sequential-{method.replace('_', '-')}",
            f"sequential-speculative-decoding, {method}",
            "peer",
            source,
            f"{about}, in {PACKAGE}; no cache",
            lossless,
            _candidates(method),
        )
        for method, source, about, lossless in told
    ]
