"""Attention without cuDNN's, which plans for tens of milliseconds for every number of keys."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

import torch

TensorFunction = TypeVar("TensorFunction", bound=Callable[..., torch.Tensor])


def without_cudnn(run: TensorFunction) -> TensorFunction:
    """Switch cuDNN's attention off while a method works on hidden states h of an accelerator.

    torch has one switch for all threads. It is put back as it was found, so the rest of the process
    keeps its choice; a thread that runs meanwhile may see either, which changes its speed alone.
    """

    @wraps(run)
    def switched(self: Any, h: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        cuda = torch.backends.cuda
        if h.device.type != "cuda" or not cuda.cudnn_sdp_enabled():
            return run(self, h, *args, **kwargs)
        cuda.enable_cudnn_sdp(False)
        try:
            return run(self, h, *args, **kwargs)
        finally:
            cuda.enable_cudnn_sdp(True)

    return cast(TensorFunction, switched)
