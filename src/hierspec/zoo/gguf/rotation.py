"""How the heads of a GGUF file's model are rotated, as transformers' ``rope_parameters``.

llama.cpp keeps it in several places: a base, a scaling with or without a type, an older key, and
for some models a tensor of factors that the frequencies are divided by. What cannot be said in
transformers' terms is refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from .header import Header

_FACTORS = "rope_freqs.weight"
_LONG, _SHORT = "rope_factors_long.weight", "rope_factors_short.weight"
_TOLERANCE = 1e-4  # of factors, which files hold in float32

KeyReader = Callable[[str], Sequence[float]]  # a tensor's name → its values


def rope_parameters(
    header: Header, head_dim: int, read: KeyReader, partial: bool = False
) -> dict[str, Any]:
    """Return the rotation of a model's heads of ``head_dim`` dimensions.

    Args:
        partial: whether the model may rotate a part of each head.

    Raises:
        HierspecError: it is one that transformers does not know, or is stated incompletely.
    """
    prefix = f"{header.architecture}.rope"
    theta = header.number(f"{prefix}.freq_base", 10000.0)
    rotated = header.positive(f"{prefix}.dimension_count", head_dim)
    if not theta > 0:
        raise header.damaged(f"has {prefix}.freq_base {theta}")
    if rotated > head_dim or rotated % 2:
        raise header.damaged(f"rotates {rotated} of {head_dim} dimensions of a head")
    base: dict[str, Any] = {"rope_type": "default", "rope_theta": theta}
    if rotated != head_dim:
        if not partial:
            raise header.refuse(
                f"rotates {rotated} of {head_dim} dimensions of a head, which no "
                f"{header.architecture} of transformers does: choose another model"
            )
        base["partial_rotary_factor"] = rotated / head_dim
    scaled = _scaling(header, prefix, rotated, read)
    if _FACTORS in header.tensors:
        factors = _read_factors(header, _FACTORS, rotated, read)
        by_tensor = _from_factors(header, factors, theta, rotated)
        if by_tensor and scaled:
            raise header.refuse(
                f"scales its rotation twice ({_FACTORS} and {prefix}.scaling), which transformers "
                "has no word for: give the folder of its Hugging Face checkpoint instead"
            )
        scaled = scaled or by_tensor
    return {**base, **scaled}


def _scaling(header: Header, prefix: str, rotated: int, read: KeyReader) -> dict[str, Any]:
    """Return the scaling that the metadata state; {} where they state none."""
    key = f"{prefix}.scaling"
    factor = header.number(f"{key}.factor", header.number(f"{prefix}.scale_linear", 0.0))
    kind = header.string(f"{key}.type", "linear")  # of a factor alone, too
    attention = header.number(f"{key}.attn_factor", 1.0)
    if _LONG in header.tensors or _SHORT in header.tensors:
        kind = "longrope"  # files of Phi-3 do not say so
    if factor < 0 or attention <= 0:
        raise header.damaged(f"has {key}.factor {factor} and {key}.attn_factor {attention}")
    if kind == "longrope":
        return _longrope(header, key, rotated, attention, read)
    if kind == "none" or factor in (0.0, 1.0):
        _validate_neutral(header, f"{key}.attn_factor", attention, 1.0)
        return {}
    if kind == "linear":
        _validate_neutral(header, f"{key}.attn_factor", attention, 1.0)
        return {"rope_type": "linear", "factor": factor}
    if kind == "yarn":
        return _yarn(header, key, factor, attention)
    raise header.refuse(
        f"scales its rotation by {kind!r} ({key}.type), which is not read from GGUF files: give "
        "the folder of its Hugging Face checkpoint instead"
    )


def _yarn(header: Header, key: str, factor: float, attention: float) -> dict[str, Any]:
    usual = 0.1 * math.log(factor) + 1.0 if factor > 1 else 1.0
    # llama.cpp does not read this one, transformers does.
    _validate_neutral(
        header, f"{key}.yarn_attn_factor", header.number(f"{key}.yarn_attn_factor", usual), usual
    )
    _validate_neutral(
        header, f"{key}.yarn_ext_factor", header.number(f"{key}.yarn_ext_factor", 1.0), 1.0
    )
    for name in ("yarn_log_multiplier", "alpha"):
        _validate_neutral(header, f"{key}.{name}", header.number(f"{key}.{name}", 0.0), 0.0)
    return {
        "rope_type": "yarn",
        "factor": factor,
        "original_max_position_embeddings": header.positive(
            f"{key}.original_context_length",
            header.positive(f"{header.architecture}.context_length"),
        ),
        "attention_factor": usual * attention,
        "beta_fast": header.number(f"{key}.yarn_beta_fast", 32.0),
        "beta_slow": header.number(f"{key}.yarn_beta_slow", 1.0),
    }


def _longrope(
    header: Header, key: str, rotated: int, attention: float, read: KeyReader
) -> dict[str, Any]:
    scaling: dict[str, Any] = {
        "rope_type": "longrope",
        "long_factor": _read_factors(header, _LONG, rotated, read),
        "short_factor": _read_factors(header, _SHORT, rotated, read),
        "original_max_position_embeddings": header.positive(f"{key}.original_context_length"),
    }
    if f"{key}.attn_factor" in header.fields:  # else transformers' formula, which is converters'
        scaling["attention_factor"] = attention
    return scaling


def _read_factors(header: Header, name: str, rotated: int, read: KeyReader) -> list[float]:
    if name not in header.tensors:
        raise header.damaged(f"lacks {name}")
    factors = [float(factor) for factor in read(name)]
    if len(factors) != rotated // 2 or not all(0 < factor < float("inf") for factor in factors):
        raise header.damaged(f"has no {rotated // 2} positive factors in {name}")
    return factors


def _from_factors(
    header: Header, factors: list[float], theta: float, rotated: int
) -> dict[str, Any]:
    """Return the scaling that gives these factors, one for each frequency, the fastest first.

    Converters write Llama 3.1's scaling in this way, which is returned as such: our own layers
    know it. Factors of any other origin are those of LongRoPE for all lengths.
    """
    if all(math.isclose(factor, 1.0, rel_tol=_TOLERANCE) for factor in factors):
        return {}
    lengths = [2 * math.pi * theta ** (2 * i / rotated) for i in range(len(factors))]
    scaling = _llama3_scaling(factors, lengths)
    again = [_llama3_factor(length, scaling) for length in lengths]
    pairs = zip(again, factors, strict=True)
    if all(math.isclose(one, other, rel_tol=_TOLERANCE) for one, other in pairs):
        return scaling
    return {
        "rope_type": "longrope",
        "long_factor": factors,
        "short_factor": factors,
        "original_max_position_embeddings": header.positive(
            f"{header.architecture}.context_length"
        ),
        "factor": 1.0,
        "attention_factor": 1.0,
    }


def _llama3_scaling(factors: list[float], lengths: list[float]) -> dict[str, Any]:
    """Return the scaling of Llama 3.1 that comes nearest to these factors of these wavelengths.

    The largest is the factor itself. Those between it and 1 lie on a line whose ends are 1 and 4
    turns in the original length, in all models there are.
    """
    largest, low, high = max(factors), 1.0, 4.0
    both = list(zip(lengths, factors, strict=True))
    between = [
        (length, (1 / factor - 1 / largest) / (1 - 1 / largest))
        for length, factor in both
        if 1 + _TOLERANCE < factor < largest * (1 - _TOLERANCE)
    ]
    if between:  # the middle one is the least rounded
        length, share = min(between, key=lambda pair: abs(pair[1] - 0.5))
        original = round(length * (low + share * (high - low)))
    else:  # any length that both ends allow
        unchanged = [length for length, factor in both if factor <= 1 + _TOLERANCE]
        original = math.ceil(max(unchanged, default=0.0) * high)
    return {
        "rope_type": "llama3",
        "factor": float(f"{largest:.6g}"),  # 8.0, where float32 has 7.9999995
        "low_freq_factor": low,
        "high_freq_factor": high,
        "original_max_position_embeddings": max(original, 1),
    }


def _llama3_factor(length: float, scaling: dict[str, Any]) -> float:
    """Return what Llama 3.1's scaling divides the frequency of this wavelength by."""
    factor, original = scaling["factor"], scaling["original_max_position_embeddings"]
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    share = min(1.0, max(0.0, (original / length - low) / (high - low)))
    return 1 / ((1 - share) / factor + share)


def _validate_neutral(header: Header, key: str, value: float, neutral: float) -> None:
    """Refuse a setting that transformers has no word for, or that engines read differently."""
    if not math.isclose(value, neutral, rel_tol=1e-3, abs_tol=1e-6):
        raise header.refuse(
            f"has {key} {value:g}, which is read from GGUF files as {neutral:g} only: give the "
            "folder of its Hugging Face checkpoint instead"
        )
