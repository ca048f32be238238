"""A copy of the target in fewer bits, which drafts on a fraction of the memory traffic.

One token at a time, a processor spends its time reading weights. Norms, rotations, attention and
the residual stream of a copy are the model's own, so that it can read and write the model's caches.
A model in the compiled kernels is copied there
(:meth:`hierspec.lm.native.backend.NativeBackend.copy_in`), one in torch's operations by
:mod:`hierspec.lm.lean.device_copy`.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

from hierspec.config.in_memory import ModelInMemory
from hierspec.config.levels import Capabilities, LevelConfig, OwnPreset, TargetInfo
from hierspec.config.methods import register_level
from hierspec.config.schema import TargetConfig
from hierspec.errors import HierspecError
from hierspec.utils.schema import Boolean, Expected, checked_dataclass
from hierspec.zoo import registry

if TYPE_CHECKING:
    from hierspec.lm.lean.decoder import LeanBackend

_PAYS = 0.7  # at most so much of the target's bytes
# What is kept of a copy's tokens, greedy and at temperature 1; below 8 bits without calibration.
_KEPT = {8: (0.986, 0.974), 6: (0.961, 0.947), 5: (0.935, 0.898), 4: (0.878, 0.824)}
_Bits = Literal[8, 6, 5, 4]
_Calibrate = Annotated[Boolean | Literal["auto"], Expected('true, false or "auto"')]


@register_level
@checked_dataclass
class QuantizedConfig(LevelConfig):
    """The target's own weights in fewer bits, on the target's cache [after QuantSpec].

    QuantSpec drafts with 4-bit weights and keeps a 4-bit copy of the keys and values.

    Attributes:
        bits: for each weight in the layers: 8, 6, 5 or 4; outside the compiled kernels 8 or 4.
        calibrate: whether it is rounded for the inputs that the layers have in texts of the
            target's own; ``auto``: in fewer than 8 bits, where that takes a minute at most.
    """

    capabilities = Capabilities(cache="target", planned=True, cost=3)
    short_forms = ("quantized", "quantized:4")
    preset = OwnPreset(
        "quantized",
        "the target in int8 drafts on its own cache",
        10,
        "QuantSpec",
        "QuantSpec: self-speculative decoding with hierarchical quantized KV cache "
        "(Tiwari et al., 2025, arXiv 2502.10424)",
    )

    method: Literal["quantized"] = "quantized"
    bits: _Bits = 8
    calibrate: _Calibrate = "auto"

    def make(self, target: TargetInfo) -> Any:
        """Return the copy; levels of equal bits and calibration share it."""
        from hierspec.lm.trunk.cuda_graph_copy import self_draft_for

        trunk = target.trunk
        return target.share(
            (QuantizedConfig, self.bits, self.calibrate),
            lambda: self_draft_for(trunk, quantize(trunk.backend, self.bits, self.calibrate)),
        )

    def name_on(self, target: str, model: Any) -> str:
        return f"{target}:int{self.bits}"

    def weights_on(self, target: str, dtype: str, backend: str) -> str:
        how = {"auto": "", True: ", calibrated", False: ", rounded"}[self.calibrate]
        return f"{target} (int{self.bits}{how})"

    @property
    def prior_acceptance(self) -> tuple[float, float]:
        return _KEPT[self.bits]

    @classmethod
    def default_levels(cls, target: TargetConfig) -> Sequence[LevelConfig]:
        """Return a copy above a look-up, where the compiled kernels run it and it is smaller."""
        from hierspec.config.checkpoints import bits_in_kernels, can_be_copied, kernels_take
        from hierspec.lm.native import library

        from .suffix import SuffixConfig

        copies = copies_that_pay(bits_in_kernels(target))
        in_kernels = kernels_take(target) and can_be_copied(target) and library.load() is not None
        if not (in_kernels and copies):
            return ()
        # SmolLM2 was released with 4-bit weights.
        bits = 4 if target.model == registry.SMOLLM2_NAME else copies[-1]
        above = cls(num_speculative_tokens=5, verify="block", bits=bits)
        return (SuffixConfig(num_speculative_tokens=3), above)

    @classmethod
    def from_short(cls, draft: str) -> Mapping[str, Any] | None:
        name, _, bits = draft.partition(":")
        if name != "quantized":
            return None
        if bits not in ("", "4", "5", "6", "8"):
            raise HierspecError(
                f"draft {draft!r}: write quantized, for 8 bits, or quantized:4, :5 or :6"
            )
        return {"bits": int(bits)} if bits else {}

    @classmethod
    def names_for_auto(cls, target: TargetConfig) -> Sequence[str]:
        from hierspec.config.checkpoints import can_be_copied, device_of, kernels_take
        from hierspec.lm.native import library

        model = target.model
        try:
            if not can_be_copied(target):
                return ()
            on_cpu = device_of(target).type == "cpu"
        except HierspecError:
            return ()  # no such model, or no such device: loading it will raise
        copies = [4, 8]
        if on_cpu:
            if not (kernels_take(target) and library.is_expected()):
                return ()
            in_file = target.dtype == "auto" and not isinstance(model, ModelInMemory)
            copies = copies_that_pay(registry.bits_in_file(model) if in_file else None)
        # To calibrate one takes longer than to measure all that is tried.
        return [f"quantized:{bits},calibrate=false" if bits < 8 else "quantized" for bits in copies]


def copies_that_pay(own_bits: float | None = None) -> list[_Bits]:
    """Return the bits, fewest first, of copies that the kernels read in clearly less time.

    Outside the compiled kernels none pays: torch widens their weights before each product.

    Args:
        own_bits: of a weight of a target in a file's own; ``None``: 16 or more.
    """
    from hierspec.lm.native.backend import COPY_FORMS
    from hierspec.lm.native.formats import FORMATS

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
    from hierspec.lm.lean.decoder import LeanBackend
    from hierspec.lm.native.backend import NativeBackend
    from hierspec.lm.native.calibration import NotCalibratedWarning, calibrated_copy, is_quick

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
    from hierspec.lm.lean.device_copy import DeviceCopy

    if bits not in (8, 4):
        raise HierspecError(
            f'outside the compiled kernels copies have 8 or 4 bits, not {bits}: change "bits"'
        )
    return DeviceCopy(backend, bits)
