"""How much memory weights take, from configurations alone."""

from __future__ import annotations

from ..drafters.prompt_lookup import PromptLookup
from ..presets import target_config
from ..zoo import registry
from .candidates import Pool


def memory(pool: Pool) -> dict[str, int]:
    """Bytes of weights by owner: what early exits of one trunk share is counted once."""
    out = {}
    for entrant in pool.entrants:
        if entrant.owner in out:
            continue
        if isinstance(entrant.model, PromptLookup):
            out[entrant.owner] = 0
        elif entrant.candidate is not None and entrant.candidate.level.method == "ngram_table":
            out[entrant.owner] = registry.ngram_path(entrant.files).stat().st_size
        else:
            backend = entrant.model.cache_owner.backend
            dtype = getattr(backend, "weight_dtype", backend.dtype)
            out[entrant.owner] = parameters(entrant.files) * dtype.itemsize
    return out


def parameters(model: str) -> int:
    """Number of weights; tied ones once."""
    import torch
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        empty = AutoModelForCausalLM.from_config(target_config(model))
    return sum(weight.numel() for weight in empty.parameters())
