"""Distances from the teacher's likeliest tokens alone, against those from whole distributions."""

import pytest
import torch
import torch.nn.functional as F

from hierspec_lab.training.losses import Likeliest, distances, head_distances


@pytest.mark.parametrize("which", [0, 1], ids=["kl", "tv"])
@pytest.mark.parametrize("count", [24, 5], ids=["all tokens", "likeliest tokens"])
def test_distances_and_gradients_are_those_of_whole_distributions(which: int, count: int) -> None:
    generator = torch.Generator().manual_seed(0)
    state, head, scores = (
        torch.randn(*shape, generator=generator) for shape in ((40, 8), (24, 8), (40, 24))
    )
    weights = torch.rand(40, generator=generator)
    probs, columns = (3 * scores).softmax(-1).topk(count)
    # The other tokens have no probability, so that the teacher's sum to less than one.
    kept = torch.zeros(40, 24).scatter(1, columns, probs)
    inputs = [x.clone().requires_grad_() for x in (state, head)]
    found = head_distances(*inputs, Likeliest(columns, probs), weights)[which]
    found.backward()
    state, head = (x.requires_grad_() for x in (state, head))
    log_q = F.linear(state, head).log_softmax(-1)
    kl = (torch.xlogy(kept, kept) - kept * log_q).sum(-1)
    tv = 1 - torch.minimum(kept, log_q.exp()).sum(-1)
    expected = (kl, tv)[which] @ weights / weights.sum()
    if count == 24:
        whole = distances(3 * scores, F.linear(state, head), weights)[which]
        torch.testing.assert_close(expected, whole)
    expected.backward()
    torch.testing.assert_close(found, expected)
    for mine, reference in zip(inputs, (state, head), strict=True):
        assert float(reference.grad.abs().max()) > 1e-3
        torch.testing.assert_close(mine.grad, reference.grad)
