"""Penalties on repeated tokens, each row of a draft with its own history.

Sources: repetition penalty, Keskar et al. 2019 (CTRL), as transformers applies it (prompt and
output); frequency and presence penalties as in OpenAI's API and vLLM (output only).

Shapes: R rows over V scored ids; C distinct tokens in the history.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from hierspec.core.context import Context

from .parameters import SamplingParams


class History:
    """The distinct tokens of a sequence's committed text and how often its output has each.

    Optional: a sequence that keeps one and hands it to every
    :class:`~hierspec.sampling.scores.ScoreRows` pays for its new tokens only, instead of counting
    its whole text at every step. All levels may share it.
    """

    __slots__ = ("columns", "counts", "prompt_length", "seen")

    def __init__(self, prompt_length: int) -> None:
        self.prompt_length = prompt_length
        self.seen = 0  # committed tokens counted so far
        self.columns: dict[int, int] = {}  # token → its place in ``counts``
        self.counts: list[int] = []  # occurrences in the output; 0 for tokens of the prompt only

    def advance(self, tokens: Sequence[int], upto: int) -> None:
        """Count ``tokens[:upto]``, of which the first ``self.seen`` are counted already."""
        columns, counts = self.columns, self.counts
        for position in range(self.seen, upto):
            column = columns.setdefault(tokens[position], len(counts))
            if column == len(counts):
                counts.append(0)
            counts[column] += position >= self.prompt_length
        self.seen = max(self.seen, upto)


def penalise(
    scores: torch.Tensor,
    context: Context,
    start: int,
    prompt_length: int,
    params: SamplingParams,
    history: History | None = None,
) -> None:
    """Apply the penalties to ``scores`` [R, V] in place; row j comes after ``context[:start+j]``.

    Only the columns of tokens in the history are touched.
    """
    num_rows, width = scores.shape
    base = min(len(context.committed), start)
    if history is None or history.seen > base or history.prompt_length != prompt_length:
        history = History(prompt_length)
    history.advance(context.committed, base)
    columns, counts = dict(history.columns), list(history.counts)
    late: list[tuple[int, int, bool]] = []  # first row that sees it, its column, is it output
    for position, token in enumerate(context.tokens(base)[: start + num_rows - 1 - base], base):
        column = columns.setdefault(token, len(counts))
        if column == len(counts):
            counts.append(-1)  # not before ``base``: seen from some row on
        late.append((max(position + 1 - start, 0), column, position >= prompt_length))
    ids = np.fromiter(columns, dtype=np.int64, count=len(columns))
    known = np.array(counts, dtype=np.float64)
    seen = np.tile(known >= 0, (num_rows, 1))
    output = np.tile(np.maximum(known, 0), (num_rows, 1))
    for first, column, is_output in late:
        seen[first:, column] = True
        output[first:, column] += is_output
    inside = ids < width
    if not inside.all():  # ids of a padded embedding above this level's
        ids, seen, output = ids[inside], seen[:, inside], output[:, inside]
    where = torch.from_numpy(ids).to(scores.device)
    values = scores[:, where]
    if params.repetition_penalty != 1.0:
        penalty = params.repetition_penalty
        harder = torch.where(values < 0, values * penalty, values / penalty)
        values = torch.where(torch.from_numpy(seen).to(scores.device), harder, values)
    if params.frequency_penalty != 0.0 or params.presence_penalty != 0.0:
        drop = params.frequency_penalty * output + params.presence_penalty * (output > 0)
        values = values - torch.from_numpy(drop).to(values)
    scores[:, where] = values
