"""Windows of texts, in an order that a step decides."""

import pytest
import torch

from hierspec_lab.training.windows import Stream

pytestmark = pytest.mark.usefixtures("global_generator_untouched")


def test_stream_is_a_function_of_the_step() -> None:
    pieces = [torch.arange(i * 100, i * 100 + 30, dtype=torch.int16) for i in range(8)]
    one, two = Stream(pieces, 1), Stream(pieces, 1)
    for _ in range(40):  # several passes
        two.batch(_, 2, 8)
    inputs, targets = one.batch(17, 2, 8)
    again = two.batch(17, 2, 8)
    assert torch.equal(inputs, again[0])
    assert torch.equal(targets, again[1])
    assert torch.equal(inputs[:, 1:], targets[:, :-1])
    assert not torch.equal(inputs, Stream(pieces, 2).batch(17, 2, 8)[0])
