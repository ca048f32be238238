"""The levels of a hierarchy file: one declared class for each method, with all its defaults.

Those that copy text are in :mod:`.look_ups`.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, Strict, field_validator

from hierspec.core.windows import FixedWindow
from hierspec.errors import HierspecError
from hierspec.utils.schema import (
    Boolean,
    Count,
    Expected,
    NonEmptyString,
    PositiveInteger,
    Temperature,
    checked_dataclass,
    error_at,
)

from .fields import (
    DEFAULT_LENIENCE,
    AnyModel,
    AnyWindow,
    HeadsPath,
    Layers,
    Lenience,
    ModelName,
    RuleName,
)
from .skip_search import Search

if TYPE_CHECKING:
    import torch

    from hierspec.lm.base import LevelModel


@dataclass(frozen=True, slots=True)
class TargetInfo:
    """What a drafting method is told of the target.

    Attributes:
        name: its model, as the user named it.
        vocab_size: V, the number of token ids that it scores.
        tokenizer: as transformers loads it; ``None`` if there is none.
        device: where it runs.
    """

    name: str
    vocab_size: int
    tokenizer: Any
    device: torch.device


@checked_dataclass
class LevelConfig:
    """The fields of every level.

    Attributes:
        num_speculative_tokens: how many tokens it must hold before it hands them up.
        verify: the rule by which it verifies the level below; the first level has none.
        top_m: for ``verify: leading``.
        lenience: for ``verify: lenient``.
        temperature: absolute; ``None``: the request's. Ignored when greedy.
        window: the rule by which it hands up before its budget is reached.
        bonus: whether it adds one more token to a fully kept draft.
        num_drafts: how many alternative drafts it makes; only for a first level under a level that
            verifies by ``induced-block``, ``traversal``, ``block-rrs``, ``rrs`` or
            ``rrs-without-replacement``.
    """

    method: str
    num_speculative_tokens: Count
    verify: RuleName | None = None
    top_m: Count = 1
    lenience: Lenience = DEFAULT_LENIENCE
    temperature: Temperature | None = None
    window: AnyWindow = dataclasses.field(default_factory=FixedWindow)
    bonus: Boolean = True
    num_drafts: Count = 1

    @property
    def max_tokens(self) -> int:
        """The largest number of tokens of one draft."""
        return self.num_speculative_tokens

    @property
    def max_drafts(self) -> int:
        """The largest number of drafts at one position."""
        return self.num_drafts

    @property
    def drafts_ahead(self) -> bool:
        """Whether it drafts on while the target verifies."""
        return False

    @property
    def files(self) -> str | None:
        """The name under which the files of its model or table are found; ``None`` without any."""
        return None

    @property
    def only_drafts(self) -> str | None:
        """Why it cannot verify a draft, and what to do; ``None`` if it can."""
        return None


@checked_dataclass
class MadeLevel(LevelConfig):
    """A level that makes its model by itself, with nothing of the target's but what it is told."""

    maker: ClassVar[Any] = None  # what a user registered

    def make(self, target: TargetInfo) -> LevelModel:
        """Return what drafts."""
        raise NotImplementedError


@checked_dataclass
class DraftModelConfig(LevelConfig):
    """A separate model of the target's vocabulary.

    Attributes:
        model: its name, or a loaded model.
        backend: as the target's. With ``auto`` a Llama-shaped model of up to 256 MB runs calls of
            few rows in compiled kernels on CPUs (float32 and bfloat16; its weights are then stored
            twice); ``lean`` runs without them, and so does a level with ``ahead``.
        ahead: it drafts on while the target verifies, and the target adds no bonus tokens; for the
            only level of a hierarchy [PEARL].
    """

    method: Literal["draft_model"] = "draft_model"
    model: AnyModel
    dtype: NonEmptyString | None = None
    backend: NonEmptyString = "auto"
    ahead: Boolean = False

    @property
    def drafts_ahead(self) -> bool:
        """Whether it drafts on while the target verifies."""
        return self.ahead

    @property
    def files(self) -> str:
        return self.model


@checked_dataclass
class EarlyExitConfig(LevelConfig):
    """The target's first ``exit_layer`` layers and its head, sharing its cache [P3].

    Attributes:
        head: a file of heads trained for its exits, or a folder with ``exit_heads.safetensors``
            [P1 §4.1]; ``None``: the target's own final norm and head.
    """

    method: Literal["early_exit"] = "early_exit"
    exit_layer: PositiveInteger
    head: HeadsPath | None = None


