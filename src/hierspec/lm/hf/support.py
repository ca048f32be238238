"""Which transformers models can be run with a cache that rewinds; others are refused by name.

Speculation takes tokens back. Keys and values of a position can be overwritten; a recurrent state
that has absorbed a token cannot be.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from hierspec.errors import HierspecError
from hierspec.utils import plugins

if TYPE_CHECKING:
    import torch

_RECURRENT = (
    "{name} keeps a recurrent state, which cannot be rewound after a rejected draft; "
    "choose an attention-only model"
)
# Known not to be recurrent: transformers needs a second of further imports to tell.
_ATTENTION_ONLY = ("llama", "mistral", "qwen2", "qwen3")
# Entry points of encoder-decoder models: by model_type, what makes a backend of (model, name).
ENCODER_DECODERS = "hierspec.encoder_decoders"
_REWINDABLE = ("full_attention", "sliding_attention")


def validate_supported(model: Any) -> None:
    """Refuse, in one line, a model without a decoder whose cache can rewind (HierspecError)."""
    name = type(model).__name__
    validate_config(name, model.config)
    if getattr(model, "_is_stateful", False):
        raise HierspecError(_RECURRENT.format(name=name))
    if not hasattr(model, "get_output_embeddings") or model.get_output_embeddings() is None:
        raise HierspecError(f"{name} has no language-model head; load it with AutoModelForCausalLM")


def validate_config(name: str, config: Any) -> None:
    """Refuse the same models by their configuration, before any weight is read."""
    name = f"{name} ({config.model_type})"
    kinds = plugins.entry_point_names(ENCODER_DECODERS)
    if is_encoder_decoder(config) and config.model_type not in kinds:
        others = f", or one of {', '.join(sorted(kinds))}" if kinds else ""
        raise HierspecError(
            f"{name} is an encoder-decoder model of an unsupported kind: choose a decoder-only "
            f"language model{others}"
        )
    if _mixes_rows(getattr(config, "quantization_config", None)):
        raise HierspecError(
            f"{name}: 8-bit bitsandbytes looks for outliers in all tokens of a call together, so a "
            "token's scores depend on its neighbours; load it with "
            "BitsAndBytesConfig(load_in_8bit=True, llm_int8_threshold=0.0), or in 4 bits"
        )
    if _is_recurrent(config):
        raise HierspecError(_RECURRENT.format(name=name))
    text = config.get_text_config(decoder=True)
    if unknown := sorted(set(getattr(text, "layer_types", None) or ()) - set(_REWINDABLE)):
        raise HierspecError(
            f"{name} has layers of type {', '.join(unknown)}, whose cache cannot be rewound after "
            f"a rejected draft; supported are {' and '.join(_REWINDABLE)}"
        )
    if getattr(text, "kv_sharing_modes", None) or getattr(text, "num_kv_shared_layers", 0):
        raise HierspecError(f"{name} shares keys and values between layers: not supported yet")
    if longest_context(text) is None:
        raise HierspecError(f"{name} states no max_position_embeddings: not supported yet")
    for key in ("num_hidden_layers", "max_position_embeddings", "vocab_size"):
        if not (isinstance(value := getattr(text, key, 1), int) and value >= 1):
            raise HierspecError(
                f"{name}: config.json has {key} {value!r}, which must be at least 1"
            )


@contextmanager
def name_model_in_errors(backend: Any) -> Iterator[None]:
    """Turn errors of modules that do not fit our loop into a HierspecError that names the model."""
    try:
        yield
    except (TypeError, AttributeError, IndexError, KeyError, RuntimeError) as error:
        if "memory" in str(error):
            raise
        raise HierspecError(
            f"{backend.name} ({backend.config.model_type}) cannot be driven layer by layer "
            f"({type(error).__name__}: {error}). This architecture is not supported yet"
        ) from error


def validate_scores(backend: Any, ours: torch.Tensor, theirs: torch.Tensor) -> None:
    """Refuse a model whose scores by our loop are not those of its own forward.

    In half precision the model's own scores may be far off at a single position (SmolLM2's, at a
    token, by a sixteenth of the largest score), so there positions are averaged.

    Raises:
        HierspecError: they differ by more than rounding, or ``theirs`` are not finite.
    """
    if not bool((theirs < float("inf")).all()):  # NaN compares as false
        raise HierspecError(
            f"{backend.name} itself produces NaN or infinite scores: its weights are damaged, or "
            f"{str(backend.weight_dtype).removeprefix('torch.')} overflows; try a wider --dtype"
        )
    wide = backend.weight_dtype.itemsize >= 4
    apart, scale = (ours - theirs).abs().amax(-1), max(1.0, theirs.abs().max().item())
    difference = (apart.max() if wide else apart.mean()).item()
    tolerance = 1e-4 if wide else 0.05
    if not difference <= tolerance * scale:
        raise HierspecError(
            f"{backend.name} ({backend.config.model_type}) cannot be driven layer by layer: its "
            f"scores differ by {difference:.3g} from the model's own forward. This architecture is "
            "not supported yet; please report it"
        )


def is_encoder_decoder(config: Any) -> bool:
    """Return whether a configuration is that of a model whose encoder reads the prompt."""
    return bool(getattr(config, "is_encoder_decoder", False))


def _mixes_rows(quantization: Any) -> bool:
    """Return whether 8-bit weights are multiplied as in LLM.int8 (Dettmers et al., 2022)."""
    if quantization is None:
        return False
    values = quantization if isinstance(quantization, dict) else vars(quantization)
    values = {key.lstrip("_"): value for key, value in values.items()}
    return bool(values.get("load_in_8bit")) and values.get("llm_int8_threshold", 6.0) > 0.0


def longest_context(config: Any) -> Any:
    """Return how many tokens a model takes; ``None`` where its configuration does not say.

    The biases of BLOOM and T5 are defined for any length, so their configurations state none.
    """
    length = getattr(config, "max_position_embeddings", None)
    unlimited = ("bloom", *plugins.entry_point_names(ENCODER_DECODERS))
    return 1 << 20 if length is None and config.model_type in unlimited else length


def _is_recurrent(config: Any) -> bool:
    if config.model_type in _ATTENTION_ONLY:
        return False
    from transformers import AutoModelForCausalLM

    classes = AutoModelForCausalLM._model_mapping.get(type(config), None)
    classes = classes if isinstance(classes, tuple | list) else (classes,)
    return any(getattr(model_class, "_is_stateful", False) for model_class in classes)


def layer_kinds(config: Any, num_layers: int) -> tuple[str, ...]:
    """Return every layer's kind of attention, as transformers infers it from a config."""
    types = getattr(config, "layer_types", None)
    if types is not None:
        return tuple(types[:num_layers])
    sliding = getattr(config, "sliding_window", None) is not None
    return (("sliding_attention" if sliding else "full_attention"),) * num_layers
