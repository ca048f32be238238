"""What a generation returns: an event for every token, and a result for every sequence."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from hierspec.core.proposals import TokenLogprobs


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """One emitted token, as ``stream`` yields it.

    Attributes:
        text: the text that became final with it; may be empty (half a character, or a possible
            beginning of a stop string) or include characters that were held back before.
        index: its place in the output, from 0.
        level: the name of the level that wrote it.
        logprob: under the target before temperature, top-k and so on, nats; ``None`` unless
            requested.
        top_logprobs: the likeliest tokens at its position and their log-probabilities, best first,
            as many as were requested.
        sequence: index of its prompt in the batch.
        finish_reason: ``None`` until the sequence's last event: ``"stop"``, ``"length"`` or
            ``"cancelled"``.
    """

    token_id: int
    text: str
    index: int
    level: str
    logprob: float | None = None
    sequence: int = 0
    finish_reason: str | None = None
    top_logprobs: TokenLogprobs = ()


@dataclass(slots=True)
class LevelStats:
    """Counters of one level. Tokens are accepted by the level above.

    Attributes:
        calls: forwards of its model (a batch of sequences is one call).
        num_drafts: verified drafts: one for each run of this level's tokens in a proposal; several
            drafts from one position count as one.
        num_draft_tokens: of all drafts, alternatives included; a prefix that several drafts
            share is verified once and counts once.
        num_accepted_tokens_per_pos: how often the token at each draft position was accepted.
        forward_seconds: inside the model's forward.
        verify_seconds: of applying its verification rule, without its forward.
        seconds: of forward, distributions, draws and verification together.
    """

    name: str
    calls: int = 0
    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    num_accepted_tokens_per_pos: list[int] = field(default_factory=list[int])
    seconds: float = 0.0
    forward_seconds: float = 0.0
    verify_seconds: float = 0.0

    def count_draft(self, drafted: int, accepted: int, offset: int) -> None:
        """Count a verified draft of this level that began at position ``offset`` of its round."""
        self.num_drafts += 1
        self.num_draft_tokens += drafted
        self.num_accepted_tokens += accepted
        per_pos = self.num_accepted_tokens_per_pos
        per_pos += [0] * (offset + drafted - len(per_pos))
        for i in range(offset, offset + accepted):
            per_pos[i] += 1

    @property
    def acceptance_rate(self) -> float:
        """Accepted tokens over drafted tokens; 0 where nothing was drafted."""
        return self.num_accepted_tokens / self.num_draft_tokens if self.num_draft_tokens else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return the object that ``generate --json`` prints of a level."""
        counts = {**dataclasses.asdict(self), "acceptance_rate": self.acceptance_rate}
        return {key: counts[key] for key in _LEVEL_KEYS}


_LEVEL_KEYS = (
    *("name", "calls", "num_drafts", "num_draft_tokens", "num_accepted_tokens"),
    *("acceptance_rate", "num_accepted_tokens_per_pos"),
    *("seconds", "forward_seconds", "verify_seconds"),
)
SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class GenerationResult:
    """One finished sequence. Times in seconds.

    The counters of ``levels`` and ``target`` are the whole batch's, the same in each of its
    results. They count drafts as verified, before a stop or a limit cuts the output.

    Attributes:
        finish_reason: ``"stop"`` (end of text or a stop string), ``"length"``, ``"cancelled"``.
        tokens_per_second: decoding only: tokens after the first over the time after the first.
        batch_size: how many sequences ran together.
        target_calls: forwards of the target this sequence took part in, without its prefill.
        mean_acceptance_length: tokens after the first per target call, bonus included, without
            tokens that a stop or a limit cut off.
        logprobs: of ``token_ids`` under the raw target, nats; empty unless requested.
        top_logprobs: for each of ``token_ids``, the likeliest tokens at its position and their
            log-probabilities, best first; empty unless requested.
        levels: counters per level below the target, smallest first (:class:`LevelStats`).
        target: the same counters for the target.
        control: under a controller: how often this sequence's plan changed, and rounds and tokens
            of each plan (:mod:`hierspec.engine.control`).
        slowdown: how many times as long as without drafts a token took, at least, by the times of
            this text's own rounds (:mod:`hierspec.engine.pace`); ``None`` where it is not known.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: str
    seed: int
    num_prompt_tokens: int
    time_to_first_token: float
    decode_seconds: float
    target_calls: int
    mean_acceptance_length: float
    levels: tuple[dict[str, Any], ...]
    target: dict[str, Any]
    logprobs: tuple[float, ...] = ()
    batch_size: int = 1
    control: dict[str, Any] | None = None
    top_logprobs: tuple[TokenLogprobs, ...] = ()
    slowdown: float | None = None

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def tokens_per_second(self) -> float:
        decoded = self.num_tokens - 1  # the first comes with the prefill
        return decoded / self.decode_seconds if decoded > 0 < self.decode_seconds else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return the object that ``generate --json`` prints."""
        out: dict[str, Any] = {
            "schema_version": SCHEMA_VERSION,
            "text": self.text,
            "token_ids": list(self.token_ids),
            "finish_reason": self.finish_reason,
            "seed": self.seed,
            "batch_size": self.batch_size,
            "num_prompt_tokens": self.num_prompt_tokens,
            "num_tokens": self.num_tokens,
            "time_to_first_token": self.time_to_first_token,
            "decode_seconds": self.decode_seconds,
            "tokens_per_second": self.tokens_per_second,
            "target_calls": self.target_calls,
            "mean_acceptance_length": self.mean_acceptance_length,
            "levels": list(self.levels),
            "target": self.target,
        }
        if self.control is not None:
            out["control"] = self.control
        if self.logprobs:
            out["logprobs"] = list(self.logprobs)
        if self.top_logprobs:
            out["top_logprobs"] = [
                [{"token_id": token, "logprob": value} for token, value in best]
                for best in self.top_logprobs
            ]
        return out
