"""CUDA graphs: functions on an accelerator, recorded once for each shape and replayed.

A small model's layers take less time on a GPU than Python takes to launch them. A graph launches
them all at once, at the price of fixed shapes and fixed addresses: what varies (token ids,
positions, uniforms) must be in *static* tensors that are written before each replay, and nothing
in between may wait for the device. On other devices the same functions run without recording.
"""

from __future__ import annotations

import math
import threading
import warnings
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from hierspec.errors import first_line

Body = Callable[[], None]  # reads and writes static tensors; is idempotent
_MAX_KEPT = 256  # shapes: of a service's batches, texts and ways to sample
_TRIALS = 2  # runs of a shape before it is recorded: they may be the only ones, and they warm up
RUNS_BEFORE_REPLAY = _TRIALS + 1  # of a shape; the last records it
_RECORDING_LOCK = threading.Lock()  # a process records one graph at a time


class Graphs:
    """Functions by shape, recorded as graphs once a shape has come up several times.

    The graphs share the stream on which they are recorded and, since they run one after another and
    keep nothing there between runs, the memory of their intermediates. So all are discarded
    together: CUDA's libraries free a stream's workspace with the first graph that is discarded, and
    the others would go on using it.

    Args:
        device: where they run; only on CUDA is anything recorded.
        max_kept: how many are kept; one more discards all the others.

    Attributes:
        num_first_runs: of all in this process, runs of shapes before they are replayed, which take
            longer than later ones.
    """

    num_first_runs: ClassVar[int] = 0

    def __init__(self, device: torch.device, max_kept: int = _MAX_KEPT) -> None:
        self.device = device
        self.max_kept = max_kept
        self.num_recorded = 0
        self._calls: dict[Hashable, GraphCall] = {}
        self._buffers: dict[Hashable, list[torch.Tensor]] = {}
        self._stream: Any = None
        self._pool: Any = None

    def get(self, key: Hashable, make: Callable[[], tuple[Any, Body]]) -> GraphCall:
        """Return the call kept for a shape; ``make`` → (static tensors, body) of a new one."""
        return self.get_together({key: make})[0]

    def get_together(
        self, makers: Mapping[Hashable, Callable[[], tuple[Any, Body]]]
    ) -> list[GraphCall]:
        """Return several calls, as :meth:`get`; they find each other's results in buffers."""
        missing = [key for key in makers if key not in self._calls]
        if missing and len(self._calls) + len(missing) > self.max_kept:
            self.clear()
        for key, make in makers.items():
            if key not in self._calls:
                self._calls[key] = GraphCall(self, *make())
        return [self._calls[key] for key in makers]

    def buffer(
        self, name: str, shape: Sequence[int], dtype: torch.dtype, device: torch.device
    ) -> torch.Tensor:
        """Return a static tensor in memory that calls of other shapes use under that name, too.

        What it holds is lost with their next run. A shape gets the same address every time. Where
        sizes double, all memory of a name is at most twice the largest tensor.
        """
        size, kept = math.prod(shape), self._buffers.setdefault((name, dtype, device), [])
        # Each is larger than those before, so the first that fits now will be the first again.
        found = next((memory for memory in kept if memory.numel() >= size), None)
        if found is None:
            found = torch.zeros(size, dtype=dtype, device=device)
            kept.append(found)
        return found[:size].view(*shape)

    def clear(self) -> None:
        """Discard all graphs: the addresses they were recorded with are about to change."""
        self._calls.clear()
        self._buffers.clear()
        self._pool = None

    def record(self, body: Body) -> Body | None:
        """Record ``body`` as a graph; return ``None``, with a warning, if that is impossible."""
        if self._stream is None:
            self._stream = new_stream(self.device)
        if self._pool is None:
            self._pool = new_pool()
        try:
            with _RECORDING_LOCK:
                run = record(body, self.device, self._stream, self._pool)
        except RuntimeError as error:  # a kernel that cannot be recorded: slower, equal results
            self._pool = None
            warnings.warn(f"running without a CUDA graph: {first_line(error)}", stacklevel=4)
            return None
        self.num_recorded += 1
        return run


class GraphCall:
    """A function and the static tensors it reads and writes; a graph after its first runs."""

    __slots__ = ("_graphs", "_run", "_runs", "recorded", "tensors")

    def __init__(self, graphs: Graphs, tensors: Any, body: Body) -> None:
        self.tensors = tensors
        self.recorded = False
        self._graphs, self._run, self._runs = graphs, body, 0

    def run(self) -> None:
        if self._runs <= _TRIALS and self._graphs.device.type == "cuda":
            Graphs.num_first_runs += 1
            run = self._graphs.record(self._run) if self._runs == _TRIALS else None
            if run is not None:
                self._run, self.recorded = run, True
        self._runs += 1
        self._run()


def new_pool() -> Any:
    """Return a memory pool for the intermediates of recorded graphs."""
    return torch.cuda.graph_pool_handle()


def new_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


class NoHostReads(TorchDispatchMode):
    """Refuses operations by which the host reads a value: a replay would not read it again."""

    _READS = ("_local_scalar_dense", "item", "is_nonzero", "nonzero", "masked_select", "equal")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        refused = func.overloadpacket.__name__ in self._READS
        out = None if refused else func(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor) and out.device.type == "cpu":
            refused = any(isinstance(a, torch.Tensor) and a.device.type != "cpu" for a in args)
        if refused:
            raise RuntimeError(f"operation not permitted when stream is capturing: {func}")
        return out


def record(body: Body, device: torch.device, stream: Any, pool: Any) -> Body:
    """Record ``body`` as a CUDA graph and return a function that replays it.

    Raises:
        RuntimeError: it cannot be recorded.
    """
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.device(device):
        stream.wait_stream(torch.cuda.current_stream())
        # The outer context restores the thread's stream, whatever the recording does.
        try:
            with torch.cuda.stream(stream):
                with NoHostReads():  # once on that stream, for libraries to allocate workspaces
                    body()
                # Another thread may allocate meanwhile: its calls do not belong to this recording.
                capture = torch.cuda.graph(
                    graph, pool=pool, stream=stream, capture_error_mode="thread_local"
                )
                with capture:
                    body()
        finally:  # where it fails, the same body runs next on the other stream
            torch.cuda.current_stream().wait_stream(stream)

    def replay() -> None:
        with torch.cuda.device(device):
            graph.replay()

    return replay


def upload(out: torch.Tensor, values: Sequence[Any] | np.ndarray) -> None:
    """Copy numbers from the host into a static tensor of an accelerator; do not wait for the copy.

    The copy starts in pinned memory, which torch's allocator does not reuse before the copy ends.
    """
    host = torch.tensor(values, dtype=out.dtype, device="cpu")
    out.copy_(host if out.device.type == "cpu" else pin(host), non_blocking=True)


def pin(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy in page-locked memory, which a GPU can read without the host."""
    return tensor.pin_memory()


def send(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return a copy of a tensor of the host on an accelerator; do not wait for it."""
    return pin(tensor).to(device, non_blocking=True)
