"""Losslessness of the engine as it runs: every road, enumerated through the runtime's own dice.

What `tests/core/test_round.py` proves of rules and windows is proved here of the code that a GPU
or a CPU runs: shortcuts, padding, recorded decisions, drafts made ahead and in chunks, draws.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os

import numpy as np
import pytest
import torch
from engine_roads import CHUNKS, VERIFYING, Ahead, Device, Single, Taped, distance, like, patched
from estimate_cases import estimates, rates
from tabular_cases import V, chain, models

from hierspec.core import distributions as distributions
from hierspec.core.context import Context
from hierspec.core.nodes import Concatenate, Draft, Verify, initial_states
from hierspec.core.proposals import replace_state
from hierspec.core.rules import scan
from hierspec.core.windows import ConfidenceWindow, EntropyWindow, FixedWindow
from hierspec.drafters import model as drafting
from hierspec.drafters.lookahead import Lookahead
from hierspec.drafters.model import ModelDrafter
from hierspec.drafters.ngram_pool import NgramPool
from hierspec.drafters.ngram_table import NgramModel
from hierspec.drafters.prompt_lookup import PromptLookup
from hierspec.engine.control import JumpingController
from hierspec.engine.generation import Generation
from hierspec.engine.stopping import StopConditions
from hierspec.exact import ExactInterpreter, output_law
from hierspec.exact.engine_law import Neighbour, engine_law, generation_law
from hierspec.exact.splitting import outcome_law
from hierspec.lm.adaptive_exit import AdaptiveExit
from hierspec.lm.base import Query
from hierspec.lm.lean.decoder import LeanBackend
from hierspec.lm.tabular import TabularModel
from hierspec.lm.trunk.cuda_graphs import CudaGraphTrunk
from hierspec.lm.weights import from_directory
from hierspec.planner.estimates import Chain
from hierspec.planner.online.controller import OnlineController
from hierspec.sampling import sampler as readings
from hierspec.sampling import scores as sampling
from hierspec.sampling.parameters import SamplingParams
from hierspec.utils.testing import save_tiny
from hierspec.verifiers import multi_draft
from hierspec.verifiers.block import Block
from hierspec.verifiers.registry import get
from hierspec.verifiers.roads import device
from hierspec.verifiers.soundness import check
from hierspec.verifiers.tokenwise import Tokenwise

TIGHT = 1e-9
SINGLE = 1e-6  # float32
PROMPT = [1, 0]
MULTI_DRAFT = ["rrs", "rrs-without-replacement", "block-rrs", "traversal", "induced-block"]
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


def remembered(root: Verify):
    """Window states in which running thresholds let drafts be long."""
    states = initial_states(root)
    for i, state in enumerate(states):
        if state:
            states = replace_state(states, i, (0.9, 1.0))
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

    with patched(spy("stepwise_step"), spy("grow_on_device")):
        yield calls


def tv(root, horizon=3, params=SAMPLING, neighbours=(), road="short", target=None, **options):
    """Total variation of what the engine writes along that road."""
    if road == "recorded":
        root.model.graphs = Taped()
    with patched(*VERIFYING[road]), patched(*CHUNKS):
        found = engine_law(root, PROMPT, horizon, params, neighbours, **options)
    if road == "recorded":
        assert params.greedy or root.model.graphs.replayed > 0
    assert sum(found.values()) == pytest.approx(1.0, abs=1e-9)
    return distance(found, target or root.model, PROMPT, horizon, params)


# --- dice that split


def test_what_is_compared_is_enumerated():
    def program(rng):
        a, b = rng.take(2).tolist()
        first = "low" if a < 0.3 else "mid" if not a * 2.0 > 1.4 else "high"
        return first, b >= 0.9 if first == "mid" else None

    found = outcome_law(program)
    assert found == {
        ("low", None): pytest.approx(0.3),
        ("high", None): pytest.approx(0.3),
        ("mid", True): pytest.approx(0.04),
        ("mid", False): pytest.approx(0.36),
    }


def test_what_is_no_box_is_refused():
    def program(rng):
        a, b = rng.take(2).tolist()
        return a < b

    with pytest.raises(ValueError, match="two uniforms"):
        outcome_law(program)


@pytest.mark.parametrize("few", [-1, 4])
@pytest.mark.parametrize("large", [2, 1000])
def test_a_draw_has_its_law(few, large):
    probs = torch.tensor([[0.0, 0.2, 0.0, 1.1, 0.7, 0.0]], dtype=torch.float64)
    with patched(
        (distributions, "_FEW_ROWS", few),
        (distributions, "_LARGE_VOCAB", large),
        (distributions, "_BLOCK", 2),
    ):
        found = outcome_law(lambda rng: distributions.draw(probs, rng.take(1))[0])
    assert found == {i: pytest.approx(float(probs[0, i]) / 2.0) for i in (1, 3, 4)}


# --- rules, roads, windows, batches

# Who drafts, and under which windows: a table that cannot draft by itself is asked token by
# token; `Ahead` is asked for whole drafts, `Device` for chunks where a window reads them.
DRAFTERS = [(TabularModel, window) for window in WINDOWS]
DRAFTERS += [(Ahead, "fixed")] + [(Device, window) for window in WINDOWS]


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize(("drafter", "window"), DRAFTERS)
@pytest.mark.parametrize("road", ["short", "padded", "blocks", "recorded"])
@pytest.mark.parametrize("rule", ["tokenwise", "block", "naive"])
def test_every_road(rule, road, drafter, window, batch):
    small, target = models("random", 2, seed=0)  # such that every branch of `block` is taken
    root = chain([like(drafter, small), like(TabularModel, target)], [rule], [2], [WINDOWS[window]])
    if get(rule).fixed_length and not WINDOWS[window].fixed_length:
        with pytest.raises(ValueError, match="window"):
            check(root)
        return
    check(root)
    # What drafts in one request does so only for rows that are read alike.
    others = BATCHES[batch] if drafter is TabularModel or batch == 1 else ALIKE
    with requests_for_drafts() as requests:
        assert tv(root, 3, neighbours=others, road=road, states=remembered(root)) < TIGHT
    assert bool(requests) is (drafter is not TabularModel)


@pytest.mark.parametrize("family", ["peaked", "zeros", "disjoint", "equal"])
@pytest.mark.parametrize("road", VERIFYING)
@pytest.mark.parametrize("rule", ["tokenwise", "block", "naive"])
def test_laws_with_holes_and_equal_ones(rule, road, family):
    """Tokens that one of two laws cannot say, and residuals that vanish."""
    root = chain(models(family, 2, order=0 if family == "zeros" else 1, seed=3), [rule], [2])
    assert tv(root, 3, neighbours=BATCHES[3], road=road) < TIGHT


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("road", VERIFYING)
@pytest.mark.parametrize("rules", [["leading", "block"], ["block", "tokenwise"]])
def test_three_levels(rules, road, batch):
    """A rule that is sound in the middle only, and laws that a level reports."""
    tables = models("zeros", 3, seed=4)
    first = get(rules[0], top_m=2) if rules[0] == "leading" else rules[0]
    windows = [FixedWindow(), EntropyWindow(threshold=0.9)]
    root = chain(tables, [first, rules[1]], [1, 2], windows)
    check(root)
    assert tv(root, 3, neighbours=BATCHES[batch], road=road) < TIGHT


@pytest.mark.parametrize("rule", ["tokenwise", "block"])
def test_rounds_may_run_over_the_end(rule):
    """Four tokens from rounds of up to three, none of them cut, and no bonus in the middle."""
    root = chain(models("random", 2, seed=3), [rule], [2])
    assert tv(root, 4, cut_at_horizon=False) < TIGHT
    root = chain(models("peaked", 3, seed=3), [rule] * 2, [1, 1], bonus=[False, True])
    assert tv(root, 4, cut_at_horizon=False) < TIGHT


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("road", ["short", "blocks"])
@pytest.mark.parametrize("rule", MULTI_DRAFT)
def test_multi_draft_rules(rule, road, batch):
    small, target = models("random", 2, seed=5)
    leaf = Draft(0, "drafts", small, 2, num_drafts=2).for_rule(get(rule))
    root = Verify(1, "target", target, 1, get(rule), leaf)
    check(root)
    horizon = 3 if batch == 1 else 2
    assert tv(root, horizon, neighbours=BATCHES[batch], road=road) < TIGHT


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("order", ["interleaved", "horizontal"])
def test_concatenations(order, batch):
    small, mid, target = models("random", 3, seed=4)
    parts = Draft(0, "small", small, 1), Draft(1, "mid", like(Ahead, mid), 1)
    if order == "horizontal":
        parts = Draft(0, "mid", mid, 1), Draft(1, "small", small, 1, EntropyWindow(0.9))
    below = Concatenate(2, order, parts)
    root = chain([target], ["block"], [], below=below)
    assert tv(root, 3, neighbours=BATCHES[batch], road="padded" if batch > 1 else "short") < TIGHT


# --- how scores are read


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


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("drafter", [TabularModel, Device])
@pytest.mark.parametrize("road", ["short", "padded", "recorded"])
@pytest.mark.parametrize("reading", READINGS)
@pytest.mark.parametrize(("rule", "window"), READ_UNDER)
def test_every_reading(rule, window, reading, road, drafter, batch):
    params = SamplingParams(**READINGS[reading])
    small, target = models("random", 2, seed=3)
    windows = [WINDOWS[window]]
    root = chain([like(drafter, small), like(TabularModel, target)], [rule], [2], windows)
    others = BATCHES[batch] if drafter is TabularModel else BATCHES[batch][:0]
    others = others or tuple(one._replace(params=params) for one in BATCHES[batch])
    with requests_for_drafts() as requests:
        assert tv(root, 3, params, others, road, states=remembered(root)) < TIGHT
    left = drafter is not TabularModel and not params.edits_scores
    assert bool(requests) is left


@pytest.mark.parametrize("rule", ["tokenwise", "block", "naive"])
@pytest.mark.parametrize("reading", ["repetition", "frequency", "processor", "top-k"])
def test_a_level_may_be_hotter(rule, reading):
    params = SamplingParams(**READINGS[reading])
    root = chain(models("peaked", 2, seed=3), [rule], [2])
    root = dataclasses.replace(root, below=dataclasses.replace(root.below, temperature=1.6))
    assert tv(root, 3, params, BATCHES[3]) < TIGHT


@pytest.mark.parametrize("rule", ["tokenwise", "block", "naive", "leading"])
@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("drafter", [TabularModel, Ahead, Device])
@pytest.mark.parametrize("window", ["fixed", "entropy"])
def test_greedy(rule, batch, drafter, window):
    """One text, whatever the neighbours draw."""
    params = SamplingParams(temperature=0.0, repetition_penalty=1.2 if window == "fixed" else 1.0)
    small, target = models("random", 2, seed=8)
    root = chain([like(drafter, small), target], [rule], [2], [WINDOWS[window]])
    neighbours = ALIKE if batch == 3 else ()
    assert tv(root, 4, params, neighbours) == 0.0


@pytest.mark.parametrize("road", VERIFYING)
@pytest.mark.parametrize("rule", ["tokenwise", "block", "naive"])
def test_scores_in_float32(rule, road):
    small, target = (like(Single, table) for table in models("random", 2, seed=6))
    root = chain([small, target], [rule], [2])
    for params in (SAMPLING, SamplingParams(temperature=0.7, top_k=2)):
        assert tv(root, 3, params, BATCHES[3], road) < SINGLE


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("road", VERIFYING)
@pytest.mark.parametrize("rule", ["tokenwise", "block"])
def test_a_draft_of_another_width(rule, road, size):
    """Narrower, it cannot say the last token; wider, its last column is cut off."""
    generator = torch.Generator().manual_seed(2)
    target = TabularModel.random(3, 1, generator)
    table = TabularModel.random(size, 0, generator)
    root = chain([table, target], [rule], [2])
    assert tv(root, 3, road=road) < TIGHT


# --- models that know a part of the vocabulary, and say −∞ for the rest


KNOWN = {"one token": (1,), "two tokens": (0, 2)}
PART_READINGS = {
    **{name: READINGS[name] for name in ("top-k", "all", "repetition", "processor", "bias")},
    "plain": {"temperature": 1.0},
    "greedy": {"temperature": 0.0},
    "none of its tokens": {"temperature": 1.0, "logit_bias": ((0, -math.inf), (2, -math.inf))},
    "one of its tokens": {"temperature": 1.0, "logit_bias": ((0, -math.inf), (1, math.log(2)))},
}


def part_of(table: TabularModel, known: tuple[int, ...], kind=TabularModel) -> TabularModel:
    """What a table says of some tokens, of no others."""
    laws = {}
    for key, law in table.table().items():
        left = [p if i in known else 0.0 for i, p in enumerate(law)]
        laws[key] = [p / sum(left) for p in left]
    found = kind(table.vocab_size, table.order, laws)
    found.partial = True
    return found


# With one token left to say there is one text: long enough that a recorded decision is made again.
PART_HORIZONS = {"none of its tokens": 6}


@pytest.mark.parametrize("reading", PART_READINGS)
@pytest.mark.parametrize("road", ["short", "padded", "recorded"])
@pytest.mark.parametrize(("rule", "window"), [*READ_UNDER, ("tokenwise", "confidence")])
def test_a_part_of_the_vocabulary(rule, window, reading, road):
    params = SamplingParams(**PART_READINGS[reading])
    small, target = models("random", 2, seed=3)
    small = part_of(small, KNOWN["two tokens"])
    root = chain([small, like(TabularModel, target)], [rule], [2], [WINDOWS[window]])
    horizon = PART_HORIZONS.get(reading, 3)
    assert tv(root, horizon, params, BATCHES[3], road, states=remembered(root)) < TIGHT


@pytest.mark.parametrize("rule", ["tokenwise", "block", "naive"])
@pytest.mark.parametrize("known", KNOWN)
@pytest.mark.parametrize("road", VERIFYING)
def test_a_part_of_the_vocabulary_on_every_road(road, known, rule):
    small, target = models("random", 2, seed=3)
    root = chain([part_of(small, KNOWN[known]), target], [rule], [2])
    assert tv(root, 3, road=road) < TIGHT


@pytest.mark.parametrize("drafter", [Ahead, Device])
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("known", KNOWN)
def test_a_part_of_the_vocabulary_drafted_ahead(known, window, drafter):
    small, target = models("random", 2, seed=3)
    small = part_of(small, KNOWN[known], drafter)
    root = chain([small, target], ["block"], [2], [WINDOWS[window]])
    with requests_for_drafts() as requests:
        assert tv(root, 3, states=remembered(root)) < TIGHT
    assert requests


@pytest.mark.parametrize("road", VERIFYING)
@pytest.mark.parametrize("first", ["tokenwise", "block", "leading"])
@pytest.mark.parametrize("reading", ["plain", "none of its tokens", "greedy"])
def test_a_part_of_the_vocabulary_in_the_middle(reading, first, road):
    """It verifies drafts that it could not have made."""
    small, mid, target = models("random", 3, seed=4)
    tables = [small, part_of(mid, (0, 2)), like(TabularModel, target)]
    rule = get(first, top_m=2) if first == "leading" else first
    root = chain(tables, [rule, "block"], [1, 2])
    horizon = PART_HORIZONS.get(reading, 3)
    assert tv(root, horizon, SamplingParams(**PART_READINGS[reading]), road=road) < TIGHT


@pytest.mark.parametrize("rule", MULTI_DRAFT)
@pytest.mark.parametrize("known", KNOWN)
def test_several_drafts_of_a_part(known, rule):
    """Also where there are fewer tokens to say than drafts to make."""
    small, target = models("random", 2, seed=5)
    leaf = Draft(0, "drafts", part_of(small, KNOWN[known]), 2, num_drafts=2).for_rule(get(rule))
    root = Verify(1, "target", target, 1, get(rule), leaf)
    assert tv(root, 3) < TIGHT


# --- drafters that are no model, and models that are more than one


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("rule", ["tokenwise", "block"])
@pytest.mark.parametrize("road", ["short", "padded", "recorded"])
def test_prompt_lookup(road, rule, batch):
    (target,) = models("random", 1, seed=1)
    root = chain([target], [rule], [], below=Draft(0, "lookup", PromptLookup(1, 2), 2))
    assert tv(root, 4, neighbours=BATCHES[batch], road=road) < TIGHT


def test_an_adaptive_exit():
    first, deeper, target = models("random", 3, seed=7)
    model = AdaptiveExit([first, deeper], 0.6, "exits")
    for window in ("fixed", "confidence"):
        root = chain([target], ["block"], [], below=Draft(0, "exits", model, 2, WINDOWS[window]))
        assert tv(root, 3, SamplingParams(temperature=0.8), BATCHES[3]) < TIGHT


def test_an_ngram_table():
    target = models("random", 1, seed=7)[0]
    model = NgramModel.build([np.array([0, 1, 2, 2, 1, 0, 0, 2, 1])], V, 2)
    for rule in ("block", "naive"):
        root = chain([model, target], [rule], [2])
        with requests_for_drafts() as requests:
            assert tv(root, 3) < SINGLE
        assert requests


@pytest.mark.parametrize("rule", ["tokenwise", "naive"])
@pytest.mark.parametrize("room", [2, 3, 4])
def test_a_draft_whose_context_is_full(rule, room):
    """It hands up less, then nothing; the target goes on alone."""
    small, target = models("random", 2, seed=3)
    root = chain([like(Ahead, small, max_length=room), target], [rule], [2])
    assert tv(root, 4, neighbours=ALIKE) < TIGHT


# --- whole generations


def generation(root, params=SAMPLING, prompts=(PROMPT,), tokens=3, controller=None, **stop):
    """What makes one, anew each time."""

    def start() -> Generation:
        return Generation(
            root,
            prompts,
            tokenizer=None,
            params=[params, *[SamplingParams(temperature=0.6)] * (len(prompts) - 1)],
            stop=StopConditions(max_new_tokens=tokens, **stop),
            seed=5,
            want_logprobs=True,
            lock=contextlib.nullcontext(),
            controller=controller,
        )

    return start


MANY = (PROMPT, [2], [0, 1, 2])


@pytest.mark.parametrize("prompts", [(PROMPT,), MANY])
@pytest.mark.parametrize("rule", ["tokenwise", "block"])
def test_a_generation(rule, prompts):
    """The first token before any draft, then rounds, until nothing is wanted."""
    params = SamplingParams(temperature=0.9, frequency_penalty=0.5)
    root = chain(models("random", 2, seed=3), [rule], [2], [EntropyWindow()])
    found = generation_law(generation(root, params, prompts, tokens=4))
    assert distance(found, root.model, PROMPT, 4, params) < TIGHT


@pytest.mark.parametrize("online", [False, True])
@pytest.mark.parametrize("prompts", [(PROMPT,), MANY])
def test_controllers(online, prompts):
    root = chain(models("random", 3, seed=8), ["block", "tokenwise"], [1, 1])
    if online:
        known = dataclasses.replace(estimates((1.0, 2.0, 9.0), rates(0.6, 0.8, 0.5)), max_budget=2)
        controller = OnlineController(
            root, known, Chain((0, 1, 2), (1, 1)), first_wait=1, longest_wait=2
        )
    else:
        controller = JumpingController(root, [[1, 1], [0, 2], [1, 0], [0, 0]])
    found = generation_law(generation(root, prompts=prompts, tokens=4, controller=controller))
    assert distance(found, root.model, PROMPT, 4) < TIGHT


@pytest.mark.parametrize("prompts", [(PROMPT,), MANY])
def test_an_ngram_pool_learns_from_what_was_rejected(prompts):
    (target,) = models("random", 1, seed=2)
    root = chain([target], ["tokenwise"], [], below=Draft(0, "pool", NgramPool(1, 2), 2))
    found = generation_law(generation(root, prompts=prompts, tokens=4))
    assert distance(found, target, PROMPT, 4) < TIGHT


@pytest.mark.parametrize("prompts", [(PROMPT,), MANY])
def test_a_lookahead_window_is_filled_by_the_checks_of_its_own_drafts(prompts):
    (target,) = models("random", 1, seed=2)
    leaf = Draft(0, "lookahead", Lookahead(3, 2, 2), 2, num_drafts=6)
    root = chain([target], ["rrs"], [], below=leaf)
    found = generation_law(generation(root, prompts=prompts, tokens=4))
    assert distance(found, target, PROMPT, 4) < TIGHT


def test_the_context_of_the_target_ends_a_text():
    small, target = models("random", 2, seed=3)
    target = like(TabularModel, target, max_length=len(PROMPT) + 3)
    root = chain([small, target], ["block"], [2])
    found = generation_law(generation(root, tokens=9, max_length=target.max_length))
    assert distance(found, target, PROMPT, 3) < TIGHT


# --- a transformer whose drafts are one recorded call


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A tiny Llama over three tokens, in float64."""
    folder = tmp_path_factory.mktemp("tiny")
    ids = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    save_tiny("llama", folder, seed=3, layers=2, vocab_size=V, **ids)
    return LeanBackend(from_directory(folder), torch.float64)


