"""Several drafts of one place, as drafters make them and the engine runs them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from fakes.tables import Resized
from installed import LAB
from tabular_cases import chain, pair
from tabular_cases import models as family_models
from tabular_cases import several as tree
from work import Work

from hierspec import Hierarchy, HierarchyConfig
from hierspec.core.context import Context
from hierspec.core.distributions import DenseDistributions, OneHotDistributions
from hierspec.core.nodes import Draft
from hierspec.core.rng import PhiloxRng
from hierspec.drafters.base import DraftCall
from hierspec.drafters.multi_draft import MultiDrafter, first_tokens
from hierspec.engine.control import plan_of
from hierspec.engine.runtime import Runtime
from hierspec.engine.sequences import LiveSequence
from hierspec.engine.trace import ListTracer
from hierspec.lm.base import Query, takes_trees
from hierspec.lm.lean.decoder import LeanBackend
from hierspec.lm.native import library
from hierspec.lm.tabular import TabularModel
from hierspec.sampling.parameters import SamplingParams
from hierspec.sampling.scores import ScoreRows

RULES = ["rrs", "rrs-without-replacement", "block-rrs", "traversal"]
RULES += ["induced-block"] * LAB


def test_distinct_first_tokens_report_the_laws_they_were_drawn_from():
    law = DenseDistributions(torch.tensor([[0.5, 0.0, 0.3, 0.2]], dtype=torch.float64))
    ((tokens, distributions),) = first_tokens([law], 5, True, [PhiloxRng(0)])
    assert sorted(tokens) == [0, 2, 3]  # the law has no more
    left = law.probs[0].clone()
    for token, own in zip(tokens, distributions, strict=True):
        assert torch.allclose(own.dense(4)[0], left / left.sum(), rtol=0, atol=1e-15)
        left[token] = 0.0
    ((tokens, distributions),) = first_tokens([law], 5, False, [PhiloxRng(0)])
    assert len(tokens) == 5
    assert all(own is law for own in distributions)
    ((tokens, _),) = first_tokens([OneHotDistributions((3,))], 5, True, [PhiloxRng(0)])
    assert tokens == [3]


# --- the engine


def several_of(tiny_family, rule, k=4, level="draft", **top):
    which = {
        "draft": {"method": "draft_model", "model": tiny_family["draft"]},
        "exit": {"method": "early_exit", "exit_layer": 2},
        "without layers": {"method": "layer_skip", "skip_layers": [1]},
        "8 bits": {"method": "quantized"},
        "4 bits": {"method": "quantized", "bits": 4},
    }[level]
    if "bits" in level and library.load() is None:
        pytest.skip("no C compiler here")
    dtype = "float32" if "bits" in level or "deterministic" in top else "float64"
    levels = [{**which, "num_speculative_tokens": 3, "num_drafts": k}]
    target = {"model": tiny_family["target"], "dtype": dtype}
    return Hierarchy.from_config({"target": target, "levels": levels, "verify": rule, **top})


LEVELS = ("draft", "exit", *(("without layers",) if LAB else ()), "8 bits", "4 bits")


PROMPTS = [[5, 9, 7], [11, 4, 4, 30, 8], [60]]
HOT = {"max_new_tokens": 16, "temperature": 1.0, "seed": 3, "ignore_eos": True}


@pytest.mark.parametrize("level", ["draft", "exit"])
@pytest.mark.parametrize("rule", RULES)
def test_every_row_is_the_targets_own(tiny_family, rule, level):
    """Drafts in caches of their own: reported log-probabilities equal those of whole forwards."""
    hierarchy = several_of(tiny_family, rule, level=level)
    results = hierarchy.generate_batch(PROMPTS, logprobs=True, **HOT)
    model = hierarchy.root.model
    for prompt, result in zip(PROMPTS, results, strict=True):
        context = Context([*prompt, *result.token_ids])
        rows = model.score([Query(model.open(), context, len(prompt))])[:-1].log_softmax(-1)
        own = rows.gather(-1, torch.tensor(result.token_ids)[:, None])[:, 0]
        assert np.allclose(result.logprobs, own.numpy(), rtol=0, atol=1e-9)
    alone = [hierarchy.generate(prompt, **HOT).token_ids for prompt in PROMPTS[:1]]
    assert alone == [results[0].token_ids]


def test_one_call_of_the_target_verifies_all_drafts(tiny_family):
    hierarchy = several_of(tiny_family, "block-rrs", k=11)
    tracer, done = ListTracer(), Work(hierarchy.root.model.trunk)
    result = hierarchy.generate(PROMPTS[0], tracer=tracer, **HOT)
    checks = [e for e in tracer.events if e["kind"] == "check"]
    assert len(checks) == done.calls[0]
    drafter = result.levels[0]
    full = [e for e in checks if len(e["draft"]) == 3]
    assert len(full) > 3
    assert drafter["num_draft_tokens"] > 10 * sum(len(e["draft"]) for e in full[1:])


@pytest.mark.parametrize("level", ["draft", "exit"])
@pytest.mark.parametrize("rule", RULES)
def test_trees_change_nothing_but_the_work(tiny_family, rule, level, monkeypatch):
    """One slot and one row for a shared prefix, or a slot for each draft: the same tokens."""
    found = {}
    for trees in (True, False):
        monkeypatch.setattr(LeanBackend, "trees", trees)
        hierarchy = several_of(tiny_family, rule, level=level)
        done = Work(hierarchy.root.model.trunk)
        results = hierarchy.generate_batch(PROMPTS, **HOT)
        found[trees] = [r.token_ids for r in results], [r.target_calls for r in results]
        found[trees, "rows"] = done.tokens[-1]
    assert found[True] == found[False]
    assert found[True, "rows"] < found[False, "rows"]


@pytest.mark.parametrize("level", LEVELS)
def test_bit_exact_text_over_trees_is_plain_decodings(tiny_family, level):
    """Whatever the trees, the number of rows and the batch."""
    if library.load() is None:
        pytest.skip("no C compiler here: the bit-exact mode keeps a slot for each draft")
    top = {"target": {"model": tiny_family["target"], "dtype": "float32"}, "deterministic": True}
    options = {"max_new_tokens": 24, "ignore_eos": True, "logprobs": True}
    plain = Hierarchy.from_config(top).generate_batch(PROMPTS, **options)
    hierarchy = several_of(tiny_family, "traversal", level=level, deterministic=True)
    assert takes_trees(hierarchy.root.model)
    results = hierarchy.generate_batch(PROMPTS, **options)
    assert [r.token_ids for r in results] == [r.token_ids for r in plain]
    assert [r.logprobs for r in results] == [r.logprobs for r in plain], "to the last bit"


def test_a_greedy_tree_keeps_what_one_draft_keeps_and_more(tiny_family):
    options = {"max_new_tokens": 40, "ignore_eos": True}
    calls = {}
    for k in (1, 2, 6):
        results = several_of(tiny_family, "traversal", k=k).generate_batch(PROMPTS, **options)
        calls[k] = [r.target_calls for r in results]
        drafted = results[0].levels[0]["num_draft_tokens"]
        assert drafted <= k * 3 * sum(calls[k])  # a tree has as many nodes as k drafts at most
    assert all(a >= b >= c for a, b, c in zip(*calls.values(), strict=True))
    assert sum(calls[1]) > sum(calls[6])


def test_a_greedy_tree_is_made_of_the_likeliest_continuations():
    """Against all continuations of a table, enumerated: the tree's nodes are the best of them."""
    q, p = pair(4, 1, 5)
    proposal = greedy_tree(q, p)
    chances = {}
    for n in (1, 2, 3):
        for path in np.ndindex(*(4,) * n):
            steps = zip((0, *path), path, strict=False)
            chances[path] = float(np.prod([q.distribution((a,))[b] for a, b in steps]))
    nodes = {path for draft in proposal.drafts for path in prefixes(draft.tokens)}
    # The width of four never binds here: at every depth the best nodes have the best parents.
    assert nodes == set(sorted(chances, key=lambda path: -chances[path])[:12])
    assert all(isinstance(draft.distributions, OneHotDistributions) for draft in proposal.drafts)


