"""Every path that the engine can take to the same decision, forced; and what it must come to.

The target's law is written out here in plain Python, apart from :mod:`hierspec.sampling.scores`.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from itertools import product

import tape
import torch
from installed import LAB

from hierspec.core import distributions as distributions
from hierspec.drafters import model as drafting
from hierspec.lm.tabular import TabularModel
from hierspec.sampling import sampler as readings
from hierspec.sampling.parameters import SamplingParams
from hierspec.utils.graphs import Graphs
from hierspec.verifiers.paths import host


def like(kind: type[TabularModel], table: TabularModel, **options) -> TabularModel:
    """The same laws, another path."""
    return kind(table.vocab_size, table.order, table.table(), name=table.name, **options)


# --- paths


class Taped(Graphs):
    """Decisions recorded and replayed as a GPU's are: at the second run of a shape."""

    def __init__(self) -> None:
        super().__init__(torch.device("cpu"))
        self.replayed = 0

    def get(self, key, make):
        call = super().get(key, make)
        if call._runs == 1 and not call.recorded:
            replay = tape.record(call._run, None, None, None)

            def run() -> None:
                self.replayed += 1
                replay()

            call._run, call.recorded = run, True
        return call


@contextlib.contextmanager
def patched(*changes: tuple[object, str, object]) -> Iterator[None]:
    """Attributes of modules, changed for a while."""
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in changes]
    try:
        for owner, name, value in changes:
            setattr(owner, name, value)
        yield
    finally:
        for owner, name, value in before:
            setattr(owner, name, value)


def _leaders_by_sorting(scores: torch.Tensor, m: int) -> torch.Tensor:
    """What a device is asked for instead of looking at the scores' ties."""
    return scores.sort(dim=-1, descending=True, stable=True).indices[..., :m]


_GENERAL = (host, "has_shortcut", lambda rule: False)
_ON_DEVICE = (distributions, "_FEW_ROWS", -1)  # draws by torch, however few the rows
_IN_BLOCKS = (
    (distributions, "_LARGE_VOCAB", 2),
    (distributions, "_BLOCK", 2),
)  # as for a large vocabulary
VERIFYING: dict[str, tuple] = {
    "short": (),
    "padded": (_GENERAL, _ON_DEVICE),
    "blocks": (_GENERAL, *_IN_BLOCKS),
    "short, blocks": _IN_BLOCKS,
    "recorded": (_GENERAL, (readings, "_nucleus", readings._nucleus_by_bins)),
}
if LAB:
    from hierspec_lab.rules import leading

    VERIFYING["recorded"] += ((leading, "leading_tokens", _leaders_by_sorting),)
CHUNKS = ((drafting, "_CHUNK", 2),)


# --- the law that must come out


def row(table: TabularModel, text: Sequence[int], params: SamplingParams, num_prompt: int):
    """The law after ``text`` as transformers' settings make it, [V] floats."""
    scores = [math.log(p) if p > 0.0 else -math.inf for p in table.distribution(text).tolist()]
    for token, bias in params.logit_bias:
        scores[token] += bias
    output = list(text[num_prompt:])
    for token in set(text):
        scores[token] *= (
            params.repetition_penalty if scores[token] < 0.0 else 1.0 / params.repetition_penalty
        )
        scores[token] -= params.frequency_penalty * output.count(token)
        scores[token] -= params.presence_penalty * (token in output)
    for processor in params.logits_processors:
        ids, values = torch.tensor([list(text)]), torch.tensor([scores], dtype=torch.float64)
        scores = processor(ids, values)[0].tolist()
    if params.greedy:
        return [float(i == scores.index(max(scores))) for i in range(len(scores))]
    law = _normal([math.exp((s - max(scores)) / params.temperature) for s in scores])
    if params.top_k:
        floor = sorted(law)[-min(params.top_k, len(law))]
        law = _normal([p if p >= floor else 0.0 for p in law])
    if params.top_p:
        kept, mass = set(), 0.0
        for i in sorted(range(len(law)), key=lambda i: (-law[i], -i)):
            if mass < params.top_p:
                kept.add(i)
            mass += law[i]
        law = _normal([p if i in kept else 0.0 for i, p in enumerate(law)])
    if params.min_p:
        law = _normal([p if p >= params.min_p * max(law) else 0.0 for p in law])
    return law


def _normal(law: list[float]) -> list[float]:
    total = math.fsum(law)
    return [p / total for p in law]


def distance(
    found: dict[tuple[int, ...], float],
    table: TabularModel,
    prompt: Sequence[int],
    horizon: int,
    params: SamplingParams | None = None,
    row: Callable = row,
) -> float:
    """Total variation between a law of texts and the target's own."""
    params = params or SamplingParams(temperature=1.0)
    total = 0.0
    for text in product(range(table.vocab_size), repeat=horizon):
        chance = 1.0
        for i, token in enumerate(text):
            if chance:
                chance *= row(table, [*prompt, *text[:i]], params, len(prompt))[token]
        total += abs(chance - found.get(text, 0.0))
    return total / 2.0
