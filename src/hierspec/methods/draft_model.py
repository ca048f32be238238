"""A separate model of the target's vocabulary."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from hierspec.config.fields import AnyModel
from hierspec.config.levels import Capabilities, LevelConfig, TargetInfo
from hierspec.config.methods import register_level
from hierspec.config.schema import TargetConfig
from hierspec.config.vocabulary import validate_same_vocabulary, validate_sizes
from hierspec.errors import HierspecWarning
from hierspec.utils.schema import NonEmptyString, checked_dataclass
from hierspec.zoo import trained

if TYPE_CHECKING:
    from hierspec.lm.backend import Backend


class LargerDraftWarning(HierspecWarning, UserWarning):
    """A draft model has more weights than its target."""


@register_level
@checked_dataclass
class DraftModelConfig(LevelConfig):
    """A separate model of the target's vocabulary.

    Attributes:
        model: its name, or a loaded model.
        backend: as the target's. With ``auto`` a Llama-shaped model runs in compiled kernels on
            CPUs; ``lean`` runs without them.
    """

    capabilities = Capabilities(
        predicts=True, reads_tokenizer=True, planned=True, acceptance=(0.65, 0.71), trees=True
    )

    method: Literal["draft_model"] = "draft_model"
    model: AnyModel
    dtype: NonEmptyString | None = None
    backend: NonEmptyString = "auto"

    def make(self, target: TargetInfo) -> Any:
        from hierspec.lm.encoder_decoder import EncoderDecoder, validate_decoder_only

        trunk, tokenizer = target.load(self.model, self.dtype, self.backend)
        view, name = trunk.view(), target.name
        validate_same_vocabulary(name, target.tokenizer, self.model, tokenizer)
        if tokenizer is None or target.tokenizer is None:
            validate_sizes(name, target.vocab_size, self.model, view.vocab_size)
        if not isinstance(target.trunk.view(), EncoderDecoder):
            validate_decoder_only(
                view, f"the decoder-only {name}", "draft with a decoder-only model"
            )
        _warn_if_larger(self.model, trunk.backend, name, target.trunk.backend)
        attach = getattr(self.window, "attach", None)  # of one that reads what a head predicts
        return view if attach is None else attach(view, self.model)

    def name_on(self, target: str, model: Any) -> str:
        return self.model

    @property
    def files(self) -> str:
        return self.model

    def weights_on(self, target: str, dtype: str, backend: str) -> str:
        own = self.dtype or dtype
        if self.backend != backend:
            return f"{self.model} ({own}, {self.backend})"
        return self.model if own == dtype else f"{self.model} ({own})"

    @classmethod
    def from_short(cls, draft: str) -> None:
        """A model's name stands for itself, whatever it is called."""

    @classmethod
    def names_for_auto(cls, target: TargetConfig) -> Sequence[str]:
        return trained.siblings_of(target.model)


def _warn_if_larger(name: str, draft: Backend, target_name: str, target: Backend) -> None:
    backends = (draft, target)
    sizes = [backend.num_layers * backend.hidden_size**2 for backend in backends]
    if sizes[0] > sizes[1]:
        shapes = [f"{backend.num_layers} layers of {backend.hidden_size}" for backend in backends]
        warnings.warn(
            f"the draft {name} ({shapes[0]}) is larger than its target {target_name} "
            f"({shapes[1]}): output stays exact but gets no faster; were they swapped?",
            LargerDraftWarning,
            stacklevel=2,
        )
