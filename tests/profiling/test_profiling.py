"""Profiling: candidates, rates against laws computed here, costs, estimates."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from profiling_cases import PROMPTS, SMALL, V

from hierspec import HierarchyConfig, TargetConfig
from hierspec.bench.methods.planned import chain_of
from hierspec.config.checkpoints import Loaded
from hierspec.core.context import Context
from hierspec.core.distributions import DenseDistributions, OneHotDistributions
from hierspec.core.proposals import Proposal
from hierspec.core.windows import ConfidenceWindow, EntropyWindow
from hierspec.drafters.prompt_lookup import PromptLookup
from hierspec.lm.base import Query
from hierspec.lm.tabular import TabularModel
from hierspec.planner.concatenations import concatenations
from hierspec.planner.estimates import Chain
from hierspec.planner.latency import latency
from hierspec.planner.search import ALL_VARIATIONS, plan
from hierspec.profiling import agreement, costs, curves, rates, rounds
from hierspec.profiling.candidates import Candidate, CandidatePool, Entrant, load, parse
from hierspec.profiling.estimates import _Costs, estimates, extend_curve
from hierspec.profiling.measure import measure
from hierspec.profiling.memory import memory
from hierspec.profiling.profile import from_dict
from hierspec.profiling.rounds import DraftingPlan
from hierspec.profiling.schema import AtTemperature, MeasuredModel
from hierspec.profiling.settings import ProfileSettings
from hierspec.profiling.stages import Stages
from hierspec.utils.schema import validate
from hierspec.utils.testing import tiny_model
from hierspec.verifiers import registry as verifiers
from hierspec.verifiers.multi_draft import outcomes


def tables(*found, temperatures=None):
    """A pool of tabular models, the target last."""
    temperatures = temperatures or [None] * len(found)
    entrants = [
        Entrant(
            f"m{i}",
            model,
            f"m{i}",
            parse(f"m{i}" if t is None else f"m{i},temperature={t}"),
        )
        for i, (model, t) in enumerate(zip(found[:-1], temperatures, strict=False))
    ]
    entrants.append(Entrant("target", found[-1], "target"))
    return CandidatePool(TargetConfig(model="target"), tuple(entrants), None)


def random_tables(count, vocab=4, order=1, seed=3):
    generator = torch.Generator().manual_seed(seed)
    return [TabularModel.random(vocab, order, generator) for _ in range(count)]


# Candidates


@pytest.mark.parametrize(
    ("text", "method", "fields"),
    [
        ("zoo:small", "draft_model", {"model": "zoo:small", "temperature": None}),
        (" a/b ", "draft_model", {"model": "a/b"}),
        ("m,temperature=.8,dtype=float16", "draft_model", {"temperature": 0.8, "dtype": "float16"}),
        ("m,window=entropy", "draft_model", {"window": EntropyWindow()}),
        ("m,window=confidence,backend=hf", "draft_model", {"window": ConfidenceWindow()}),
        ("exit:4", "early_exit", {"exit_layer": 4}),
        ("exit:4,num_drafts=3", "early_exit", {"num_drafts": 3}),
        ("exit:4,temperature=2", "early_exit", {"exit_layer": 4, "temperature": 2.0}),
        ("ngram", "ngram_table", {"table": "zoo:ngram"}),
        ("ngram:a.safetensors", "ngram_table", {"table": "a.safetensors"}),
        ("prompt-lookup", "prompt_lookup", {"prompt_lookup_max": 4}),
        ("suffix", "suffix", {"store": 0}),
        ("quantized", "quantized", {"bits": 8}),
        ("quantized:4", "quantized", {"bits": 4}),
        ("quantized,temperature=0.8", "quantized", {"temperature": 0.8}),
        ("eagle3:folder", "eagle3", {"model": "folder"}),
        ("zoo:smollm2-eagle3", "eagle3", {"model": "zoo:smollm2-eagle3"}),
        ("exit:5,head=a/b", "early_exit", {"exit_layer": 5, "head": "a/b"}),
        ('{"method": "prompt_lookup", "prompt_lookup_max": 7}', "prompt_lookup",
         {"prompt_lookup_max": 7}),
        ('{"method": "draft_model", "model": "m", "window": {"kind": "entropy", "threshold": 2}}',
         "draft_model", {"window": EntropyWindow(threshold=2)}),
    ],
)  # fmt: skip
def test_candidates(text, method, fields):
    candidate = parse(text)
    assert candidate.name == text.strip()
    assert candidate.level.method == method
    for key, value in fields.items():
        assert getattr(candidate.level, key) == value
    scoring = method in ("draft_model", "early_exit", "quantized") and "num_drafts" not in fields
    assert candidate.can_verify == (scoring and not candidate.window.signal)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "a candidate is empty"),
        (",temperature=1", "a candidate is empty"),
        ("exit:", "exit:LAYER"),
        ("exit:two", "exit:LAYER"),
        ("exit:-1", "exit:LAYER"),
        ("exit:0", "at least 1"),
        ("m,temperature=hot", "must be a number, not 'hot'"),
        ("m,temperature=nan", "must be a number"),
        ("m,temperature=-1", "must be 0 (greedy)"),
        ("m,temperature=inf", "must be 0 (greedy)"),
        ("m,temperature", "'temperature' is not an option; there are: temperature=..."),
        ("m,budget=3", "'budget=3' is not an option"),
        ("m,dtype=float32,dtype=float16", "dtype is given twice"),
        ("m,window=wide", "there are: fixed, entropy, confidence"),
        ("exit:1,dtype=float32", "unknown key 'dtype'"),
        ("prompt-lookup,window=entropy", "has no scores for a window to read"),
        ("{", "not valid JSON"),
        ('{"method": "magic"}', "method is 'magic'"),
        ('{"method": "draft_model"}', "'model' is missing"),
        ('{"method": "draft_model", "model": "m", "num_speculative_tokens": 3}', "leave num_specu"),
        ('{"method": "draft_model", "model": "m", "bonus": false}', "leave bonus out"),
        ('{"method": "draft_model", "model": "m", "verify": "block"}', "leave verify out"),
        ('{"method": "concatenate", "parts": []}', "a concatenation is none"),
        ("exit:2,num_drafts=many", "num_drafts"),
        ("prompt-lookup,num_drafts=2", "makes only one draft"),
    ],
)
def test_bad_candidates(text, words):
    with pytest.raises(ValueError) as error:  # noqa: PT011 the words are checked below
        parse(text)
    assert words in str(error.value)
    assert "\n" not in str(error.value)
    assert "levels[0]" not in str(error.value)


def test_twice_the_same_candidate_is_refused(family):
    with pytest.raises(ValueError, match="'exit:1' is given twice"):
        load(TargetConfig(model=family["target"]), [parse("exit:1"), parse("exit:1")])


def test_weights_of_another_data_type_count_apart(family):
    target, draft = family["target"], family["draft"]
    texts = [f"{target},dtype=float32", draft, f"{draft},temperature=1", f"{draft},backend=hf"]
    pool = load(TargetConfig(model=target), [parse(text) for text in (*texts, "exit:1")])
    owners = [f"{target} (float32)", draft, draft, f"{draft} (auto, hf)", target, target]
    assert [entrant.owner for entrant in pool.entrants] == owners
    assert [entrant.files for entrant in pool.entrants] == [target, *[draft] * 3, *[target] * 2]
    trunk = sum(p.numel() for p in tiny_model("llama", layers=3, vocab_size=V).parameters())
    sizes = [4, 8, 8, 8, 8, 8]
    expected = {o: n * trunk for o, n in zip(owners, sizes, strict=True)}
    # A small draft model's weights lie in the kernels' layout as well, where kernels are.
    expected[owners[0]] += getattr(pool.entrants[0].model.cache_owner.backend, "kernel_bytes", 0)
    assert memory(pool) == expected


def test_names_of_entrants():
    entrant = Entrant("a", PromptLookup(2, 4), "prompt_lookup", parse("prompt-lookup"))
    assert isinstance(entrant.candidate, Candidate)
    assert not entrant.scores
    assert not entrant.can_verify
    for name, kind in (("entropy", EntropyWindow), ("confidence", ConfidenceWindow)):
        window = Entrant("m", None, "m", parse(f"m,window={name}")).window
        assert isinstance(window, kind)
        assert not any(window.stops((value,), window.init()) for value in (0.0, 1.0, 1e9))


# Rates


def test_acceptance_is_one_minus_total_variation():
    found = random_tables(3)
    pool = tables(*found, temperatures=[None, 0.5])
    rng = np.random.default_rng(0)
    texts = [rng.integers(0, 4, 40).tolist() for _ in range(3)]
    starts, stops = [5, 1, 17], [40, 30, 18]
    agreed, ease = agreement.agreements(pool, texts, starts, stops, DraftingPlan(2, 1, 3, 1.0))

    def law(number, context):
        p = found[number].distribution(context).numpy()
        p = p ** (2.0 if number == 1 else 1.0)
        return p / p.sum()

    places = [
        (n, t)
        for n, (low, high) in enumerate(zip(starts, stops, strict=True))
        for t in range(low, high)
    ]
    for i, k in itertools.combinations(range(3), 2):
        rows = [(law(i, texts[n][:t]), law(k, texts[n][:t])) for n, t in places]
        assert agreed[i, k].positions == len(places)
        assert agreed[i, k].overlap == pytest.approx(sum(np.minimum(*pq).sum() for pq in rows))
        assert agreed[i, k].equal == sum(q.argmax() == p.argmax() for q, p in rows)
    means = [
        [np.minimum(law(i, texts[1][:t]), law(2, texts[1][:t])).sum() for i in (0, 1)]
        for t in range(1, 30)
    ]
    np.testing.assert_allclose(ease[1], means)


def test_greedy_agreement_is_the_share_of_equal_argmaxes():
    found = random_tables(2, order=2, seed=2)
    (text,) = texts = [np.random.default_rng(1).integers(0, 4, 60).tolist()]
    agreed, _ = agreement.agreements(tables(*found), texts, [1], [60], DraftingPlan(2, 1, 3, 0.0))
    seen = agreed[0, 1]
    choices = [
        [int(model.distribution(text[:t]).argmax()) for model in found] for t in range(1, 60)
    ]
    assert seen.overlap == seen.equal == sum(q == p for q, p in choices)
    assert 0 < seen.equal < seen.positions == 59


def test_agreement_of_mixed_laws():
    """A model that is greedy by its own temperature, against one that is not."""
    found = random_tables(2)
    texts = [np.random.default_rng(1).integers(0, 4, 30).tolist()]
    for temperatures, number in (([0], 0), ([None], None)):
        pool = tables(*found, temperatures=temperatures)
        agreed, _ = agreement.agreements(pool, texts, [1], [30], DraftingPlan(2, 1, 3, 1.0))
        rows = [
            (found[0].distribution(texts[0][:t]), found[1].distribution(texts[0][:t]))
            for t in range(1, 30)
        ]
        want = (
            sum(float(p[q.argmax()]) for q, p in rows)
            if number == 0
            else sum(float(torch.minimum(q, p).sum()) for q, p in rows)
        )
        assert agreed[0, 1].overlap == pytest.approx(want)


def test_survival_of_a_draft_by_both_rules():
    q = torch.tensor([[0.5, 0.25, 0.25], [0.2, 0.4, 0.4], [0.1, 0.8, 0.1]], dtype=torch.float64)
    p = torch.tensor(
        [[0.2, 0.4, 0.4], [0.6, 0.2, 0.2], [0.05, 0.9, 0.05], [1, 0, 0]], dtype=torch.float64
    )
    draft = Proposal((0, 0, 1), DenseDistributions(q))
    tokenwise, block = rates.survival(draft, DenseDistributions(p), 5)
    np.testing.assert_allclose(tokenwise, [1, 0.4, 0.4, 0.4, 0, 0])
    np.testing.assert_allclose(block, [1, 0.4, min(1, 0.4 * 3), 1, 0, 0])
    tokenwise, block = rates.survival(
        Proposal((1, 2), OneHotDistributions((1, 2))), DenseDistributions(p), 2
    )
    np.testing.assert_allclose(tokenwise, [1, 0.4, 0.08])
    np.testing.assert_allclose(block, [1, 0.4, 0.08])
    empty = Proposal()
    for curve in rates.survival(empty, DenseDistributions(p[:1]), 2):
        np.testing.assert_array_equal(curve, [1, 0, 0])


def test_survival_in_expectation_is_the_worked_example():
    """MATH §1: 10/9 tokens are expected tokenwise, 11/9 by the block rule."""
    p, q = np.array([1 / 3, 2 / 3]), np.array([2 / 3, 1 / 3])
    rows = [DenseDistributions(torch.tensor(np.tile(law, (3, 1)))) for law in (p, q)]
    expected = np.zeros(2)
    for x in itertools.product(range(2), repeat=2):
        draft = Proposal(x, rows[1].rows(0, 2))
        expected += q[list(x)].prod() * np.array(
            [curve[1:].sum() for curve in rates.survival(draft, rows[0], 2)]
        )
    np.testing.assert_allclose(expected, [10 / 9, 11 / 9])


def exact_curves(q, p, last, length):
    """Survival by both rules of a draft of order-1 tables after a token, by enumeration."""
    total = np.zeros((2, length + 1))
    for x in itertools.product(range(q.vocab_size), repeat=length):
        before = (last, *x[:-1])
        distributions = [torch.stack([model.distribution([b]) for b in before]) for model in (q, p)]
        draft = Proposal(x, DenseDistributions(distributions[0]))
        weight = float(distributions[0][range(length), x].prod())
        total += weight * np.stack(
            rates.survival(draft, DenseDistributions(distributions[1]), length)
        )
    return total


def test_survival_of_real_drafts_is_within_its_error(monkeypatch):
    """Curves from drafts against enumeration, given the tokens that the drafts follow.

    Residuals have mean 0; 12 numbers at 4.5 standard errors: a false failure in 12 000 seeds.
    """
    found = random_tables(3)
    pool, seen = tables(*found), []
    scored = rounds.distributions_after

    def noting(pool, number, sequences, contexts, back):
        if number == 2:
            seen.extend(
                context.tokens()[len(context) - n - 1]
                for context, n in zip(contexts, back, strict=True)
            )
        return scored(pool, number, sequences, contexts, back)

    many = DraftingPlan(places=6, rounds=8, max_budget=3, temperature=1.0, seed=11)
    prompts = [[i % 4, 1] for i in range(10)]
    texts = rates.continuations(pool, prompts, 40, many)
    monkeypatch.setattr(rates, "distributions_after", noting)
    drafts = rates.follow_drafts(pool, 0, [1], texts, [2] * 10, many)
    assert len(seen) == len(drafts.lengths) == 10 * 6 * 8
    for verifier in (1, 2):
        table = {c: exact_curves(found[0], found[verifier], c, 3) for c in range(4)}
        for rule, rows in enumerate((drafts.tokenwise[verifier], drafts.block[verifier])):
            residuals = np.stack(rows) - np.stack([table[c][rule] for c in seen])
            error = residuals.std(0)[1:] / len(seen) ** 0.5
            assert (abs(residuals.mean(0)[1:]) < 4.5 * error).all()


def test_survival_of_several_drafts_is_within_its_error():
    """What a tree of two drafts keeps, against enumeration of drafts and tests (order 0: one law).

    Two numbers at 4.5 standard errors: a false failure in 70 000 seeds.
    """
    q, p = random_tables(2, vocab=3, order=0)
    pool = tables(q, p)
    pool = replace(pool, entrants=(replace_candidate(pool.entrants[0]), pool.entrants[1]))
    many = DraftingPlan(places=6, rounds=16, max_budget=2, temperature=1.0, seed=5)
    texts = rates.continuations(pool, [[i % 3, 1] for i in range(10)], 60, many)
    drafts = rates.follow_drafts(pool, 0, [], texts, [2] * 10, many)
    found = np.stack(drafts.block[1])
    assert found.shape == (10 * 6 * 16, 3)
    np.testing.assert_array_equal(found, np.stack(drafts.tokenwise[1]))
    laws = [DenseDistributions(model.distribution([0]).expand(3, -1)) for model in (q, p)]
    expected = np.zeros(3)
    for x in itertools.product(range(3), repeat=4):
        two = [Proposal(part, laws[0].rows(0, 2)) for part in (x[:2], x[2:])]
        chance = float(laws[0].probs[0][list(x)].prod())
        for likely, stop in outcomes(verifiers.get("traversal"), two, [laws[1]] * 2):
            expected[: stop.num_accepted + 1] += chance * likely
    error = found.std(0)[1:] / len(found) ** 0.5
    assert (abs(found.mean(0) - expected)[1:] < 4.5 * error).all()
    single = tables(q, p)
    alone = np.stack(rates.follow_drafts(single, 0, [], texts, [2] * 10, many).block[1])
    assert expected[1] > alone.mean(0)[1] + 0.02


def replace_candidate(entrant):
    """The entrant with two drafts at once."""
    return replace(entrant, candidate=parse(f"{entrant.name},num_drafts=2"))


def test_several_drafts_are_planned_right_below_the_target(family, loaded):
    """As a tree under a rule that takes one, and nowhere else."""
    names = ["exit:1", f"{family['draft']},num_drafts=3", "exit:1,num_drafts=2", "exit:2"]
    target = TargetConfig(model=family["target"])
    data = measure(target, [parse(name) for name in names], PROMPTS, [0.0], SMALL, loaded=loaded)
    profile = from_dict(data)
    found = profile.estimates(0.0)
    several = {i for i, model in enumerate(profile.models) if "num_drafts" in str(model.level)}
    assert found.multi_drafters == several
    assert len(several) == 2
    for i in several:
        assert found.can_draft(i, found.target)
        assert not any(found.can_draft(i, k) or found.can_draft(k, i) for k in range(found.target))
        chain = Chain((i, found.target), (2,))
        assert latency(found, chain).ms_per_token > 0
        config = HierarchyConfig.from_dict(profile.hierarchy(chain))
        assert config.verify == "traversal"
        assert config.levels[0].num_drafts > 1
        written = {"levels": config.to_dict()["levels"], "verify": config.verify}
        assert chain_of(profile, written) == (chain, "block")
        assert HierarchyConfig.from_dict(profile.hierarchy(chain, "tokenwise")).verify == "rrs"
    used = {i for _, chain in concatenations(found, range(found.target)) for i in chain.models}
    assert not used & several
    best = plan(found).best.chain
    HierarchyConfig.from_dict(profile.hierarchy(best))


def test_drafts_begin_at_places_spread_along_the_texts(monkeypatch):
    pool, seen = tables(*random_tables(2)), []
    scored = rounds.distributions_after

    def noting(pool, number, sequences, contexts, back):
        seen.extend(
            context.tokens()[: len(context) - n] for context, n in zip(contexts, back, strict=True)
        )
        return scored(pool, number, sequences, contexts, back)

    few = DraftingPlan(places=3, rounds=1, max_budget=2, temperature=1.0)
    texts = rates.continuations(pool, [[0, 1], [2]], 30, few)
    monkeypatch.setattr(rates, "distributions_after", noting)
    drafts = rates.follow_drafts(pool, 0, [], texts, [2, 1], few)
    assert sorted(drafts.places) == [(text, place) for text in (0, 1) for place in range(3)]
    for (text, place), before in zip(drafts.places, seen, strict=True):
        at = (2, 1)[text] + 10 * place
        assert before[:at] == texts[text][:at]
        assert 1 <= len(before) - at <= 3  # after the round that is not counted


def test_survival_of_independent_tokens_is_geometric():
    """Tables without memory: α^m. 3 numbers at 4.5 standard errors: one seed in 50 000 fails."""
    found = random_tables(2, order=0)
    pool = tables(*found)
    many = DraftingPlan(places=4, rounds=10, max_budget=3, temperature=1.0, seed=5)
    texts = rates.continuations(pool, [[0], [1], [2]] * 4, 12, many)
    rows = np.stack(rates.follow_drafts(pool, 0, [], texts, [1] * 12, many).tokenwise[1])
    alpha = float(torch.minimum(found[0].distribution([]), found[1].distribution([])).sum())
    error = rows.std(0)[1:] / len(rows) ** 0.5
    assert (abs(rows.mean(0)[1:] - alpha ** np.arange(1, 4)) < 4.5 * error).all()


def test_greedy_drafts_survive_or_do_not():
    pool = tables(*random_tables(2, seed=2))
    greedy = DraftingPlan(places=3, rounds=2, max_budget=4, temperature=0.0)
    texts = rates.continuations(pool, [[0, 1], [2, 3], [1, 1]], 20, greedy)
    assert texts == rates.continuations(pool, [[0, 1], [2, 3], [1, 1]], 20, greedy)
    drafts = rates.follow_drafts(pool, 0, [], texts, [2] * 3, greedy)
    rows = np.stack(drafts.tokenwise[1])
    assert set(rows.ravel().tolist()) <= {0.0, 1.0}
    np.testing.assert_array_equal(rows, np.stack(drafts.block[1]))
    assert (np.diff(rows) <= 0).all()


def test_prompts_without_room_for_what_is_written_are_left_out(tiny_family):
    """A long prompt does not cut the texts of all others short."""
    pool = load(TargetConfig(model=tiny_family["target"]), [parse("prompt-lookup")])
    longest = pool.entrants[-1].model.max_length
    settings = ProfileSettings(tokens=12, rounds=1, max_speculative_tokens=2)
    prompts = [[1, 2, 3], [4] * (longest - 15), [5, 6]]
    stages = Stages(pool, prompts, settings, lambda *_: None)
    assert (stages.prompts, stages.tokens) == ([[1, 2, 3], [5, 6]], 12)
    alone = Stages(pool, prompts[1:2], settings, lambda *_: None)
    assert (alone.prompts, alone.tokens) == (prompts[1:2], 6)


def test_texts_too_many_for_one_batch_give_the_same_drafts(monkeypatch):
    pool = tables(*random_tables(2))
    few = DraftingPlan(places=2, rounds=2, max_budget=3, temperature=1.0)
    prompts = [[i % 4] for i in range(5)]
    runs = []
    for most in (2**24, 2 * 4 * 4):  # entries of two texts: 4 rows of 4
        monkeypatch.setattr(rounds, "MAX_ENTRIES", most)
        texts = rates.continuations(pool, prompts, 9, few)
        drafts = rates.follow_drafts(pool, 0, [], texts, [1] * 5, few)
        order = sorted(range(len(drafts.places)), key=lambda n: drafts.places[n])
        runs.append((texts, [drafts.places[n] for n in order],
                     [drafts.tokenwise[1][n].tolist() for n in order]))  # fmt: skip
    assert runs[0] == runs[1]
    assert len(rounds.batches(5, 4 * 4)) == 3


def test_laws_at_hand_stay_bounded_for_a_large_vocabulary():
    for vocab, budget in ((152_064, 15), (262_144, 32), (96, 3)):
        entries = vocab * (budget + 1)
        batches = rounds.batches(100, entries)
        assert [n for batch in batches for n in batch] == list(range(100))
        assert max(map(len, batches)) * entries <= rounds.MAX_ENTRIES
        assert max(map(len, batches)) <= rounds.MAX_BATCH


def test_classes_hold_equally_many_places_alike_in_what_differs_most():
    plan_ = DraftingPlan(places=4, rounds=2, max_budget=3, temperature=1.0)
    random = np.random.default_rng(0)
    ease = [np.stack([random.random(22), np.full(22, 0.5)], 1) for _ in range(5)]
    kinds = np.array(agreement.classes(ease, plan_, 3))
    assert kinds.shape == (5, 4)
    counts = np.bincount(kinds.ravel())
    assert len(counts) == 3
    assert counts.max() - counts.min() <= 1
    means = np.array(
        [[row[22 * at // 4 : 22 * (at + 1) // 4, 0].mean() for at in range(4)] for row in ease]
    )
    for c in range(2):  # only the first candidate tells places apart
        assert means[kinds == c].max() < means[kinds == c + 1].min()
    few = agreement.classes([np.array([[0.5], [0.1]])], DraftingPlan(2, 1, 3, 1.0), 5)
    assert few == [[1, 0]]  # no class without a place


def test_classes_tell_apart_what_is_easy_for_different_candidates():
    plan_ = DraftingPlan(places=2, rounds=1, max_budget=3, temperature=1.0)
    one, other, none = [1.0, 0.0], [0.0, 1.0], [0.0, 0.0]
    ease = [np.array([one, one, other, other]), np.array([none, none, [1.0, 1.0], [1.0, 1.0]])]
    kinds = agreement.classes(ease, plan_, 4)
    assert sorted(np.ravel(kinds)) == [0, 1, 2, 3]


def test_what_ends_the_texts_of_a_model_in_memory_is_not_looked_up(tiny_family, monkeypatch):
    """Its name is any name: nothing of that name is read, from a folder or a hub."""
    target, loaded = TargetConfig(model="of-mine"), Loaded()
    model = Loaded().backend(TargetConfig(model=tiny_family["target"]))
    loaded.add(target, model, None)
    monkeypatch.setattr("hierspec.config.checkpoints.model_eos_ids", None)
    assert load(target, [parse("prompt-lookup")], loaded).ends == frozenset()


def test_places_lie_evenly_in_all_that_was_written():
    plan_ = DraftingPlan(places=4, rounds=1, max_budget=3, temperature=1.0)
    assert plan_.place_positions([22, 22]) == [[0, 5, 11, 16], [0, 5, 11, 16]]
    assert plan_.place_positions([1, 39, 8]) == [[0], [3, 7, 11, 15, 19, 23, 27, 31, 35], [0, 4]]
    assert plan_.place_positions([1, 30, 1]) == [[0], [1, 4, 7, 9, 12, 15, 17, 20, 23, 25, 28], []]


def test_places_of_texts_of_several_lengths():
    """A text that ended early has few places or none; each is drafted at where it lies."""
    plan_ = DraftingPlan(places=2, rounds=3, max_budget=2, temperature=0.0)
    found = random_tables(2, vocab=5)
    pool = tables(*found)
    prompts = [[0, 1], [2], [3, 3, 4]]
    texts = rates.continuations(pool, prompts, 20, plan_)
    texts = [texts[0][:3], texts[1], texts[2][:9]]
    starts = [len(prompt) for prompt in prompts]
    drafts = rates.follow_drafts(pool, 0, [], texts, starts, plan_)
    positions = plan_.place_positions([1, 20, 6])
    assert positions == [[0], [3, 8, 12, 17], [1]]
    wanted = {(i, at) for i, own in enumerate(positions) for at in range(len(own))}
    assert sorted(drafts.places) == sorted([*wanted] * 3)
    _, ease = agreement.agreements(pool, texts, starts, [len(text) for text in texts], plan_)
    kinds = agreement.classes(ease, plan_, 2)
    assert [len(own) for own in kinds] == [1, 4, 1]
    (pair,) = curves.pairs(0, pool, drafts, kinds, 0)
    assert pair.drafts == 18


def test_the_target_s_texts_end_where_it_ends_them(tiny_family, monkeypatch):
    """What a target writes past its end no request gets, so no draft begins there."""
    prompts = [[1, 2, 3], [4, 5]]
    names = ["prompt-lookup", tiny_family["draft"]]
    pool = load(TargetConfig(model=tiny_family["target"]), [parse(name) for name in names])
    plan_ = DraftingPlan(places=3, rounds=4, max_budget=2, temperature=0.0)
    whole = rates.continuations(pool, prompts, 12, plan_)
    end = whole[0][7]
    plan_ = replace(plan_, ends=frozenset({end}))
    texts = rates.continuations(pool, prompts, 12, plan_)
    for prompt, text, uncut in zip(prompts, texts, whole, strict=True):
        start = len(prompt)
        at = uncut.index(end, start) if end in uncut[start:] else len(uncut) - 1
        assert text == uncut[: at + 1]
    begins = []

    class Begins(rates._SurvivalObserver):
        def on_verify(self, checks):
            begins.extend(
                list(task.sequence.tokens[task.sequence.prompt_length :]) for task in checks.tasks
            )
            super().on_verify(checks)

    monkeypatch.setattr(rates, "_SurvivalObserver", Begins)
    for number in range(2):
        drafts = rates.follow_drafts(pool, number, [], texts, [3, 2], plan_)
        assert len(drafts.places) == 6 * 4
    assert begins
    assert not any(end in tokens for tokens in begins)


# Windows and what is kept


def test_tokens_kept_follow_the_curve():
    rows = np.array([[1, 1, 1, 0], [1, 0, 0, 0], [1, 0.5, 0.5, 0.2]])
    kept = np.array([curves.draw_kept(rows, (seed,)) for seed in range(4000)])
    assert (kept[:, 0] == 2).all()
    assert (kept[:, 1] == 0).all()
    shares = np.bincount(kept[:, 2], minlength=4) / 4000
    # 4.5 standard errors of a share, at most 0.0079: one choice of seeds in 50 000 fails
    np.testing.assert_allclose(shares, [0.5, 0, 0.3, 0.2], atol=0.036)
    assert shares[1] == 0


def test_where_windows_stop():
    drafts = rates.FollowedDrafts(
        signals=[(0.1, 3.0, 0.2), (0.1, 0.1, 0.1), (2.0, 0.0, 0.0), (), (2.2, 0.1)]
    )
    kept = np.array([1, 3, 0, 0, 2])

    def stop(window):
        return curves.stopping_lengths(window, drafts, kept).tolist()

    assert stop(EntropyWindow(threshold=1.0)) == [2, 3, 1, 0, 1]
    assert stop(ConfidenceWindow(floor=0.15)) == [1, 1, 2, 0, 2]
    # From 0 the running threshold cuts everything at one token; of those, the third draft's is
    # rejected (2.0), and the mean is 2: the 3.0 was rejected too, but behind the cut.
    assert stop(EntropyWindow()) == [2, 3, 3, 0, 1]


def test_the_threshold_settles_as_the_engine_would_have_it():
    """Thresholds follow what is rejected inside the window, not behind it."""
    drafts = rates.FollowedDrafts(signals=[(5.0, 1.0), (0.5, 9.0), (0.5, 2.0), (0.5, 9.0)])
    kept = np.array([0, 1, 2, 1])
    window = EntropyWindow()
    state = window.init()
    for signals, tau in zip(drafts.signals, kept, strict=True):
        length = next((n for n, s in enumerate(signals, 1) if window.stops((s,), state)), 2)
        state = window.observe(state, signals[:length], min(int(tau), length))
    assert window.threshold_after(state) == (5.0 + 9.0 + 9.0) / 3
    assert curves.stopping_lengths(window, drafts, kept).tolist() == [2, 2, 2, 2]


def test_joint_laws_sum_to_one():
    lengths = np.array([0, 2, 3, 2])
    rows = np.array([[1, 0.9, 0.8, 0.7]] * 4)
    law = curves.joint_survival(lengths, rows)
    assert law[:, 0].sum() == pytest.approx(1)
    np.testing.assert_allclose(law[2], [0.5, 0.45, 0.4, 0])
    np.testing.assert_allclose(law.sum(0), [1, 0.675, 0.6, 0.175])


def test_windows_in_a_profile(whole):
    names = [model["name"] for model in whole["models"]]
    for measured in whole["temperatures"].values():
        windowed = 0
        for pair in measured["pairs"]:
            name = names[pair["drafter"]]
            parts = [pair, *pair["classes"]]
            varied = "window" in name or name == "prompt-lookup"
            assert all(("joint" in part) == varied for part in parts)
            assert len(pair["kept"]) == len(pair["lengths"]) == pair["drafts"]
            assert all(k <= n <= 3 for k, n in zip(pair["kept"], pair["lengths"], strict=True))
            if varied:
                windowed += 1
                law = np.bincount(pair["lengths"], minlength=4) / pair["drafts"]
                for rule in ("block", "tokenwise"):
                    joint = np.array(pair["joint"][rule])
                    np.testing.assert_allclose(joint[:, 0], law, atol=1e-6)
            else:
                assert set(pair["lengths"]) == {3}
        assert windowed > 0


def test_windows_reach_the_planner(whole):
    profile = from_dict(whole)
    known = profile.estimates(1.0)
    windowed = {i for i, m in enumerate(profile.models[:-1]) if "window" in (m.level or {})}
    lookups = {i for i, m in enumerate(profile.models) if m.name == "prompt-lookup"}
    assert set(known.joint_survival) == windowed | lookups
    assert len(windowed) == 2
    for i in windowed:
        lengths = known.joint_survival[i][known.target][:, 0]
        assert lengths.sum() == pytest.approx(1)
        expected = (lengths * np.arange(4)).sum()
        chain = Chain((i, known.target), (3,))
        drafted = latency(known, chain)
        without = latency(known_without_windows(known), chain)
        assert expected <= 3
        assert drafted.tokens_per_call <= without.tokens_per_call + 1e-9


def known_without_windows(known):
    return replace(
        known,
        joint_survival={},
        classes=tuple(replace(part, joint_survival={}) for part in known.classes),
    )


# A whole measurement


def by_name(data, label):
    names = [model["name"] for model in data["models"]]
    return {
        (names[pair["drafter"]], names[pair["verifier"]]): {
            k: v for k, v in pair.items() if k not in ("drafter", "verifier")
        }
        for pair in data["temperatures"][label]["pairs"]
    }


def test_the_same_seed_gives_the_same_rates(family, everything, whole, loaded):
    again = measure(
        TargetConfig(model=family["target"]), everything, PROMPTS, [1.0], SMALL, loaded=loaded
    )
    first, second = by_name(whole, "1.0"), by_name(again, "1.0")
    target = family["target"]
    # Which models may verify which others depends on times; what the target says does not.
    for candidate in everything:
        assert first[candidate.name, target] == second[candidate.name, target]


def test_everything_in_one_go(family, everything, whole):
    models = whole["models"]
    assert {m["name"] for m in models} == {*(c.name for c in everything), family["target"]}
    assert (models[-1]["name"], models[-1]["level"]) == (family["target"], None)
    at = {m["name"]: i for i, m in enumerate(models)}
    assert at["prompt-lookup"] == 0
    assert at["exit:1"] < at["exit:2"]
    assert models[at["exit:1"]]["owner"] == family["target"]
    assert models[at["prompt-lookup"]]["weights"] is None
    trunk = sum(p.numel() for p in tiny_model("llama", layers=3, vocab_size=V).parameters())
    assert whole["memory"][family["target"]] == 8 * trunk
    assert whole["memory"]["prompt_lookup"] == 0
    for measured in whole["temperatures"].values():
        last = len(models) - 1
        found = {(p["drafter"], p["verifier"]) for p in measured["pairs"]}
        assert {(i, last) for i in range(last)} <= found
        timed = {(row["drafter"], row["verifier"]) for row in measured["costs"]}
        assert timed == found | {(None, k) for k in range(1, last + 1)}
        for pair in measured["pairs"]:
            block, tokenwise = (np.array(pair["survival"][rule]) for rule in ("block", "tokenwise"))
            assert block[0] == tokenwise[0] == 1
            assert (np.diff(tokenwise) <= 1e-9).all()
            assert (block >= tokenwise - 1e-6).all()
            means = np.array([part["tokenwise"] for part in pair["classes"]])
            np.testing.assert_allclose(np.full(4, 0.25) @ means, tokenwise, atol=2e-6)
        assert measured["token_ms"] >= 0


def test_an_exit_of_the_whole_trunk_is_always_right(family, loaded):
    target = TargetConfig(model=family["target"])
    data = measure(target, [parse("exit:3")], PROMPTS, [1.0], SMALL, loaded=loaded)
    (pair,) = data["temperatures"]["1.0"]["pairs"]
    assert pair["acceptance"] == pytest.approx(1)
    np.testing.assert_allclose(pair["survival"]["block"], 1)
    assert pair["kept"] == pair["lengths"] == [3] * pair["drafts"]


def test_prompt_lookup_alone(family, loaded):
    target = TargetConfig(model=family["target"])
    data = measure(target, [parse("prompt-lookup")], PROMPTS, [0.0], SMALL, loaded=loaded)
    answer = plan(from_dict(data).estimates(0.0), variations=ALL_VARIATIONS)
    assert len(data["temperatures"]["0.0"]["pairs"][0]["classes"]) == 4  # one for each place
    assert answer.best.ms <= data_plain(data) + 1e-9


def data_plain(data):
    return from_dict(data).estimates(0.0).plain_ms


def test_bad_requests(family, loaded):
    target, exits = TargetConfig(model=family["target"]), [parse("exit:1")]
    with pytest.raises(ValueError, match="no candidates"):
        measure(target, [], PROMPTS, [0.0], SMALL)
    with pytest.raises(ValueError, match="no prompt to measure on"):
        measure(target, exits, ["", ""], [0.0], SMALL, loaded=loaded)
    long = ProfileSettings(max_speculative_tokens=32, rounds=8)
    with pytest.raises(ValueError, match="contexts of 256 tokens have no room"):
        measure(target, exits, PROMPTS, [0.0], long, loaded=loaded)
    for wrong in ({"tokens": 0}, {"max_speculative_tokens": 33}, {"min_ratio": float("nan")}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            ProfileSettings(**wrong)


def test_empty_prompts_do_not_use_up_those_asked_for(family, loaded):
    target = TargetConfig(model=family["target"])
    data = measure(target, [parse("exit:1")], ["", "", *PROMPTS], [0.0], SMALL, loaded=loaded)
    assert data["prompts"]["count"] == 2


# Costs


def test_every_pair_and_length_is_timed(family, loaded):
    pool = load(TargetConfig(model=family["target"]), [parse("exit:1"), parse("exit:2")], loaded)
    pairs = [(None, 0), (None, 2), (0, 1), (0, 2), (1, 2)]
    done = []
    times = costs.time_pairs(
        pool, pairs, [5, 6, 7, 8], budgets=(1, 3), repeats=2, temperature=1.0,
        on_call=lambda: done.append(1),
    )  # fmt: skip
    assert len(done) == 2 * (2 + 3 * 2)
    for pair in pairs:
        lengths = {0} if pair[0] is None else {1, 3}
        assert set(times[pair].check) == lengths
        assert set(times[pair].draft) == (set() if pair[0] is None else lengths)
        for samples in (times[pair].check, times[pair].draft):
            for entry in costs.summary(samples).values():
                assert entry.count == 2 * costs.TIMED
                assert 0 < entry.low <= entry.median <= entry.high


def test_models_are_put_in_order_of_cost_and_exits_in_order_of_depth(family, loaded):
    candidates = [parse("exit:2"), parse(family["draft"]), parse("exit:1")]
    pool = load(TargetConfig(model=family["target"]), candidates, loaded)
    assert costs.order(pool, [1.0, 3.0, 2.0, 0.5]) == [2, 0, 1, 3]  # noise swapped the exits
    assert costs.order(pool, [2.0, 0.1, 1.0, 9.0]) == [1, 2, 0, 3]


def test_what_was_wound_back_is_computed_again_and_alike(family, loaded):
    pool = load(TargetConfig(model=family["target"]), [parse("exit:1")], loaded)
    model = pool.entrants[-1].model
    trunk, ids = model.trunk, list(range(20, 32))
    slot = model.open()
    first = model.score([Query(slot, Context(ids), 1)])
    before = list(trunk.counters.tokens)
    assert model.score([Query(slot, Context(ids), 1)]).equal(first)
    assert trunk.counters.tokens == before  # nothing to do
    trunk.rewind(slot, 7)
    again = model.score([Query(slot, Context(ids), 1)])
    assert [n - m for n, m in zip(trunk.counters.tokens, before, strict=True)] == [5, 5]
    torch.testing.assert_close(again, first, rtol=0, atol=1e-12)
    # Tokens after the mark that were committed once no longer count as agreed.
    trunk.rewind(slot, 7)
    other = [*ids[:7], 99, 98, 97]
    fresh = model.open()
    want = model.score([Query(fresh, Context(other), 1)])
    got = model.score([Query(slot, Context(other), 1)])
    torch.testing.assert_close(got, want, rtol=0, atol=1e-12)
    model.close(fresh)
    model.close(slot)


def test_a_sequence_wound_back_answers_as_a_new_one(family, loaded):
    candidates = [parse("exit:1"), parse(f"ngram:{family['table']}"), parse("prompt-lookup")]
    pool = load(TargetConfig(model=family["target"]), candidates, loaded)
    greedy = DraftingPlan(1, 1, 3, 0.0)
    text = [65, 66, 67] * 6
    (sequence,) = rounds.open_sequences(rounds.build_levels(pool), [0], [text], greedy)

    def ask():  # of the sequence that goes by this name
        context = Context(sequence.tokens)
        out = []
        for number, entrant in enumerate(pool.entrants):
            if isinstance(entrant.model, PromptLookup):
                slot = sequence.slot(entrant.model)
                out.append(entrant.model.propose(context, 3, slot))
            else:
                (rows,) = rounds.distributions_after(pool, number, [sequence], [context], [2])
                out.append(rows.ids)
        return out

    first = ask()
    sequence.tokens.extend([1, 2, 3, 65, 66, 200])
    changed = ask()
    assert changed != first
    rounds.rewind(sequence, len(text))
    assert sequence.tokens == text
    assert ask() == first
    # Other tokens than before at the same places: the caches must not take them for the old ones.
    sequence.tokens.extend([9, 8, 7, 90, 91, 92])
    (fresh,) = rounds.open_sequences(rounds.build_levels(pool), [0], [sequence.tokens], greedy)
    after = ask()
    sequence.close()
    sequence = fresh
    assert ask() == after
    sequence.close()


# Estimates from made-up measurements


def made(**changes):
    """Two models: 1 ms and 9 ms a call, checks of n tokens 9 + n, α = 0.8 and 0.5."""

    def times(table):
        return {
            str(n): {"mean": ms, "median": ms, "low": ms, "high": ms, "count": 1} for n, ms in table
        }

    def curve(a, m=4):
        return [a**n for n in range(m + 1)]

    both = [{"block": curve(a), "tokenwise": curve(a / 2)} for a in (0.5, 0.8)]
    measured = {
        "pairs": [
            {
                "drafter": 0,
                "verifier": 1,
                "drafts": 0,
                "survival": {
                    rule: np.mean([part[rule] for part in both], axis=0).tolist()
                    for rule in ("block", "tokenwise")
                },
                "classes": both,
                "tokens_per_call": 1.0,
                "standard_error": 0.0,
                "lengths": [],
                "kept": [],
            }
        ],
        "costs": [
            {"drafter": None, "verifier": 0, "draft": {}, "check": times([(0, 1.0)])},
            {"drafter": None, "verifier": 1, "draft": {}, "check": times([(0, 9.0)])},
            {
                "drafter": 0,
                "verifier": 1,
                "draft": times([(1, 1.5), (4, 4.5)]),
                "check": times([(1, 10.0), (4, 13.0)]),
            },
        ],
        "context": {
            "tokens": 100,
            "long": 1000,
            "slopes": [
                {"model": 0, "ms_per_token_0": 0.001, "ms_per_token_8": 0.001},
                {"model": 1, "ms_per_token_0": 0.01, "ms_per_token_8": 0.02},
            ],
        },
        "token_ms": 0.25,
        **changes,
    }
    names = ("draft", "target")
    return [described(name) for name in names], {"draft": 10, "target": 90}, measured


def described(name):
    return {"name": name, "owner": name, "level": None, "weights": None, "call_ms": 1.0}


def estimated(models, memory, measured, **options):
    """Estimates from a file's objects."""
    models = validate(list[MeasuredModel], models, "")
    return estimates(models, memory, validate(AtTemperature, measured, ""), **options)


