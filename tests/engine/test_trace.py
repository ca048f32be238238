"""Events: any interpreter's requests and verdicts, as JSON lines."""

from __future__ import annotations

import io
import json

from tabular_cases import chain, drive, models, record_requests

from hierspec.core.nodes import initial_states
from hierspec.core.requests import Propose
from hierspec.core.round import verified
from hierspec.engine.trace import JsonLinesTracer, ListTracer
from hierspec.exact.interpreter import ExactInterpreter


def test_a_wrapped_coroutine_behaves_the_same_and_is_recorded():
    root = chain(models("peaked", 2), ["block"], [2])
    states = initial_states(root)
    tracer = ListTracer(clock=iter(range(99)).__next__)
    interpreter = ExactInterpreter(root, 3)
    plain, _ = drive(verified(root, (), 9, states), interpreter)
    wrapped, _ = drive(record_requests(verified(root, (), 9, states), tracer, 4, 10), interpreter)
    assert wrapped.emitted.tokens == plain.emitted.tokens
    draft, check = tracer.events
    assert draft["kind"] == "draft"
    assert draft["level"] == "level 0"
    assert draft["base_length"] == 10
    assert draft["time"] == 1
    assert check["draft"] == draft["tokens"]
    assert check["sequence"] == 4
    assert check["num_accepted"] == plain.num_accepted
    assert check["emitted"] == list(plain.emitted.tokens)


def test_follow_up_rows_are_recorded_and_draws_are_not():
    root = chain(models("random", 2, seed=1), ["naive"], [3])
    tracer = ListTracer()
    interpreter = ExactInterpreter(root, 3)

    def worst(request):
        """Reject at once, so that the rest of the draft must be resampled."""
        interpreter._prefetch([request])
        branches = interpreter._answers(request)
        if isinstance(request, Propose):
            return branches[-1][1]
        return min(branches, key=lambda b: getattr(b[1], "num_accepted", 0))[1]

    found = []
    for draft in [o.value for o in interpreter.proposals(root.below, (), 9, initial_states(root))]:
        tracer.events.clear()
        coroutine, answer = (
            record_requests(verified(root, (), 9, initial_states(root)), tracer),
            None,
        )
        while True:
            try:
                request = coroutine.send(answer)
            except StopIteration:
                break
            answer = draft if isinstance(request, Propose) else worst(request)
        found.append([event["kind"] for event in tracer.events])
    assert ["draft", "check", "row", "row", "row", "row"] in found


def test_json_lines():
    stream = io.StringIO()
    tracer = JsonLinesTracer(stream, clock=iter([0.0, 1.5, 2.5]).__next__)
    tracer.record({"kind": "draft", "tokens": [1, 2]})
    tracer.record({"kind": "check", "level": "größer"})
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert lines[0] == {"time": 1.5, "kind": "draft", "tokens": [1, 2]}
    assert lines[1]["level"] == "größer"
