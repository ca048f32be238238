"""Work on an accelerator, recorded once for a shape and replayed: CUDA graphs.

A small model's layers take less time on a GPU than Python takes to launch them. A graph launches
them all at once, at the price of fixed shapes and fixed addresses: what varies (token ids,
positions, uniforms) must lie in *static* tensors that are written before each replay, and nothing
on the way may wait for the device. Elsewhere the same functions run as they stand.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from hierspec.errors import first_line

Body = Callable[[], None]  # reads and writes static tensors; running it twice is running it once
_MOST = 64  # recordings kept
_TRIALS = 2  # runs of a shape before it is recorded: they may be the only ones, and they warm up
_ONE = threading.Lock()  # a process records one thing at a time


class Graphs:
    """Bodies by shape, recorded when they come again.

    They share a stream to be recorded on and, since they run one after another and keep nothing
    there between runs, the memory of their intermediates. So they are forgotten together: CUDA's
    libraries give a stream's workspace back with the first graph that goes, and the others would
    go on using it.

    Args:
        device: where they run; only on CUDA is anything recorded.
        most: how many are kept; at one more, all but that one are forgotten.

    Attributes:
        num_recorded: how many there have been.
    """

    def __init__(self, device: torch.device, most: int = _MOST) -> None:
        self.device = device
        self.most = most
        self.num_recorded = 0
        self._kept: dict[Hashable, GraphCall] = {}
        self._stream: Any = None
        self._pool: Any = None

    def get(self, key: Hashable, make: Callable[[], tuple[Any, Body]]) -> GraphCall:
        """The call of that shape; ``make`` → (its static tensors, its body), where it is new."""
        found = self._kept.get(key)
        if found is None:
            if len(self._kept) == self.most:
                self.clear()
            found = self._kept[key] = GraphCall(self, *make())
        return found

    def clear(self) -> None:
        """Forget all: the addresses they were recorded with are about to change."""
        self._kept.clear()
        self._pool = None

    def record(self, body: Body) -> Body | None:
        """``body`` as a graph; ``None``, with a warning, where it cannot be one."""
        if self._stream is None:
            self._stream = new_stream(self.device)
        if self._pool is None:
            self._pool = new_pool()
        try:
            with _ONE:
                run = record(body, self.device, self._stream, self._pool)
        except RuntimeError as error:  # a kernel that cannot be recorded: slower, never different
            self._pool = None
            why = first_line(error)
            warnings.warn(f"running without a CUDA graph: {why}", stacklevel=4)
            return None
        self.num_recorded += 1
        return run


class GraphCall:
    """A body, and the static tensors it reads and writes."""

    __slots__ = ("_graphs", "_run", "_runs", "recorded", "tensors")

    def __init__(self, graphs: Graphs, tensors: Any, body: Body) -> None:
        self.tensors = tensors
        self.recorded = False
        self._graphs, self._run, self._runs = graphs, body, 0

    def run(self) -> None:
        if self._runs == _TRIALS and self._graphs.device.type == "cuda":
            run = self._graphs.record(self._run)
            if run is not None:
                self._run, self.recorded = run, True
        self._runs += 1
        self._run()


def new_pool() -> Any:
    """Memory for what recorded bodies make and forget."""
    return torch.cuda.graph_pool_handle()


def new_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


class NoHostReads(TorchDispatchMode):
    """Refuses operations that look at a value, which a recording could not look at again."""

    _LOOKS = ("_local_scalar_dense", "item", "is_nonzero", "nonzero", "masked_select", "equal")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        refused = func.overloadpacket.__name__ in self._LOOKS
        out = None if refused else func(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor) and out.device.type == "cpu":
            refused = any(isinstance(a, torch.Tensor) and a.device.type != "cpu" for a in args)
        if refused:
            raise RuntimeError(f"operation not permitted when stream is capturing: {func}")
        return out


def record(body: Body, device: torch.device, stream: Any, pool: Any) -> Body:
    """``body`` as a CUDA graph.

    Raises:
        RuntimeError: it cannot be recorded.
    """
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.device(device):
        stream.wait_stream(torch.cuda.current_stream())
        # The outer context gives the thread its stream back, whatever the recording does.
        with torch.cuda.stream(stream):
            with NoHostReads():  # once more, on that stream: libraries make their workspaces
                body()
            # Another thread may allocate meanwhile: its calls are no part of this recording.
            capture = torch.cuda.graph(
                graph, pool=pool, stream=stream, capture_error_mode="thread_local"
            )
            with capture:
                body()
        torch.cuda.current_stream().wait_stream(stream)

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
