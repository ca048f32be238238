"""Copies in few bits that are rounded for the inputs which the model gives its matrices.

:mod:`.rounding` needs the second moments of these inputs. They are taken of texts that the model
draws itself, from its first token on: what is drafted later is its own text, too, and no other has
to be at hand [after LLM-QAT, Liu et al. 2023, arXiv 2305.17888]. Each layer is read with the
model's own weights below it. The rounded matrices are kept under a hash of the weights they are
made of (:mod:`.kept_panels`).
"""

from __future__ import annotations

import hashlib
import logging
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import islice

import torch
import torch.nn.functional as F
from rich.progress import Progress

from hierspec.errors import HierspecWarning
from hierspec.lm.backend import LayerParts, Span
from hierspec.lm.lean.shape import LlamaShape
from hierspec.utils.terminal import announce, console

from .backend import COPY_FORMS, NativeBackend
from .formats import FORMATS, Format
from .gguf_blocks import Codes
from .kept_panels import KeptPanels, layout
from .matrices import PackedMatrix, pack_codes
from .rounding import round_to

_RECIPE = 1  # raised when other codes are made of the same weights
_TEXTS, _LENGTH = 24, 97  # the texts; tokens of each, whose first no copy ever reads
_SEED = 0
_QUICK = 250_000_000  # weights of the layers up to which it takes about a minute
_INSTANT = 20_000_000  # up to which it takes a few seconds
_SHARING = (("q", "k", "v"), ("proj",), ("gate", "up"), ("down",))  # matrices of equal inputs
log = logging.getLogger(__name__)


class NotCalibratedWarning(HierspecWarning):
    """A copy is rounded weight by weight although its calibration was asked for."""


class _NoNumbersError(Exception):
    """A layer's inputs are infinite or NaN."""


def is_quick(shape: LlamaShape) -> bool:
    """Return whether a copy is calibrated in about a minute, or less."""
    heads = 2 * (shape.num_heads + shape.num_kv_heads) * shape.head_dim
    per_layer = (heads + 3 * shape.intermediate_size) * shape.hidden_size
    return shape.num_layers * per_layer <= _QUICK


@torch.autocast("cpu", enabled=False)
def calibrated_copy(backend: NativeBackend, bits: int) -> NativeBackend:
    """Return the model in fewer bits, as :meth:`.NativeBackend.copy_in`, calibrated once.

    Warns:
        NotCalibratedWarning: the inputs are no numbers to calibrate on.
    """
    form, screen = FORMATS[COPY_FORMS[bits]], console(stderr=True)
    layers = [_wider(layer.matrices(), form).values() for layer in backend.layer_weights]
    num_weights = sum(matrix.num_weights for layer in layers for matrix in layer)
    size = int(num_weights * form.bits_per_weight / 8)
    began = time.monotonic()
    try:
        with (
            Progress(console=screen, transient=True, disable=not screen.is_terminal) as progress,
            KeptPanels(f"{_key(backend)}-{form.name}", size) as kept,
        ):
            is_long = num_weights > _INSTANT and not kept.is_read
            if is_long:
                minutes = "a minute or two" if num_weights <= _QUICK else "several minutes"
                once = ", once: it is kept in the cache" if kept.is_written else ""
                announce(log, f"calibrating a copy of {backend.name} takes {minutes}{once}")
            copy = backend.copy_in(bits, _Calibration(backend, form, progress, kept).round)
            if is_long:
                announce(log, f"calibrated in {time.monotonic() - began:.0f} s")
            return copy
    except _NoNumbersError:
        text = f"{backend.name} cannot be calibrated, its states are no numbers"
        warnings.warn(text, NotCalibratedWarning, stacklevel=2)
        return backend.copy_in(bits)


class _Calibration:
    """Rounds layers, the lowest first; nothing is computed before one has to be rounded."""

    def __init__(
        self, backend: NativeBackend, form: Format, progress: Progress, kept: KeptPanels
    ) -> None:
        self._form, self._kept, self._moments = form, kept, _moments(backend, progress)
        self._library, self._num_read = backend.library, 0  # layers
        self._of_inputs: list[torch.Tensor] = []  # of the last of these
        self._made: dict[str, PackedMatrix] = {}

    def round(self, layer: int, matrices: Mapping[str, PackedMatrix]) -> Mapping[str, PackedMatrix]:
        rounded = dict(matrices)
        for number, sharing in enumerate(_SHARING):
            wanted = _wider({name: matrices[name] for name in sharing}, self._form)
            for name, matrix in wanted.items():
                pack = partial(self._pack, layer, number, wanted, name)
                rounded[name] = self._kept.matrix(f"{layer} {name}", matrix.bias_of_outputs, pack)
        return rounded

    def _pack(
        self, layer: int, number: int, matrices: Mapping[str, PackedMatrix], name: str
    ) -> PackedMatrix:
        """Return a matrix in fewer bits; all that have its inputs are rounded together."""
        if name not in self._made:
            if layer >= self._num_read:
                skipped = layer - self._num_read
                self._of_inputs = next(islice(self._moments, skipped, None))
                self._num_read = layer + 1
            moments = self._of_inputs[number]
            if not moments.isfinite().all():
                raise _NoNumbersError
            together = torch.cat([self._library.all_rows(one) for one in matrices.values()])
            codes, start = round_to(together, self._form, moments), 0
            for own, matrix in matrices.items():
                rows = slice(start, start := start + matrix.num_out)
                lowest = None if codes.lowest is None else codes.lowest[rows]
                panels = pack_codes(Codes(codes.codes[rows], codes.steps[rows], lowest), self._form)
                self._made[own] = matrix.with_panels(self._form, panels)
        return self._made.pop(name)


