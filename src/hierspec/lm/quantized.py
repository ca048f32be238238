"""A copy of a model in fewer bits, which drafts on a fraction of the memory traffic.

One token at a time, a processor spends its time reading weights. Norms, rotations, attention and
the residual stream of a copy are the model's own, so that it can read and write the model's caches.
A model in the compiled kernels is copied there
(:meth:`hierspec.lm.native.backend.NativeBackend.copy_in`), one in torch's operations by
:mod:`hierspec.lm.lean.device_copy`.
"""

from __future__ import annotations

import warnings
from typing import Any, Literal

from hierspec.errors import HierspecError

from .lean.decoder import LeanBackend
from .native.backend import COPY_FORMS, NativeBackend
from .native.calibration import NotCalibratedWarning, calibrated_copy, is_quick
from .native.formats import FORMATS

_PAYS = 0.7  # at most so much of the target's bytes


def copies_that_pay(own_bits: float | None = None) -> list[int]:
    """Return the bits, fewest first, of copies that the kernels read in clearly less time.

    Outside the compiled kernels none pays: torch widens their weights before each product.

    Args:
        own_bits: of a weight of a target in a file's own; ``None``: 16 or more.
    """
    most = _PAYS * (own_bits or 16)
    sizes = {bits: FORMATS[form].bits_per_weight for bits, form in COPY_FORMS.items()}
    # Five bits agree so much more often than four that they win where they pay at all.
    few = 5 if sizes[5] <= most else 4
    return [bits for bits in (few, 8) if sizes[bits] <= most]


def quantize(backend: Any, bits: int = 8, calibrate: bool | Literal["auto"] = False) -> LeanBackend:
    """Return a copy of a lean model in 8, 6, 5 or 4 bits; embedding, norms and caches are shared.

    Args:
        calibrate: whether it is rounded for the inputs that the model's matrices have
            (:mod:`hierspec.lm.native.calibration`); ``"auto"``: in fewer than 8 bits, where that
            takes a minute at most.

    Warns:
        NotCalibratedWarning: that is not possible here, and was asked for.

    Raises:
        HierspecError: the model runs on another backend, or it has no copy in so many bits where it
            runs: outside the compiled kernels there are 8 and 4.
    """
    if isinstance(backend, NativeBackend):
        if calibrate == "auto":
            calibrate = bits < 8 and is_quick(backend.shape)
        return calibrated_copy(backend, bits) if calibrate else backend.copy_in(bits)
    if calibrate is True:
        text = f"{backend.name} runs outside the compiled kernels, where copies are not calibrated"
        warnings.warn(text, NotCalibratedWarning, stacklevel=2)
    if not isinstance(backend, LeanBackend):
        raise HierspecError(
            f"a quantized draft needs plain weights of a Llama-shaped model, and {backend.name} "
            "runs on transformers' own modules here: merge an adapter into its model first (peft's "
            "merge_and_unload), or draft with the model's own layers (early_exit; the preset "
            "layerskip)"
        )
    from .lean.device_copy import DeviceCopy

    if bits not in (8, 4):
        raise HierspecError(
            f'outside the compiled kernels copies have 8 or 4 bits, not {bits}: change "bits"'
        )
    return DeviceCopy(backend, bits)
