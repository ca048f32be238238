"""The prompts of a bench as the token ids that every method continues."""

from __future__ import annotations

from collections.abc import Sequence

from hierspec.bench import chats
from hierspec.bench.chats import ChatTurn
from hierspec.bench.methods.ours import BenchModels
from hierspec.errors import HierspecError


def encode(
    models: BenchModels, prompts: Sequence[str | ChatTurn], tokens: int, skip: bool = False
) -> list[list[int]]:
    """Return the token ids of each prompt; each leaves room for ``tokens`` more in the context.

    Raises:
        HierspecError: a prompt is too long (it is left out with ``skip``); no tokenizer.
    """
    if models.tokenizer is None:
        raise HierspecError(
            "the target has no tokenizer beside it, and prompts are texts: save one into its folder"
        )
    turns = [turn for turn in prompts if not isinstance(turn, str)]

    def answer(ids: list[int]) -> str:
        return models.plain.generate(ids, max_new_tokens=tokens).text

    of_turns = iter(chats.token_ids(models.tokenizer, turns, answer))
    longest = models.plain.root.model.max_length
    found = []
    for text in prompts:
        if isinstance(text, str):
            ids = models.tokenizer(text, verbose=False)["input_ids"]
        else:
            ids, text = next(of_turns), text.chat.turns[text.number]
        if not ids or len(ids) + tokens > longest:
            if skip:
                continue
            raise HierspecError(
                f"prompt {text[:40]!r} has {len(ids)} tokens; with {tokens} more it must fit into "
                f"the target's context of {longest}: leave it out, or lower --max-new-tokens"
            )
        found.append(list(ids))
    return found