@torch.inference_mode()
def _moments(backend: NativeBackend, progress: Progress) -> Iterator[list[torch.Tensor]]:
    """Yield each layer's mean of x xᵀ, float32 [in, in], over its inputs x of each kind."""
    shape, threads = backend.shape, torch.get_num_threads()
    length = min(_LENGTH, backend.max_length)
    title, count = f"calibrating a copy of {backend.name}, once", length - 1 + backend.num_layers
    advance = partial(progress.advance, progress.add_task(title, total=count))
    ids, caches = _draw_texts(backend, length, advance)
    spans = [Span(cache, 0, length) for cache in caches]
    h = backend.embed(ids.flatten(), spans)
    mask = torch.ones(length, length, dtype=torch.bool, device="cpu").tril()

    def mean(x: torch.Tensor) -> torch.Tensor:
        rows = x.view(_TEXTS, length, -1)[:, 1:].flatten(0, 1)
        return rows.T @ rows / len(rows)

    for i, layer in enumerate(backend.layer_weights):
        found = [mean(_normed(h, layer.norm, shape.eps))]
        q = backend.queries(h, i, spans).unflatten(1, (_TEXTS, length)).transpose(0, 1)
        h = backend.run_parts(h, [LayerParts(i, True, False)], spans)
        pairs = [backend.keys_and_values(cache, i, length) for cache in caches]
        k, v = (torch.stack(parts).float() for parts in zip(*pairs, strict=True))
        window = shape.windows[i]
        seen = mask if window is None else mask.triu(1 - window)
        attended = F.scaled_dot_product_attention(q, k, v, seen, enable_gqa=True)
        found.append(mean(attended.transpose(1, 2).reshape(len(h), -1)))
        found.append(mean(_normed(h, layer.mlp_norm, shape.eps)))
        norm = (layer.mlp_norm, shape.eps * shape.hidden_size)
        gate, up = (
            backend.library.multiply(matrix, h, threads, *norm) for matrix in (layer.gate, layer.up)
        )
        found.append(mean(F.silu(gate).mul_(up)))
        h = backend.run_parts(h, [LayerParts(i, False, True)], spans)
        advance()
        yield found


def _draw_texts(
    backend: NativeBackend, length: int, advance: Callable[[], None]
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Return texts [_TEXTS, length] that the model draws at temperature 1, and their caches."""
    generator = torch.Generator("cpu").manual_seed(_SEED)
    caches = [backend.new_cache(length) for _ in range(_TEXTS)]
    ids = torch.randint(backend.vocab_size, (_TEXTS, length), generator=generator, device="cpu")
    if isinstance(first := getattr(backend.config, "bos_token_id", None), int):
        ids[:, 0] = first
    for i in range(length - 1):
        spans = [Span(cache, i, 1) for cache in caches]
        h = backend.layers(backend.embed(ids[:, i], spans), 0, backend.num_layers, spans)
        laws = backend.head(h).softmax(-1)
        race = torch.empty_like(laws).exponential_(generator=generator)
        ids[:, i + 1] = laws.div_(race).argmax(1)
        advance()
    return ids, caches


def _normed(h: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Return h [N, d] as the next matrices read it; ``weight`` has √d in it."""
    size = h.square().sum(-1, keepdim=True).add_(eps * h.size(1)).rsqrt_()
    return h * size * weight


def _wider(matrices: Mapping[str, PackedMatrix], form: Format) -> dict[str, PackedMatrix]:
    bits = form.bits_per_weight
    return {name: m for name, m in matrices.items() if m.format.bits_per_weight > bits}


def _key(backend: NativeBackend) -> str:
    """Return a hash of what a copy's layers are made of, and whether some keep a file's bits."""
    shape = replace(backend.shape, biased=frozenset())  # a set's order differs by process
    digest = hashlib.sha256(f"{_RECIPE} {layout()} {shape} {backend.file is None}".encode())
    for layer in backend.layer_weights:
        for matrix in layer.matrices().values():
            digest.update(matrix.format.name.encode())
            digest.update(matrix.panels.numpy().data)
            if matrix.bias is not None:
                digest.update(matrix.bias.numpy().data)
        for norm in (layer.norm, layer.mlp_norm, layer.head_norm):
            if norm is not None:
                digest.update(norm.numpy().data)
    return digest.hexdigest()[:20]
