"""A call that fails is repeated, and every healthy sequence goes on as if it had not failed."""

from __future__ import annotations

import pytest
from fakes.engines import read
from installed import installed
from loading import hierarchy_of
from stacks import model

from hierspec import SamplingParams
from hierspec.core.requests import Propose
from hierspec.engine.engine import EngineSettings
from hierspec.engine.loop import EngineLoop
from hierspec.engine.request import Request
from hierspec.engine.responder import Responder
from hierspec.engine.runner import ServingRunner
from hierspec.engine.stopping import StopConditions

POISON = 77
KINDS = [
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=1.4),
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=1.0, repetition_penalty=1.3, frequency_penalty=0.2),
]


def method(name, tokens=4, **more):
    return {"method": name, "num_speculative_tokens": tokens, **more}


def configurations(family):
    """Every drafting method that keeps something from call to call, and ways to mix them."""
    draft, small = family["draft"], family["small"]
    search = {"context_window": 2, "bayes_interval": 3, "enough": 2.0}
    swift = method("layer_skip", skip=0.5)
    found = {
        "draft model": [model(draft, 4)],
        "drafts ahead": [model(draft, 4, ahead=True)],
        "running window": [model(draft, 6, window={"kind": "entropy"})],
        "several drafts": [model(draft, 3, num_drafts=3)],
        "prompt look-up": [method("prompt_lookup")],
        "pool of n-grams": [method("ngram_pool")],
        "shared pool": [method("ngram_pool", shared=True)],
        "suffix": [method("suffix")],
        "suffix with a store": [method("suffix", store=500)],
        "lookahead": [method("lookahead", window_size=4, max_candidates=3)],
        "search for layers": [{**swift, "search": search}],
        "shared search": [{**swift, "search": {**search, "shared": True}}],
        "retrieval": [method("retrieval", budget=16)],
        "adaptive exit": [method("adaptive_exit", exit_layers=[1, 2], confidence=0.5)],
        "declining exit": [
            method("adaptive_exit", exit_layers=[1, 2], confidence=0.02, unsure="target")
        ],
        "quantized": [method("quantized")],
        "pool below a draft": [method("ngram_pool", 3), model(small, 5, verify="block")],
        "one after another": [
            {"method": "concatenate", "parts": [[method("suffix", 2)], [model(draft, 3)]]}
        ],
    }
    return installed(found)


def request(prompt, tokens=16, **more):
    more.setdefault("params", KINDS[0])
    stop = StopConditions(max_new_tokens=tokens, max_length=512)
    return Request(prompt=prompt, stop=stop, fixed_plan=True, **more)


def texts(hierarchy, requests):
    """What each writes in one batch; ``None`` for one that fails."""
    engine = EngineLoop(
        {"": ServingRunner(hierarchy.root, None)}, EngineSettings(prefix_caching=False)
    )
    found = [reader.wait() for reader in read(engine, *requests)]
    engine.close()
    return [None if one.error else one.token_ids for one in found], found


@pytest.mark.parametrize("name", configurations({"draft": "", "small": ""}))
def test_a_call_that_is_repeated_takes_back_all_that_it_took(tiny_family, monkeypatch, name):
    """It fails at its end, in every round from some length on, by one of its sequences: what the
    others drew, drafted ahead, counted and learnt in it must be drawn, used and learnt again."""

    def healthy():
        prompts = [[5 + i, 6, 7, 8, 6, 7][: 3 + i] for i in range(5)]
        return [request(p, seed=i, params=KINDS[i % 4]) for i, p in enumerate(prompts)]

    def mixed():
        broken = [request([POISON, 4 + i, 5], seed=i) for i in range(8)]
        return [one for pair in zip(healthy(), broken, strict=False) for one in pair] + broken[5:]

    answer, repeated = Responder.answer, []

    def failing(self, tasks):
        answers = answer(self, tasks)
        for task in tasks:
            tokens = task.sequence.tokens
            at = isinstance(task.request, Propose) == bool(tokens[1] % 2)
            if tokens[0] == POISON and len(tokens) > tokens[1] and at:
                repeated.append(len(tasks))
                raise RuntimeError("on purpose")
        return answers

    def built():
        config = {"target": {"model": tiny_family["target"], "dtype": "float64"}}
        rule = "traversal" if name == "several drafts" else "block"
        rule = "block-rrs" if name == "lookahead" else rule
        levels = configurations(tiny_family)[name]
        return hierarchy_of({**config, "levels": levels, "verify": rule})

    alone, undisturbed = texts(built(), healthy())
    monkeypatch.setattr(Responder, "answer", failing)
    together, disturbed = texts(built(), mixed())
    assert sum(count > 1 for count in repeated) > 1
    assert together[:10:2] == alone
    assert together[1:10:2] + together[10:] == [None] * 8
    for one, other in zip(undisturbed, disturbed[:10:2], strict=True):
        assert one.target_calls == other.target_calls
        assert [level.num_draft_tokens for level in one.levels] == [
            level.num_draft_tokens for level in other.levels
        ]
