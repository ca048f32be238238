"""The n-gram table: proper positive laws, whatever was pruned, and the same after a round trip."""

from pathlib import Path

import numpy as np
import pytest
import torch
from following import drafted

from hierspec.core.context import Context
from hierspec.drafters import ngram_table
from hierspec.drafters.ngram_table import NgramModel
from hierspec.lm.base import LanguageModel, Query, StepwiseModel
from hierspec.sampling.sampler import Sampler

ngrams = pytest.importorskip("hierspec_lab.training.ngrams", reason="the laboratory counts")
V = 50


@pytest.fixture(scope="module")
def documents() -> list[np.ndarray]:
    """Texts of a Markov chain, so that contexts tell something."""
    rng = np.random.default_rng(3)
    chain = rng.dirichlet(np.full(V, 0.1), size=V)
    documents = []
    for _ in range(20):
        text = [int(rng.integers(V))]
        while len(text) < 200:
            text.append(int(rng.choice(V, p=chain[text[-1]])))
        documents.append(np.array(text))
    return documents


def scores(model: NgramModel, tokens: list[int], start: int) -> torch.Tensor:
    return model.score([Query(model.open(), Context(tokens), start)])


@pytest.mark.parametrize("max_order", [1, 2, 3, 4])
def test_every_law_is_proper_and_positive(documents: list[np.ndarray], max_order: int) -> None:
    model = ngrams.count(documents, V, max_order, {2: 100, 3: 200, 4: 100})
    distributions = scores(model, documents[0].tolist(), 1).exp()
    assert distributions.shape == (200, V)
    assert distributions.dtype == torch.float32
    assert float((distributions.sum(-1) - 1).abs().max()) < 1e-5
    assert float(distributions.min()) > 0


def test_what_is_kept_of_a_large_vocabulary_is_bounded(documents, monkeypatch) -> None:
    model = ngrams.count(documents, V, 3)
    every = [model.distribution([token]).tolist() for token in range(V)]
    monkeypatch.setattr(ngram_table, "_KEPT_BYTES", 3 * model.unigram.nbytes)
    small = ngrams.count(documents, V, 3)
    for _ in range(2):
        assert [small.distribution([token]).tolist() for token in range(V)] == every
    assert len(small._bigrams) == 3


def test_shares_are_the_discounted_counts() -> None:
    model = ngrams.count([np.array([0, 1, 0, 1, 0, 2])], 3, max_order=2)
    unigram = np.array([3.5, 2.5, 1.5]) / 7.5
    kept = np.array([0.0, 1.4 / 3, 0.0])  # "0 1" gains on the unigram; "0 2" not so much, but some
    kept[2] = 0.4 / 3 if unigram[2] < 1 / 3 else 0.0
    expected = kept + (1 - kept.sum()) * unigram
    np.testing.assert_allclose(model.distribution([0]), expected, atol=1e-3)


def test_more_context_predicts_better(documents: list[np.ndarray]) -> None:
    train, test = documents[:-1], documents[-1]

    def loss(order: int) -> float:
        model = ngrams.count(train, V, order)
        rows = scores(model, test.tolist(), 1)[:-1]
        return -float(rows.gather(1, torch.tensor(test[1:])[:, None]).mean())

    assert loss(2) < loss(1) - 0.5


def test_save_and_load(tmp_path: Path, documents: list[np.ndarray]) -> None:
    model = ngrams.count(documents, V, 3)
    model.save(tmp_path / "table.safetensors")
    loaded = NgramModel.load(tmp_path / "table.safetensors")
    tokens = documents[1].tolist()
    assert loaded.max_order == 3
    torch.testing.assert_close(scores(loaded, tokens, 1), scores(model, tokens, 1))
    lower = NgramModel.load(tmp_path / "table.safetensors", max_order=2)
    expected = ngrams.count(documents, V, 2)
    torch.testing.assert_close(scores(lower, tokens, 1), scores(expected, tokens, 1))


def test_many_queries_are_packed_in_order(documents: list[np.ndarray]) -> None:
    model = ngrams.count(documents, V, 3)
    tokens = documents[2].tolist()
    queries = [
        Query(model.open(), Context(tokens[:5], (7, 8)), 5),
        Query(model.open(), Context(tokens), 200),
    ]
    packed = model.score(queries)
    assert packed.shape == (4, V)
    for row, context in enumerate([tokens[:5], [*tokens[:5], 7], [*tokens[:5], 7, 8], tokens]):
        expected = torch.from_numpy(np.log(model.distribution(context)))
        torch.testing.assert_close(packed[row], expected)
    assert isinstance(model, LanguageModel)


@pytest.mark.parametrize("max_order", [1, 2, 4])
@pytest.mark.parametrize(
    "sampler", [Sampler(V, 0.0), Sampler(V), Sampler(V, 0.7, top_k=9), Sampler(V - 3, top_p=0.8)]
)
def test_a_draft_is_what_asking_row_by_row_gives(documents, max_order, sampler) -> None:
    model = ngrams.count(documents, V, max_order, {2: 100, 3: 200, 4: 100})
    assert isinstance(model, StepwiseModel)
    texts, counts = [documents[0][:9].tolist(), [5], documents[1][:2].tolist()], [4, 1, 3]
    rng = np.random.default_rng(8)
    uniforms = [() if sampler.greedy else rng.random(count).tolist() for count in counts]
    queries = [Query(model.open(), Context(text[:1], tuple(text[1:])), len(text)) for text in texts]
    drafts = drafted(*model.score_stepwise(queries, counts), counts, sampler, uniforms)
    assert drafts.calls == 4
    for text, count, rng, tokens, distributions in zip(
        texts, counts, uniforms, drafts.tokens, drafts.distributions, strict=True
    ):
        so_far = list(text)
        for i in range(count):
            picked, row = sampler.pick(scores(model, so_far, len(so_far)), rng[i : i + 1])
            assert torch.equal(row.dense(V)[0], distributions.dense(V)[i])
            so_far += picked
        assert so_far == text + tokens
        assert len(distributions) == len(tokens) == count


def test_unknown_tokens_back_off_to_the_unigram(documents: list[np.ndarray]) -> None:
    model = ngrams.count(documents, V, 3)
    np.testing.assert_allclose(
        model.distribution([V + 5]), ngrams.count(documents, V, 1).distribution([])
    )


def test_bad_files_are_explained(tmp_path: Path, documents: list[np.ndarray]) -> None:
    path = tmp_path / "table.safetensors"
    with pytest.raises(ValueError, match="cannot read"):
        NgramModel.load(path)
    path.write_bytes(b"nonsense")
    with pytest.raises(ValueError, match="cannot read"):
        NgramModel.load(path)
    ngrams.count(documents, V, 2).save(path)
    with pytest.raises(ValueError, match="orders 1 to 2"):
        NgramModel.load(path, max_order=3)
