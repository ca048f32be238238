"""What the kernels draw from, against float64, for rows of scores of every kind."""

from __future__ import annotations

import itertools

import pytest
import torch
from kernel_cases import laws_of

from hierspec.core.distributions import draw
from hierspec.lm.backend import HiddenStates, Span
from hierspec.lm.lean.shape import LlamaShape
from hierspec.lm.native import library
from hierspec.lm.native.matrices import PackedMatrix
from hierspec.lm.native.model import Drafting, LayerWeights, NativeModel
from hierspec.sampling.sampler import NoDistributionError, Sampler

pytestmark = pytest.mark.skipif(library.load() is None, reason="no C compiler here")

V, DIM = 1013, 40  # a last slice of probabilities that is short


def randn(*size: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


def one_finite(v: int = V) -> torch.Tensor:
    return torch.full((v,), -torch.inf).index_fill_(0, torch.tensor([v // 2]), 3.0)


ROWS = {
    "as of a model": randn(V) * 3,
    "peaked": randn(V, seed=1) * 30,
    "far below": randn(V, seed=2) * 3000,
    "flat": randn(V, seed=3) * 1e-3,
    "equal": torch.full((V,), 2.5),
    "of few values": randn(V, seed=4).mul(2).round(),
    "half forbidden": torch.where(torch.arange(V) % 2 == 0, randn(V, seed=5), -torch.inf),
    "one finite": one_finite(),
    "two best": torch.zeros(V).index_fill_(0, torch.tensor([7, 900]), 20.0),
    "few outputs": randn(5, seed=6),
    "one output": randn(1),
}  # fmt: skip
SAMPLERS = [
    Sampler(V, temperature, top_k, top_p, min_p)
    for temperature, (top_k, top_p, min_p) in itertools.product(
        (0.7, 2.0),
        (
            *((k, None, None) for k in (1, 2, 8, 9, 40, V - 1, V, 2**64 + 3)),
            *((None, p, None) for p in (1e-9, 0.05, 0.5, 0.95, 1 - 1e-9, 1.0)),
            *((None, None, p) for p in (0.0, 1e-30, 0.02, 0.5, 1.0)),
            (40, 0.95, None), (3, 0.6, None), (500, 0.9, None), (40, None, 0.05), (500, None, 0.3),
            (None, 0.95, 0.02), (None, 0.5, 0.5), (40, 0.95, 0.05), (500, 0.5, 1e-9),
        ),
    )
]  # fmt: skip


def drafted(
    scores: torch.Tensor, samplers: list[Sampler], uniforms: list[list[float]], threads: int = 1
) -> Drafting:
    """Drafts of a model whose scores are the same after any text."""
    num = len(scores)
    zero = {name: PackedMatrix.of(torch.zeros(DIM, 1), "F32") for name in ("q", "k", "v")}
    zero |= {name: PackedMatrix.of(torch.zeros(1, 1), "F32") for name in ("gate", "up", "down")}
    zero["proj"] = PackedMatrix.of(torch.zeros(1, DIM), "F32")
    shape = LlamaShape(
        vocab_size=num, num_layers=1, hidden_size=1, intermediate_size=1, num_heads=1,
        num_kv_heads=1, head_dim=DIM, eps=1e-30, max_length=9999, qk_norm=False, windows=(None,),
        biased=frozenset(),
    )  # fmt: skip
    kernels = library.load()
    assert kernels is not None
    one = torch.ones(1)
    layer = LayerWeights(**zero, norm=one, mlp_norm=one, head_norm=None)
    model = NativeModel(
        *(kernels, [layer], shape, torch.float32),
        embedding=PackedMatrix.of(torch.ones(num, 1), "F32"),
        final_norm=one,
        output=PackedMatrix.of(scores[:, None], "F32"),
    )  # fmt: skip
    counts = [len(own) for own in uniforms]
    drafting = Drafting(counts, num, None, samplers, uniforms)
    spans = [Span(torch.zeros(1, 1, 2, n, DIM), 0, 1) for n in counts]
    states = [HiddenStates(torch.empty(n, 1)) for n in counts]
    model.run(
        *(0, 1, spans, states, threads),
        ids=[0] * len(counts),
        scored=[(own, (0,)) for own in states],
        rotations=torch.ones(max(counts), 1, DIM // 2, dtype=torch.complex64),
        drafting=drafting,
    )
    return drafting


@pytest.mark.parametrize("row", ROWS)
def test_rows_are_those_of_float64_and_tokens_are_drawn_from_them(row):
    """All samplers in one call of three threads; then each alone, which must give the same bits."""
    scores = ROWS[row]
    uniforms = [[0.0, 0.37 * i % 1, 1 - 2**-20, 1 - 2**-53] for i in range(len(SAMPLERS))]
    together = drafted(scores, SAMPLERS, uniforms, 3)
    for i, sampler in enumerate(SAMPLERS):
        probs = together.probs[i]
        assert any(
            torch.allclose(probs[0].double(), law, rtol=1e-5, atol=1e-37)
            for law in laws_of(scores, sampler)
        ), sampler
        *tokens, last = together.tokens[i]
        assert tokens == draw(probs[:-1], uniforms[i][:-1])
        assert probs[-1, last] > 0  # which is the last by its mass depends on the order of sums
        alone = drafted(scores, [sampler], [uniforms[i]])
        assert torch.equal(alone.probs[0], probs)
        assert list(alone.tokens[0]) == list(together.tokens[i])


def test_a_row_as_long_as_a_vocabulary():
    scores = randn(49_152, seed=7) * 2
    scores[torch.arange(0, 49_152, 1000)] += 12
    samplers = [
        Sampler(len(scores), 0.8, *own)
        for own in ((40,), (None, 0.95), (40, 0.95), (400,), (None, 0.9, 0.01), (9000, 0.999))
    ]
    found = drafted(scores, samplers, [[0.5]] * len(samplers), 2)
    for probs, sampler in zip(found.probs, samplers, strict=True):
        expected = Sampler.probabilities(sampler, scores[None])
        torch.testing.assert_close(probs, expected, rtol=1e-5, atol=1e-37)


@pytest.mark.parametrize(
    "sampler", [Sampler(V, 0.7, 20), Sampler(V, 1.0, None, 0.8, 0.01)], ids=str
)
def test_over_all_uniforms_tokens_have_their_probabilities(sampler):
    n = 4096
    found = drafted(ROWS["of few values"], [sampler], [[(i + 0.5) / n for i in range(n)]])
    counts = torch.bincount(torch.tensor(list(found.tokens[0])), minlength=V)
    assert ((counts / n - found.probs[0][0]).abs() < 1.01 / n).all()
    assert (counts[found.probs[0][0] == 0] == 0).all()


@pytest.mark.parametrize("sampler", SAMPLERS[::5], ids=str)
@pytest.mark.parametrize("score", [torch.nan, torch.inf, -torch.inf])
def test_a_row_that_is_no_distribution_is_refused(sampler, score):
    scores = torch.full((V,), score) if score == -torch.inf else randn(V)
    scores[V - 2] = score
    with pytest.raises(NoDistributionError):
        drafted(scores, [sampler], [[0.5]])
