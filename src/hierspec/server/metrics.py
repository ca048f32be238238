"""Prometheus metrics in vLLM's names under our prefix; those of drafts carry a ``level`` label.

The engine's own counters are read on each request for metrics; histograms fill as requests end.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from hierspec.engine.loop import EngineLoop
from hierspec.engine.tickets import DeadlineError, Ended, RequestCancelledError

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
_TOKEN_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
_TOKENS = (1, 4, 16, 64, 256, 1024, 4096, 16384)


class ServerMetrics:
    """Counters and histograms of one service.

    Args:
        model: the value of the label ``model_name``.
    """

    def __init__(self, engine: EngineLoop, model: str) -> None:
        self.registry = CollectorRegistry()
        self._model = model
        own: dict[str, Any] = {"registry": self.registry}
        by_model = {**own, "labelnames": ("model_name",)}
        seconds = {**by_model, "buckets": _SECONDS}
        self._first = Histogram(
            "hierspec_time_to_first_token_seconds", "From arrival to the first token.", **seconds
        )
        self._per_token = Histogram(
            "hierspec_time_per_output_token_seconds",
            "Mean time of a token after the first, by request.",
            **{**by_model, "buckets": _TOKEN_SECONDS},
        )
        self._whole = Histogram(
            "hierspec_e2e_request_latency_seconds", "From arrival to the end.", **seconds
        )
        self._queue = Histogram(
            "hierspec_request_queue_time_seconds", "From arrival to the first round.", **seconds
        )
        tokens = {**by_model, "buckets": _TOKENS}
        self._read = Histogram("hierspec_request_prompt_tokens", "Of a request.", **tokens)
        self._written = Histogram("hierspec_request_generation_tokens", "Of a request.", **tokens)
        self._prompt_tokens = Counter("hierspec_prompt_tokens", "Tokens read.", **by_model)
        self._tokens = Counter("hierspec_generation_tokens", "Tokens written.", **by_model)
        self._ended = Counter(
            "hierspec_request_success",
            "Requests that ended, by how.",
            labelnames=("model_name", "finished_reason"),
            **own,
        )
        self.registry.register(_OfEngine(engine, model))

    def ended(self, ended: Ended) -> None:
        """Count a sequence that has ended."""
        label, written = (self._model,), len(ended.token_ids)
        reason = ended.finish_reason if ended.error is None else _why(ended.error)
        self._ended.labels(self._model, reason).inc()
        self._queue.labels(*label).observe(ended.queue_seconds)
        self._whole.labels(*label).observe(ended.total_seconds)
        self._read.labels(*label).observe(ended.num_prompt_tokens)
        self._written.labels(*label).observe(written)
        self._prompt_tokens.labels(*label).inc(ended.num_prompt_tokens)
        self._tokens.labels(*label).inc(written)
        if written:
            self._first.labels(*label).observe(ended.time_to_first_token)
        if written > 1:
            after = ended.total_seconds - ended.time_to_first_token
            self._per_token.labels(*label).observe(after / (written - 1))

    def text(self) -> bytes:
        """Render the body of ``/metrics``."""
        return generate_latest(self.registry)


class _OfEngine:
    """The engine's counters, read on demand."""

    def __init__(self, engine: EngineLoop, model: str) -> None:
        self.engine, self.model = engine, model

    def collect(self) -> Iterator[Any]:
        engine, label = self.engine, [self.model]

        def gauge(name: str, about: str, value: float) -> GaugeMetricFamily:
            family = GaugeMetricFamily(f"hierspec_{name}", about, labels=["model_name"])
            family.add_metric(label, value)
            return family

        def counter(name: str, about: str, value: float) -> CounterMetricFamily:
            family = CounterMetricFamily(f"hierspec_{name}", about, labels=["model_name"])
            family.add_metric(label, value)
            return family

        running = len(engine.running) + len(engine.reading)
        yield gauge("num_requests_running", "Sequences in rounds or being read.", running)
        yield gauge("num_requests_waiting", "Sequences in the queue.", len(engine.waiting))
        used = engine.num_cache_tokens() / engine.settings.max_cache_tokens
        yield gauge("kv_cache_usage_perc", "Share of the cache spoken for, 0 to 1.", used)
        since = time.monotonic() - engine.last_step if running else 0.0
        yield gauge("seconds_since_step", "While sequences are live; a stuck engine grows.", since)
        prefixes = [lane.prefixes for lane in engine.lanes.values()]
        looked = sum(each.query_tokens for each in prefixes)
        yield counter("prefix_cache_queries", "Prompt tokens looked for.", looked)
        yield counter(
            "prefix_cache_hits", "Prompt tokens found.", sum(p.hit_tokens for p in prefixes)
        )
        yield from self._drafts()

    def _drafts(self) -> Iterator[CounterMetricFamily]:
        names = ["model_name", "hierarchy", "level"]
        about = {
            "num_drafts": "Drafts verified, by level.",
            "num_draft_tokens": "Tokens drafted.",
            "num_accepted_tokens": "Tokens that the level above kept.",
        }
        families = {
            key: CounterMetricFamily(f"hierspec_spec_decode_{key}", text, labels=names)
            for key, text in about.items()
        }
        seconds = CounterMetricFamily(
            "hierspec_level_seconds", "Time in calls of a level.", labels=names
        )
        calls = CounterMetricFamily("hierspec_level_calls", "Forwards of a level.", labels=names)
        per_pos = CounterMetricFamily(
            "hierspec_spec_decode_num_accepted_tokens_per_pos",
            "Tokens kept, by their position in the draft.",
            labels=[*names, "position"],
        )
        for name, lane in self.engine.lanes.items():
            for index, stats in list(lane.runtime.metrics.levels.items()):
                if index not in lane.plans.names():
                    continue
                own = [self.model, name, stats.name]
                calls.add_metric(own, stats.calls)
                seconds.add_metric(own, stats.seconds)
                if stats.num_drafts == 0:
                    continue
                for key, family in families.items():
                    family.add_metric(own, getattr(stats, key))
                for position, kept in enumerate(stats.accepted_per_pos):
                    per_pos.add_metric([*own, str(position)], kept)
        yield from (*families.values(), per_pos, calls, seconds)


def _why(error: BaseException) -> str:
    """Return the label of the error that ended a request early."""
    if isinstance(error, DeadlineError):
        return "timeout"
    return "cancelled" if isinstance(error, RequestCancelledError) else "error"