def test_curves_are_carried_on():
    np.testing.assert_allclose(extend_curve(0.8 ** np.arange(6), 20), 0.8 ** np.arange(20))
    np.testing.assert_allclose(extend_curve(np.array([1, 0.5, 0, 0]), 6), [1, 0.5, 0, 0, 0, 0])
    np.testing.assert_allclose(extend_curve(np.array([1, 0.5]), 4), [1, 0.5, 0.25, 0.125])
    np.testing.assert_allclose(extend_curve(np.ones(9), 5), np.ones(5))


def test_costs_between_and_beyond_what_was_timed():
    known = estimated(*made(), max_budget=4)
    np.testing.assert_allclose(known.draft_ms[0, :7], [0, 1.5, 2.5, 3.5, 4.5, 5.5, 6.5])
    kept = known.survival[0, 1].cumsum()
    n = np.arange(12)
    np.testing.assert_allclose(known.verify_ms[0, 1, :12], 9 + n + 0.25 * kept[:12])
    assert known.plain_ms == 9.25
    assert known.draft_ms[1, 2] == 18
    assert np.isnan(known.survival[1, 0]).all()
    assert known.bytes([0, 1]) == 100


def test_cost_of_a_first_step_is_charged_to_the_pair():
    """A draft's first step is dearer under a model that has used the caches: the check pays."""
    models, memory, measured = made()
    models.insert(1, described("mid"))
    pair = measured["pairs"][0] | {"verifier": 2, "classes": measured["pairs"][0]["classes"][:1]}
    measured["pairs"] = [pair, pair | {"verifier": 1}]
    alone, target, both = measured["costs"]
    cheap = {n: entry | {"mean": entry["mean"] - 0.5} for n, entry in both["draft"].items()}
    measured["costs"] = [
        alone,
        *(target | {"verifier": k} for k in (1, 2)),
        both | {"verifier": 2},
        both | {"verifier": 1, "draft": cheap},
    ]
    measured["context"]["slopes"] = []
    known = estimated(models, memory, measured, max_budget=4)
    np.testing.assert_allclose(known.draft_ms[0, 1:5], [1, 2, 3, 4])
    np.testing.assert_allclose(known.verify_ms[0, 1, :5], 9 + np.arange(5))
    kept = known.survival[0, 2].cumsum()[:5]
    np.testing.assert_allclose(known.verify_ms[0, 2, :5], 9.5 + np.arange(5) + 0.25 * kept)


