"""What stands between forwards, timed after a forward and repeated at once.

A pass over the weights drives everything else from the caches. Each piece of work below is timed
right after a forward of the target (cold) and in a loop of its own (warm).

    python benchmarks/cold.py
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from typing import Any

import common

TARGET, CONTEXT, DRAFT, VOCAB = "zoo:large?eps=0.2", 300, 12, 4096


def pieces() -> dict[str, Callable[[], Any]]:
    """Return work of a round by name; drafts are from other distributions than the verifier's."""
    import torch

    from hierspec.core.distributions import DenseDistributions, draw
    from hierspec.core.proposals import Proposal
    from hierspec.core.rng import PhiloxRng
    from hierspec.sampling.sampler import Sampler
    from hierspec.verifiers.registry import get
    from hierspec.verifiers.verify import verify

    seeded = torch.Generator().manual_seed(0)
    scores = 3 * torch.randn(DRAFT + 1, VOCAB, generator=seeded)
    sampled, greedy, rule = Sampler(VOCAB), Sampler(VOCAB, 0.0), get("block")
    q = DenseDistributions(
        (scores[:-1] + 0.3 * torch.randn(DRAFT, VOCAB, generator=seeded)).softmax(-1)
    )
    rng = PhiloxRng(0)
    tokens = tuple(draw(q.probs, rng.take(DRAFT)))
    owners = (0,) * DRAFT
    draft = Proposal(tokens, q, owners, owners, (float("nan"),) * DRAFT)
    p = sampled.distributions(scores)
    return {
        "an empty function": lambda: None,
        "one greedy row": lambda: greedy.distributions(scores[:1]),
        "one row's law": lambda: sampled.distributions(scores[:1]),
        f"{DRAFT + 1} rows' laws": lambda: sampled.distributions(scores),
        "a draw": lambda: draw(q.probs[:1], rng.take(1)),
        f"a block verdict on {DRAFT} tokens": lambda: verify_short(rule, draft, p, rng),
        "the same, padded": lambda: verify(rule, draft, p, rng),
    }


def verify_short(rule: Any, draft: Any, p: Any, rng: Any) -> Any:
    """Verify as the runtime does on a CPU."""
    from hierspec.verifiers.verify import verify_batch

    return verify_batch(rule, [draft], [p], [rng])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=40)
    args = parser.parse_args()

    import torch

    from hierspec.config.schema import TargetConfig
    from hierspec.core.context import Context
    from hierspec.lm.base import Query
    from hierspec_lab.bench.methods.ours import BenchModels

    torch.set_num_threads(os.cpu_count() or 1)
    model = BenchModels(TargetConfig(model=TARGET, dtype="bfloat16")).plain.root.model
    text, slot = list(range(5, 5 + CONTEXT)), model.open()

    def forward(i: int) -> None:
        model.score([Query(slot, Context(text, (5 + i % 3000,)), CONTEXT + 1)])

    def timed(work: Callable[[], Any]) -> float:
        began = time.perf_counter()
        work()
        return 1e6 * (time.perf_counter() - began)

    times_by_name: dict[str, dict[str, list[float]]] = {}
    with torch.inference_mode():
        work = pieces()
        for i in range(args.repeats):
            for name, piece in work.items():
                forward(i)
                times = times_by_name.setdefault(name, {"cold": [], "warm": []})
                times["cold"].append(timed(piece))
                for _ in range(5):
                    piece()
                times["warm"].append(timed(piece))
    microseconds = {
        name: {kind: common.spread(times)["median"] for kind, times in kinds.items()}
        for name, kinds in times_by_name.items()
    }
    for name, times in microseconds.items():
        print(f"{name:32} cold {times['cold']:6.0f} µs, warm {times['warm']:6.1f} µs")
    common.write(
        "cold",
        {
            "environment": common.environment(),
            "target": TARGET,
            "vocab_size": VOCAB,
            "microseconds": microseconds,
        },
    )


if __name__ == "__main__":
    main()