@pytest.mark.parametrize("trees", [True, False])
def test_a_greedy_tree_narrows_and_widens_again(trees):
    """Where fewer continuations are possible than drafts are asked for, and then more."""
    one_hot = {"": [0, 1, 0, 0], "0": [0, 1, 0, 0], "2": [0, 0, 0, 1], "3": [0, 0, 0, 1]}
    q = TabularModel(4, 1, {**one_hot, "1": [0.4, 0.1, 0.3, 0.2]})
    q.trees = trees
    proposal = greedy_tree(q, pair(4, 1, 5)[1])
    leaves = [(1, 0, 1), (1, 2, 3), (1, 3, 3), *((1, 1, x) for x in range(4))]
    assert sorted(draft.tokens for draft in proposal.drafts) == sorted(leaves)


def greedy_tree(q, p):
    """What a leaf of four drafts of three tokens proposes to a greedy request after token 0."""
    root = tree(q, p, "traversal", 4, 3)
    leaf = root.below
    assert isinstance(leaf, Draft)
    sequence = LiveSequence(0, root, [0], SamplingParams(), PhiloxRng(0, 0), num_remaining_tokens=8)
    job = ScoreRows(SamplingParams(), Context([0]), 1, 1, 1, 4)
    call = DraftCall(job, 3, 3, (), sequence.rng, sequence.slot)
    return MultiDrafter(leaf).draft([call]).proposals[0]


def prefixes(tokens):
    return [tuple(tokens[: n + 1]) for n in range(len(tokens))]


