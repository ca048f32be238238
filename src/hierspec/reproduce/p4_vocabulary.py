"""What a round costs outside the models' forwards at a large vocabulary, on made-up scores.

Three parts, timed apart: *laws* (the target's scores → n + 1 rows, a softmax), *drafting* (the
drafter's scores → a row and a token, n times), and *verification* by a rule. Only the last differs
between rules; the others belong to sampling and are paid without drafts too, once a token.

A forward is at least one pass over the model's weights. That floor stands for the models, so the
shares found here are upper bounds for models of that size on that machine.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from typing import Any

import torch

from ..dice import PhiloxDice
from ..hierarchy import Verify
from ..laws import Laws, concatenate, draw
from ..lm.base import Context
from ..params import SamplingParams
from ..sampling import Job, laws
from ..types import Proposal
from ..verifiers import base as verifiers
from ..verifiers.verify import verify_batch

QWEN_VOCAB = 151_936
RULES = ("tokenwise", "block")
# Parameters of Qwen2.5 that a token reads (its two smaller ones tie the embeddings to the head).
SIZES = {"0.5B": 494_000_000, "7B": 7_070_000_000}
_NOISE = 0.5  # of the draft's scores against the target's; it sets the acceptance


@dataclass(frozen=True, slots=True)
class Timing:
    """Median milliseconds of a round's parts; batches count as one.

    Attributes:
        verification: by rule.
        kept: drafted tokens kept, mean over rounds, by rule.
    """

    laws: float
    drafting: float
    verification: dict[str, float]
    kept: dict[str, float]


def scores(
    rows: int, vocab: int, generator: torch.Generator, dtype: torch.dtype = torch.float32
) -> tuple[torch.Tensor, torch.Tensor]:
    """Target's and draft's, each [rows, V]: a few likely tokens over a long tail."""
    target = 2.5 * torch.randn(rows, vocab, generator=generator)
    best = torch.randint(0, vocab, (rows, 4), generator=generator)
    peaks = 14.0 + 2.0 * torch.randn(rows, 4, generator=generator)
    target.scatter_add_(1, best, peaks)
    draft = target + _NOISE * torch.randn(rows, vocab, generator=generator)
    draft.scatter_add_(1, best, 2 * _NOISE * torch.randn(rows, 4, generator=generator))
    return target.to(dtype), draft.to(dtype)


def timing(
    vocab: int, length: int, batch: int = 1, dtype: torch.dtype = torch.float32, rounds: int = 20
) -> Timing:
    """Rounds of drafts of ``length`` tokens for ``batch`` sequences, one after another.

    Args:
        dtype: of the models' scores.
        rounds: counted; two more go before them.
    """
    generator = torch.Generator().manual_seed(0)
    spent: dict[str, list[float]] = {name: [] for name in ("laws", "drafting", *RULES)}
    kept: dict[str, list[float]] = {rule: [] for rule in RULES}
    for number in range(rounds + 2):
        target, draft = scores(batch * (length + 1), vocab, generator, dtype)
        dice = [PhiloxDice(number, i) for i in range(batch)]
        steps = draft.reshape(batch, length + 1, vocab).unbind(1)[:length]
        began = time.perf_counter()
        proposals = _drafted(steps, dice, vocab)
        drafted = time.perf_counter()
        p = laws([_job(vocab, length + 1)] * batch, target)
        made = time.perf_counter()
        spent["drafting"].append(drafted - began)
        spent["laws"].append(made - drafted)
        # Whoever comes second finds the rows in the caches, so the rules take turns at it.
        for rule in RULES if number % 2 else RULES[::-1]:
            node = Verify(1, "target", None, 1, verifiers.get(rule), None)
            own = [PhiloxDice(number, batch + i) for i in range(batch)]
            began = time.perf_counter()
            verdicts = verify_batch(node, proposals, p, own)
            spent[rule].append(time.perf_counter() - began)
            kept[rule].append(statistics.mean(v.num_accepted for v in verdicts))
    ms = {name: 1e3 * statistics.median(values[2:]) for name, values in spent.items()}
    return Timing(
        ms["laws"],
        ms["drafting"],
        {rule: ms[rule] for rule in RULES},
        {rule: statistics.mean(values[2:]) for rule, values in kept.items()},
    )


def _drafted(steps: Any, dice: list[PhiloxDice], vocab: int) -> list[Proposal]:
    """As the runtime drafts: a law and a token for every sequence, step by step."""
    batch = len(dice)
    tokens: list[list[int]] = [[] for _ in dice]
    rows: list[list[Laws]] = [[] for _ in dice]
    for step in steps:
        found = laws([_job(vocab, 1)] * batch, step)
        whole = torch.cat([law.dense(vocab) for law in found])
        picked = draw(whole, [float(die.take(1)[0]) for die in dice])
        for mine, law, ids, token in zip(rows, found, tokens, picked, strict=True):
            mine.append(law)
            ids.append(token)
    whose = (0,) * len(steps)
    return [
        Proposal(tuple(ids), concatenate(mine), whose, whose, (float("nan"),) * len(ids))
        for ids, mine in zip(tokens, rows, strict=True)
    ]


def _job(vocab: int, num_rows: int) -> Job:
    return Job(SamplingParams(temperature=1.0), Context([0]), 1, num_rows, 1, vocab)


def shares(
    found: Timing, rule: str, length: int, draft_ms: float, target_ms: float
) -> dict[str, float]:
    """Of a round's time: ``verification``, ``sampling`` (laws and draws), ``forwards``.

    Args:
        draft_ms: of one forward of the drafter; ``target_ms`` of the target.
    """
    parts = {
        "verification": found.verification[rule],
        "sampling": found.laws + found.drafting,
        "forwards": length * draft_ms + target_ms,
    }
    total = sum(parts.values())
    return {name: ms / total for name, ms in parts.items()}


def floor_ms(parameters: float, bytes_per_second: float, bytes_each: int = 2) -> float:
    """Milliseconds to read all weights once, bfloat16."""
    return 1e3 * parameters * bytes_each / bytes_per_second
