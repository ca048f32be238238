"""The optimiser of a network, which averages the weights over the last part of the training."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn

_AVERAGED_SHARE = 0.1  # of the steps so far, about: those whose weights are averaged


class AveragingAdamW(torch.optim.AdamW):
    """AdamW on gradients clipped to norm 1, which also averages the parameters over its steps.

    After step t the average moves by 1 / (.1 t + .9) of the way to the parameters, so that it is
    one over about the last tenth of the steps, however many there will be [Shamir and Zhang 2013,
    polynomial decay].
    """

    def __init__(self, parameters: Iterable[nn.Parameter], rate: float) -> None:
        super().__init__(parameters, rate, (0.9, 0.95), weight_decay=0.01, fused=True)
        self.param_groups[0]["tokens"] = 0

    @property
    def tokens(self) -> int:
        """How many tokens its steps have seen; kept with its state."""
        return self.param_groups[0]["tokens"]

    @tokens.setter
    def tokens(self, count: int) -> None:
        self.param_groups[0]["tokens"] = count

    def step(self, closure: Any = None) -> Any:
        parameters = self.param_groups[0]["params"]
        nn.utils.clip_grad_norm_(parameters, 1.0)
        result = super().step(closure)
        with torch.no_grad():
            for p in parameters:
                average = self.state[p].setdefault("average", p.clone())
                step = float(self.state[p]["step"])
                average.lerp_(p, 1 / (_AVERAGED_SHARE * (step - 1) + 1))
        return result

    @contextlib.contextmanager
    def averages_in_place(self) -> Iterator[None]:
        """Exchange the parameters and their averages for a while."""

        def exchange() -> None:
            for p in self.param_groups[0]["params"]:
                if "average" in self.state[p]:
                    p.data, self.state[p]["average"] = self.state[p]["average"], p.data

        exchange()
        try:
            yield
        finally:
            exchange()
