"""Drafts that leave out other layers every round: exact, as what is skipped follows from the text
before the round; enumerated through the runtime, and so is what it must not follow from.
"""

from __future__ import annotations

from itertools import product

import pytest
import torch
from engine_cases import PROMPT, SAMPLING, TIGHT
from engine_law import generation_law
from engine_paths import distance
from tabular_cases import V
from tiny_models import save_tiny

from hierspec.core.context import Context
from hierspec.core.nodes import Draft, Verify
from hierspec.engine.generation import Generation
from hierspec.engine.request import Request
from hierspec.engine.stopping import StopConditions
from hierspec.lm.base import Query
from hierspec.lm.lean.decoder import LeanBackend
from hierspec.lm.trunk.trunk import Trunk
from hierspec.lm.weights import from_directory
from hierspec.verifiers.registry import get
from hierspec_lab.methods.layer_skip import drafter as skip_search
from hierspec_lab.methods.layer_skip.drafter import SearchedSkip, SearchingDrafter, SkipSearches
from hierspec_lab.methods.layer_skip.search import SearchSettings, SkipSearch
from hierspec_lab.methods.layer_skip.skipping import Skip


class Wild(SkipSearch):
    """Depends on the text as wildly as a search may: jumps with every score."""

    SETS = (Skip((1, 2), ()), Skip((), (1, 2)), Skip((1,), (2,)), Skip((2,), (1, 2)))

    def next_candidate(self):
        return self.SETS[len(self.scores) % 4]

    def record(self, candidate, score):
        self.scores.append(score)
        self.best = self.SETS[(2 * len(self.scores) + int(score)) % 4]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A tiny Llama of four layers over three tokens, in float64; its parts matter."""
    folder = tmp_path_factory.mktemp("tiny")
    ids = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    save_tiny("llama", folder, seed=3, layers=4, vocab_size=V, **ids)
    return LeanBackend(from_directory(folder), torch.float64)


def searching(backend, rule="block", budget=1):
    """A hierarchy over the tiny model, anew, and the searches of its level."""
    trunk = Trunk(backend)
    settings = SearchSettings(share=0.5, context_window=1, enough=2.0)
    searches = SkipSearches(settings, backend.num_layers)
    leaf = Draft(0, "skipping", SearchedSkip(trunk, searches, "skipping"), budget)
    return Verify(1, "target", trunk.view(), 1, get(rule), leaf)


def law_of(root, tokens, prompts=(PROMPT,)):
    def start():
        conditions = StopConditions(max_new_tokens=tokens)
        requests = [
            Request(prompt=prompt, params=SAMPLING, stop=conditions, seed=5, place=place)
            for place, prompt in enumerate(prompts)
        ]
        return Generation(root, requests)

    return generation_law(start)


def table_of(root, tokens):
    """The target's rows after every text of fewer tokens."""
    model, found = root.model, {}
    for n in range(tokens):
        for text in product(range(V), repeat=n):
            context = Context([*PROMPT, *text])
            (row,) = model.score([Query(model.open(), context, len(context))])
            found[text] = row.softmax(-1).tolist()
    return lambda _, text, params, start: found[tuple(text[start:])]


@pytest.mark.parametrize(
    ("rule", "prompts"), [("block", (PROMPT,)), ("tokenwise", (PROMPT, [2], [0, 1, 2]))]
)
def test_layers_that_change_with_the_text(tiny, rule, prompts, monkeypatch):
    monkeypatch.setattr(skip_search, "SkipSearch", Wild)
    used = set()
    choose = SearchedSkip.choose

    def listening(self, slot, skip, length):
        used.add(skip)
        choose(self, slot, skip, length)

    monkeypatch.setattr(SearchedSkip, "choose", listening)
    root = searching(tiny, rule)
    found = law_of(root, 4, prompts)
    assert len(used) > 1, "sets change"
    assert distance(found, root.model, PROMPT, 4, row=table_of(root, 4)) < TIGHT


def test_a_choice_by_what_was_drafted_is_lossy_and_seen(tiny, monkeypatch):
    """What a choice must not follow from: tokens of the very draft that it is made for."""
    draft = SearchingDrafter.draft

    def hindsight(self, calls):
        found = draft(self, calls)
        again = []
        for call, one in zip(calls, found.proposals, strict=True):
            other = Wild.SETS[one.tokens[0] % 4]
            slot, length = call.slot(self.model, 0), len(call.job.context.committed)
            self.model.choose(slot, other, length)
            _, rows = self.rows([skip_search_growing(call)])
            again.append((one, rows[0]))
        for i, (one, row) in enumerate(again):
            found.proposals[i] = type(one)(one.tokens, row, one.owners, one.origins, one.signals)
        return found

    monkeypatch.setattr(SearchingDrafter, "draft", hindsight)
    root = searching(tiny)
    found = law_of(root, 3)
    assert distance(found, root.model, PROMPT, 3, row=table_of(root, 3)) > 1e-5


def skip_search_growing(call):
    from hierspec.drafters.model import GrowingDraft

    return GrowingDraft(call)
