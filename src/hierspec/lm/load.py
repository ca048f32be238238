"""Loading a model into a backend: from a directory, a hub id, or tensors computed on demand."""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Callable, Generator
from functools import partial
from pathlib import Path
from typing import Any

import torch

from hierspec.errors import HierspecError, first_line, reason_of
from hierspec.utils import machine
from hierspec.utils.files import expand_user
from hierspec.utils.plugins import load_entry_point

from .adapters import is_adapter, load_adapted, plain_model
from .backend import Backend
from .dtypes import default_dtype
from .hub import fetch, local_files_only, what_it_may_be
from .weights import (
    Checkpoint,
    StoredSource,
    WeightSource,
    build_hf_model,
    from_directory,
    from_pretrained,
    stored_dtype,
    validate_reference,
)

BACKENDS = ("auto", "lean", "hf", "deterministic")
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
# Of two threads that overlap, the second would save what the first has set, and leave that behind.
_quiet = threading.RLock()


def load(
    ref_or_source: str | Path | WeightSource,
    dtype: torch.dtype | None = None,
    device: torch.device | str = "cpu",
    backend: str = "auto",
) -> Backend:
    """Load a model into the backend that runs it.

    Args:
        ref_or_source: a directory saved by ``save_pretrained``, a hub id, or a weight source.
        dtype: of the weights; ``None``: the checkpoint's own, or outside the kernels float32 on a
            CPU that cannot compute in it (:mod:`hierspec.lm.dtypes`). In the kernels a GGUF file's
            matrices then stay in the file's bits; elsewhere they are dequantized to bfloat16.
        backend: ``auto``: Llama-shaped models on a CPU in the compiled kernels, elsewhere in
            torch's operations, and all others by transformers' own layers. ``lean`` (torch's
            operations) and ``hf`` (transformers') choose; ``deterministic`` insists on the kernels,
            in which a token has the same bits however many are computed with it.

    Raises:
        HierspecError: there is no such model, or it cannot be run; says what to do.
    """
    if backend not in BACKENDS:
        raise HierspecError(f"backend must be one of {', '.join(BACKENDS)}; got {backend!r}")
    if dtype is not None and dtype not in DTYPES:
        names = ", ".join(str(valid).removeprefix("torch.") for valid in DTYPES)
        raise HierspecError(f"dtype must be one of the floating-point types {names}; got {dtype}")
    place: torch.device = machine.device(str(device))
    if not isinstance(ref_or_source, str | Path):
        return _from_source(ref_or_source, dtype, place, backend)
    ref = str(ref_or_source)
    path = expand_user(ref)
    if not path.is_dir():
        return _from_hub(ref, dtype, place, backend)
    if is_adapter(path):
        with quiet_transformers():
            adapted = plain_model(load_adapted(path, dtype or "auto"))
        return wrap(_placed(adapted, dtype, place), path.name, backend)
    return _from_source(from_directory(path), dtype, place, backend)


def wrap(model: Any, name: str, backend: str = "auto", free_model: bool = False) -> Backend:
    """Wrap a transformers model that is loaded already in a backend.

    Args:
        backend: ``auto``: the compiled kernels with its weights, if they compute what it does
            (:mod:`hierspec.lm.loaded`), else its own layers; ``hf``: its own layers in any case;
            ``lean``: a copy of its weights in torch's operations.
        free_model: let its own weights go where the kernels have taken them.

    Raises:
        HierspecError: the model cannot be run.
    """
    from .loaded import InMemory, Watch, take

    if backend not in BACKENDS:
        raise HierspecError(f"backend must be one of {', '.join(BACKENDS)}; got {backend!r}")
    if backend == "lean":
        if any("base_layer" in module for module, _ in model.named_modules()):
            raise HierspecError(
                f"{name} has adapters in its layers, and lean reads plain weights: merge them "
                "(merge_and_unload), or use backend 'hf'"
            )
        lean: Any = _from_source(InMemory(name, model), model.dtype, model.device, backend)
        lean.watch = Watch(model, name)
        return lean
    if backend == "hf":
        return _hf_backend(model, name)
    taken = take(model, name, free_model)
    if taken.backend is None and backend == "deterministic":
        raise HierspecError(
            f"deterministic decoding needs the compiled kernels, and {name} does not "
            f"run there: {taken.reason}; leave deterministic out"
        )
    return taken.backend or _hf_backend(model, name)


@contextlib.contextmanager
def quiet_transformers() -> Generator[None]:
    """Turn off the progress bars, reports and warnings of transformers: only the command line
    writes to the terminal."""
    from transformers.utils import logging

    logger = logging.get_logger()  # the library's own, configured
    with _quiet, warnings.catch_warnings():
        level, bars = logger.level, logging.is_progress_bar_enabled()
        logging.set_verbosity_error()
        # Not by disable_progress_bar, which also changes huggingface_hub's bars.
        setattr(logging, "_tqdm_active", False)  # noqa: B010
        warnings.simplefilter("ignore", FutureWarning)
        try:
            yield
        finally:
            logger.setLevel(level)
            setattr(logging, "_tqdm_active", bars)  # noqa: B010


def _hf_backend(model: Any, name: str) -> Backend:
    from hierspec.lm.hf.decoder import HFBackend
    from hierspec.lm.hf.support import ENCODER_DECODERS, is_encoder_decoder, validate_config

    if not is_encoder_decoder(model.config):
        return HFBackend(model, name)
    validate_config(name, model.config)
    return load_entry_point(ENCODER_DECODERS, model.config.model_type)(model, name)


