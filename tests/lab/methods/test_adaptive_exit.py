"""Exits chosen by confidence: exact, the first that is sure, and each (token, segment) once."""

from __future__ import annotations

import random
from collections import Counter

import pytest
import torch
from engine_cases import BATCHES, TIGHT, WINDOWS, tv
from exit_tables import TabularExit
from fakes.models import Ledger, ToyBackend
from loading import hierarchy_of
from tabular_cases import FAMILIES, V, chain, models
from work import Work

from hierspec.core.context import Context
from hierspec.core.nodes import Draft
from hierspec.exact.certificate import certify_tree
from hierspec.lm.base import Query
from hierspec.lm.trunk.trunk import Trunk
from hierspec.sampling.parameters import SamplingParams
from hierspec.verifiers.soundness import validate
from hierspec_lab.methods.adaptive_exit.model import AdaptiveExit

EXITS = {
    "method": "adaptive_exit",
    "exit_layers": [1, 2],
    "confidence": 0.5,
    "num_speculative_tokens": 4,
}
FLOOR = 0.85
VOCAB = ToyBackend.vocab_size


def built(path, **options):
    target = {"model": path, "dtype": "float64"}
    return hierarchy_of({"target": target, "levels": [{**EXITS, **options}]})


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("rules", [["tokenwise"], ["block"], ["naive"], ["leading", "block"]])
def test_exact_by_enumeration(family, rules):
    """TV 0 below every rule, as a drafter and in the middle of a hierarchy."""
    small, mid, large, target = models(family, 4, seed=9)
    adaptive = TabularExit([small, mid], 0.6, "1|2")
    drafting = chain([adaptive, large, target][-len(rules) - 1 :], rules, [2] * len(rules))
    if len(rules) == 1:
        drafting = chain([adaptive, target], rules, [3])
    validate(drafting)
    assert certify_tree(drafting, V).tv < 1e-12
    if rules == ["block"]:
        middle = chain([large, adaptive, target], ["tokenwise", "block"], [2, 2])
        assert certify_tree(middle, V).tv < 1e-12


def choice(ids, floor=FLOOR, temperature=1.0):
    """Exit and scores after ``ids``, from fresh forwards of every exit."""
    for layer in (2, 4):
        view = Trunk(ToyBackend(), [layer]).view(layer)
        row = view.score([Query(view.open(), Context(list(ids)), len(ids))])
        if float((row / temperature).softmax(-1).max()) >= floor:
            break
    return layer, row


@pytest.mark.parametrize("seed", range(6))
def test_rows_are_those_of_the_first_sure_exit_and_no_work_is_done_twice(seed):
    """Drafts, checks by the whole model, rejections and commits, three sequences at once."""
    rng = random.Random(seed)
    trunk = Trunk(ToyBackend(), [2, 4])
    done, adaptive = Work(trunk), AdaptiveExit([trunk.view(2), trunk.view(4)], FLOOR, "toy@2|4")
    slots = [adaptive.open() for _ in range(3)]
    committed = [[rng.randrange(VOCAB) for _ in range(rng.randint(1, 9))] for _ in slots]
    drafts = [()] * 3
    ledgers = [Ledger(3) for _ in slots]
    used = Counter()
    for _ in range(40):
        whole = rng.random() < 0.25
        queries, expected = [], []
        for i in rng.sample(range(3), rng.randint(1, 3)):
            match rng.randrange(3):
                case 0:
                    drafts[i] += (rng.randrange(VOCAB),)
                case 1:  # a rejection
                    drafts[i] = (
                        *drafts[i][: rng.randint(0, len(drafts[i]))],
                        rng.randrange(VOCAB),
                    )
                case 2:  # a commit
                    kept = rng.randint(0, len(drafts[i]))
                    committed[i].extend(drafts[i][:kept])
                    drafts[i] = ()
            context = Context(committed[i], drafts[i])
            ids = list(context)
            start = rng.randint(1, len(ids)) if rng.random() < 0.4 else len(ids)
            queries.append(Query(slots[i], context, start))
            if whole:
                ledgers[i].ask(ids, 2)
                continue
            ledgers[i].ask(ids, 0)
            found = [(end, *choice(ids[:end])) for end in range(start, len(ids) + 1)]
            expected += [row for _, _, row in found]
            used.update(layer for _, layer, _ in found)
            if deep := [end for end, layer, _ in found if layer == 4]:
                ledgers[i].ask(ids[: deep[-1]], 1)
        if whole:
            trunk.view().score(queries)
        else:
            assert (adaptive.score(queries) - torch.cat(expected)).abs().max() < 1e-12
    assert min(used[2], used[4]) > 10, "both exits are used"
    assert done.tokens == [sum(one.work[s] for one in ledgers) for s in range(3)]


def test_confidence_is_read_at_the_levels_temperature():
    trunk = Trunk(ToyBackend(), [2, 4])
    adaptive = AdaptiveExit([trunk.view(2), trunk.view(4)], FLOOR, "toy@2|4")
    temperatures = set()
    for ids in ([a, b] for a in range(VOCAB) for b in range(VOCAB)):
        for temperature in (0.0, 0.5, 2.0):
            layer, row = choice(ids, temperature=temperature or 1.0)
            got = adaptive.score([Query(adaptive.open(), Context(ids), 2, temperature)])
            assert torch.allclose(got, row, rtol=0, atol=1e-12)
            temperatures.add((temperature, layer))
    assert {(0.5, 2), (2.0, 4), (0.0, 2), (0.0, 4)} <= temperatures


@pytest.mark.parametrize(
    ("request_t", "level_t", "read"),
    [(0.0, 0.7, 0), (0.9, None, 0.9), (0.9, 0.7, 0.7), (0.9, 0.0, 0)],
)
def test_the_runtime_says_which_temperature(tiny_family, monkeypatch, request_t, level_t, read):
    temperatures = set()
    score = AdaptiveExit.score

    def listening(self, queries):
        temperatures.update(query.temperature for query in queries)
        return score(self, queries)

    monkeypatch.setattr(AdaptiveExit, "score", listening)
    level = {} if level_t is None else {"temperature": level_t}
    built(tiny_family["target"], **level).generate(
        [5, 6], max_new_tokens=6, temperature=request_t, seed=0, ignore_eos=True
    )
    assert temperatures == {read}


def test_the_target_computes_nothing_that_an_exit_has(tiny_family):
    """Every layer sees the text and the rejected drafts once; upper segments no more than lower."""
    hierarchy = built(tiny_family["target"])
    done, prompt = Work(hierarchy.root.model.trunk), [11, 4, 4, 30, 8]
    result = hierarchy.generate(prompt, max_new_tokens=30, ignore_eos=True)
    (level,) = result.levels
    length = len(prompt) + 30
    # A draft's last token and a bonus are read by the next call alone: never more than all written.
    assert done.tokens[0] <= length + level["num_draft_tokens"] - level["num_accepted_tokens"]
    assert done.tokens[0] >= done.tokens[1] >= done.tokens[2] >= length - 1


def test_the_engines_law_is_the_targets():
    first, deeper, target = models("random", 3, seed=7)
    model = AdaptiveExit([first, deeper], 0.6, "exits")
    for window in ("fixed", "confidence"):
        root = chain([target], ["block"], [], below=Draft(0, "exits", model, 2, WINDOWS[window]))
        assert tv(root, 3, SamplingParams(temperature=0.8), BATCHES[3]) < TIGHT
