"""Conversations to learn from: prompts from templates and from the model, answered by the model.

A drafter drafts its target's text, so it is trained on that. Half of the prompts come from
templates; for more variety the model writes the others itself: it continues the beginning of the
chat template's user turn at temperature 1. All are answered at temperatures from 0 to 1 by the
project's own engine, many side by side.

Batches depend on the seed and their number alone, so an interrupted run goes on after its last
whole batch.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hierspec.api import Hierarchy
from hierspec.errors import HierspecError
from hierspec.profiling.settings import ReportProgress
from hierspec.sampling.parameters import SamplingParams
from hierspec.utils.prompts import apply_chat
from hierspec_lab.training.models import WritingPace
from hierspec_lab.training.packed import PackedText, PackedTexts

from .passages import Passages
from .templates import TrainingPrompt, draw_prompt

OWN = "own"  # domain of prompts that the model wrote
_MARK = "\N{REPLACEMENT CHARACTER}"
_MAX_PROMPT = 420  # tokens


@dataclass(frozen=True, slots=True)
class AnswerSettings:
    """How many conversations are written, and how.

    Attributes:
        conversations: how many at least.
        batch: prompts of a batch; half of them the model's own.
        max_new_tokens: of an answer.
        own_tokens: most tokens of a prompt that the model writes.
        temperatures: of answers; each is drawn as often as it is listed.
    """

    conversations: int = 2500
    batch: int = 32
    max_new_tokens: int = 256
    own_tokens: int = 72
    temperatures: tuple[float, ...] = (0.0, 0.0, 0.4, 0.7, 1.0, 1.0)
    seed: int = 0


def write(
    folder: Path,
    settings: AnswerSettings,
    hierarchy: Hierarchy,
    passages: Passages,
    report_progress: ReportProgress,
) -> PackedTexts:
    """Add conversations to those in ``folder`` until there are enough; return all.

    Raises:
        HierspecError: the model has no chat template, or answers none of a batch's prompts.
    """
    packed = PackedTexts(folder)
    pace = WritingPace(len(packed.texts), settings.conversations, "conversations")
    while (count := len(packed.texts)) < settings.conversations:
        stage = f"the model answers prompts: {pace.text(count)}"
        report_progress(stage, count / settings.conversations)
        batch = list(_batch(len(packed.batches), settings, hierarchy, passages))
        if not batch:
            raise HierspecError("the model has answered none of its prompts: try another seed")
        packed.append(batch)
    return packed


def count_domains(packed: PackedTexts) -> dict[str, int]:
    """Return how many conversations there are of each domain."""
    return dict(sorted(Counter(text.domain for text in packed.texts).items()))


def _batch(
    number: int, settings: AnswerSettings, hierarchy: Hierarchy, passages: Passages
) -> Iterator[tuple[PackedText, list[int]]]:
    rng = random.Random(f"{settings.seed} {number}")
    seed = settings.seed * 1_000_003 + number
    prompts = [
        *_write_prompts(settings, hierarchy, seed),
        *(draw_prompt(rng, passages) for _ in range(settings.batch - settings.batch // 2)),
    ]
    requests = [(prompt, apply_chat(hierarchy.tokenizer, prompt.text)) for prompt in prompts]
    # Prompts of similar length are answered side by side: a batch lasts as long as its slowest.
    requests = sorted((r for r in requests if len(r[1]) <= _MAX_PROMPT), key=lambda r: len(r[1]))
    temperatures = [rng.choice(settings.temperatures) for _ in requests]
    if not requests:
        return
    results = hierarchy.generate_batch(
        [ids for _, ids in requests],
        max_new_tokens=settings.max_new_tokens,
        sampling=[SamplingParams(temperature=t) for t in temperatures],
        seed=seed,
    )
    for (prompt, ids), temperature, result in zip(requests, temperatures, results, strict=True):
        if not result.text.strip():
            continue
        text = PackedText(
            length=len(ids) + len(result.token_ids),
            answer=len(ids),
            domain=prompt.domain,
            temperature=temperature,
            origin="own" if prompt.domain == OWN else "template",
            finish_reason=result.finish_reason,
        )
        yield text, [*ids, *result.token_ids]


def _write_prompts(
    settings: AnswerSettings, hierarchy: Hierarchy, seed: int
) -> list[TrainingPrompt]:
    """Let the model write prompts, into the user turn of its chat template."""
    tokenizer = hierarchy.tokenizer
    chat = tokenizer.apply_chat_template([{"role": "user", "content": _MARK}], tokenize=False)
    start, mark, _ = chat.partition(_MARK)
    if not mark:
        raise HierspecError("the chat template does not show what the user says")
    ids = tokenizer(start, add_special_tokens=False)["input_ids"]
    results = hierarchy.generate_batch(
        [ids] * (settings.batch // 2),
        max_new_tokens=settings.own_tokens,
        temperature=1.0,
        top_p=0.97,
        seed=seed,
    )
    texts = [r.text.strip() for r in results if r.finish_reason == "stop"]
    return [TrainingPrompt(text, OWN) for text in dict.fromkeys(texts) if len(text) > 12]
