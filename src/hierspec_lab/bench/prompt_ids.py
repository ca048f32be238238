"""The prompts of a bench as the token ids that every method continues."""

from __future__ import annotations

from collections.abc import Sequence

from hierspec.errors import HierspecError
from hierspec_lab.bench.methods.ours import BenchModels

from . import chats
from .chats import ChatTurn


def encode(
    models: BenchModels,
    prompts: Sequence[str | ChatTurn],
    max_new_tokens: int,
    skip_too_long: bool = False,
) -> list[list[int]]:
    """Return the token ids of each prompt, which leave room for the new tokens in the context.

    Raises:
        HierspecError: a prompt is too long (``skip_too_long`` leaves it out); no tokenizer.
    """
    if models.tokenizer is None:
        raise HierspecError(
            "the target has no tokenizer beside it, and prompts are texts: save one into its folder"
        )
    turns = [turn for turn in prompts if not isinstance(turn, str)]

    longest = models.plain.root.model.max_length

    def answer(ids: list[int]) -> str:
        if len(ids) + max_new_tokens > longest:  # so are the turns that follow it
            return ""
        return models.plain.generate(ids, max_new_tokens=max_new_tokens).text

    ids_of_turns = iter(chats.token_ids(models.tokenizer, turns, answer))
    encoded = []
    for text in prompts:
        if isinstance(text, str):
            ids = models.tokenizer(text, verbose=False)["input_ids"]
        else:
            ids, text = next(ids_of_turns), text.chat.turns[text.number]
        if not ids or len(ids) + max_new_tokens > longest:
            if skip_too_long:
                continue
            raise HierspecError(
                f"prompt {text[:40]!r} has {len(ids)} tokens; with {max_new_tokens} more it must "
                f"fit into the target's context of {longest}: leave it out, or lower "
                "--max-new-tokens"
            )
        encoded.append(list(ids))
    return encoded
