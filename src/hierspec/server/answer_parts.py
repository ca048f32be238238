"""Parts that all answers share: ids, usage, metrics of drafts, log-probabilities."""

from __future__ import annotations

import json
import secrets
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from pydantic import BaseModel

from hierspec.engine.detokenize import token_bytes
from hierspec.engine.request import Progress, Request, TokenScore
from hierspec.engine.results import TokenEvent

from .service import Service, Streams
from .wire.chat import ChatLogprobs, TokenLogprob, TopLogprob
from .wire.common import (
    CompletionTokensDetails,
    GenerationRequest,
    PromptTokensDetails,
    StreamOptions,
    Usage,
)
from .wire.completions import CompletionLogprobs

DONE = "data: [DONE]\n\n"
_MIN_LOGPROB = -9999.0  # stands for minus infinity, which JSON does not have


def new_id(kind: str) -> str:
    """Return a random id, as in ``chatcmpl-…``, that reveals nothing about other requests."""
    return f"{kind}-{secrets.token_hex(16)}"


def format_event(value: Any, name: str | None = None) -> str:
    """Format one server-sent event."""
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json")
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return f"data: {text}\n\n" if name is None else f"event: {name}\ndata: {text}\n\n"


def count_usage(
    sequences: Sequence[Request], num_prompts: int = 1, only_prompts: bool = False
) -> Usage:
    """Count the tokens of all sequences; a prompt is counted once for its ``n`` choices.

    Args:
        only_prompts: whether what was written is dropped.
    """
    by_prompt = sequences[:: max(1, len(sequences) // num_prompts)]
    num_prompt_tokens = sum(sequence.num_prompt_tokens for sequence in by_prompt)
    num_tokens = 0 if only_prompts else sum(len(sequence.token_ids) for sequence in sequences)
    predictions = [
        level for sequence in sequences for level in sequence.levels if level.name == "prediction"
    ]
    num_accepted = sum(level.num_accepted_tokens for level in predictions)
    num_predicted = sum(level.num_draft_tokens for level in predictions)
    return Usage(
        prompt_tokens=num_prompt_tokens,
        completion_tokens=num_tokens,
        total_tokens=num_prompt_tokens + num_tokens,
        prompt_tokens_details=PromptTokensDetails(
            cached_tokens=sum(sequence.num_cached_tokens for sequence in by_prompt)
        ),
        completion_tokens_details=CompletionTokensDetails(
            accepted_prediction_tokens=num_accepted,
            rejected_prediction_tokens=num_predicted - num_accepted,
        ),
    )


class StreamUsage:
    """The ``usage`` of a stream's chunks, if the client asked for it.

    Args:
        num_prompts: of the request; a prompt is counted once for its ``n`` choices.
    """

    def __init__(
        self, options: StreamOptions | None, streams: Streams, num_prompts: int = 1
    ) -> None:
        self.included = options is not None and options.include_usage
        self._continuous = self.included and options is not None and options.continuous_usage_stats
        prompt_lengths = [len(request.prompt) for request in streams.requests]
        self._num_prompt_tokens = sum(prompt_lengths[:: max(1, len(prompt_lengths) // num_prompts)])
        self._num_tokens = 0

    def field(self, progress: Progress) -> dict[str, Any]:
        """Return a chunk's ``usage`` field as a dictionary, empty if the chunk has none."""
        self._num_tokens += len(progress.events)
        if not self._continuous:
            return {"usage": None} if self.included else {}
        so_far = Usage(
            prompt_tokens=self._num_prompt_tokens,
            completion_tokens=self._num_tokens,
            total_tokens=self._num_prompt_tokens + self._num_tokens,
            prompt_tokens_details=PromptTokensDetails(),
            completion_tokens_details=CompletionTokensDetails(),
        )
        return {"usage": so_far.model_dump()}


def summarise_speculation(sequences: Sequence[Request]) -> dict[str, Any]:
    """Summarise, by level, how many draft tokens of all sequences of a request were kept.

    ``plans`` counts the target's rounds by which levels drafted for them.
    """
    calls = sum(sequence.target_calls for sequence in sequences)
    num_tokens = sum(max(len(sequence.token_ids) - 1, 0) for sequence in sequences)
    levels: dict[str, dict[str, Any]] = {}
    for sequence in sequences:
        for level in sequence.levels:
            if level.name == "prediction" and not sequence.prediction:
                continue  # the level is there for requests that predict
            totals = levels.setdefault(
                level.name,
                {"name": level.name, "num_drafts": 0, "num_draft_tokens": 0}
                | {"num_accepted_tokens": 0, "num_accepted_tokens_per_pos": []},
            )
            for key in ("num_drafts", "num_draft_tokens", "num_accepted_tokens"):
                totals[key] += getattr(level, key)
            per_pos = totals["num_accepted_tokens_per_pos"]
            per_pos += [0] * (len(level.num_accepted_tokens_per_pos) - len(per_pos))
            for i, value in enumerate(level.num_accepted_tokens_per_pos):
                per_pos[i] += value
    for totals in levels.values():
        drafted = totals["num_draft_tokens"]
        totals["acceptance_rate"] = totals["num_accepted_tokens"] / drafted if drafted else 0.0
    plans = Counter[str]()
    for sequence in sequences:
        plans.update(sequence.plans)
    return {
        "target_calls": calls,
        "mean_acceptance_length": num_tokens / calls if calls else 0.0,
        "levels": list(levels.values()),
        "plans": dict(plans),
        "queue_seconds": max((s.queue_seconds for s in sequences), default=0.0),
        "time_to_first_token": min((s.time_to_first_token for s in sequences), default=0.0),
        "total_seconds": max((s.total_seconds for s in sequences), default=0.0),
        "seed": sequences[0].seed if sequences else None,
    }


def describe_round(progress: Progress) -> dict[str, Any]:
    """Describe a round for ``return_levels``: its plan, the level that wrote each token, drafts."""
    return {
        "tokens": [
            {"text": token.text, "token_id": token.token_id, "level": token.level}
            for token in progress.events
        ],
        "drafts": [
            {"level": name, "num_draft_tokens": drafted, "num_accepted_tokens": accepted}
            for name, drafted, accepted in progress.level_counts
        ],
        "plan": progress.plan,
    }


def token_ids_field(body: GenerationRequest, events: Iterable[TokenEvent]) -> dict[str, list[int]]:
    """Return a choice's ``token_ids``, if ``return_token_ids`` asks for them."""
    return {"token_ids": [event.token_id for event in events]} if body.return_token_ids else {}


def chat_logprobs(service: Service, events: Iterable[TokenEvent]) -> ChatLogprobs:
    """Convert log-probabilities to the format of chat completions."""

    def describe(token: int, logprob: float) -> dict[str, Any]:
        raw = token_bytes(service.tokenizer, token)
        text = raw.decode("utf-8", "replace")
        return {"token": text, "logprob": max(logprob, _MIN_LOGPROB), "bytes": list(raw)}

    return ChatLogprobs(
        content=[
            TokenLogprob(
                **describe(event.token_id, event.logprob or 0.0),
                top_logprobs=[TopLogprob(**describe(*pair)) for pair in event.top_logprobs],
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
    """Convert log-probabilities to the format of completions.

    Args:
        scores: by token; ``None`` for the first token of a text, which has none.
        offset: of the first token, in characters of the choice's text.
    """
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
        for token, logprob in score.top_logprobs:
            best.setdefault(_text(service, token), max(logprob, _MIN_LOGPROB))
        best.setdefault(text, max(score.logprob, _MIN_LOGPROB))
        tops.append(best)
    return CompletionLogprobs(
        tokens=texts,
        token_logprobs=[None if s is None else max(s.logprob, _MIN_LOGPROB) for s in scores],
        top_logprobs=tops if with_top else None,
        text_offset=offsets,
    )


def _text(service: Service, token: int) -> str:
    return token_bytes(service.tokenizer, token).decode("utf-8", "replace")
