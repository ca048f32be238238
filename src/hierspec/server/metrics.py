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
_HISTOGRAMS = {
    "time_to_first_token_seconds": ("From arrival to the first token.", _SECONDS),
    "time_per_output_token_seconds": (
        "Mean time of a token after the first, by request.",
        _TOKEN_SECONDS,
    ),
    "e2e_request_latency_seconds": ("From arrival to the end.", _SECONDS),
    "request_queue_time_seconds": ("From arrival to the first round.", _SECONDS),
    "request_prompt_tokens": ("Prompt tokens of a request.", _TOKENS),
    "request_generation_tokens": ("Tokens that a request wrote.", _TOKENS),
}


class ServerMetrics:
    """Counters and histograms of one service.

    Args:
        model: the value of the label ``model_name``.
    """

    def __init__(self, engine: EngineLoop, model: str) -> None:
        self.engine, self.model, self.registry = engine, model, CollectorRegistry()
        by_model: dict[str, Any] = {
            "namespace": "hierspec",
            "registry": self.registry,
            "labelnames": ("model_name",),
        }
        self._histograms = {
            name: Histogram(name, documentation, buckets=buckets, **by_model)
            for name, (documentation, buckets) in _HISTOGRAMS.items()
        }
        self._prompt_tokens = Counter("prompt_tokens", "Tokens read.", **by_model)
        self._tokens = Counter("generation_tokens", "Tokens written.", **by_model)
        by_model["labelnames"] = ("model_name", "finished_reason")
        self._requests = Counter("request_success", "Requests that ended, by how.", **by_model)
        self.registry.register(self)

    def record(self, ended: Request) -> None:
        """Count a sequence that has ended."""
        num_tokens = len(ended.token_ids)
        match ended.error:
            case None:
                reason = ended.finish_reason
            case DeadlineError():
                reason = "timeout"
            case error:
                reason = "cancelled" if isinstance(error, RequestCancelledError) else "error"
        self._requests.labels(self.model, reason).inc()
        self._prompt_tokens.labels(self.model).inc(ended.num_prompt_tokens)
        self._tokens.labels(self.model).inc(num_tokens)
        values = {
            "request_queue_time_seconds": ended.queue_seconds,
            "e2e_request_latency_seconds": ended.total_seconds,
            "request_prompt_tokens": ended.num_prompt_tokens,
            "request_generation_tokens": num_tokens,
        }
        if num_tokens:
            values["time_to_first_token_seconds"] = ended.time_to_first_token
        if num_tokens > 1:
            seconds = ended.total_seconds - ended.time_to_first_token
            values["time_per_output_token_seconds"] = seconds / (num_tokens - 1)
        for name, value in values.items():
            self._histograms[name].labels(self.model).observe(value)

    def text(self) -> bytes:
        """Render the body of ``/metrics``."""
        return generate_latest(self.registry)

    def collect(self) -> Iterator[Any]:
        """Yield the engine's own counters, for the registry."""
        engine = self.engine
        used = engine.num_cache_tokens() / engine.settings.max_cache_tokens
        prefixes = [runner.prefixes for runner in engine.runners.values()]
        queries = sum(cache.query_tokens for cache in prefixes)
        hits = sum(cache.hit_tokens for cache in prefixes)
        stall, gauge, counter = engine.seconds_since_step, GaugeMetricFamily, CounterMetricFamily
        for kind, name, documentation, value in (
            (gauge, "num_requests_running", "Sequences in rounds or being read.", len(engine.live)),
            (gauge, "num_requests_waiting", "Sequences in the queue.", len(engine.waiting)),
            (gauge, "kv_cache_usage_perc", "Share of the cache in use or reserved, 0 to 1.", used),
            (gauge, "seconds_since_step", "0 without work; grows if the engine is stuck.", stall),
            (counter, "prefix_cache_queries", "Prompt tokens looked up.", queries),
            (counter, "prefix_cache_hits", "Prompt tokens found.", hits),
        ):
            family = kind(f"hierspec_{name}", documentation, labels=["model_name"])
            family.add_metric([self.model], value)
            yield family
        yield from self._drafts()

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