def _from_source(
    source: WeightSource, dtype: torch.dtype | None, device: torch.device, backend: str
) -> Backend:
    from hierspec.lm.hf.support import validate_config

    validate_config(source.name, source.config)
    quantized = getattr(source.config, "quantization_config", None) is not None
    if quantized and isinstance(source, Checkpoint):
        if backend in ("lean", "deterministic"):
            raise HierspecError(
                f"{source.name} holds quantized weights, which run on transformers' own layers: "
                f"leave {'backend' if backend == 'lean' else backend} out"
            )
        return _from_pretrained(source, dtype, device)
    own_bits = dtype is None and isinstance(source, StoredSource)
    if dtype is None:
        stored = stored_dtype(source)
        # The kernels widen numbers as they read them.
        runs = _runs_in_kernels(source.config, stored, device, backend)
        dtype = stored if runs else default_dtype(stored, device)
    _validate_dtype(source.name, dtype)
    build = _llama_backend(source, dtype, device, backend, own_bits)
    if build is not None:
        try:
            return build()
        except KeyError as error:
            raise _missing(source.name, error) from None
        except RuntimeError as error:
            if any(word in str(error) for word in ("memory", "CUDA error")):
                raise
            raise HierspecError(
                f"{source.name}: config.json and weights do not fit each other "
                f"({first_line(error)}): they are of different models"
            ) from error
    from hierspec.lm.hf.decoder import HFBackend

    if isinstance(source, Checkpoint):
        return _from_pretrained(source, dtype, device)
    try:
        model = build_hf_model(source, dtype, device)
    except KeyError as error:
        raise _missing(source.name, error) from None
    return HFBackend(model, source.name)


def _validate_dtype(name: str, dtype: torch.dtype) -> None:
    if dtype not in DTYPES:
        raise HierspecError(
            f"the dtype of {name} is {str(dtype).removeprefix('torch.')}, in which no model runs: "
            "give another (--dtype float32, bfloat16, float16 or float64), or add the "
            "quantization_config that its weights were made with to its config.json"
        )


def _runs_in_kernels(config: Any, dtype: torch.dtype, device: torch.device, backend: str) -> bool:
    from hierspec.lm.native.backend import why_no_kernels

    chosen = backend in ("auto", "deterministic")
    return chosen and why_no_kernels(config, dtype, device) is None


def _missing(name: str, error: KeyError) -> HierspecError:
    parameter = str(error.args[0]).removeprefix(f"{name} has no parameter ").strip("'")
    return HierspecError(f"{name} lacks a weight that its config.json requires: {parameter}")


def _llama_backend(
    source: WeightSource, dtype: torch.dtype, device: torch.device, backend: str, own_bits: bool
) -> Callable[[], Backend] | None:
    """Return what builds a Llama-shaped model's backend: on a CPU in the compiled kernels, else in
    torch's operations; ``None``: transformers' own layers run it.
    """
    from hierspec.lm.lean.decoder import LeanBackend
    from hierspec.lm.lean.shape import unsupported_reason
    from hierspec.lm.native.backend import NativeBackend, why_no_kernels
    from hierspec.lm.native.library import load as load_kernels

    if backend == "hf" or (backend == "auto" and unsupported_reason(source.config) is not None):
        return None
    if backend == "lean":
        return partial(LeanBackend, source, dtype, device)
    reason = why_no_kernels(source.config, dtype, device)
    if reason is None and (kernels := load_kernels()) is not None:
        return partial(NativeBackend, source, dtype, kernels, own_bits=own_bits)
    if backend == "deterministic":
        raise HierspecError(
            f"deterministic decoding needs a Llama-shaped model in the compiled kernels, and "
            f"{source.name} does not run there: {reason}; leave deterministic out"
        )
    return partial(LeanBackend, source, dtype, device)


def _from_hub(ref: str, dtype: torch.dtype | None, device: torch.device, backend: str) -> Backend:
    validate_reference(ref)
    cached = local_files_only(ref)
    try:
        folder = fetch(ref, local_files_only=cached)
    except Exception as error:
        raise HierspecError(
            f"{ref!r} is neither a directory nor a model that can be fetched "
            f"({type(error).__name__}: {first_line(error)}){what_it_may_be(ref)}"
        ) from error
    if not any(folder.glob("*.safetensors")):
        raise HierspecError(
            f"{ref!r} has no safetensors on the hub, or offline none in the local cache, and only "
            "those are read: load it with transformers once, save_pretrained it into a folder, and "
            "give that"
        )
    model = _from_source(from_directory(folder), dtype, device, backend)
    model.name = ref
    return model


def _from_pretrained(
    source: Checkpoint, dtype: torch.dtype | None, device: torch.device
) -> Backend:
    from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM

    from hierspec.lm.hf.support import is_encoder_decoder

    is_decoder = not is_encoder_decoder(source.config)
    auto_class = AutoModelForCausalLM if is_decoder else AutoModelForSeq2SeqLM
    try:
        with quiet_transformers():
            model = from_pretrained(auto_class, str(source.path), dtype or "auto", source.name)
    except Exception as error:  # models and their validators raise errors of many kinds
        if isinstance(error, MemoryError | HierspecError) or "memory" in str(error):
            raise
        raise HierspecError(
            f"{source.path} cannot be loaded by transformers: {reason_of(error)}"
        ) from error
    return _hf_backend(_placed(model, dtype, device), source.name)


def _placed(model: Any, dtype: torch.dtype | None, device: torch.device) -> Any:
    """Return a model of transformers on its device, in the dtype that it runs in there.

    Quantized weights stay where they were loaded, and as they were; most refuse to be moved.
    """
    if getattr(model, "quantization_method", None) is not None:
        return model
    dtype = dtype or default_dtype(model.dtype, device)
    # Adapters may be kept in float32 beside a base that is not.
    return model.to(device) if dtype == model.dtype else model.to(device, dtype)
