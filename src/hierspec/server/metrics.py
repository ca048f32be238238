"""Prometheus metrics in vLLM's names under our prefix; those of drafts carry a ``level`` label.

The engine's own counters are read on each request for metrics; histograms grow as requests end.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from hierspec.engine.loop import EngineLoop
from hierspec.engine.request import DeadlineError, Request, RequestCancelledError

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
        by_model: dict[str, Any] = {"registry": self.registry, "labelnames": ("model_name",)}
        seconds = {**by_model, "buckets": _SECONDS}
        self._time_to_first_token = Histogram(
            "hierspec_time_to_first_token_seconds", "From arrival to the first token.", **seconds
        )
        self._time_per_token = Histogram(
            "hierspec_time_per_output_token_seconds",
            "Mean time of a token after the first, by request.",
            **{**by_model, "buckets": _TOKEN_SECONDS},
        )
        self._latency = Histogram(
            "hierspec_e2e_request_latency_seconds", "From arrival to the end.", **seconds
        )
        self._queue_time = Histogram(
            "hierspec_request_queue_time_seconds", "From arrival to the first round.", **seconds
        )
        tokens = {**by_model, "buckets": _TOKENS}
        self._request_prompt_tokens = Histogram(
            "hierspec_request_prompt_tokens", "Prompt tokens of a request.", **tokens
        )
        self._request_tokens = Histogram(
            "hierspec_request_generation_tokens", "Tokens that a request wrote.", **tokens
        )
        self._prompt_tokens = Counter("hierspec_prompt_tokens", "Tokens read.", **by_model)
        self._tokens = Counter("hierspec_generation_tokens", "Tokens written.", **by_model)
        self._requests = Counter(
            "hierspec_request_success",
            "Requests that ended, by how.",
            labelnames=("model_name", "finished_reason"),
            registry=self.registry,
        )
        self.registry.register(_EngineCollector(engine, model))

    def record(self, ended: Request) -> None:
        """Count a sequence that has ended."""
        model, num_tokens = self._model, len(ended.token_ids)
        reason = ended.finish_reason if ended.error is None else _failure_label(ended.error)
        self._requests.labels(model, reason).inc()
        self._queue_time.labels(model).observe(ended.queue_seconds)
        self._latency.labels(model).observe(ended.total_seconds)
        self._request_prompt_tokens.labels(model).observe(ended.num_prompt_tokens)
        self._request_tokens.labels(model).observe(num_tokens)
        self._prompt_tokens.labels(model).inc(ended.num_prompt_tokens)
        self._tokens.labels(model).inc(num_tokens)
        if num_tokens:
            self._time_to_first_token.labels(model).observe(ended.time_to_first_token)
        if num_tokens > 1:
            seconds = ended.total_seconds - ended.time_to_first_token
            self._time_per_token.labels(model).observe(seconds / (num_tokens - 1))

    def text(self) -> bytes:
        """Render the body of ``/metrics``."""
        return generate_latest(self.registry)


class _EngineCollector:
    """The engine's counters, read on demand."""

    def __init__(self, engine: EngineLoop, model: str) -> None:
        self.engine, self.model = engine, model

    def collect(self) -> Iterator[Any]:
        engine = self.engine
        running = len(engine.live)
        used = engine.num_cache_tokens() / engine.settings.max_cache_tokens
        prefixes = [runner.prefixes for runner in engine.runners.values()]
        gauges = (
            ("num_requests_running", "Sequences in rounds or being read.", running),
            ("num_requests_waiting", "Sequences in the queue.", len(engine.waiting)),
            ("kv_cache_usage_perc", "Share of the cache in use or reserved, 0 to 1.", used),
            (
                "seconds_since_step",
                "0 without work; grows if the engine is stuck.",
                engine.seconds_since_step,
            ),
        )
        counters = (
            ("prefix_cache_queries", "Prompt tokens looked up.", "query_tokens"),
            ("prefix_cache_hits", "Prompt tokens found.", "hit_tokens"),
        )
        for name, documentation, value in gauges:
            yield self._family(GaugeMetricFamily, name, documentation, value)
        for name, documentation, field in counters:
            total = sum(getattr(prefix_cache, field) for prefix_cache in prefixes)
            yield self._family(CounterMetricFamily, name, documentation, total)
        yield from self._drafts()

    def _family(self, kind: Any, name: str, documentation: str, value: float) -> Any:
        family = kind(f"hierspec_{name}", documentation, labels=["model_name"])
        family.add_metric([self.model], value)
        return family

    def _drafts(self) -> Iterator[CounterMetricFamily]:
        def counter(name: str, documentation: str, *more_labels: str) -> CounterMetricFamily:
            labels = ["model_name", "hierarchy", "level", *more_labels]
            return CounterMetricFamily(f"hierspec_{name}", documentation, labels=labels)

        of_drafts = {
            key: counter(f"spec_decode_{key}", documentation)
            for key, documentation in (
                ("num_drafts", "Drafts verified, by level."),
                ("num_draft_tokens", "Tokens drafted."),
                ("num_accepted_tokens", "Tokens that the level above kept."),
            )
        }
        seconds = counter("level_seconds", "Time in calls of a level.")
        calls = counter("level_calls", "Forwards of a level.")
        accepted_per_pos = "spec_decode_num_accepted_tokens_per_pos"
        per_pos = counter(accepted_per_pos, "Tokens kept, by position in the draft.", "position")
        for name, runner in self.engine.runners.items():
            for index, level in runner.names.items():
                stats = runner.runtime.metrics.levels[index]
                labels = [self.model, name, level]
                calls.add_metric(labels, stats.calls)
                seconds.add_metric(labels, stats.seconds)
                if stats.num_drafts == 0:
                    continue
                for key, family in of_drafts.items():
                    family.add_metric(labels, getattr(stats, key))
                for position, count in enumerate(stats.num_accepted_tokens_per_pos):
                    per_pos.add_metric([*labels, str(position)], count)
        yield from (*of_drafts.values(), per_pos, calls, seconds)


def _failure_label(error: BaseException) -> str:
    if isinstance(error, DeadlineError):
        return "timeout"
    return "cancelled" if isinstance(error, RequestCancelledError) else "error"
