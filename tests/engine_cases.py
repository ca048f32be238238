"""What engine laws are enumerated of: windows, batches and readings; and how far off they are."""

from __future__ import annotations

import contextlib
import os

import pytest
from engine_law import Neighbour, engine_law
from engine_paths import CHUNKS, VERIFYING, Taped, distance, patched
from installed import LAB

from hierspec.core.nodes import Verify, initial_states
from hierspec.core.windows import ConfidenceWindow, EntropyWindow, FixedWindow
from hierspec.drafters.model import ModelDrafter
from hierspec.engine.generation import Generation
from hierspec.engine.request import Request
from hierspec.engine.stopping import StopConditions
from hierspec.sampling.parameters import SamplingParams

TIGHT = 1e-9
SINGLE = 1e-6  # float32
PROMPT = [1, 0]
MULTI_DRAFT = ["rrs", "rrs-without-replacement", "block-rrs", "traversal"]
MULTI_DRAFT += ["induced-block"] * LAB
SAMPLING = SamplingParams(temperature=1.0)
WINDOWS = {
    "fixed": FixedWindow(),
    "entropy": EntropyWindow(threshold=0.8),
    "running entropy": EntropyWindow(),
    "confidence": ConfidenceWindow(floor=0.4),
}
# Other temperatures, so that rows cannot all be read together; other lengths; one greedy.
BATCHES = {
    1: (),
    3: (
        Neighbour((0, 2, 1), SamplingParams(temperature=0.6), num_tokens=2),
        Neighbour((2,), SamplingParams(temperature=0.0), num_tokens=4),
    ),
}
ALIKE = (Neighbour((0, 2, 1), SAMPLING, num_tokens=2), Neighbour((2,), SAMPLING, num_tokens=4))


def forbids_repeats(ids, scores):
    """A processor that looks at all that came before: the draft's tokens, too."""
    scores = scores.clone()
    scores[:, ids[0, -1]] -= 1.0 + 0.5 * float((ids == ids[0, -1]).sum())
    return scores


READINGS = {
    "temperature": {"temperature": 0.6},
    "top-k": {"temperature": 1.3, "top_k": 2},
    "top-p": {"temperature": 1.0, "top_p": 0.7},
    "min-p": {"temperature": 0.8, "min_p": 0.4},
    "all": {"temperature": 0.9, "top_k": 2, "top_p": 0.95, "min_p": 0.05},
    "repetition": {"temperature": 1.0, "repetition_penalty": 1.7},
    "frequency": {"temperature": 1.0, "frequency_penalty": 0.6},
    "presence": {"temperature": 0.7, "presence_penalty": -0.8, "top_k": 2},
    "bias": {"temperature": 1.0, "logit_bias": ((0, 0.7), (2, -0.4))},
    "processor": {"temperature": 1.0, "logits_processors": (forbids_repeats,)},
}
# Every rule under one window that it takes; with HIERSPEC_EXHAUSTIVE=1 under every one.
READ_UNDER = [("tokenwise", "entropy"), ("block", "entropy"), ("naive", "fixed")]
if os.environ.get("HIERSPEC_EXHAUSTIVE"):
    READ_UNDER = [(rule, window) for rule in ("tokenwise", "block") for window in WINDOWS]
    READ_UNDER.append(("naive", "fixed"))


def remembered(root: Verify):
    """Window states in which running thresholds let drafts be long."""
    states = initial_states(root)
    for i, state in enumerate(states):
        if state:
            states = (*states[:i], (0.9, 1.0), *states[i + 1 :])
    return states


@contextlib.contextmanager
def requests_for_drafts():
    """Drafts that were left to a model: continued by it, or made on its device."""
    calls = []

    def spy(name):
        real = getattr(ModelDrafter, name)

        def call(*args):
            calls.append(name)
            return real(*args)

        return ModelDrafter, name, call

    with patched(spy("stepwise_step"), spy("on_device")):
        yield calls


def tv(root, horizon=3, params=SAMPLING, neighbours=(), path="short", target=None, **options):
    """Total variation of what the engine writes along that path."""
    if path == "recorded":
        root.model.graphs = Taped()
    with patched(*VERIFYING[path]), patched(*CHUNKS):
        found = engine_law(root, PROMPT, horizon, params, neighbours, **options)
    if path == "recorded":
        assert params.greedy or root.model.graphs.replayed > 0
    assert sum(found.values()) == pytest.approx(1.0, abs=1e-9)
    return distance(found, target or root.model, PROMPT, horizon, params)


def generation(root, params=SAMPLING, prompts=(PROMPT,), tokens=3, controller=None, **stop):
    """What makes one, anew each time."""

    def start() -> Generation:
        own = [params, *[SamplingParams(temperature=0.6)] * (len(prompts) - 1)]
        conditions = StopConditions(max_new_tokens=tokens, **stop)
        requests = [
            Request(
                prompt=prompt,
                params=own[place],
                stop=conditions,
                seed=5,
                place=place,
                num_logprobs=0,
            )
            for place, prompt in enumerate(prompts)
        ]
        return Generation(root, requests, controller=controller)

    return start


MANY = (PROMPT, [2], [0, 1, 2])
