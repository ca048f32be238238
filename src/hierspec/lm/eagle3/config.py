"""The configuration of an EAGLE-3 network: its sizes, and the target's layers that it reads.

``config.json`` of a published checkpoint is a Llama's of one layer, with ``draft_vocab_size`` and,
in later ones, the layers read: ``eagle_aux_hidden_state_layer_ids`` counts the layers that a hidden
state has been through (vLLM); in ``eagle_config`` it is the last one's index, one less (SGLang).
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from hierspec.errors import HierspecError
from hierspec.lm.backend import Backend
from hierspec.utils.files import read_text
from hierspec.utils.schema import Boolean, Integer, Number, PositiveInteger, json_object, validate


class _LayersRead(BaseModel):
    eagle_aux_hidden_state_layer_ids: tuple[Integer, ...] | None = None


class Eagle3Config(_LayersRead):
    """The keys of ``config.json`` that are read; others are of no interest here.

    Attributes:
        hidden_size: d, the network's own width and that of the target's embedding.
        target_hidden_size: of one feature; ``fc`` takes three of them.
        vocab_size: V, of the target.
        draft_vocab_size: D, of the network's own head.
        rope_parameters: as transformers names them; ``rope_scaling`` with ``rope_theta`` is older.
        norm_before_residual: whether the residual stream starts from the normalised features.
    """

    model_config = ConfigDict(frozen=True)
    hidden_size: PositiveInteger
    target_hidden_size: PositiveInteger
    intermediate_size: PositiveInteger
    num_hidden_layers: PositiveInteger = 1
    num_attention_heads: PositiveInteger
    num_key_value_heads: PositiveInteger
    head_dim: PositiveInteger
    vocab_size: PositiveInteger
    draft_vocab_size: PositiveInteger
    max_position_embeddings: PositiveInteger = 2048
    rms_norm_eps: Number = 1e-6
    rope_theta: Number = 10000.0
    rope_parameters: dict[str, Any] | None = None
    rope_scaling: dict[str, Any] | None = None
    norm_before_residual: Boolean = False
    attention_bias: Boolean = False
    eagle_config: _LayersRead | None = None

    @property
    def rope(self) -> dict[str, Any]:
        if self.rope_parameters:
            return self.rope_parameters
        scaling = dict(self.rope_scaling or {})
        kind = scaling.pop("type", None) or scaling.pop("rope_type", "default")
        return {"rope_type": kind, "rope_theta": self.rope_theta, **scaling}

    @property
    def feature_layers(self) -> tuple[int, ...] | None:
        """After how many layers of the target its hidden states are read, lowest first.

        ``None``: as in published networks (:func:`default_layers`).
        """
        if self.eagle_aux_hidden_state_layer_ids:
            return self.eagle_aux_hidden_state_layer_ids
        nested = self.eagle_config and self.eagle_config.eagle_aux_hidden_state_layer_ids
        return tuple(i + 1 for i in nested) if nested else None

    @cached_property
    def llama(self) -> Any:
        """The same as a transformers ``LlamaConfig`` of one layer."""
        from transformers import LlamaConfig

        return LlamaConfig(
            hidden_size=self.hidden_size,
            intermediate_size=self.intermediate_size,
            num_hidden_layers=1,
            num_attention_heads=self.num_attention_heads,
            num_key_value_heads=self.num_key_value_heads,
            head_dim=self.head_dim,
            vocab_size=self.vocab_size,
            max_position_embeddings=self.max_position_embeddings,
            rms_norm_eps=self.rms_norm_eps,
            rope_parameters=dict(self.rope),
            attention_bias=self.attention_bias,
            tie_word_embeddings=False,
            bos_token_id=None,
            eos_token_id=None,
        )

    def feature_layers_for(self, num_layers: int) -> tuple[int, ...]:
        """Return after which layers of a target with ``num_layers`` the network reads."""
        return self.feature_layers or default_layers(num_layers)


def default_layers(num_layers: int) -> tuple[int, ...]:
    """Return after which of n layers published networks read: after 2, n/2 and n − 3.

    Raises:
        HierspecError: there are too few layers for three different ones.
    """
    layers = (2, num_layers // 2, num_layers - 3)
    if layers != tuple(sorted({*layers})) or layers[0] < 1:
        raise HierspecError(
            f"EAGLE-3 reads hidden states after 2, n/2 and n - 3 layers, and a target of "
            f"{num_layers} layers has no three such: name three layers (--feature-layers)"
        )
    return layers


def validate_fits(
    name: str, config: Eagle3Config, target: str, backend: Backend
) -> tuple[int, ...]:
    """Return the layers that a network reads of a target, if it fits that target.

    Raises:
        HierspecError: sizes differ, or the target has no such layers; names both.
    """
    fix = f"it was trained for another model than {target}"
    size, width = backend.hidden_size, config.hidden_size
    if not config.target_hidden_size == width == size:
        other_size = width if width != size else config.target_hidden_size
        raise HierspecError(
            f"{name} reads hidden states of {other_size} numbers and {target} has {size}: {fix}"
        )
    if config.vocab_size != backend.vocab_size:
        raise HierspecError(
            f"{name} drafts for a vocabulary of {config.vocab_size} and {target} has "
            f"{backend.vocab_size}: {fix}"
        )
    layers = config.feature_layers_for(backend.num_layers)
    if len(layers) != 3 or layers[0] < 1 or layers[-1] > backend.num_layers:
        raise HierspecError(
            f"{name} reads layers {', '.join(map(str, layers))} and {target} has "
            f"{backend.num_layers}: {fix}"
        )
    return layers


def read_config(path: Path) -> Eagle3Config:
    """Read a checkpoint's ``config.json``.

    Raises:
        HierspecError: it cannot be read, or does not describe an EAGLE-3 network.
    """
    text = read_text(path, "the drafter's configuration", ": give the folder of an EAGLE-3 drafter")
    raw = json_object(text, str(path), "a configuration")
    if "draft_vocab_size" not in raw:
        raise HierspecError(
            f"{path} has no draft_vocab_size: this is not an EAGLE-3 drafter (heads of EAGLE 1 and "
            "2 are not supported)"
        )
    size, heads = raw.get("hidden_size"), raw.get("num_attention_heads")
    defaults = {
        "target_hidden_size": size,
        "num_key_value_heads": heads,
        "draft_vocab_size": raw.get("vocab_size"),
    }
    if isinstance(size, int) and isinstance(heads, int) and heads > 0:
        defaults["head_dim"] = size // heads
    given = {key: value for key, value in raw.items() if value is not None}
    try:
        config = validate(Eagle3Config, defaults | given, "")
    except HierspecError as error:
        raise HierspecError(f"{path} does not describe an EAGLE-3 drafter: {error}") from None
    if config.num_hidden_layers != 1:
        raise HierspecError(f"{path}: EAGLE-3 drafters of one layer are supported, no others")
    return config