@checked_dataclass
class Eagle3LevelConfig(LevelConfig):
    """An EAGLE-3 network that reads the target's hidden states [Li et al. 2025]; it only drafts.

    Attributes:
        model: the folder of its checkpoint, or ``zoo:NAME``.
    """

    method: Literal["eagle3"] = "eagle3"
    model: ModelName

    @property
    def files(self) -> str:
        return self.model

    @property
    def only_drafts(self) -> str:
        return (
            "eagle3 cannot verify: each of its steps reads the one before, so it cannot check a "
            "draft in one call; put it first (an early exit or a draft model may verify it)"
        )


@checked_dataclass
class NgramTableConfig(LevelConfig):
    """N-gram counts of a corpus, with back-off."""

    method: Literal["ngram_table"] = "ngram_table"
    table: ModelName = "zoo:ngram"
    max_order: PositiveInteger | None = None

    @property
    def files(self) -> str:
        return self.table


_Share = Annotated[float, Strict(), Field(gt=0, lt=1), Expected("a number between 0 and 1")]


@checked_dataclass
class LayerSkipConfig(LevelConfig):
    """The target without some of its layers, or parts of them, on its own cache [SWIFT].

    Attributes:
        skip_layers: the layers to leave out, counted from 0.
        skip_attention, skip_mlp: further layers of which only the attention or the MLP is left out.
        skip: instead of these, the share of layers to leave out, evenly spaced; the first and the
            last layer are kept.
        search: with ``skip``, search while drafting for attentions and MLPs to leave out; ``skip``
            is then their share of those between the first and the last layer.
    """

    method: Literal["layer_skip"] = "layer_skip"
    skip_layers: Layers | None = None
    skip_attention: Layers | None = None
    skip_mlp: Layers | None = None
    skip: _Share | None = None
    search: Search | None = None

    def __post_init__(self) -> None:
        lists_layers = any((self.skip_layers, self.skip_attention, self.skip_mlp))
        if (self.skip is not None) == lists_layers:
            raise HierspecError(
                "layer_skip needs either skip_layers (a list of layers; skip_attention and "
                "skip_mlp: of parts of them) or skip (the share of layers to leave out)"
            )
        if self.search is not None and lists_layers:
            raise error_at(
                ["search"], "a search needs skip, the share to leave out, in place of lists"
            )
        if self.search is not None and self.num_drafts > 1:
            raise error_at(["num_drafts"], "a search chooses for one draft a round: remove it")


@checked_dataclass
class QuantizedConfig(LevelConfig):
    """The target's own weights in fewer bits, on the target's cache [after QuantSpec].

    Attributes:
        bits: for each weight in the layers: 8, 6, 5 or 4; outside the compiled kernels 8 or 4.
    """

    method: Literal["quantized"] = "quantized"
    bits: Literal[8, 6, 5, 4] = 8


@checked_dataclass
class RetrievalConfig(LevelConfig):
    """The target on chosen parts of its own cache, for long texts [TriForce].

    Attributes:
        budget: how many tokens of the text it attends to, in addition to the latest.
        chunk_size: how many adjacent tokens are chosen together.
        refresh: the number of new tokens after which it chooses again.
    """

    method: Literal["retrieval"] = "retrieval"
    budget: Annotated[int, Strict(), Field(ge=16), Expected("an integer, at least 16")] = 512
    chunk_size: Count = 8
    refresh: Count = 32


@checked_dataclass
class AdaptiveExitConfig(LevelConfig):
    """Drafts each token with the first exit of the target that is sure of it [AdaDecode].

    Attributes:
        exit_layers: layer counts as in ``early_exit``, shallowest first.
        confidence: an exit is sure if its likeliest token has at least this probability.
        unsure: which model writes a token that no exit is sure of: the last ``exit``, or the
            ``target``, before whose token the draft ends.
        head: for all exits, as in ``early_exit``.
    """

    method: Literal["adaptive_exit"] = "adaptive_exit"
    exit_layers: Layers
    unsure: Literal["exit", "target"] = "exit"
    head: HeadsPath | None = None
    confidence: Annotated[
        float, Strict(), Field(gt=0, le=1), Expected("a number above 0 and at most 1")
    ] = 0.75

    @field_validator("exit_layers")
    @classmethod
    def _ascend(cls, layers: tuple[int, ...]) -> tuple[int, ...]:
        if len(layers) < 2 or min(layers) < 1 or layers != tuple(sorted(set(layers))):
            raise ValueError(
                "it must be two or more layer counts from 1 on, shallowest first, not "
                f"{list(layers)}; a single exit is early_exit"
            )
        return layers


AnyModelConfig = (
    DraftModelConfig
    | EarlyExitConfig
    | Eagle3LevelConfig
    | NgramTableConfig
    | LayerSkipConfig
    | AdaptiveExitConfig
    | QuantizedConfig
    | RetrievalConfig
)
