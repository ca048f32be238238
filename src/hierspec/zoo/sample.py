"""Text that a model writes itself: many rows at once, with a key-value cache."""

from __future__ import annotations

import torch

from .model import Cache, Llama


@torch.no_grad()
def continue_rows(
    model: Llama,
    prompts: torch.Tensor,
    length: int,
    temperatures: torch.Tensor,
    generator: torch.Generator,
) -> torch.Tensor:
    """Prompts [rows, n] continued up to ``length`` tokens, one temperature per row; int64.

    A temperature of 0 takes the likeliest token.
    """
    cache = Cache(length)
    tokens, fed = prompts, prompts
    greedy = temperatures == 0
    divisor = torch.where(greedy, 1.0, temperatures)[:, None]
    while tokens.shape[1] < length:
        state = model(fed, cache=cache)[-1][:, -1]
        scores = model.logits(state).float() / divisor
        drawn = torch.multinomial(scores.softmax(-1), 1, generator=generator)
        fed = torch.where(greedy[:, None], scores.argmax(-1, keepdim=True), drawn)
        tokens = torch.cat((tokens, fed), dim=1)
    return tokens
