"""Layers skipped, exits chosen by confidence, and a pool of n-grams: exact, and nothing twice.

The χ² tests fail a sound drafter once in ten thousand seeds; the seeds are fixed.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from joint_law import chi_square, joint_law, sample
from loading import hierarchy_of
from tabular_cases import FAMILIES, V, chain, models
from test_trunk import LAYERS, Ledger, Toy
from test_trunk import V as TOY_V

from hierspec import HierarchyConfig, SamplingParams
from hierspec.core.context import Context
from hierspec.core.distributions import DenseDistributions, OneHotDistributions
from hierspec.core.proposals import Proposal
from hierspec.drafters import model as drafting
from hierspec.drafters import ngram_pool
from hierspec.drafters.ngram_pool import MAX_NGRAMS, NgramPool, Pool
from hierspec.exact.certificate import certify_tree
from hierspec.lm.adaptive_exit import AdaptiveExit
from hierspec.lm.base import Query
from hierspec.lm.layer_skip import SkippingBackend, contiguous_ranges, evenly_spaced_layers
from hierspec.lm.load import load
from hierspec.lm.trunk.trunk import Trunk
from hierspec.utils.testing import save_tiny, tiny_model
from hierspec.verifiers.registry import get
from hierspec.verifiers.soundness import check

PROMPTS = [[5, 9, 7], [11, 4, 4, 30, 8], [60], list(range(3, 40))]
SKIP = {"method": "layer_skip", "skip_layers": [1], "num_speculative_tokens": 3}
EXITS = {
    "method": "adaptive_exit",
    "exit_layers": [1, 2],
    "confidence": 0.5,
    "num_speculative_tokens": 4,
}
POOL = {"method": "ngram_pool", "num_speculative_tokens": 4}
CHAINS = {
    "layer_skip": [SKIP],
    "layer_skip by share": [{"method": "layer_skip", "skip": 0.45, "num_speculative_tokens": 3}],
    "adaptive_exit": [EXITS],
    "adaptive_exit, else the target": [{**EXITS, "unsure": "target"}],
    "ngram_pool": [POOL],
    "ngram_pool, shared": [{**POOL, "shared": True}],
    "all three": [POOL, {**EXITS, "verify": "block"}, {**SKIP, "verify": "tokenwise"}],
    "several drafts": [{**EXITS, "num_drafts": 3}],
}


def rule_of(name):
    return {"verify": "rrs"} if name == "several drafts" else {}


def built(path, levels, **options):
    target = {"model": str(path), "dtype": "float64", "backend": options.pop("backend", "auto")}
    return hierarchy_of({"target": target, "levels": levels, **options})


# --- greedy: token for token, alone and in ragged batches


@pytest.fixture(scope="module", params=["llama", "llama, hf", "gemma2", "gpt2"])
def target(request, tmp_path_factory):
    """A tiny float64 target, its backend, and its plain greedy continuations."""
    family, _, backend = request.param.partition(", ")
    path = save_tiny(family, tmp_path_factory.mktemp(family) / "m", seed=1)
    plain = built(path, [], backend=backend or "auto")
    options = {"max_new_tokens": 30, "ignore_eos": True}
    return path, backend or "auto", [plain.generate(p, **options).token_ids for p in PROMPTS]


@pytest.mark.parametrize("name", CHAINS)
def test_greedy_equals_plain_greedy(target, name):
    path, backend, expected = target
    hierarchy = built(path, CHAINS[name], backend=backend, **rule_of(name))
    options = {"max_new_tokens": 30, "ignore_eos": True}
    batch = hierarchy.generate_batch(PROMPTS, **options)
    assert [r.token_ids for r in batch] == expected
    assert [hierarchy.generate(p, **options).token_ids for p in PROMPTS[:2]] == expected[:2]
    assert sum(r.target_calls for r in batch) < 4 * 29, "some drafts are kept"


@pytest.mark.parametrize("name", CHAINS)
def test_a_sequence_samples_the_same_whoever_shares_its_batch(tiny_family, name):
    hierarchy = built(tiny_family["target"], CHAINS[name], **rule_of(name))
    options = {"max_new_tokens": 12, "temperature": 1.0, "seed": 5, "ignore_eos": True}
    together = [r.token_ids for r in hierarchy.generate_batch(PROMPTS, **options)]
    fewer = [r.token_ids for r in hierarchy.generate_batch(PROMPTS[:2], **options)]
    assert together[:2] == fewer


# --- sampling: the joint law of the first four tokens of six, 1,280 samples


PARAMS = SamplingParams(temperature=1.0, top_k=3)


@pytest.fixture(scope="module")
def law(tiny_family):
    return joint_law(built(tiny_family["target"], []), PROMPTS[0], PARAMS, 4)


def log10_p(hierarchy, law):
    """Six tokens are written, so that drafts reach over the four that are counted."""
    longer = sample(hierarchy, PROMPTS[0], PARAMS, 6, 1280, batch_size=640)
    counts = Counter()
    for tokens, number in longer.items():
        counts[tokens[:4]] += number
    result = chi_square(counts, law)
    assert result.degrees > 20
    return result.log10_p


@pytest.mark.parametrize(
    ("levels", "rule"),
    [
        ([{**EXITS, "temperature": 0.6, "confidence": 0.4}], "tokenwise"),
        ([SKIP], "block"),
        ([{**POOL, "shared": True}, {**EXITS, "verify": "block"}], "block"),
    ],
)
def test_samples_have_the_targets_joint_law(tiny_family, law, levels, rule):
    hierarchy = built(tiny_family["target"], levels, verify=rule)
    assert log10_p(hierarchy, law) > -4


def test_a_choice_by_the_drawn_token_is_lossy_and_seen(tiny_family, law, monkeypatch):
    """What the floor must not be applied to: a token its exit finds unlikely is drawn again."""
    draw = drafting.draw_each

    def picky(rows, rngs):
        first, second = draw(rows, rngs), draw(rows, rngs)
        return [
            a if row.prob(0, a) >= EXITS["confidence"] else b
            for row, a, b in zip(rows, first, second, strict=True)
        ]

    monkeypatch.setattr(drafting, "draw_each", picky)
    assert log10_p(built(tiny_family["target"], [EXITS], verify="tokenwise"), law) < -4


class Tabular(AdaptiveExit):
    """The same class over tables, as the exact interpreter asks it."""

    order = 1

    def distribution(self, context):
        context = Context(list(context))
        return self.score([Query(self.open(), context, len(context))])[0].softmax(-1)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("rules", [["tokenwise"], ["block"], ["naive"], ["leading", "block"]])
def test_exact_by_enumeration(family, rules):
    """TV 0 below every rule, as a drafter and in the middle of a hierarchy."""
    small, mid, large, target = models(family, 4, seed=9)
    adaptive = Tabular([small, mid], 0.6, "1|2")
    drafting = chain([adaptive, large, target][-len(rules) - 1 :], rules, [2] * len(rules))
    if len(rules) == 1:
        drafting = chain([adaptive, target], rules, [3])
    check(drafting)
    assert certify_tree(drafting, V).tv < 1e-12
    if rules == ["block"]:
        middle = chain([large, adaptive, target], ["tokenwise", "block"], [2, 2])
        assert certify_tree(middle, V).tv < 1e-12


# --- adaptive_exit: which exit, and each (token, segment) once


FLOOR = 0.85


def choice(ids, floor=FLOOR, temperature=1.0):
    """Exit and scores after ``ids``, from fresh forwards of every exit."""
    for layer in (2, 4):
        view = Trunk(Toy(), [layer]).view(layer)
        row = view.score([Query(view.open(), Context(list(ids)), len(ids))])
        if float((row / temperature).softmax(-1).max()) >= floor:
            break
    return layer, row


@pytest.mark.parametrize("seed", range(6))
def test_rows_are_those_of_the_first_sure_exit_and_no_work_is_done_twice(seed):
    """Drafts, checks by the whole model, rejections and commits, three sequences at once."""
    rng = random.Random(seed)
    trunk = Trunk(Toy(), [2, 4])
    adaptive = AdaptiveExit([trunk.view(2), trunk.view(4)], FLOOR, "toy@2|4")
    slots = [adaptive.open() for _ in range(3)]
    committed = [[rng.randrange(TOY_V) for _ in range(rng.randint(1, 9))] for _ in slots]
    drafts = [()] * 3
    ledgers = [Ledger(3) for _ in slots]
    used = Counter()
    for _ in range(40):
        whole = rng.random() < 0.25
        queries, expected = [], []
        for i in rng.sample(range(3), rng.randint(1, 3)):
            match rng.randrange(3):
                case 0:
                    drafts[i] += (rng.randrange(TOY_V),)
                case 1:  # a rejection
                    drafts[i] = (*drafts[i][: rng.randint(0, len(drafts[i]))], rng.randrange(TOY_V))
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
    assert trunk.counters.tokens == [sum(one.work[s] for one in ledgers) for s in range(3)]


def test_confidence_is_read_at_the_levels_temperature():
    trunk = Trunk(Toy(), [2, 4])
    adaptive = AdaptiveExit([trunk.view(2), trunk.view(4)], FLOOR, "toy@2|4")
    temperatures = set()
    for ids in ([a, b] for a in range(TOY_V) for b in range(TOY_V)):
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
    level = EXITS if level_t is None else {**EXITS, "temperature": level_t}
    built(tiny_family["target"], [level]).generate(
        [5, 6], max_new_tokens=6, temperature=request_t, seed=0, ignore_eos=True
    )
    assert temperatures == {read}


def test_the_target_computes_nothing_that_an_exit_has(tiny_family):
    """Every layer sees the text and the rejected drafts once; upper segments no more than lower."""
    hierarchy = built(tiny_family["target"], [EXITS])
    result = hierarchy.generate(PROMPTS[1], max_new_tokens=30, ignore_eos=True)
    tokens = hierarchy.root.model.trunk.counters.tokens
    (level,) = result.levels
    length = len(PROMPTS[1]) + 30
    # A draft's last token and a bonus are read by the next call alone: never more than all written.
    assert tokens[0] <= length + level["num_draft_tokens"] - level["num_accepted_tokens"]
    assert tokens[0] >= tokens[1] >= tokens[2] >= length - 1


# --- layer_skip


@pytest.mark.parametrize("backend", ["hf", "lean"])
@pytest.mark.parametrize("skip", [(1,), (0, 2), (1, 2, 4)])
def test_skipping_is_the_model_with_those_layers_taken_out(tmp_path, backend, skip):
    path = save_tiny("llama", tmp_path / "m", seed=3, layers=5)
    backend_of_all = load(path, dtype=torch.float64, backend=backend)
    model = tiny_model("llama", seed=3, layers=5)
    kept = [layer for i, layer in enumerate(model.model.layers) if i not in skip]
    model.model.layers = torch.nn.ModuleList(kept)
    ids = [3, 9, 27, 81, 51, 61, 91, 81]
    with torch.no_grad():
        want = model(torch.tensor([ids]), use_cache=False).logits[0]
    view = Trunk(SkippingBackend(backend_of_all, skip)).view()
    slot = view.open()
    first = view.score([Query(slot, Context(ids[:5]), 1)])
    rest = view.score([Query(slot, Context(ids[:5], tuple(ids[5:])), 6)])
    # The lean forward keeps rotary angles in float64, the library in float32.
    assert (torch.cat([first, rest]) - want).abs().max() < (1e-12 if backend == "hf" else 1e-5)


@pytest.mark.parametrize("seed", range(4))
def test_skipped_paths_rewind_and_grow_like_any_model(seed, monkeypatch):
    monkeypatch.setattr("hierspec.lm.trunk.slots._FIRST_CAPACITY_ON_CPU", 256)
    rng = random.Random(seed)
    trunk = Trunk(SkippingBackend(Toy(), (1, 2, 4)), chunk=rng.choice([4, 512]))
    view, slot = trunk.view(), trunk.open()
    committed, pending, ledger = [1, 2], (), Ledger(1)
    for step in range(50):
        pending = (*pending[: rng.randint(0, len(pending))], rng.randrange(TOY_V))
        if rng.random() < 0.3 or step == 30:
            committed += [*pending, *[step % TOY_V] * (300 if step == 30 else 0)]
            pending = ()
        context = Context(committed, pending)
        other = Trunk(SkippingBackend(Toy(), (1, 2, 4))).view()
        want = other.score([Query(other.open(), context, len(context))])
        assert (view.score([Query(slot, context, len(context))]) - want).abs().max() < 1e-12
        ledger.ask(list(context), 0)
    assert trunk.counters.tokens == ledger.work


def test_skipping_shares_the_targets_weights_and_cache(tiny_family):
    again = {**SKIP, "num_speculative_tokens": 5, "verify": "block"}
    other = {"method": "layer_skip", "skip_layers": [0], "num_speculative_tokens": 7,
             "verify": "block"}  # fmt: skip
    root = built(tiny_family["target"], [SKIP, again, other]).root
    top, mid, low = root.below, root.below.below, root.below.below.below
    for node in (top, mid, low):
        assert node.model.backend.backend is root.model.trunk.backend
        assert node.model.cache_owner is root.model.cache_owner
    assert low.model is mid.model
    assert top.model is not mid.model
    assert low.name.endswith("~2/3")


def test_layers_of_a_share():
    assert evenly_spaced_layers(0.45, 16) == (1, 3, 5, 7, 9, 11, 13)
    assert evenly_spaced_layers(0.45, 8) == (1, 2, 4, 5)
    assert evenly_spaced_layers(0.99, 5) == (1, 2, 3)
    assert evenly_spaced_layers(0.01, 9) == (1,)
    for depth in range(3, 40):
        for share in (0.1, 0.3, 0.45, 0.8):
            found = evenly_spaced_layers(share, depth)
            assert set(found) <= set(range(1, depth - 1))
            assert len(set(found)) == min(max(1, round(share * depth)), depth - 2)
    assert contiguous_ranges([0, 1, 4, 6, 7, 8]) == [(0, 2), (4, 5), (6, 9)]


# --- ngram_pool


def reference(texts, low, high, recent, limit):
    """By counting everything anew. ``texts`` in the order they became known."""
    out = []
    while len(out) < limit:
        known = [*recent, *out]
        for n in range(min(high, len(known)), low - 1, -1):
            key, seen = known[-n:], Counter()
            latest = {}
            for text in texts:
                for end in range(n, len(text)):
                    if text[end - n : end] == key:
                        seen[text[end]] += 1
                        latest[text[end]] = len(latest) + sum(seen.values())
            if seen:
                out.append(max(seen, key=lambda t: (seen[t], latest[t])))
                break
        else:
            return tuple(out)
    return tuple(out)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.lists(st.integers(0, 3), max_size=6), st.integers(0, 4)), min_size=1),
    st.integers(1, 2),
    st.integers(0, 2),
    st.integers(1, 6),
)
def test_the_pool_proposes_what_followed_most_often(steps, low, more, limit):
    """Over the life of a sequence: text is committed in runs, drafts come and go."""
    pool = NgramPool(low, low + more)
    slot, committed = pool.open(), []
    for tokens, num_pending in steps:
        committed.extend(tokens)
        pending = tuple(tokens[::-1])[:num_pending]
        for context in (Context(committed, pending), Context(committed)):
            want = reference([committed], low, low + more, context.tokens(), limit)
            assert pool.propose(context, limit, slot) == want


def test_what_the_target_would_have_chosen_joins_the_pool():
    pool = NgramPool(1, 3)
    slot = pool.open()
    draft = Proposal((3, 4, 5))
    for kept, distributions in (
        (1, OneHotDistributions((3, 9, 8, 7))),
        (3, OneHotDistributions((3, 4, 5, 6))),
    ):
        slot.pool.grams.clear()
        pool.learn_from([1, 2], draft, distributions, kept, [], slot)
        # Kept 1: rows 0 and 1 became text; after 3 4 it would say 8, after 3 4 5 it would say 7.
        want = {(3, 4): 8, (2, 3, 4): 8, (4,): 8, (5,): 7, (4, 5): 7, (3, 4, 5): 7}
        trigrams = {key: next(iter(f)) for key, f in slot.pool.grams.items()}
        assert trigrams == (want if kept == 1 else {})
    dense = DenseDistributions(torch.eye(10)[[3, 9, 8, 7]])
    pool.learn_from([1, 2], draft, dense, 1, [], slot)
    trigrams = {key: next(iter(f)) for key, f in slot.pool.grams.items() if len(key) == 3}
    assert trigrams == {(2, 3, 4): 8, (3, 4, 5): 7}


def test_what_is_learnt_is_the_targets_choice_at_that_very_place(tiny_family, monkeypatch):
    learnt = []
    learn = NgramPool.learn

    def listening(self, context, choices, slot):
        learnt.append((context.tokens(), choices))
        learn(self, context, choices, slot)

    monkeypatch.setattr(NgramPool, "learn", listening)
    hierarchy = built(tiny_family["target"], [POOL])
    hierarchy.generate_batch(PROMPTS, max_new_tokens=30, ignore_eos=True)
    assert len(learnt) > 5
    model = hierarchy.root.model
    for tokens, choices in learnt:
        start = len(tokens) - len(choices) + 1
        rows = model.score([Query(model.open(), Context(tokens), start)])
        assert rows.argmax(-1).tolist() == choices


def test_a_shared_pool_outlives_its_sequences_and_own_ones_do_not():
    text = [7, 8, 9, 10, 11]
    for shared, expected in ((True, (9, 10)), (False, ())):
        pool = NgramPool(2, 3, shared)
        slot = pool.open()
        pool.propose(Context(text), 1, slot)
        pool.close(slot)
        assert pool.propose(Context([7, 8]), 2, pool.open()) == expected


def test_a_pool_stays_small(monkeypatch):
    monkeypatch.setattr(ngram_pool, "_MAX_FOLLOWERS", 3)
    pool = NgramPool(1, 1, max_ngrams=5)
    slot = pool.open()
    text = [0, 1, 0, 2, 0, 2, 0, 3, 0, 4, 0, 5, 5, 6, 7, 8, 9, 0]
    pool.propose(Context(text), 1, slot)
    assert set(slot.pool.grams) == {(5,), (6,), (7,), (8,), (9,)}
    pool.propose(Context([*text[:12], 0, 0]), 1, slot := pool.open())
    assert len(slot.pool.grams[0,]) == 3
    assert slot.pool.best_follower((0,)) == 2, "the most frequent stays"
    with pytest.raises(ValueError, match="at least one n-gram"):
        NgramPool(1, 1, max_ngrams=0)


@pytest.mark.parametrize("shared", [False, True])
def test_n_grams_of_all_lengths_share_one_bound(shared):
    pool = NgramPool(1, 4, shared, max_ngrams=50)
    for start in range(0, 400, 100):  # another sequence each time
        slot = pool.open()
        pool.propose(Context(list(range(start, start + 100))), 1, slot)
        assert len(slot.pool.grams) == 50
        assert {len(key) for key in slot.pool.grams} == {1, 2, 3, 4}
        pool.close(slot)
    assert len(pool.shared_pool.grams) == (50 if shared else 0)


def test_what_is_asked_for_stays():
    pool = Pool(max_ngrams=3)
    for token in (1, 2, 3):
        pool.add((token,), token + 1)
    assert pool.best_follower((1,)) == 2
    pool.add((9,), 9)
    assert set(pool.grams) == {(1,), (3,), (9,)}, "2 was used longest ago"
    pool.add((3,), 4)
    pool.add((8,), 8)
    assert set(pool.grams) == {(3,), (9,), (8,)}
    assert pool.best_follower((1,)) is None
    assert MAX_NGRAMS == NgramPool(1, 4).max_ngrams == NgramPool(1, 4).open().pool.max_ngrams


def test_naive_is_refused_over_a_pool():
    root = chain([NgramPool(1, 2), None], [get("naive")], [3])
    with pytest.raises(ValueError, match="no distribution at contexts other"):
        check(root)


# --- mistakes


@pytest.mark.parametrize(
    ("level", "says"),
    [
        ({**SKIP, "skip": 0.5}, "either skip_layers"),
        ({"method": "layer_skip", "num_speculative_tokens": 3}, "either skip_layers"),
        ({**SKIP, "skip_layers": []}, "list of layer numbers"),
        ({**SKIP, "skip_layers": 3}, "list of layer numbers"),
        ({**SKIP, "skip_layers": [1, -1]}, "list of layer numbers"),
        ({**SKIP, "skip_layers": [True]}, "list of layer numbers"),
        ({**SKIP, "skip_layers": None, "skip": 1.0}, "skip must be a number between 0 and 1"),
        ({**SKIP, "skip_layers": None, "skip": "x"}, "skip must be a number between 0 and 1"),
        ({**SKIP, "skiplayers": [1]}, "did you mean 'skip_layers'"),
        ({**EXITS, "exit_layers": [2]}, "a single exit is early_exit"),
        ({**EXITS, "exit_layers": [2, 1]}, "shallowest first"),
        ({**EXITS, "exit_layers": [0, 2]}, "layer counts from 1 on"),
        ({**EXITS, "exit_layers": None}, "list of layer numbers"),
        ({"method": "adaptive_exit", "num_speculative_tokens": 2}, "'exit_layers' is missing"),
        ({**EXITS, "confidence": 0}, "above 0 and at most 1"),
        ({**EXITS, "confidence": 1.5}, "above 0 and at most 1"),
        ({**EXITS, "confidence": None}, "above 0 and at most 1"),
        ({**EXITS, "unsure": "full"}, "unsure"),
        ({**EXITS, "head": ""}, "hierspec heads train"),
        ({**POOL, "ngram_min": 0}, "ngram_min must be an integer of at least 1"),
        ({**POOL, "ngram_min": 5}, "ngram_max must not be below"),
        ({**POOL, "shared": 1}, "shared must be true or false"),
        ({**POOL, "num_drafts": 2}, "ngram_pool makes only one draft"),
    ],
)
def test_mistakes_in_the_file(level, says):
    with pytest.raises(ValueError, match=says) as caught:
        HierarchyConfig.from_dict({"target": "t", "levels": [level]})
    assert "\n" not in str(caught.value)


def test_a_level_that_ends_its_draft_only_drafts():
    above = {**EXITS, "unsure": "target", "verify": "block"}
    with pytest.raises(ValueError, match="where no exit is sure only drafts: put it first"):
        HierarchyConfig.from_dict({"target": "t", "levels": [POOL, above]})


def test_a_pool_cannot_verify():
    with pytest.raises(ValueError, match="ngram_pool has no distribution to verify with"):
        HierarchyConfig.from_dict({"target": "t", "levels": [EXITS, POOL]})


@pytest.mark.parametrize(
    ("level", "says"),
    [
        ({**SKIP, "skip_layers": [1, 3]}, "layers 0 to 2"),
        ({**SKIP, "skip_layers": [1, 1]}, "each once"),
        ({**SKIP, "skip_layers": [0, 1, 2]}, "leaves no layer"),
        ({**EXITS, "exit_layers": [1, 4]}, "between 1 and 3"),
        ({**POOL, "ngram_max": 99}, "ngram_max ≤ 32"),
    ],
)
def test_mistakes_that_need_the_model(tiny_family, level, says):
    with pytest.raises(ValueError, match=says):
        built(tiny_family["target"], [level])


def test_files_keep_their_form():
    levels = [POOL, {**EXITS, "verify": "block"}, {**SKIP, "verify": "block"}]
    config = HierarchyConfig.from_dict({"target": "t", "levels": levels})
    assert HierarchyConfig.from_dict(config.to_dict()) == config
    with pytest.raises(ValueError, match="at least 3 layers"):
        evenly_spaced_layers(0.5, 2)
    with pytest.raises(ValueError, match="an adaptive exit needs"):
        AdaptiveExit([Trunk(Toy()).view(LAYERS)], 0.0, "x")


@pytest.mark.parametrize("method", ["layer_skip", "adaptive_exit", "ngram_pool"])
def test_the_planner_refuses_what_it_cannot_price(method):
    from hierspec.profiling.candidates import parse

    with pytest.raises(ValueError, match=f"{method} is not planned"):
        parse(f'{{"method": "{method}"}}')
