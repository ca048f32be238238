"""The package sequential-speculative-decoding: standard, naive and "capped" steps of P4.

Its steps are called here as its own ``speculative_generate`` calls them, which takes chat text
only. It keeps no cache: both models read the whole context again at every step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from hierspec_lab.bench.methods.base import RunRequest
from hierspec_lab.bench.methods.entry import MethodEntry

from .base import (
    LEVIATHAN,
    Peer,
    Stopwatch,
    failures_as_unavailable,
    import_peer,
    seeded,
)
from .checkpoints import exported
from .hf import drafts_and_lengths

if TYPE_CHECKING:
    from hierspec_lab.bench.methods.base import Method
    from hierspec_lab.bench.methods.ours import BenchModels

PACKAGE = "sequential-speculative-decoding"
# Its step functions: module and name, by what speculative_generate calls them.
STEPS = {
    "standard": ("standard_sd", "standard_speculative_step"),
    "naive_hsd": ("naive_hsd", "naive_hsd_step"),
    "capped_hsd": ("capped_hsd", "capped_hsd_step"),
}


class SequentialMethod(Peer):
    """Repeats one of ``STEPS``; tokens beyond the number requested are cut off."""

    package = PACKAGE
    ends_texts = False

    def decode(
        self, prompt: list[int], request: RunRequest, watch: Stopwatch
    ) -> tuple[Sequence[int], int]:
        import torch

        step = step_of(self.configuration["method"])
        checkpoints = exported(self.models)
        target = Scored(checkpoints.hf(checkpoints.target))
        drafter = Scored(checkpoints.hf(self.configuration["draft_model"]))
        ids = torch.tensor([prompt], device=checkpoints.device)
        end = ids.shape[1] + request.max_new_tokens
        with seeded(checkpoints.device, request.seed):
            watch.begin()
            while ids.shape[1] < end:
                ids, _, _ = step(
                    drafter,
                    target,
                    ids,
                    gamma=self.configuration["gamma"],
                    draft_temperature=request.temperature,
                    target_temperature=request.temperature,
                )
                watch.token()
            token_ids = ids[0, len(prompt) : end].tolist()
            watch.end()
        return token_ids, target.calls


class Scored:
    """A model with the package's call signature, which counts calls and gives float32 scores.

    The package takes softmaxes in the scores' own dtype: three digits in bfloat16.
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
    """Import the package's step function of a method.

    Raises:
        Unavailable: the package is missing, or has no such function.
    """
    module, name = STEPS[method]
    with failures_as_unavailable(PACKAGE):
        return getattr(import_peer(f"seqspecdecod.{module}", PACKAGE), name)


def _candidates(method: str) -> Callable[[BenchModels, float], list[Method]]:
    def candidates(models: BenchModels, temperature: float) -> list[Method]:
        step_of(method)  # says what to install
        return [
            SequentialMethod(
                f"sequential-{method.replace('_', '-')}",
                models,
                {"method": method, "draft_model": draft, "gamma": n},
            )
            for draft, n in drafts_and_lengths(models)
        ]

    return candidates


def entries() -> list[MethodEntry]:
    rows = (
        ("standard", LEVIATHAN, "tokenwise verification", True),
        ("naive_hsd", "P4", "naive branch resampling", True),
        ("capped_hsd", "P4", "capped branch resampling, off by one position", False),
    )
    return [
        MethodEntry(
            f"sequential-{method.replace('_', '-')}",
            f"sequential-speculative-decoding, {method}",
            "peer",
            source,
            f"{summary}, in {PACKAGE}; no cache",
            _candidates(method),
            lossless,
        )
        for method, source, summary, lossless in rows
    ]
