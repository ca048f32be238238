"""Loading a model: from a directory, a hub id, or tensors made on demand, to a backend."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from hierspec.errors import HierspecError

from .adapters import is_adapter, load_adapted, plain_model
from .backend import Backend
from .weights import Checkpoint, InMemory, WeightSource, from_directory, hf_model

BACKENDS = ("auto", "lean", "hf")
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def load(
    ref_or_source: str | Path | WeightSource,
    dtype: torch.dtype | None = None,
    device: torch.device | str = "cpu",
    backend: str = "auto",
    *,
    trust_remote_code: bool = False,
) -> Backend:
    """Load a model.

    Args:
        ref_or_source: a directory saved by ``save_pretrained``, a hub id, or a weight source.
        dtype: of the weights; ``None``: as the checkpoint's configuration says.
        backend: ``lean`` (Llama-shaped models, fast), ``hf`` (any transformers decoder), or
            ``auto``: lean where it can.
        trust_remote_code: run model code that comes with the weights. Implies ``hf``.

    Raises:
        HierspecError: nothing usable is there, or the model cannot be driven; says what to do.
    """
    if backend not in BACKENDS:
        raise HierspecError(f"backend must be one of {', '.join(BACKENDS)}; got {backend!r}")
    if dtype is not None and dtype not in DTYPES:
        known = ", ".join(str(one).removeprefix("torch.") for one in DTYPES)
        raise HierspecError(f"dtype must be one of the floating-point types {known}; got {dtype}")
    device = _checked_device(device)
    if not isinstance(ref_or_source, str | Path):
        return _from_source(ref_or_source, dtype, device, backend)
    ref = str(ref_or_source)
    path = Path(ref).expanduser()
    if not path.is_dir():
        return _from_hub(ref, dtype, device, backend, trust_remote_code)
    if is_adapter(path):
        return wrap(plain_model(load_adapted(path, dtype or "auto").to(device)), path.name, backend)
    if trust_remote_code:
        return _from_pretrained(str(path), dtype, device, trust_remote_code=True)
    return _from_source(from_directory(path), dtype, device, backend)


def wrap(model: Any, name: str, backend: str = "auto") -> Backend:
    """A transformers model that is loaded already.

    Args:
        backend: ``auto`` and ``hf`` run its own layers; ``lean`` copies its weights, once.

    Raises:
        HierspecError: the model cannot be driven.
    """
    if backend not in BACKENDS:
        raise HierspecError(f"backend must be one of {', '.join(BACKENDS)}; got {backend!r}")
    if backend == "lean":
        if any("base_layer" in part for part, _ in model.named_modules()):
            raise HierspecError(
                f"{name} has adapters in its layers, and lean reads plain weights: merge them "
                "(merge_and_unload), or use backend 'hf'"
            )
        return _from_source(InMemory(name, model), model.dtype, model.device, backend)
    from hierspec.lm.hf.decoder import HFBackend

    return HFBackend(model, name)


def _from_source(
    source: WeightSource, dtype: torch.dtype | None, device: torch.device, backend: str
) -> Backend:
    from hierspec.lm.hf.support import check_config
    from hierspec.lm.lean.shape import unsupported

    check_config(source.name, source.config)
    chosen: torch.dtype = dtype or getattr(source.config, "dtype", None) or torch.float32
    quantized = getattr(source.config, "quantization_config", None) is not None
    if quantized and isinstance(source, Checkpoint):
        if backend == "lean":
            raise HierspecError(
                f"{source.name} holds quantized weights, which lean does not read: leave backend "
                "out, or use hf"
            )
        return _from_pretrained(str(source.path), dtype, device, name=source.name)
    if backend == "lean" or (backend == "auto" and unsupported(source.config) is None):
        from hierspec.lm.lean.decoder import LeanBackend

        try:
            return LeanBackend(source, chosen, device)
        except KeyError as error:
            raise HierspecError(
                f"{source.name} lacks a weight its config.json calls for: {error.args[0]}"
            ) from None
        except RuntimeError as error:
            if "memory" in str(error):
                raise
            raise HierspecError(
                f"{source.name}: config.json and weights do not fit each other "
                f"({_first_line(error)}): they are of different models"
            ) from error
    from hierspec.lm.hf.decoder import HFBackend

    if isinstance(source, Checkpoint):
        return _from_pretrained(str(source.path), chosen, device, name=source.name)
    return HFBackend(hf_model(source, chosen).to(device), source.name)


def _from_hub(
    ref: str, dtype: torch.dtype | None, device: torch.device, backend: str, trust_remote_code: bool
) -> Backend:
    """Load the directory of a snapshot, fetched or found in the local cache."""
    looks_like_path = ref.startswith((".", "/", "~")) or ref.count("/") > 1
    if looks_like_path or not ref:
        raise HierspecError(f"no directory {ref!r}: give the folder of a saved model, or a hub id")
    if trust_remote_code:
        return _from_pretrained(ref, dtype, device, trust_remote_code=True)
    from huggingface_hub import snapshot_download

    try:
        folder = snapshot_download(
            ref, allow_patterns=["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja"]
        )
    except Exception as error:
        raise HierspecError(
            f"{ref!r} is neither a directory nor a model that can be fetched "
            f"({type(error).__name__}: {_first_line(error)}). Offline, give the path of a folder "
            "saved with save_pretrained, or zoo:NAME for a model that ships with hierspec"
        ) from error
    built = _from_source(from_directory(folder), dtype, device, backend)
    built.name = ref
    return built


def _from_pretrained(
    ref: str,
    dtype: torch.dtype | None,
    device: torch.device,
    *,
    name: str | None = None,
    trust_remote_code: bool = False,
) -> Backend:
    from transformers import AutoModelForCausalLM

    from hierspec.lm.hf.decoder import HFBackend

    try:
        with _quiet():
            model: Any = AutoModelForCausalLM.from_pretrained(
                ref,
                dtype=dtype or "auto",
                use_safetensors=True,
                trust_remote_code=trust_remote_code,
            )
    except Exception as error:  # models and their validators raise what they like
        if isinstance(error, MemoryError) or "memory" in str(error):
            raise
        raise HierspecError(
            f"{ref} cannot be loaded by transformers: {_first_line(error)}"
        ) from error
    # Quantized weights stay where they were loaded; most refuse to be moved.
    if getattr(model, "quantization_method", None) is None:
        model = model.to(device)
    return HFBackend(model, name)


@contextmanager
def _quiet() -> Iterator[None]:
    """No progress bar: only the command line writes on the terminal."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _checked_device(device: torch.device | str) -> torch.device:
    try:
        device = torch.device(device)
    except RuntimeError:
        raise HierspecError(f"no such device: {device!r}; use cpu, cuda or cuda:N") from None
    if device.type == "meta":
        raise HierspecError("device 'meta' holds no weights to run; use cpu, cuda or cuda:N")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise HierspecError("device 'cuda' was asked, but torch sees no CUDA device; use cpu")
    return device


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
