"""Transformers models that are in memory already: their weights in the compiled kernels.

A model's layers in torch take several times as long on a CPU as the kernels do, so its weights are
taken into them: packed once a model, matrix by matrix, shared by all hierarchies over it and freed
with it. Where the kernels would not compute what the model does (adapters, hooks, weights in few
bits, …) its own layers run. What was packed is compared with the model before each generation.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import weakref
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from hierspec.errors import HierspecError, first_line
from hierspec.utils import machine

from .backend import Span
from .hf.support import validate_scores
from .lean.shape import LlamaShape, rotations, unsupported_reason
from .native.backend import NativeBackend, why_no_kernels
from .native.library import load as load_kernels
from .weights import EMBEDDING, HEAD

log = logging.getLogger(__name__)

_MIB = 2**20
_SAMPLE = 64  # numbers of each parameter that are compared
_FAR = 4096  # positions at which rotations are compared: the last one below
_FREED = "_hierspec_freed"  # set on a model without weights: its fingerprint
# Where the classes of a plain model's modules are from; others compute something else.
_PLAIN = ("torch.nn.modules.", "transformers.activations", "transformers.models.")
_CAPTURING = "transformers.utils.output_capturing"  # its hooks stay, and only listen


@dataclass(frozen=True, eq=False)
class InMemory:
    """Weights of a loaded transformers model as a source.

    Args:
        free: let the model's own tensor go when it is read; each is then read once.
    """

    name: str
    model: Any
    tokenizer_path: Path | None = None
    free: bool = False

    @property
    def config(self) -> Any:
        return self.model.config

    @cached_property
    def _parameters(self) -> dict[str, Any]:
        return dict(self.model.named_parameters())  # a tied head's is left out

    def names(self) -> list[str]:
        return sorted(self._parameters)

    def tensor(self, name: str) -> torch.Tensor:
        if name == HEAD and name not in self._parameters:
            name = EMBEDDING
        if name not in self._parameters:
            raise KeyError(f"{self.name} has no parameter {name!r}")
        parameter = self._parameters[name]
        if not self.free:
            return parameter.detach().to("cpu", copy=True)
        tensor = parameter.data
        parameter.data = tensor.new_empty(0)
        return tensor


class Watch:
    """Notices that a loaded model is no longer what it was when its weights were taken.

    Besides tensors' places and versions it compares some numbers of each, and one of each token's
    rows, since what is written through ``.data``, as peft does, leaves no trace in them.
    """

    def __init__(self, model: Any, name: str) -> None:
        self.name, self._model = name, weakref.ref(model)
        self._state = _state(model)

    def changed(self) -> bool:
        model = self._model()
        if model is None or is_freed(model):
            return False
        before, now = self._state, _state(model)
        return before[:-1] != now[:-1] or not torch.equal(before[-1], now[-1])

    def check(self) -> None:
        """Refuse to go on with weights that are not the model's any more."""
        if self.changed():
            raise HierspecError(
                f"{self.name} has changed since its weights were taken: make the Hierarchy again, "
                'or of TargetConfig(model=model, backend="hf"), which runs the model as it is'
            )


@dataclass(frozen=True, eq=False)
class Taken:
    """A loaded model's weights in the kernels, or why they are not.

    Attributes:
        backend: ``None``: the model's own layers run.
        reason: why they do.
        watch: notices when the model is another one than was tried.
    """

    backend: NativeBackend | None
    reason: str = ""
    watch: Watch | None = None


_taken: weakref.WeakKeyDictionary[Any, Taken] = weakref.WeakKeyDictionary()
_lock = threading.RLock()


def take(model: Any, name: str = "", free: bool = False) -> Taken:
    """Take a loaded model's weights into the compiled kernels, if they run it as it is.

    They are packed at the first call, and again when the model has changed since; a message says
    what memory that takes.

    Args:
        model: of transformers; it is left as it is.
        name: for messages; default: its own.
        free: let the model's own weights go, one by one. It cannot be used any more then.

    Raises:
        HierspecError: its weights are gone, or were let go and do not fit its configuration.
    """
    name = name or model.config.name_or_path or type(model).__name__
    with _lock:
        known = _taken.get(model)
        if known is None or known.watch is None or known.watch.changed():
            _taken.pop(model, None)
            if is_freed(model):
                raise HierspecError(f"the weights of {name} were freed (free_model): load it again")
            if reason := why_own_layers(model) or _why_no_memory(model, free):
                log.info("%s runs on its own layers: %s", name, reason)
                return Taken(None, reason)
            known = _taken[model] = _pack(model, name, free)
        elif free and known.backend is not None and not is_freed(model):
            source, known_by = InMemory(name, model, free=True), fingerprint(model)
            for parameter in source.names():
                source.tensor(parameter)
            _mark_freed(model, name, known_by)
        return known


def is_freed(model: Any) -> bool:
    """Return whether a model's own weights were let go."""
    return _FREED in vars(model)


def fingerprint(model: Any) -> str:
    """Return a short hash of a loaded model's configuration and of some numbers of its weights."""
    if is_freed(model):
        return getattr(model, _FREED)
    digest = hashlib.sha256(repr(model.config.to_dict()).encode())
    for name, parameter in model.named_parameters():
        digest.update(f"{name} {tuple(parameter.shape)} {_sample(parameter).tolist()}".encode())
    return digest.hexdigest()[:20]


