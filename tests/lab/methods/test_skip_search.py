"""The search for what to leave out: its candidates, its ends, and whose text it learns from."""

from __future__ import annotations

import math

import numpy as np
import pytest
from tiny_models import save_tiny

from hierspec import Hierarchy, HierarchyConfig
from hierspec_lab.methods.layer_skip import LayerSkipConfig, SkipSearchConfig
from hierspec_lab.methods.layer_skip.drafter import SearchedSkip, SkipSearches
from hierspec_lab.methods.layer_skip.search import SearchSettings, SkipSearch, posterior
from hierspec_lab.methods.layer_skip.skipping import Skip, evenly_spaced_parts

PROMPTS = [[5, 9, 7], [11, 4, 4, 30, 8], [60], list(range(3, 40))]
LEVEL = {
    "method": "layer_skip",
    "skip": 0.5,
    "search": {"context_window": 2, "bayes_interval": 3, "enough": 2.0},
    "num_speculative_tokens": 4,
    "window": {"kind": "confidence", "floor": 0.3},
}


# --- candidates


def run(settings, depth, score, rounds):
    """A search over so many rounds, and what it scored."""
    search, candidates = SkipSearch(settings, depth), []
    for _ in range(rounds):
        if search.is_due:
            candidate = search.next_candidate()
            candidates.append(candidate)
            search.record(candidate, score(candidate))
        search.count_round()
    return search, candidates


def test_candidates_have_the_share_and_follow_from_the_seed():
    settings = SearchSettings(bayes_interval=4)
    score = lambda skip: len(skip.attention) / 100  # noqa: E731
    search, seen = run(settings, 12, score, 40)
    assert seen[0] == evenly_spaced_parts(0.45, 12)
    for skip in seen:
        assert len(skip.attention) + len(skip.mlp) == 9
        assert {*skip.attention, *skip.mlp} <= set(range(1, 11))
    assert len(set(seen)) > 35
    assert run(settings, 12, score, 40)[1] == seen
    assert run(SearchSettings(bayes_interval=4, seed=1), 12, score, 40)[1] != seen
    random, drawn = run(SearchSettings(kind="random"), 12, score, 40)
    assert [a == b for a, b in zip(seen, drawn, strict=True)].count(False) == 9, "each fourth"
    assert search.score == max(search.scores)
    assert search.best == seen[int(np.argmax(search.scores))]
    assert random.score == max(random.scores)


def test_suggestions_find_what_chance_does_not():
    """Parts of different use; the best of 120 candidates, by suggestion and by chance."""
    worth = np.random.default_rng(5).random(20)

    def score(skip: Skip) -> float:
        lost = sum(worth[i - 1] for i in skip.attention)
        return 1 - (lost + sum(worth[9 + i] for i in skip.mlp)) / worth.sum()

    settings = SearchSettings(bayes_interval=4, enough=2.0)
    found = run(settings, 12, score, 120)[0].score
    chance = run(SearchSettings(kind="random", enough=2.0), 12, score, 120)[0].score
    best = 1 - np.sort(worth)[:9].sum() / worth.sum()
    assert chance < found <= best
    assert best - found < (best - chance) / 2


@pytest.mark.parametrize(
    ("settings", "score", "count"),
    [
        (SearchSettings(enough=0.5), lambda number: number / 10, 7),
        (SearchSettings(patience=5), lambda number: -number, 6),
        (SearchSettings(max_candidates=8), lambda number: number / 100, 8),
        (SearchSettings(interval=3), lambda number: number / 1000, 20),
    ],
)
def test_a_search_ends(settings, score, count):
    scores = iter(range(60))
    search, seen = run(settings, 8, lambda _: score(next(scores)), 60)
    assert len(seen) == count
    assert search.finished == (count < 20)


def test_three_layers_leave_two_candidates():
    search, seen = run(SearchSettings(share=0.99, bayes_interval=2), 3, lambda _: 0.0, 9)
    assert set(seen) == {Skip((1,), ()), Skip((), (1,))}
    assert search.best == seen[0] == Skip((1,), ())


def test_the_gaussian_process_knows_what_it_has_seen():
    random = np.random.default_rng(0)
    x = (random.random((30, 12)) < 0.5).astype(float)
    y = x @ random.standard_normal(12)
    mean, stddev = posterior(x, y, x)
    assert np.abs(mean - y).max() < 0.35 * y.std()
    far_mean, far = posterior(x[:2], y[:2], 1.0 - x[:1])
    assert stddev.max() < 0.2 * y.std() < far[0]
    assert math.isclose(far_mean[0], y[:2].mean(), abs_tol=y[:2].std())
    new = (random.random((200, 12)) < 0.5).astype(float)
    guessed, _ = posterior(x, y, new)
    truth = new @ np.linalg.lstsq(x, y, rcond=None)[0]
    assert np.corrcoef(guessed, truth)[0, 1] > 0.8
    equal, _ = posterior(x[:3], np.ones(3), new)
    assert np.allclose(equal, 1.0)


