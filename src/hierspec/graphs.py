"""Work on an accelerator, recorded once for a shape and replayed: CUDA graphs.

A small model's layers take less time on a GPU than Python takes to launch them. A graph launches
them all at once, at the price of fixed shapes and fixed addresses: what varies (token ids,
positions, uniforms) must lie in *static* tensors that are written before each replay, and nothing
on the way may wait for the device. Elsewhere the same functions run as they stand.
"""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch

Body = Callable[[], None]  # reads and writes static tensors; running it twice is running it once
_MOST = 96  # graphs kept; each holds a description of its kernels, their memory is shared
_TRIALS = 2  # runs of a shape before it is recorded: it may be the only ones, and they warm up


class Graphs:
    """Bodies by shape, recorded when they come again; the least recently used are forgotten.

    Args:
        device: where they run; only on CUDA is anything recorded.
        most: how many are kept.

    Attributes:
        num_recorded: how many there have been.
    """

    def __init__(self, device: torch.device, most: int = _MOST) -> None:
        self.device = device
        self.most = most
        self.pool: Any = None
        self.num_recorded = 0
        self._kept: OrderedDict[Hashable, Call] = OrderedDict()

    def get(self, key: Hashable, make: Callable[[], tuple[Any, Body]]) -> Call:
        """The call of that shape; ``make`` → (its static tensors, its body), where it is new."""
        found = self._kept.get(key)
        if found is None:
            found = self._kept[key] = Call(self, *make())
            if len(self._kept) > self.most:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        return found

    def clear(self) -> None:
        """Forget all: the addresses they were recorded with are about to change."""
        self._kept.clear()


class Call:
    """A body, and the static tensors it reads and writes."""

    __slots__ = ("_graphs", "_run", "_runs", "recorded", "tensors")

    def __init__(self, graphs: Graphs, tensors: Any, body: Body) -> None:
        self.tensors = tensors
        self.recorded = False
        self._graphs, self._run, self._runs = graphs, body, 0

    def run(self) -> None:
        if self._runs == _TRIALS and self._graphs.device.type == "cuda":
            self._record()
        self._runs += 1
        self._run()

    def _record(self) -> None:
        graphs = self._graphs
        if graphs.pool is None:
            graphs.pool = new_pool()
        try:
            self._run = record(self._run, graphs.device, graphs.pool)
            self.recorded = True
            graphs.num_recorded += 1
        except RuntimeError as error:  # a kernel that cannot be recorded: slower, never different
            why = (str(error).strip().splitlines() or [type(error).__name__])[0]
            warnings.warn(f"running without a CUDA graph: {why}", stacklevel=3)


def new_pool() -> Any:
    """Memory that graphs share: they run one after another, and keep nothing in it between runs."""
    return torch.cuda.graph_pool_handle()


def record(body: Body, device: torch.device, pool: Any) -> Body:
    """``body`` as a CUDA graph."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.device(device):
        current, aside = torch.cuda.current_stream(), torch.cuda.Stream()
        aside.wait_stream(current)
        with torch.cuda.stream(aside):  # libraries make their workspaces, once a stream
            body()
        current.wait_stream(aside)
        # Another thread may allocate meanwhile: its calls are no part of this recording.
        with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            body()

    def replay() -> None:
        with torch.cuda.device(device):
            graph.replay()

    return replay


def upload(out: torch.Tensor, values: Sequence[Any]) -> None:
    """Numbers of the host into a static tensor of an accelerator, without waiting for it.

    The copy begins in pinned memory, which torch's allocator does not reuse before it has ended.
    """
    host = torch.tensor(values, dtype=out.dtype)
    out.copy_(host if out.device.type == "cpu" else pinned(host), non_blocking=True)


def pinned(tensor: torch.Tensor) -> torch.Tensor:
    """A copy in page-locked memory, from which a GPU reads by itself."""
    return tensor.pin_memory()
