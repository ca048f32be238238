"""The memory that the weights of candidates take."""

from __future__ import annotations

from hierspec.config.target import model_config
from hierspec.errors import HierspecError, first_line
from hierspec.lm.backend import Backend
from hierspec.lm.lean.device_copy import DeviceCopy
from hierspec.lm.llama_config import of_transformers
from hierspec.lm.native.backend import NativeBackend
from hierspec.lm.trunk.self_draft import SelfDraft
from hierspec.lm.weights import SCORED
from hierspec.zoo import registry

from .candidates import CandidatePool, PoolMember


def memory(pool: CandidatePool) -> dict[str, int]:
    """Return bytes of weights by owner: what early exits of one trunk share counts once."""
    out: dict[str, int] = {}
    for member in pool.members:
        if member.owner not in out:
            out[member.owner] = _num_bytes(member)
    return out


def _num_bytes(member: PoolMember) -> int:
    model = member.model
    if member.candidate is not None:
        own = member.candidate.level.weight_bytes(model)
        if own is not None:
            return own
    backend: Backend = (model if isinstance(model, SelfDraft) else model.cache_owner).backend
    if isinstance(backend, NativeBackend | DeviceCopy):  # its weights may have several widths
        return backend.num_bytes
    return parameters(member.files) * backend.weight_dtype.itemsize


def parameters(model: str, *, encoder: bool = True, embedding: bool = True) -> int:
    """Count a model's weights; tied ones once.

    Args:
        encoder: count an encoder's as well, which runs once for each source.
        embedding: count untied input embeddings as well, of which a token reads one row.

    Raises:
        HierspecError: transformers cannot build it.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM

    config = model_config(model)
    size, excluded = config.vocab_size * config.hidden_size, 0
    if registry.can_resolve(model) and SCORED in (source := registry.resolve(model)).names():
        excluded = size - len(source.tensor(SCORED)) * config.hidden_size
    if not (embedding or config.tie_word_embeddings):
        excluded += size
    kind = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    try:
        with torch.device("meta"):
            empty = kind.from_config(of_transformers(config))
    except Exception as error:  # models and their validators raise errors of many kinds
        raise HierspecError(
            f"the weights of {model} cannot be counted: {first_line(error)}"
        ) from error
    weights = {id(weight): weight for weight in empty.parameters()}
    if config.is_encoder_decoder and not encoder:
        shared = id(empty.get_input_embeddings().weight)  # the decoder's too
        for weight in empty.get_encoder().parameters():
            if id(weight) != shared:
                weights.pop(id(weight), None)
    return sum(weight.numel() for weight in weights.values()) - excluded
