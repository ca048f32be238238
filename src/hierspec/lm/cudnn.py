"""Attention without cuDNN, which makes a plan, in tens of milliseconds, for every number of keys."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Concatenate

import torch


def without_cudnn[S, **P](
    run: Callable[Concatenate[S, torch.Tensor, P], torch.Tensor],
) -> Callable[Concatenate[S, torch.Tensor, P], torch.Tensor]:
    """Switch cuDNN's attention off while ``run`` works on hidden states of an accelerator.

    torch has one switch for all threads. It is put back as it was found, so the rest of the process
    keeps its choice; a thread that runs meanwhile may see either, which changes its speed alone.
    """

    @wraps(run)
    def switched(self: S, h: torch.Tensor, *args: P.args, **kwargs: P.kwargs) -> torch.Tensor:
        cuda = torch.backends.cuda
        if h.device.type != "cuda" or not cuda.cudnn_sdp_enabled():
            return run(self, h, *args, **kwargs)
        cuda.enable_cudnn_sdp(False)
        try:
            return run(self, h, *args, **kwargs)
        finally:
            cuda.enable_cudnn_sdp(True)

    return switched
