"""A copy of the target in fewer bits, which drafts on the target's cache [after QuantSpec].

:mod:`hierspec.lm.quantized` makes the copy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from hierspec.config.in_memory import ModelInMemory
from hierspec.config.levels import Capabilities, LevelConfig, TargetInfo
from hierspec.config.methods import register_level
from hierspec.config.schema import TargetConfig
from hierspec.errors import HierspecError
from hierspec.utils import machine
from hierspec.utils.schema import Boolean, Expected, checked_dataclass
from hierspec.zoo import registry

_Calibrate = Annotated[Boolean | Literal["auto"], Expected('true, false or "auto"')]


@register_level
@checked_dataclass
class QuantizedConfig(LevelConfig):
    """The target's own weights in fewer bits, on the target's cache [after QuantSpec].

    Attributes:
        bits: for each weight in the layers: 8, 6, 5 or 4; outside the compiled kernels 8 or 4.
        calibrate: whether it is rounded for the inputs that the layers have in texts of the
            target's own; ``auto``: in fewer than 8 bits, where that takes a minute at most.
    """

    capabilities = Capabilities(cache="target", planned=True, cost=3)
    short_forms = ("quantized", "quantized:4")

    method: Literal["quantized"] = "quantized"
    bits: Literal[8, 6, 5, 4] = 8
    calibrate: _Calibrate = "auto"

    def make(self, target: TargetInfo) -> Any:
        """Return the copy; levels of equal bits and calibration share it."""
        from hierspec.lm.quantized import quantize
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
    def names_for_auto(cls, target: str, dtype: str) -> Sequence[str]:
        from hierspec.config.checkpoints import can_be_copied

        try:
            if not can_be_copied(TargetConfig(model=target)):
                return ()
        except HierspecError:
            return ()  # no such model: loading it will raise
        copies = [4, 8]
        if machine.device("auto").type == "cpu":
            from hierspec.lm.native import library
            from hierspec.lm.quantized import copies_that_pay

            if not library.is_expected():
                return ()
            in_file = dtype == "auto" and not isinstance(target, ModelInMemory)
            copies = copies_that_pay(registry.bits_in_file(target) if in_file else None)
        # To calibrate one takes longer than to measure all that is tried.
        return [f"quantized:{bits},calibrate=false" if bits < 8 else "quantized" for bits in copies]