def test_longer_contexts_cost_more():
    base, near, far = (
        estimated(*made(), max_budget=4, context=context) for context in (None, 100, 300)
    )
    np.testing.assert_array_equal(base.verify_ms, near.verify_ms)
    assert far.plain_ms == pytest.approx(base.plain_ms + 2)
    n = np.arange(5)
    np.testing.assert_allclose(far.draft_ms[0, :5] - base.draft_ms[0, :5], 0.2 * n)
    np.testing.assert_allclose(far.verify_ms[0, 1, :5] - base.verify_ms[0, 1, :5], 2 + 2 * n / 8)
    short = estimated(*made(), max_budget=4, context=1)
    assert 0 < short.plain_ms < base.plain_ms


def test_noise_in_slopes_makes_nothing_free_or_cheaper():
    context = {
        "tokens": 100,
        "long": 1000,
        "slopes": [
            {"model": 0, "ms_per_token_0": -0.5, "ms_per_token_8": -0.5},
            {"model": 1, "ms_per_token_0": 3.0, "ms_per_token_8": 5.0},
        ],
    }
    base = estimated(*made(context=context), max_budget=4)
    far = estimated(*made(context=context), max_budget=4, context=4000)
    near = estimated(*made(context=context), max_budget=4, context=0)
    np.testing.assert_array_equal(far.draft_ms[0], base.draft_ms[0])
    assert (near.verify_ms[0, 1] >= 0).all()
    assert near.plain_ms >= 0.25


