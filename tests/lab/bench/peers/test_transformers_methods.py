"""Transformers' ways to generate: the target's text, and drafts as long as they are told."""

import pytest
import torch
from peer_cases import ENTRIES, GREEDY, PROMPT, TOKENS
from tiny_models import save_tiny

from hierspec.config.schema import TargetConfig
from hierspec_lab.bench.methods.base import RunRequest, Unavailable
from hierspec_lab.bench.methods.ours import BenchModels
from hierspec_lab.bench.peers.checkpoints import exported
from hierspec_lab.bench.peers.hf import TransformersMethod

TRANSFORMERS = [name for name in ENTRIES if name.startswith("transformers")]


@pytest.fixture
def forwards(models):
    """(drafting, rows in) of every transformers forward, in order."""
    seen = []

    def watch(drafts):
        def hook(module, args, kwargs):
            shortened = module.config.num_hidden_layers < len(module.model.layers)
            seen.append((drafts or shortened, kwargs["input_ids"].shape[1]))

        return hook

    held = exported(models)
    handles = [
        held.hf(name).register_forward_pre_hook(
            watch(name != models.target.model), with_kwargs=True
        )
        for name in (models.target.model, *models.drafts)
    ]
    yield seen
    for handle in handles:
        handle.remove()


def runs_of_drafting(seen):
    """How many forwards drafted before each of the target's."""
    groups = [0]
    for drafts, _ in seen:
        if drafts:
            groups[-1] += 1
        else:
            groups.append(0)
    assert groups.pop() == 0  # every draft was verified
    return groups


def assisted(models, draft, n, threshold=0.0, schedule="constant"):
    own = {
        "num_assistant_tokens": n,
        "num_assistant_tokens_schedule": schedule,
        "assistant_confidence_threshold": threshold,
    }
    told = {"generate": {"assistant_model": draft}, "assistant_generation_config": own}
    return TransformersMethod("assisted", models, told)


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_greedy_text_is_the_targets(name, models, plain, forwards):
    candidates = ENTRIES[name].candidates(models, 0.0)
    assert {method.name for method in candidates} == {name}
    assert len({repr(method.configuration) for method in candidates}) == len(candidates)
    for method in (candidates[0], candidates[-1]):
        forwards.clear()
        run = method.run(PROMPT, GREEDY)
        assert run.token_ids == plain
        calls = sum(not drafts for drafts, _ in forwards)
        assert run.target_calls == (calls - 1 if name == "transformers" else calls)
        assert 0 < run.decode_seconds < run.seconds


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_sampled_text_is_seeded_and_leaves_the_global_generator_alone(name, models):
    method = ENTRIES[name].candidates(models, 0.7)[-1]
    torch.manual_seed(11)
    first = method.run(PROMPT, RunRequest(12, 0.7, seed=3))
    after = torch.rand(1)
    torch.manual_seed(11)
    assert torch.rand(1) == after
    assert first.token_ids == method.run(PROMPT, RunRequest(12, 0.7, seed=3)).token_ids
    assert first.token_ids != method.run(PROMPT, RunRequest(12, 0.7, seed=4)).token_ids
    assert first.num_tokens == 12


@pytest.mark.parametrize("n", [2, 3, 5])
def test_a_draft_model_drafts_as_many_tokens_as_it_is_told(n, models, plain, forwards):
    """The target drafting for itself keeps everything: 24 tokens in rounds of n + 1."""
    run = assisted(models, models.target.model, n).run(PROMPT, GREEDY)
    assert run.token_ids == plain
    assert run.target_calls == TOKENS // (n + 1)
    forwards.clear()
    assisted(models, models.drafts[1], n).run(PROMPT, GREEDY)
    groups = runs_of_drafting(forwards)
    assert groups[0] == max(groups) == n
    reads = [rows for drafts, rows in forwards if drafts]
    assert reads[0] == len(PROMPT)
    assert max(reads[1:]) <= 2  # its cache is kept from round to round


@pytest.mark.parametrize(("exit_layer", "n"), [(1, 2), (2, 4)])
def test_an_early_exit_drafts_as_many_tokens_as_it_is_told(exit_layer, n, models, plain, forwards):
    own = {"num_assistant_tokens": n, "num_assistant_tokens_schedule": "constant"}
    told = {
        "generate": {"assistant_early_exit": exit_layer},
        "target_generation_config": {**own, "assistant_confidence_threshold": 0.0},
    }
    run = TransformersMethod("exit", models, told).run(PROMPT, GREEDY)
    assert run.token_ids == plain
    groups = runs_of_drafting(forwards)
    assert groups[0] == max(groups) == n


def test_lookup_copies_as_many_tokens_as_it_is_told(models, forwards):
    told = {"generate": {"prompt_lookup_num_tokens": 3, "max_matching_ngram_size": 2}}
    TransformersMethod("lookup", models, told).run(PROMPT, GREEDY)
    rows = [rows for _, rows in forwards]
    assert rows[0] == len(PROMPT) + 3  # 5 9 stands there before, followed by 40 41 5
    assert max(rows[1:]) == 4


def test_confidence_ends_drafts_and_one_run_leaves_no_trace_in_the_next(models, forwards):
    sure = assisted(models, models.drafts[1], 6)
    unsure = assisted(models, models.drafts[1], 6, threshold=1.1)  # no token is that probable
    grows = assisted(models, models.drafts[1], 2, schedule="heuristic")
    lengths = []
    for method in (sure, unsure, grows, grows):
        forwards.clear()
        method.run(PROMPT, GREEDY)
        lengths.append(runs_of_drafting(forwards))
    assert max(lengths[0]) == 6
    assert max(lengths[1]) == 1
    assert len(set(lengths[2])) > 2
    assert lengths[2] == lengths[3]


@pytest.mark.parametrize("name", ["transformers-assisted", "transformers-assisted-dynamic"])
def test_a_draft_model_is_asked_for(name, models):
    with pytest.raises(Unavailable, match="add --draft"):
        ENTRIES[name].candidates(BenchModels(models.target), 0.0)


def test_no_early_exit_where_transformers_would_run_all_layers(tmp_path):
    path = save_tiny("gpt2", tmp_path / "gpt2", dtype=torch.float32)
    found = BenchModels(TargetConfig(model=str(path), dtype="float32", device="cpu"))
    with pytest.raises(Unavailable, match="gpt2"):
        ENTRIES["transformers-early-exit"].candidates(found, 0.0)


def test_candidates_are_as_many_as_for_our_own_single_draft(models):
    ours = BenchModels(models.target, models.drafts)
    sizes = {name: len(ENTRIES[name].candidates(ours, 0.0)) for name in TRANSFORMERS[1:]}
    assert set(sizes.values()) == {12}
