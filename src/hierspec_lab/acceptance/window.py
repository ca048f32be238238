"""The window of an acceptance head: a draft ends once a rejection is likely somewhere in it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field, Strict

from hierspec.core.windows import Signal, State, StatelessWindow
from hierspec.errors import HierspecError
from hierspec.utils.schema import Expected, checked_dataclass

if TYPE_CHECKING:
    from hierspec.lm.trunk.trunk import ExitModel

    from .head import PredictingExit


@dataclass(frozen=True, slots=True)
class AcceptanceWindow(StatelessWindow):
    """Stop once a rejection is likelier than ``threshold`` somewhere in the draft.

    The draft model predicts of each token how likely it is accepted if those before it are; 1 −
    their product is the chance that the draft is not accepted whole. [SpecDec++, Huang et al. 2024,
    §3]

    Attributes:
        threshold: a probability; the paper's h.
        head: the file of the head that predicts; it is read with the model.
    """

    threshold: float = 0.7
    head: str = ""
    kind: ClassVar[str] = "acceptance"
    signal: ClassVar[Signal | None] = "acceptance"

    def stops(self, signals: Sequence[float], state: State) -> bool:
        return 1.0 - math.prod(signals) > self.threshold

    def attach(self, view: ExitModel, model: str) -> PredictingExit:
        """Return a draft model, loaded by the name ``model``, with the head."""
        if not self.head:
            raise HierspecError(
                f"the acceptance window of {model} needs a trained head: add "
                '"head": "FILE" to the window (hierspec heads train --kind acceptance makes one)'
            )
        from .files import attach

        return attach(self.head, view, model)


@checked_dataclass
class AcceptanceForm:
    """The window in a hierarchy file."""

    kind: Literal["acceptance"] = "acceptance"
    threshold: Annotated[
        float, Strict(), Field(gt=0, lt=1), Expected("a number between 0 and 1")
    ] = AcceptanceWindow().threshold
    head: Annotated[str, Expected("the path of a trained acceptance head")] = ""
    window: ClassVar[type] = AcceptanceWindow
