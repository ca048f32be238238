"""A span a sequence, with what became of its drafts."""

from __future__ import annotations

import sys

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from server_cases import app_of, asking

from hierspec import HierspecError
from hierspec.server.tracing import SpanTracing


def test_every_sequence_leaves_a_span(family):
    app, exporter = app_of(family), InMemorySpanExporter()
    app.state.service.tracing = SpanTracing("", "tiny", exporter)
    body = {"prompt": "hello", "n": 2, "max_tokens": 5, "seed": 1}
    asking(app, lambda client: client.post("/v1/completions", json=body))
    spans = exporter.get_finished_spans()
    assert len(spans) == 2
    attributes = spans[0].attributes
    assert attributes["gen_ai.usage.completion_tokens"] == 5
    assert attributes["gen_ai.response.finish_reason"] == "length"
    assert 0 <= attributes["hierspec.acceptance_rate.draft"] <= 1
    assert spans[0].end_time > spans[0].start_time


def test_a_missing_extra_says_which(monkeypatch):
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.resources", None)
    with pytest.raises(HierspecError, match=r"hierspec\[otel\]"):
        SpanTracing("http://127.0.0.1:1", "tiny")
