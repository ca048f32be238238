"""Conversations to learn from: prompts of ours and of the model's own, answered by the model.

A drafter meets the text of its target, so it is trained on that. Half of the prompts come from
templates; for more variety the model makes up the others itself: the chat template's user turn is
opened, and the model continues it at temperature 1. Both are answered at
temperatures from 0 to 1 by the project's own engine, many side by side.

Batches depend on the seed and their number alone, so an interrupted run goes on after its last
whole batch.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hierspec.api import Hierarchy
from hierspec.errors import HierspecError
from hierspec.sampling.parameters import SamplingParams
from hierspec.utils.prompts import apply_chat

from .passages import Passages
from .templates import TrainingPrompt, prompt

OWN = "own"  # domain of prompts that the model made up
_MARK = "\N{REPLACEMENT CHARACTER}"
_LONGEST = 420  # tokens of a prompt


@dataclass(frozen=True, slots=True)
class AnswersPlan:
    """How many conversations, and how they are made.

    Attributes:
        conversations: at least so many.
        batch: prompts of a batch; half of them the model's own.
        max_new_tokens: of an answer.
        own_tokens: of a prompt that the model makes up.
        temperatures: of answers, each as likely as it is often here.
    """

    conversations: int = 2500
    batch: int = 32
    max_new_tokens: int = 192
    own_tokens: int = 72
    temperatures: tuple[float, ...] = (0.0, 0.0, 0.7, 1.0, 1.0)
    seed: int = 0


def write(
    path: Path,
    plan: AnswersPlan,
    hierarchy: Hierarchy,
    passages: Passages,
    report: Callable[[float], None],
) -> Counter[str]:
    """Add conversations to ``path`` (JSON lines) until there are enough; return counts by domain.

    A line has ``messages``, ``domain``, ``temperature``, ``origin`` (``own`` or ``template``),
    ``finish_reason`` and ``batch``.

    Raises:
        HierspecError: the model has no chat template, or makes up and answers nothing.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    held = _whole_batches(path)
    found = Counter(row["domain"] for row in held)
    number = 1 + max((row["batch"] for row in held), default=-1)
    path.write_text("".join(json.dumps(row) + "\n" for row in held), encoding="utf-8")
    with path.open("a", encoding="utf-8") as file:
        while found.total() < plan.conversations:
            report(found.total() / plan.conversations)
            rows = list(_batch(number, plan, hierarchy, passages))
            if not rows:
                raise HierspecError("the model has answered none of its prompts: try another seed")
            file.write("".join(json.dumps({**row, "batch": number}) + "\n" for row in rows))
            file.flush()
            found.update(row["domain"] for row in rows)
            number += 1
    return found


def _batch(
    number: int, plan: AnswersPlan, hierarchy: Hierarchy, passages: Passages
) -> Iterator[dict[str, Any]]:
    rng = random.Random(f"{plan.seed} {number}")
    seed = plan.seed * 1_000_003 + number
    prompts = [
        *_made_up(plan, hierarchy, seed),
        *(prompt(rng, passages) for _ in range(plan.batch - plan.batch // 2)),
    ]
    asked = [(each, apply_chat(hierarchy.tokenizer, each.text)) for each in prompts]
    # Of like length side by side: the batch ends when its last answer does.
    asked = sorted((a for a in asked if len(a[1]) <= _LONGEST), key=lambda a: len(a[1]))
    temperatures = [rng.choice(plan.temperatures) for _ in asked]
    if not asked:
        return
    results = hierarchy.generate_batch(
        [ids for _, ids in asked],
        max_new_tokens=plan.max_new_tokens,
        sampling=[SamplingParams(temperature=t) for t in temperatures],
        seed=seed,
    )
    for (each, _), temperature, result in zip(asked, temperatures, results, strict=True):
        if not result.text.strip():
            continue
        yield {
            "messages": [
                {"role": "user", "content": each.text},
                {"role": "assistant", "content": result.text},
            ],
            "domain": each.domain,
            "temperature": temperature,
            "origin": "own" if each.domain == OWN else "template",
            "finish_reason": result.finish_reason,
        }


def _made_up(plan: AnswersPlan, hierarchy: Hierarchy, seed: int) -> list[TrainingPrompt]:
    """Let the model write prompts itself, into the user turn of its chat template."""
    tokenizer = hierarchy.tokenizer
    opening = tokenizer.apply_chat_template([{"role": "user", "content": _MARK}], tokenize=False)
    start, mark, _ = opening.partition(_MARK)
    if not mark:
        raise HierspecError("the chat template does not show what the user says")
    ids = tokenizer(start, add_special_tokens=False)["input_ids"]
    results = hierarchy.generate_batch(
        [ids] * (plan.batch // 2),
        max_new_tokens=plan.own_tokens,
        temperature=1.0,
        top_p=0.97,
        seed=seed,
    )
    texts = [r.text.strip() for r in results if r.finish_reason == "stop"]
    return [TrainingPrompt(text, OWN) for text in dict.fromkeys(texts) if len(text) > 12]


def _whole_batches(path: Path) -> list[dict[str, Any]]:
    """Read the stored conversations, without a batch that was interrupted."""
    if not path.is_file():
        return []
    lines = path.read_text(encoding="utf-8").split("\n")
    rows = []
    for line in lines[:-1]:  # a last line without its end was cut short
        try:
            rows.append(json.loads(line))
        except ValueError:
            continue
    if lines[-1] and rows:
        return [row for row in rows if row["batch"] < rows[-1]["batch"]]
    return rows
