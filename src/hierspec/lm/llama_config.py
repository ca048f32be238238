"""The configuration of a Llama, read from its file without transformers.

Importing transformers' configurations takes longer than loading a small model. So a file that says
plainly all that our layers need is read as it is; every other file is read by transformers, and
whatever else is asked of a configuration, too.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import ConfigDict, Field, ValidationError, model_validator

from hierspec.utils.records import FrozenRecord

if TYPE_CHECKING:
    from typing import Self

# Keys that many files have and that decide nothing here. With any other one a file is not plain.
_HARMLESS = {
    *("architectures", "transformers_version", "_name_or_path", "is_llama_config", "use_cache"),
    *("bos_token_id", "pad_token_id", "initializer_range", "attention_dropout", "pretraining_tp"),
    *("rope_interleaved", "transformers.js_config"),
}
# What transformers finds in a Llama's configuration that does not name them.
_ABSENT = dict.fromkeys(
    ("layer_types", "quantization_config", "sliding_window", "kv_sharing_modes", "auto_map")
)
_DEFAULTS = {"is_encoder_decoder": False, "num_kv_shared_layers": 0, "partial_rotary_factor": 1.0}
_Dtype = Literal["float32", "bfloat16", "float16", "float64"]


class _Rope(FrozenRecord):
    model_config = ConfigDict(extra="forbid")

    rope_type: Literal["default"]
    rope_theta: float


class _Llama3Scaling(FrozenRecord):
    model_config = ConfigDict(extra="forbid")

    rope_type: Literal["llama3"]
    factor: float = Field(ge=1)
    low_freq_factor: float = Field(gt=0)
    high_freq_factor: float = Field(gt=0)
    original_max_position_embeddings: int = Field(ge=1)

    @model_validator(mode="after")
    def _is_ordered(self) -> Self:
        if self.low_freq_factor >= self.high_freq_factor:
            raise ValueError("low_freq_factor is not below high_freq_factor")
        return self


class _Llama3Rope(_Llama3Scaling):
    rope_theta: float


class _Values(FrozenRecord):
    """Keys of a plain file, which mean what they mean in transformers."""

    model_config = ConfigDict(strict=True)

    model_type: Literal["llama"]
    vocab_size: int = Field(ge=1)
    hidden_size: int = Field(ge=1)
    intermediate_size: int = Field(ge=1)
    num_hidden_layers: int = Field(ge=1)
    num_attention_heads: int = Field(ge=1)
    num_key_value_heads: int = Field(ge=1)
    max_position_embeddings: int = Field(ge=1)
    head_dim: int = Field(default=0, ge=0)
    hidden_act: str
    rms_norm_eps: float
    tie_word_embeddings: bool
    attention_bias: bool = False
    mlp_bias: bool = False
    rope_theta: float | None = None
    rope_scaling: _Llama3Scaling | None = None
    rope_parameters: _Rope | _Llama3Rope | None = None
    dtype: _Dtype | None = None
    torch_dtype: _Dtype | None = None
    eos_token_id: int | list[int]

    @model_validator(mode="after")
    def _is_plain(self) -> Self:
        usual = (_ABSENT | _DEFAULTS).items()
        others = (item for item in (self.model_extra or {}).items() if item[0] not in _HARMLESS)
        if any(item not in usual for item in others):
            raise ValueError("it has a part that not every Llama has")
        if (self.rope_theta is None) == (self.rope_parameters is None) or (
            self.rope_scaling is not None and self.rope_theta is None
        ):
            raise ValueError("it must say exactly once how heads rotate")
        if self.hidden_size % self.num_attention_heads:
            raise ValueError("its heads do not divide its width")
        if (self.head_dim or self.hidden_size // self.num_attention_heads) % 2:
            raise ValueError("its heads have half a pair of dimensions")
        return self


class LlamaConfig:
    """A Llama's configuration, with the names of transformers' own."""

    def __init__(self, path: Path, values: _Values) -> None:
        import torch

        named = {name: getattr(values, name) for name in _Values.model_fields}
        dtype, rope = named.pop("torch_dtype"), named.pop("rope_parameters")
        theta, scaling = named.pop("rope_theta"), named.pop("rope_scaling")
        if rope is None:  # as it is written before transformers 5
            scaling = {"rope_type": "default"} if scaling is None else scaling.to_dict()
            named["rope_parameters"] = {**scaling, "rope_theta": theta}
        else:
            named["rope_parameters"] = rope.to_dict()
        named["head_dim"] = values.head_dim or values.hidden_size // values.num_attention_heads
        dtype = values.dtype or dtype
        named["dtype"] = None if dtype is None else getattr(torch, dtype)
        self.__dict__.update(_ABSENT | _DEFAULTS | named)
        self.name_or_path = str(path)

    @cached_property
    def transformers(self) -> Any:
        from transformers import AutoConfig

        return AutoConfig.from_pretrained(
            self.name_or_path, local_files_only=True, trust_remote_code=False
        )

    def get_text_config(self, decoder: bool = False) -> LlamaConfig:
        """Return itself: there is no other part."""
        return self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # what copying and pickling look for
            raise AttributeError(name)
        return getattr(self.transformers, name)


def read_values(folder: Path) -> _Values | None:
    """Return what the configuration in a folder says, if it is that of a Llama in plain words."""
    try:
        return _Values.model_validate_json((folder / "config.json").read_bytes())
    except (OSError, ValidationError):
        return None


def read_llama_config(folder: Path) -> LlamaConfig | None:
    """Return the configuration in a folder, if it is that of a Llama in plain words."""
    values = read_values(folder)
    return None if values is None else LlamaConfig(folder, values)


def of_transformers(config: Any) -> Any:
    """Return transformers' own configuration for one that was read here, and any other as it is."""
    return config.transformers if isinstance(config, LlamaConfig) else config