@pytest.mark.parametrize("kind", WINDOWS)
@pytest.mark.parametrize("batch", BATCHES)
def test_a_trunk_of_fixed_shapes(tiny, kind, batch):
    """An early exit drafts in chunks on what passes for a device; the target checks there, too."""
    trunk = CudaGraphTrunk(tiny, (1,))
    target = trunk.view()
    leaf = Draft(0, "exit", trunk.view(1), 2, WINDOWS[kind])
    root = chain([target], ["block"], [], below=leaf)
    with patched(*VERIFYING["recorded"]), patched(*CHUNKS), requests_for_drafts() as requests:
        neighbours = ALIKE if batch == 3 else ()
        found = engine_law(root, PROMPT, 3, SAMPLING, neighbours, states=remembered(root))
    assert requests
    table = {}
    for text in [(), *((a,) for a in range(V)), *((a, b) for a in range(V) for b in range(V))]:
        (query,) = [Query(trunk.open(), Context([*PROMPT, *text]), len(PROMPT) + len(text))]
        table[text] = target.score([query])[0].softmax(-1).tolist()
        trunk.close(query.slot)
    law = lambda _, text, params, start: table[tuple(text[start:])]  # noqa: E731
    assert distance(found, target, PROMPT, 3, row=law) < TIGHT


