"""The caches and hidden states of all sequences of a trunk, as rows of a few large tensors.

Recorded calls need fixed addresses, so a sequence gets a row, which is free again when its state is
no longer referred to. Rows and columns at least double when they run out; then everything moves,
and ``on_move`` is called, because recorded calls are invalid. So that this happens before a text is
written and not while it grows, its length is announced (:meth:`Arena.reserve`).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable

import torch

from hierspec.lm.lean.fixed_shape import FixedShapeForward

from .slots import SlotState

_FIRST_COLUMNS = 512
_MAX_RESERVED = 8192  # columns; a longer text may never be written, and memory is short
_ALIGNMENT = 16  # of the number of columns: kernels of attention read masks in blocks


class Arena:
    """Rows for sequences, the lowest free one first: a call runs all rows up to the highest used.

    Attributes:
        capacity: tokens that a row has room for. Position ``capacity`` itself is scratch.
        cache: [layers, rows, 2 H_kv, capacity + 1, D].
        outputs: per segment, [rows, capacity + 1, d].
    """

    def __init__(
        self, forward: FixedShapeForward, num_segments: int, on_move: Callable[[], None]
    ) -> None:
        self.forward, self.on_move = forward, on_move
        self.capacity = 0
        self.cache = torch.empty(0)
        self.outputs: list[torch.Tensor] = []
        self._num_segments = num_segments
        self._reserved = 0
        self._num_rows = 0
        self._free: list[int] = []
        self._states: weakref.WeakSet[SlotState] = weakref.WeakSet()

    def new_state(self, end: int) -> SlotState:
        """Return the state of an empty row with room for ``end`` tokens."""
        end = max(end, self._reserved)
        if not self._free:
            self._move(max(1, 2 * self._num_rows), max(end, self.capacity))
        elif end > self.capacity:
            self.grow(end)
        row = min(self._free)
        # Stale numbers get weight 0, but a NaN would show: 0 · NaN is NaN.
        with torch.inference_mode():
            self.cache[:, row].zero_()
            for output in self.outputs:
                output[row].zero_()
        self._free.remove(row)
        num_layers = self.forward.backend.num_layers
        state = SlotState(None, 0, [0] * self._num_segments, [], [0] * num_layers, row)
        self._set_views(state)
        self._states.add(state)
        weakref.finalize(state, self._free.append, row).atexit = False
        return state

    def reserve(self, end: int) -> None:
        """Let states made from now on have room for texts of ``end`` tokens, or of a good part."""
        self._reserved = max(self._reserved, min(end, _MAX_RESERVED))

    def grow(self, end: int) -> None:
        """Make room for ``end`` tokens in every row."""
        self._move(self._num_rows, end)

    def _move(self, rows: int, end: int) -> None:
        backend = self.forward.backend
        capacity = max(_FIRST_COLUMNS, 1 << (end - 1).bit_length(), self.capacity)
        capacity = min(capacity, max(backend.max_length, end, self.capacity))
        capacity = -(-capacity // _ALIGNMENT) * _ALIGNMENT
        with torch.inference_mode():
            try:
                cache, outputs = self._new_tensors(rows, capacity + 1)
                self.on_move()
            except torch.OutOfMemoryError:
                self.on_move()  # what recordings hold may be enough
                cache, outputs = self._new_tensors(rows, capacity + 1)
            if self._num_rows:
                columns = slice(self.capacity)
                cache[:, : self._num_rows, :, columns] = self.cache[:, :, :, columns]
                for new, old in zip(outputs, self.outputs, strict=True):
                    new[: self._num_rows, columns] = old[:, columns]
        # Only now: where memory ran out above, the old tensors stay in use.
        self.cache, self.outputs = cache, outputs
        self._free.extend(range(self._num_rows, rows))
        self._num_rows, self.capacity = rows, capacity
        for state in self._states:
            self._set_views(state)

    def _new_tensors(self, rows: int, columns: int) -> tuple[torch.Tensor, list[torch.Tensor]]:
        backend = self.forward.backend
        shape = (rows, columns, backend.hidden_size)
        return self.forward.new_arena(rows, columns), [
            torch.zeros(shape, dtype=backend.dtype, device=backend.device)
            for _ in range(self._num_segments)
        ]

    def _set_views(self, state: SlotState) -> None:
        """Set a state's cache and outputs to views of its row, for calls that are not recorded."""
        row, columns = state.row, slice(self.capacity)
        state.cache = self.cache[:, row : row + 1, :, columns]
        state.outputs = [output[row, columns] for output in self.outputs]
        state.capacity = self.capacity
