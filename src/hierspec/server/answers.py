"""Parts that all answers share: ids, usage, metrics of drafts, log-probabilities."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Sequence
from typing import Any

from pydantic import BaseModel

from hierspec.engine.detokenize import token_bytes
from hierspec.engine.results import TokenEvent
from hierspec.engine.tickets import Ended, Progress, TokenScore

from .service import Service, Streams
from .wire.chat import ChatLogprobs, TokenLogprob, TopLogprob
from .wire.common import CompletionTokensDetails, PromptTokensDetails, StreamOptions, Usage
from .wire.completions import CompletionLogprobs

DONE = "data: [DONE]\n\n"


def new_id(kind: str) -> str:
    """Return a random id, as in ``chatcmpl-…``, that reveals nothing about other requests."""
    return f"{kind}-{secrets.token_hex(16)}"


def event(value: Any, name: str | None = None) -> str:
    """Format one server-sent event."""
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json")
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return f"data: {text}\n\n" if name is None else f"event: {name}\ndata: {text}\n\n"


def usage(ended: Sequence[Ended], num_prompts: int = 1) -> Usage:
    """Count the tokens of all sequences; the ``n`` choices of a prompt count it once."""
    prompts = ended[:: max(1, len(ended) // num_prompts)]
    read = sum(one.num_prompt_tokens for one in prompts)
    written = sum(len(one.token_ids) for one in ended)
    kept, rejected = count_predicted(ended)
    return Usage(
        prompt_tokens=read,
        completion_tokens=written,
        total_tokens=read + written,
        prompt_tokens_details=PromptTokensDetails(
            cached_tokens=sum(one.num_cached_tokens for one in prompts)
        ),
        completion_tokens_details=CompletionTokensDetails(
            accepted_prediction_tokens=kept, rejected_prediction_tokens=rejected
        ),
    )


class StreamUsage:
    """The ``usage`` of a stream's chunks, if the client asked for it.

    Args:
        num_prompts: of the request; the ``n`` choices of a prompt count it once.
    """

    def __init__(
        self, options: StreamOptions | None, streams: Streams, num_prompts: int = 1
    ) -> None:
        self.wanted = options is not None and options.include_usage
        self._running = self.wanted and options is not None and options.continuous_usage_stats
        prompts = [len(ticket.request.prompt) for ticket in streams.tickets]
        self._read = sum(prompts[:: max(1, len(prompts) // num_prompts)])
        self._written = 0

    def of(self, progress: Progress) -> dict[str, Any]:
        """Return a chunk's ``usage`` field, or nothing if it has none."""
        self._written += len(progress.events)
        if not self._running:
            return {"usage": None} if self.wanted else {}
        so_far = Usage(
            prompt_tokens=self._read,
            completion_tokens=self._written,
            total_tokens=self._read + self._written,
            prompt_tokens_details=PromptTokensDetails(),
            completion_tokens_details=CompletionTokensDetails(),
        )
        return {"usage": so_far.model_dump()}


def count_predicted(ended: Iterable[Ended]) -> tuple[int, int]:
    """Return how many predicted tokens were kept, and how many were rejected."""
    levels = [level for one in ended for level in one.levels if level.name == "prediction"]
    kept = sum(level.num_accepted_tokens for level in levels)
    return kept, sum(level.num_draft_tokens for level in levels) - kept


def speculation_summary(ended: Sequence[Ended]) -> dict[str, Any]:
    """Summarise, by level, how many draft tokens of all sequences of a request were kept.

    ``plans``: rounds of the target by what drafted for them.
    """
    calls = sum(one.target_calls for one in ended)
    written = sum(max(len(one.token_ids) - 1, 0) for one in ended)
    levels: dict[str, dict[str, Any]] = {}
    for one in ended:
        for level in one.levels:
            mine = levels.setdefault(
                level.name,
                {"name": level.name, "num_drafts": 0, "num_draft_tokens": 0}
                | {"num_accepted_tokens": 0, "num_accepted_tokens_per_pos": []},
            )
            mine["num_drafts"] += level.num_drafts
            mine["num_draft_tokens"] += level.num_draft_tokens
            mine["num_accepted_tokens"] += level.num_accepted_tokens
            per_pos = mine["num_accepted_tokens_per_pos"]
            per_pos += [0] * (len(level.accepted_per_pos) - len(per_pos))
            for i, value in enumerate(level.accepted_per_pos):
                per_pos[i] += value
    for level in levels.values():
        drafted = level["num_draft_tokens"]
        level["acceptance_rate"] = level["num_accepted_tokens"] / drafted if drafted else 0.0
    plans: dict[str, int] = {}
    for one in ended:
        for name, rounds in one.plans.items():
            plans[name] = plans.get(name, 0) + rounds
    return {
        "target_calls": calls,
        "mean_acceptance_length": written / calls if calls else 0.0,
        "levels": list(levels.values()),
        "plans": plans,
        "queue_seconds": max((one.queue_seconds for one in ended), default=0.0),
        "time_to_first_token": min((one.time_to_first_token for one in ended), default=0.0),
        "total_seconds": max((one.total_seconds for one in ended), default=0.0),
        "seed": ended[0].seed if ended else None,
    }


def levels_of(progress: Progress) -> dict[str, Any]:
    """Return which level wrote each token of a round, and its drafts (``return_levels``)."""
    return {
        "tokens": [
            {"text": one.text, "token_id": one.token_id, "level": one.level}
            for one in progress.events
        ],
        "drafts": [
            {"level": name, "num_draft_tokens": drafted, "num_accepted_tokens": kept}
            for name, drafted, kept in progress.drafts
        ],
    }


def chat_logprobs(service: Service, events: Iterable[TokenEvent]) -> ChatLogprobs:
    """Convert log-probabilities to the format of chat completions."""

    def one(token: int, value: float) -> dict[str, Any]:
        raw = token_bytes(service.tokenizer, token)
        text = raw.decode("utf-8", "replace")
        return {"token": text, "logprob": max(value, -9999.0), "bytes": list(raw)}

    return ChatLogprobs(
        content=[
            TokenLogprob(
                **one(event.token_id, event.logprob or 0.0),
                top_logprobs=[TopLogprob(**one(*pair)) for pair in event.top_logprobs],
            )
            for event in events
        ]
    )


def completion_logprobs(
    service: Service,
    tokens: Sequence[int],
    scores: Sequence[TokenScore | None],
    offset: int,
    with_top: bool,
) -> CompletionLogprobs:
    """Convert log-probabilities to the format of completions; ``None`` for a text's first token."""
    texts = [_text(service, token) for token in tokens]
    offsets: list[int] = []
    for text in texts:
        offsets.append(offset)
        offset += len(text)
    tops: list[dict[str, float] | None] = []
    for text, score in zip(texts, scores, strict=True):
        if score is None:
            tops.append(None)
            continue
        best: dict[str, float] = {}
        for token, value in score.top_logprobs:
            best.setdefault(_text(service, token), max(value, -9999.0))
        best.setdefault(text, max(score.logprob, -9999.0))
        tops.append(best)
    return CompletionLogprobs(
        tokens=texts,
        token_logprobs=[None if one is None else max(one.logprob, -9999.0) for one in scores],
        top_logprobs=tops if with_top else None,
        text_offset=offsets,
    )


def _text(service: Service, token: int) -> str:
    return token_bytes(service.tokenizer, token).decode("utf-8", "replace")