@pytest.mark.parametrize("penalties", [{}, {"repetition_penalty": 1.3, "logit_bias": {5: 2.0}}])
@pytest.mark.parametrize(
    ("level", "rule"),
    [*(("draft", rule) for rule in RULES), *((level, "traversal") for level in LEVELS[1:])],
)
def test_greedy_drafts_change_nothing(tiny_family, rule, penalties, level):
    hierarchy = several_of(tiny_family, rule, level=level)
    plain = Hierarchy.from_config({**hierarchy.config.to_dict(), "levels": []})
    options = {"max_new_tokens": 12, "ignore_eos": True, **penalties}
    expected = [r.token_ids for r in plain.generate_batch(PROMPTS, **options)]
    assert [r.token_ids for r in hierarchy.generate_batch(PROMPTS, **options)] == expected
    mixed = hierarchy.generate_batch(
        PROMPTS[:2],
        max_new_tokens=12,
        seed=1,
        ignore_eos=True,
        sampling=[SamplingParams.make(**penalties), SamplingParams(temperature=1.0)],
    )
    assert mixed[0].token_ids == expected[0]


def forbids_the_last(ids, scores):
    return scores.index_fill(1, ids[0, -1:] % scores.shape[1], -torch.inf)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("trees", [True, False])
@pytest.mark.parametrize("rule", RULES)
def test_requests_whose_rows_differ_in_width_share_a_batch(rule, trees, temperature):
    """A drafter of another vocabulary: what edits scores for the target makes its rows wider."""
    q, p = pair(6, 1, 31)
    q.trees = p.trees = trees
    edits = [
        {},
        {"logit_bias": dict.fromkeys(range(5), -3.0)},
        {"logits_processors": (forbids_the_last,)},
        {"presence_penalty": 0.5, "top_k": 3},
    ]
    for width in (3, 4, 8):
        drafter = Resized(q, width)
        drafter.trees = trees
        root = tree(drafter, p, rule, 3, 2)

        def written(numbers, root=root):
            live = [
                LiveSequence(
                    i,
                    root,
                    [0],
                    SamplingParams.make(temperature=temperature, **edits[i]),
                    PhiloxRng(1, i),
                    num_remaining_tokens=12,
                )
                for i in numbers
            ]
            runtime = Runtime(root, 6)
            for _ in range(3):
                for sequence, verdict in zip(live, runtime.round(live), strict=True):
                    sequence.tokens.extend(verdict.emitted.tokens)
            return [sequence.tokens for sequence in live]

        alone = [written([i])[0] for i in range(len(edits))]
        assert written(range(len(edits))) == alone


def test_caches_of_all_drafts_are_given_back():
    q, p = pair(3, 1, 31)
    root = tree(q, p, "rrs", 4, 2)
    sequence = LiveSequence(
        0, root, [0], SamplingParams(temperature=1.0), PhiloxRng(0, 0), num_remaining_tokens=8
    )
    closed = []
    p.trees = False  # with trees all drafts share a place
    p.close = lambda slot: closed.append(slot)  # type: ignore[method-assign]
    for _ in range(8):
        Runtime(root, 3).round([sequence])
    slots = [slot for owner, slot in sequence.slots.values() if owner is p]
    assert len(slots) > 1
    sequence.close()
    assert len(closed) == len(slots)


# --- configuration


def level(**changes):
    return {
        "method": "draft_model",
        "model": "zoo:tiny-draft",
        "num_speculative_tokens": 2,
        **changes,
    }


def test_hierarchy_files():
    data = {"target": {"model": "zoo:tiny"}, "levels": [level(num_drafts=5)], "verify": "rrs"}
    config = HierarchyConfig.from_dict(data)
    assert config.levels[0].num_drafts == 5  # type: ignore[union-attr]
    assert HierarchyConfig.from_dict(config.to_dict()) == config
    plain = HierarchyConfig.from_dict({**data, "levels": [level()]})
    assert "num_drafts" not in plain.to_dict()["levels"][0]
    for levels, match in [
        ([level(num_drafts=0)], "num_drafts must be"),
        ([level(), level(num_drafts=2)], "only the first level"),
        (
            [{"method": "prompt_lookup", "num_speculative_tokens": 2, "num_drafts": 2}],
            "makes only one draft",
        ),
    ]:
        with pytest.raises(ValueError, match=match):
            HierarchyConfig.from_dict({**data, "levels": levels})


def test_a_built_hierarchy_draws_as_its_rule_wants(tiny_family):
    assert several_of(tiny_family, "rrs-without-replacement").root.below.distinct
    assert not several_of(tiny_family, "rrs").root.below.distinct
    with pytest.raises(ValueError, match=r"verifier 'block' .* takes one: use '.*'rrs'"):
        several_of(tiny_family, "block")
    assert several_of(tiny_family, "block", k=1).root.below.num_drafts == 1


def test_plans_of_a_controller_keep_the_drafts_where_the_rule_takes_them():
    small, mid, top = family_models("random", 3)
    root = chain([mid, top], ["rrs", "block"], [2], below=Draft(0, "leaf", small, 2, num_drafts=3))
    leaf = plan_of(root, [2, 1]).below.below
    assert leaf.num_drafts == 3
    assert plan_of(root, [2, 0]).below.num_drafts == 1  # right under `block`
    assert plan_of(root, [0, 2]).below.num_drafts == 1
