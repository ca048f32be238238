"""OpenTelemetry traces, a span a sequence; needs the extra ``otel``."""

from __future__ import annotations

import time
from typing import Any

from hierspec.engine.request import Request
from hierspec.errors import HierspecError


class SpanTracing:
    """Sends a span for every sequence that ends.

    Args:
        endpoint: URL of an OTLP collector, over HTTP: ``http://127.0.0.1:4318/v1/traces``.

    Raises:
        HierspecError: the extra is not installed.
    """

    def __init__(self, endpoint: str, model: str, exporter: Any = None) -> None:
        try:
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor

            if exporter is None:
                from opentelemetry.exporter.otlp.proto.http import (  # type: ignore[import-not-found]
                    trace_exporter,
                )

                exporter = trace_exporter.OTLPSpanExporter(endpoint=endpoint)
        except ImportError:
            raise HierspecError(
                "otlp_endpoint needs an extra: pip install 'hierspec[otel]'"
            ) from None
        self._provider = TracerProvider(resource=Resource.create({"service.name": "hierspec"}))
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer, self._model = self._provider.get_tracer("hierspec"), model

    def record(self, ended: Request) -> None:
        """Record a sequence that has just ended."""
        now = time.time_ns()
        span = self._tracer.start_span(
            "llm_request", start_time=now - int(ended.total_seconds * 1e9)
        )
        reason = type(ended.error).__name__ if ended.error is not None else ended.finish_reason
        span.set_attributes(
            {
                "gen_ai.request.model": self._model,
                "gen_ai.usage.prompt_tokens": ended.num_prompt_tokens,
                "gen_ai.usage.completion_tokens": len(ended.token_ids),
                "gen_ai.response.finish_reason": reason,
                "gen_ai.latency.time_in_queue": ended.queue_seconds,
                "gen_ai.latency.time_to_first_token": ended.time_to_first_token,
                "hierspec.target_calls": ended.target_calls,
                "hierspec.mean_acceptance_length": ended.mean_acceptance_length,
            }
        )
        for level in ended.levels:
            span.set_attribute(f"hierspec.acceptance_rate.{level.name}", level.acceptance_rate)
        span.end(end_time=now)

    def close(self) -> None:
        """Send the remaining spans."""
        self._provider.shutdown()
