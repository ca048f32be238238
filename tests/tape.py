"""A stand-in for CUDA graphs on the CPU: every operation recorded with its operands, then replayed.

Like a graph, a tape knows nothing of the Python that made it: a number read from the host while it
was recorded is what it will use for ever, results go where they went the first time, and an
operation that must look at a value cannot be recorded.
"""

from __future__ import annotations

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_LOOKS = ("_local_scalar_dense", "item", "is_nonzero", "nonzero", "masked_select", "equal")


class Tape(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.operations: list[tuple] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.overloadpacket.__name__ in _LOOKS:
            raise RuntimeError(f"operation not permitted when stream is capturing: {func}")
        out = func(*args, **(kwargs or {}))
        self.operations.append((func, args, kwargs or {}, out))
        return out

    def replay(self) -> None:
        with torch._C.DisableTorchFunction():  # a device pretended above this has had its say
            for func, args, kwargs, out in self.operations:
                fresh = func(*args, **kwargs)
                for old, new in zip(_tensors(out), _tensors(fresh), strict=True):
                    if old.untyped_storage().data_ptr() != new.untyped_storage().data_ptr():
                        old.copy_(new)


def _tensors(value) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [t for one in value for t in _tensors(one)] if isinstance(value, tuple | list) else []


def record(body, device, pool):
    """In place of :func:`hierspec.graphs.record`."""
    tape = Tape()
    with tape:
        body()
    assert tape.operations
    return tape.replay


def install(monkeypatch) -> None:
    """Let graphs be tapes, and pinned memory be memory."""
    monkeypatch.setattr("hierspec.graphs.record", record)
    monkeypatch.setattr("hierspec.graphs.new_pool", object)
    monkeypatch.setattr("hierspec.graphs.pinned", lambda tensor: tensor)
