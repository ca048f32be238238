"""A stand-in for CUDA graphs on the CPU: every operation recorded with its operands, then replayed.

Like a graph, a tape knows nothing of the Python that made it: a number read from the host while it
was recorded is what it will use for ever, results go where they went the first time, and an
operation that must look at a value cannot be recorded.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from hierspec.exact.splitting import WATCHED
from hierspec.utils.graphs import NoHostReads


class Tape(NoHostReads):
    def __init__(self) -> None:
        super().__init__()
        self.operations: list[tuple] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = super().__torch_dispatch__(func, types, args, kwargs)
        kwargs = kwargs or {}
        taken = {_storage(tensor) for tensor in _tensors([*args, *kwargs.values()])}
        fresh = [tensor for tensor in _tensors(out) if _storage(tensor) not in taken]
        # A view moves with what it views; what is written in place is where it belongs.
        if fresh or func._schema.is_mutable:
            is_watched = func.__name__ in WATCHED
            self.operations.append((is_watched, func, args, kwargs, out if fresh else ()))
        return out

    def replay(self) -> None:
        for is_watched, func, args, kwargs, out in self.operations:
            fresh = func(*args, **kwargs) if is_watched else None
            with torch._C.DisableTorchFunction():  # what follows is the tape's own
                if not is_watched:
                    fresh = func(*args, **kwargs)
                if isinstance(out, torch.Tensor):
                    out.copy_(fresh)
                    continue
                for old, new in zip(_tensors(out), _tensors(fresh) if out else (), strict=True):
                    if _storage(old) != _storage(new):
                        old.copy_(new)


def _tensors(value) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [t for one in value for t in _tensors(one)] if isinstance(value, tuple | list) else []


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def record(body, device, stream, pool):
    """In place of :func:`hierspec.utils.graphs.record`."""
    tape = Tape()
    with tape:
        body()
    assert tape.operations
    return tape.replay


def _attention(*args, **kwargs):
    """With the strides that a GPU's kernels give their results."""
    out = torch._C._nn.scaled_dot_product_attention(*args, **kwargs)
    return out.transpose(1, 2).contiguous().transpose(1, 2)


def _pin(tensor):
    if tensor.device.type != "cpu":
        raise RuntimeError("only dense CPU tensors can be pinned")
    return tensor


def install(monkeypatch) -> None:
    """Let graphs be tapes, and pinned memory be memory; kernels are torch's own."""
    monkeypatch.setattr("hierspec.lm.lean.fused._triton_is_installed", lambda: False)
    monkeypatch.setattr("hierspec.utils.graphs.record", record)
    monkeypatch.setattr("hierspec.utils.graphs.new_pool", object)
    monkeypatch.setattr("hierspec.utils.graphs.new_stream", lambda device: object())
    monkeypatch.setattr(F, "scaled_dot_product_attention", _attention)
    monkeypatch.setattr("hierspec.utils.graphs.pin", _pin)