def test_a_draft_of_nothing_costs_a_plain_call():
    models, memory, measured = made()
    measured["costs"][2]["check"]["0"] = {"mean": 4.0, "median": 4, "low": 4, "high": 4, "count": 1}
    known = estimated(models, memory, measured, max_budget=4)
    assert known.verify_ms[0, 1, 0] == pytest.approx(9 + 0.25)


def test_a_price_is_the_mean_over_classes():
    known = estimated(*made(), max_budget=4)
    chain = Chain((0, 1), (2,))
    prices = []
    for a in (0.5, 0.8):
        tokens = 1 + a + a**2
        prices.append((2.5 + 11 + 0.25 * tokens) / tokens)
    assert len(known.classes) == 2
    assert latency(known, chain).ms_per_token == pytest.approx(np.mean(prices))
    best = plan(known).best
    assert best.ms <= min(np.mean(prices), known.plain_ms)
    tokenwise = estimated(*made(), max_budget=4, rule="tokenwise")
    assert latency(tokenwise, chain).ms_per_token > np.mean(prices)


def test_long_drafts_of_a_drafter_that_made_none_cost_what_others_do():
    def row(drafter, **check):
        found = {
            n[1:]: {"mean": ms, "median": ms, "low": ms, "high": ms, "count": 3}
            for n, ms in check.items()
        }
        return {"drafter": drafter, "verifier": 2, "draft": {}, "check": found}

    rows = [row(None, n0=2.0), row(0, n0=2.0, n2=2.2), row(1, n1=2.3, n2=2.4, n8=9.0), row(3)]
    context = {"tokens": 100, "long": 1000, "slopes": []}
    measured = validate(AtTemperature, made(costs=rows, context=context)[2], "")
    look_up, model, never = (_Costs(measured, 4, None).verify_calls(13)[i, 2] for i in (0, 1, 3))
    assert model[[1, 2, 8]].tolist() == pytest.approx([2.3, 2.4, 9.0])
    assert look_up[2] == pytest.approx(2.2)
    assert look_up[8] == pytest.approx(9.0 - 0.1, abs=0.06), "as much less as its own drafts"
    assert look_up[12] > 12, "and on with that slope, which its own two points do not know"
    assert never[8] == pytest.approx(9.0)
