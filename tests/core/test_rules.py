"""What rules share: from chances of stopping to where a draft stops."""

import torch

from hierspec.core.rules import scan


def test_scan_directions():
    h = torch.tensor([[0.5, 0.5, 0.5], [0.5, 0.5, 0.0]])
    u = torch.tensor([[0.1, 0.9, 0.1], [0.9, 0.1, 0.0]])
    assert scan("forward", h, u).tolist() == [1, 0]
    assert scan("backward", h, u).tolist() == [3, 2]
    assert scan("backward", h[:, :0], u[:, :0]).tolist() == [0, 0]
    assert scan("forward", h[:, :0], u[:, :0]).tolist() == [0, 0]