def have_same_weights(model: Any, other: Any) -> bool:
    """Return whether two loaded models agree in some numbers of every parameter.

    A model whose weights were let go agrees with any.
    """
    if model is other or is_freed(model) or is_freed(other):
        return True
    ours, others = (dict(one.named_parameters()) for one in (model, other))
    if ours.keys() != others.keys():
        return False
    for name, mine in ours.items():
        if (theirs := others[name]).shape != mine.shape:
            return False
        # In the narrower dtype of the two, to which one may have been rounded.
        one, two = (_sample(p).to(mine.dtype).to(theirs.dtype).cpu() for p in (mine, theirs))
        if not torch.equal(one, two):
            return False
    return True


def why_own_layers(model: Any) -> str | None:
    """Return why the kernels do not compute what a loaded model does; ``None`` if they do."""
    parameters = list(model.parameters())
    kinds = {(parameter.dtype, parameter.device) for parameter in parameters}
    if len(kinds) != 1:
        return "it has weights of several dtypes, or on several devices"
    if reason := why_no_kernels(model.config, *kinds.pop()):
        return reason
    if any(type(parameter) is not torch.nn.Parameter for parameter in parameters):
        return "it has weights that are no plain tensors"
    if model.training:
        return "it is in training mode"
    for path, module in model.named_modules():
        kind = type(module)
        if not kind.__module__.startswith(_PLAIN):
            return f"it has a module of its own, {path or 'itself'} ({kind.__name__})"
        hooks = (*module._forward_hooks.values(), *module._forward_pre_hooks.values())
        if "forward" in vars(module) or any(hook.__module__ != _CAPTURING for hook in hooks):
            return f"it has a hook in {path or 'itself'}"
    hooks = torch.nn.modules.module
    if hooks._global_forward_hooks or hooks._global_forward_pre_hooks:
        return "it runs with hooks of all modules"
    if not _rotates_as_configured(model):
        return "it rotates otherwise than its configuration says"
    return None


def _rotates_as_configured(model: Any) -> bool:
    """Return whether positions are encoded as the configuration, which may be edited, says."""
    last = min(model.config.max_position_embeddings, _FAR) - 1
    positions = torch.tensor([[0, 1, last]], device="cpu")
    with torch.no_grad():
        h = torch.zeros(1, 1, 1, dtype=torch.float32, device="cpu")
        cos, sin = model.get_decoder().rotary_emb(h, positions)
    ours = rotations(model.config, last + 1)[positions[0]]
    half = ours.shape[1]
    theirs = torch.complex(cos[0, :, :half], sin[0, :, :half])
    return theirs.shape == ours.shape and torch.allclose(theirs, ours, atol=1e-4)


def _why_no_memory(model: Any, free: bool) -> str | None:
    size = sum(parameter.nbytes for parameter in model.parameters())
    if free or size <= (left := machine.available_memory()):
        return None
    return (
        f"it would take {size / _MIB:,.0f} MiB more in the kernels, and {left / _MIB:,.0f} are free"
    )


def _pack(model: Any, name: str, free: bool) -> Taken:
    library, watch = load_kernels(), Watch(model, name)
    known_by = fingerprint(model) if free else ""
    assert library is not None
    ids = torch.arange(min(8, model.config.max_position_embeddings), device="cpu") * 7 + 3
    ids %= model.config.vocab_size
    with torch.no_grad():
        theirs = model(input_ids=ids[None], use_cache=False).logits[0].double()
    try:
        backend = NativeBackend(InMemory(name, model, free=free), model.dtype, library)
        spans = [Span(backend.new_cache(len(ids)), 0, len(ids))]
        h = backend.layers(backend.embed(ids, spans), 0, backend.num_layers, spans)
        validate_scores(backend, backend.head(h).double(), theirs)
    except (HierspecError, KeyError, RuntimeError) as error:
        if free or "memory" in str(error):
            raise
        return Taken(None, f"it is not what its configuration says: {first_line(error)}", watch)
    if free:
        _mark_freed(model, name, known_by)
    log.warning(
        "%s: its weights are %s the compiled kernels, %s MiB%s",
        name,
        "now in" if free else "copied into",
        f"{backend.num_bytes / _MIB:,.0f}",
        "" if free else " beside the model's own (free_model=True lets those go)",
    )
    backend.watch = watch
    return Taken(backend, watch=watch)


def _mark_freed(model: Any, name: str, known_by: str) -> None:
    def freed(*_: Any, **__: Any) -> Any:
        raise HierspecError(
            f"the weights of {name} were freed (free_model): generate with the Hierarchy, or load "
            "the model again"
        )

    setattr(model, _FREED, known_by)
    model.forward = model.generate = model.state_dict = freed


def _state(model: Any) -> tuple[Any, ...]:
    """Return what changes when a model computes something else; numbers of its weights last."""
    config = model.config
    shape = None
    if unsupported_reason(config) is None:
        shape = (LlamaShape.from_config(config), repr(config.rope_parameters))
    settings = tuple(  # those of modules that are no modules: scales, epsilons, …
        (path, type(module).forward, {k: v for k, v in vars(module).items() if _is_setting(k, v)})
        for path, module in model.named_modules()
    )
    places, samples = [], []
    rows = {EMBEDDING, HEAD}  # one token's row may be written alone
    for name, parameter in model.named_parameters():
        version = 0 if parameter.is_inference() else parameter._version
        places.append((name, parameter.data_ptr(), version, parameter.dtype))
        samples.append(_sample(parameter))
        if name in rows:
            samples.append(parameter.detach()[:, 0].double())
    return (*places, shape, settings, why_own_layers(model), torch.cat(samples))


def _is_setting(name: str, value: Any) -> bool:
    return not name.startswith("_") and isinstance(value, int | float | str)


def _sample(parameter: Any) -> torch.Tensor:
    numbers = parameter.detach().reshape(-1)
    # An odd step, so that a matrix's sample is not of one column.
    return numbers[:: len(numbers) // _SAMPLE | 1].double()