# --- lossy rules: their loss, to the last digit


@pytest.mark.parametrize("road", VERIFYING)
@pytest.mark.parametrize("rule", ["uncapped", "leading"])
@pytest.mark.parametrize("window", ["fixed", "running entropy"])
def test_a_loss_is_what_enumerating_the_rules_says(rule, window, road):
    """Two enumerations that share no dice, cell by cell."""
    small, target = models("random", 2, seed=3)
    root = chain([small, target], [rule], [2], [WINDOWS[window]])
    with patched(*VERIFYING[road]):
        if road == "recorded":
            root.model.graphs = Taped()
        found = engine_law(root, [], 4, states=remembered(root))
    expected = output_law(ExactInterpreter(root, V), remembered(root), 4, cut_at_horizon=True)
    assert max(abs(expected[text] - found.get(text, 0.0)) for text in np.ndindex((V,) * 4)) < 1e-12
    assert distance(found, target, [], 4) > 5e-3


# --- small mistakes, planted on roads that enumerating the rules does not take


class Lenient(Tokenwise):
    """The shortcut keeps a little too much."""

    def decide(self, p_x, q_x, uniforms, excess):
        return super().decide([1.01 * p for p in p_x], q_x, uniforms, excess)


class LightResidual(Block):
    """The shortcut draws from the residual of a weight that is slightly off."""

    def decide(self, p_x, q_x, uniforms, excess):
        tau, w = super().decide(p_x, q_x, uniforms, excess)
        return tau, w if w == 1.0 else 0.97 * w