# --- in a hierarchy


def built(path, level, **options):
    target = {"model": str(path), "dtype": "float64"}
    return Hierarchy.from_config({"target": target, "levels": [level], **options})


@pytest.fixture(scope="module", params=["llama", "gemma2"])
def target(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    return save_tiny(request.param, folder / "m", seed=1, layers=6)


def searches_of(hierarchy) -> SkipSearches:
    return hierarchy.root.below.model.searches


OPTIONS = {"max_new_tokens": 24, "ignore_eos": True}


@pytest.mark.parametrize("shared", [False, True])
def test_greedy_equals_plain_greedy_while_it_searches(target, shared):
    level = {**LEVEL, "search": {**LEVEL["search"], "shared": shared}}
    plain = Hierarchy.from_config({"target": {"model": str(target), "dtype": "float64"}})
    expected = [plain.generate(p, **OPTIONS).token_ids for p in PROMPTS]
    hierarchy = built(target, level)
    batch = hierarchy.generate_batch(PROMPTS, **OPTIONS)
    assert [r.token_ids for r in batch] == expected
    alone = hierarchy.generate(PROMPTS[1], **OPTIONS)
    assert alone.token_ids == expected[1]
    search = searches_of(hierarchy).shared_search
    assert len(search.scores) > 15 if shared else not search.scores


def test_a_text_samples_the_same_whoever_shares_its_batch(target):
    """Also after greedy texts that share a search: a sampled one neither reads nor adds to it."""
    level = {**LEVEL, "search": {**LEVEL["search"], "shared": True}}
    hierarchy = built(target, level)
    options = {**OPTIONS, "temperature": 1.0, "seed": 5}
    together = [r.token_ids for r in hierarchy.generate_batch(PROMPTS, **options)]
    assert not searches_of(hierarchy).shared_search.scores
    hierarchy.generate_batch(PROMPTS, **OPTIONS)
    learnt = list(searches_of(hierarchy).shared_search.scores)
    assert [r.token_ids for r in hierarchy.generate_batch(PROMPTS[:2], **options)] == together[:2]
    assert searches_of(hierarchy).shared_search.scores == learnt


def test_what_is_found_drafts_from_the_next_round_on(target, monkeypatch):
    """Greedy matchness is agreement with the target: the best set so far, on its own tokens."""
    chosen = []
    choose = SearchedSkip.choose

    def listening(self, slot, skip, length):
        chosen.append((skip, length))
        choose(self, slot, skip, length)

    monkeypatch.setattr(SearchedSkip, "choose", listening)
    hierarchy = built(target, {**LEVEL, "search": {**LEVEL["search"], "shared": True}})
    hierarchy.generate(PROMPTS[0], **OPTIONS)
    lengths = [length for _, length in chosen]
    assert lengths == sorted(set(lengths)), "once a round"
    assert chosen[-1][0] == searches_of(hierarchy).shared_search.best
    assert chosen[0][0] == evenly_spaced_parts(0.5, 6)


def test_as_a_middle_level_or_with_several_drafts_it_is_refused():
    top = {**LEVEL, "verify": "block"}
    below = {"method": "prompt_lookup", "num_speculative_tokens": 2}
    for levels, says in (
        ([below, top], "only drafts: put it first"),
        ([{**LEVEL, "num_drafts": 2}], "one draft a round"),
        ([{**LEVEL, "skip": None, "skip_layers": [1]}], "a search needs skip"),
        ([{**LEVEL, "search": {"kind": "swift"}}], "kind"),
        ([{**LEVEL, "search": {"context_windw": 3}}], "did you mean 'context_window'"),
    ):
        with pytest.raises(ValueError, match=says) as caught:
            HierarchyConfig.from_dict({"target": "t", "levels": levels, "verify": "block"})
        assert "\n" not in str(caught.value)


def test_the_files_form():
    for search in ("random", {"kind": "random", "seed": 4}, {}):
        config = HierarchyConfig.from_dict({"target": "t", "levels": [{**LEVEL, "search": search}]})
        assert HierarchyConfig.from_dict(config.to_dict()) == config
    (level,) = config.levels
    assert isinstance(level, LayerSkipConfig)
    assert level.search == SkipSearchConfig()
    assert config.to_dict()["levels"][0]["search"] == {"kind": "bayesian"}
    parts = {"method": "layer_skip", "skip_attention": [2], "skip_mlp": [1], "skip_layers": [3],
             "num_speculative_tokens": 2}  # fmt: skip
    assert HierarchyConfig.from_dict({"target": "t", "levels": [parts]}).levels
