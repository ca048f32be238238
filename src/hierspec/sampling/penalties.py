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

    Optional: a sequence that keeps one and passes it to every
    :class:`~hierspec.sampling.scores.ScoreRows` counts only its new tokens at every step, instead
    of its whole text. All levels may share it.
    """

    __slots__ = ("columns", "counts", "num_counted", "prompt_length")

    def __init__(self, prompt_length: int) -> None:
        self.prompt_length = prompt_length
        self.num_counted = 0  # committed tokens counted so far
        self.columns: dict[int, int] = {}  # token → its index in ``counts``
        self.counts: list[int] = []  # occurrences in the output; 0 for tokens of the prompt only

    def advance(self, tokens: Sequence[int], upto: int) -> None:
        """Count ``tokens[:upto]``, of which the first ``self.num_counted`` are counted already."""
        columns, counts = self.columns, self.counts
        for position in range(self.num_counted, upto):
            column = columns.setdefault(tokens[position], len(counts))
            if column == len(counts):
                counts.append(0)
            counts[column] += position >= self.prompt_length
        self.num_counted = max(self.num_counted, upto)


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
    if history is None or history.num_counted > base or history.prompt_length != prompt_length:
        history = History(prompt_length)
    history.advance(context.committed, base)
    columns, counts = dict(history.columns), list(history.counts)
    # Of each token after ``base``: the first row that sees it, its column, whether it is output.
    drafted: list[tuple[int, int, bool]] = []
    for position, token in enumerate(context.tokens(base)[: start + num_rows - 1 - base], base):
        column = columns.setdefault(token, len(counts))
        if column == len(counts):
            counts.append(-1)  # absent before ``base``, present from some row on
        drafted.append((max(position + 1 - start, 0), column, position >= prompt_length))
    ids = np.fromiter(columns, dtype=np.int64, count=len(columns))
    base_counts = np.array(counts, dtype=np.float64)
    present = np.tile(base_counts >= 0, (num_rows, 1))
    output_counts = np.tile(np.maximum(base_counts, 0), (num_rows, 1))
    for first, column, is_output in drafted:
        present[first:, column] = True
        output_counts[first:, column] += is_output
    inside = ids < width
    if not inside.all():  # ids of a padded embedding above this level's
        ids, present, output_counts = ids[inside], present[:, inside], output_counts[:, inside]
    index = torch.from_numpy(ids).to(scores.device)
    values = scores[:, index]
    if params.repetition_penalty != 1.0:
        penalty = params.repetition_penalty
        penalised = torch.where(values < 0, values * penalty, values / penalty)
        values = torch.where(torch.from_numpy(present).to(scores.device), penalised, values)
    if params.frequency_penalty != 0.0 or params.presence_penalty != 0.0:
        drop = params.frequency_penalty * output_counts
        drop += params.presence_penalty * (output_counts > 0)
        values = values - torch.from_numpy(drop).to(values)
    scores[:, index] = values