def lenient_scan(order, h, uniforms):
    return scan(order, h * 1.004, uniforms)


def tempered_search(cdf, u, real=distributions._search_row):
    law = np.diff(cdf / cdf[-1], prepend=0.0) ** 1.01
    return real(law.cumsum(), u)


def tempered_locate(probs, u):
    return distributions.locate(probs**1.01, u)


def tempered_draw(probs, uniforms):
    return distributions.draw(probs**1.03, uniforms)


def glad(choice, rng):
    """A multi-draft test that passes a little too often."""
    try:
        h = next(choice)
        while True:
            h = choice.send(bool(rng.take(1).item() < 1.01 * h))
    except StopIteration as stop:
        return stop.value


def drops_the_stopper(window, signals, state, real=drafting._keep_until_stop):
    """A chunk is cut before the token that its window stopped at."""
    n, stopped = real(window, signals, state)
    return (n - 1, True) if stopped and n > 1 else (n, stopped)


def forgets_the_draft(scores, context, start, *others, real=sampling.penalise):
    """Rows in the middle of a draft are penalised as the first one is."""
    text = Context(context.committed)
    for row in scores.split(1):
        real(row, text, len(text), *others)


FREQUENCY = SamplingParams(temperature=1.0, frequency_penalty=0.03)
PLANTED = {
    "lenient shortcut": ((), {"rule": Lenient()}),
    "light residual": ((), {"rule": LightResidual(), "seed": 0}),
    "lenient scan": (((device, "scan", lenient_scan),), {"road": "padded"}),
    "lenient scan, recorded": (((device, "scan", lenient_scan),), {"road": "recorded"}),
    "tempered draws": (((distributions, "_search_row", tempered_search),), {}),
    "tempered corrections": (((device, "locate", tempered_locate),), {"road": "blocks"}),
    "a draft's tempered draws": (((readings, "draw", tempered_draw),), {"drafter": Ahead}),
    "a device's tempered draws": (((readings, "locate", tempered_locate),), {"drafter": Device}),
    "multi-draft": (((multi_draft, "run_tests", glad),), {"rule": get("rrs")}),
    "a chunk's end": (
        ((drafting, "_keep_until_stop", drops_the_stopper),),
        {"drafter": Device, "window": ConfidenceWindow(floor=0.1), "seed": 8},
    ),
    "penalties": (((sampling, "penalise", forgets_the_draft),), {"params": FREQUENCY}),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_small_mistake_is_caught(name):
    changes, case = PLANTED[name]
    small, target = models("random", 2, seed=case.get("seed", 3))
    small = like(case.get("drafter", TabularModel), small)
    rule = case.get("rule", get("block"))
    leaf = Draft(0, "drafts", small, 2, case.get("window", FixedWindow()))
    leaf = dataclasses.replace(leaf, num_drafts=2 if rule.multi_draft else 1).for_rule(rule)
    root = Verify(1, "target", target, 1, rule, leaf)
    params, road = case.get("params", SAMPLING), case.get("road", "short")
    with patched(*changes):
        lost = tv(root, 3, params, road=road)
    assert 1e-5 < lost < 1e-2  # far above rounding, and below what samples show
