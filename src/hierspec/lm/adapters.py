"""Adapters (LoRA and the like): folders with one and no model, and models with one loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hierspec.errors import HierspecError, reason_of
from hierspec.utils.documents import read_json
from hierspec.utils.records import Record

from .weights import from_pretrained, holds_model

FILE = "adapter_config.json"


class _AdapterConfig(Record):
    base_model_name_or_path: str | None = None


def is_adapter(path: str | Path) -> bool:
    """Return whether a folder holds an adapter and no model of its own.

    It may hold the configuration of its base.
    """
    path = Path(path).expanduser()
    return (path / FILE).is_file() and not holds_model(path)


def base_model_of(path: str | Path) -> str:
    """Return the name of the model that an adapter was made for, as its configuration states it.

    Raises:
        HierspecError: the configuration is damaged, or names none, or another adapter.
    """
    file = Path(path).expanduser() / FILE
    name = read_json(_AdapterConfig, file, "the adapter's configuration").base_model_name_or_path
    if not name:
        raise HierspecError(
            f"{file} names no base model: set base_model_name_or_path, or load both with peft and "
            "give the model itself"
        )
    if is_adapter(name):
        raise HierspecError(
            f"{file} names {name} as its base model, which is an adapter itself: merge that one "
            "into its model first (peft's merge_and_unload), or load all with peft and give the "
            "model"
        )
    return name


def load_adapted(path: str | Path, dtype: Any) -> Any:
    """Load the base model with the adapter in its layers, unmerged, as transformers does.

    Raises:
        HierspecError: peft is not installed, or either part cannot be read.
    """
    base = base_model_of(path)
    try:
        from peft import PeftModel
    except ImportError:
        raise HierspecError(
            f"{path} holds an adapter, and peft reads it: pip install 'hierspec[peft]'"
        ) from None
    from transformers import AutoModelForCausalLM

    try:
        model = from_pretrained(AutoModelForCausalLM, base, dtype, base)
        return PeftModel.from_pretrained(model, str(path)).eval()
    except HierspecError:
        raise
    except Exception as error:  # both libraries raise errors of many kinds
        raise HierspecError(
            f"the adapter {path} on {base} cannot be loaded: {reason_of(error)}"
        ) from error


def plain_model(model: Any) -> Any:
    """Return the transformers model to run: of a peft model, its base with adapters in its layers,
    of a compiled one what was compiled.

    Raises:
        HierspecError: an adapter is not in the layers, or the model is no language model.
    """
    model = getattr(model, "_orig_mod", model)  # of torch.compile
    adapters = getattr(model, "peft_config", None)
    if isinstance(adapters, dict) and hasattr(model, "get_base_model"):
        for adapter in adapters.values():
            if getattr(adapter, "is_prompt_learning", False):
                raise HierspecError(
                    f"{type(model).__name__} with {type(adapter).__name__} learns a prompt, which "
                    "no layer holds: only adapters in the layers (LoRA and the like) are supported"
                )
        model = model.get_base_model()
    head = getattr(model, "get_output_embeddings", lambda: None)()
    if head is None or not hasattr(model, "config"):
        raise HierspecError(
            f"{type(model).__name__} is not a causal language model of transformers: load one with "
            "AutoModelForCausalLM.from_pretrained"
        )
    return model
