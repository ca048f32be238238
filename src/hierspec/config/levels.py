"""What every level of a hierarchy file has, and what it says of its drafting method.

A method is one class, derived from :class:`LevelConfig`: its fields are the level's keys in a
hierarchy file, its class variables and methods say what the method can do and how its model is
made. :mod:`.methods` finds it by name.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, TypeVar

from pydantic import ValidationInfo, field_validator

from hierspec.core.windows import FixedWindow
from hierspec.errors import HierspecError
from hierspec.utils.schema import Boolean, Count, Temperature, checked_dataclass, error_at

from .fields import DEFAULT_LENIENCE, AnyWindow, Lenience, RuleName

if TYPE_CHECKING:
    import torch

    from hierspec.core.nodes import Verify
    from hierspec.lm.backend import Backend
    from hierspec.lm.base import LevelModel

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a drafting method can do, and what it needs.

    Attributes:
        verifies: it scores any text, so that it may verify the level below it.
        copies: it copies tokens and has no scores for a temperature or a window.
        drafts_as_it_scores: what it drafts after a text is what its scores of that text say, so
            that agreement with other models can be measured on texts alone.
        cache: ``own``, or none at all; ``target``: it reads and writes the target's; ``layers``: it
            is the target's first layers, which the target does not run again for its drafts.
        reads_tokenizer: it reads the target's tokenizer, for example to compare its own with it.
        predicts: its model may predict which of its tokens are accepted, for the acceptance window.
        planned: ``auto`` and ``hierspec plan`` may choose it.
        cost: what a call of it costs, roughly, before it is measured: 0 next to nothing, 1 a
            part of the target, 2 a model of its own, 3 the whole target.
        acceptance: what share of its tokens a verifier keeps, roughly, before it is measured: of
            greedy drafts, and at temperature 1.
        trees: on an accelerator ``auto`` also tries it with several drafts from one position.
    """

    verifies: bool = True
    copies: bool = False
    drafts_as_it_scores: bool = True
    cache: Literal["own", "target", "layers"] = "own"
    reads_tokenizer: bool = False
    predicts: bool = False
    planned: bool = False
    cost: int = 2
    acceptance: tuple[float, float] = (0.35, 0.35)
    trees: bool = False


class OwnPreset(NamedTuple):
    """The preset in which a method drafts alone (:class:`hierspec.presets.systems.Preset`)."""

    name: str
    summary: str
    num_speculative_tokens: int
    source: str = ""
    citation: str = ""  # of the paper that ``source`` names
    verify: str = "tokenwise"  # the target's rule
    models: Mapping[str, Any] = {}  # of a method with a model: ``target``, ``drafts``, ``needs``


@dataclass(frozen=True, slots=True, eq=False)
class TargetInfo:
    """What a drafting method is told of the target, and may share with it.

    Attributes:
        name: its model, as the user named it.
        vocab_size: V, the number of token ids that it scores.
        tokenizer: as transformers loads it; ``None`` if there is none.
        trunk: its layers and its caches (:class:`hierspec.lm.trunk.trunk.Trunk`), which exits and
            copies of it share.
        load: (model, dtype, backend) → another checkpoint's trunk and tokenizer, loaded once;
            without a dtype it has the target's.
        shared: what the levels of one hierarchy have in common; see :meth:`share`.
    """

    name: str
    vocab_size: int
    tokenizer: Any
    device: torch.device
    trunk: Any = None
    load: Any = None
    shared: dict[Any, Any] = dataclasses.field(default_factory=dict[Any, Any])

    def share(self, key: Any, make: Callable[[], T]) -> T:
        """Return what ``make`` has made for this key, for whichever level asked first."""
        if key not in self.shared:
            self.shared[key] = make()
        return self.shared[key]


@checked_dataclass
class LevelConfig:
    """The fields of every level, and what is asked of its method.

    Attributes:
        num_speculative_tokens: how many tokens it must hold before it hands them up.
        verify: the rule by which it verifies the level below; the first level has none.
        top_m: for ``verify: leading``.
        lenience: for ``verify: lenient``.
        temperature: absolute; ``None``: the request's. Ignored when greedy.
        window: the rule by which it hands up before its budget is reached.
        bonus: whether it adds one more token to a fully accepted draft.
        num_drafts: how many alternative drafts it makes; only for a first level under a level that
            verifies by ``traversal``, ``block-rrs``, ``rrs`` or ``rrs-without-replacement``.
    """

    capabilities: ClassVar[Capabilities] = Capabilities()
    short_forms: ClassVar[tuple[str, ...]] = ()  # of ``--draft``, as help texts show them
    preset: ClassVar[OwnPreset | None] = None
    # Keys that only a first level may set → the value that is allowed elsewhere, and why.
    only_first: ClassVar[Mapping[str, tuple[Any, str]]] = {}
    maker: ClassVar[Any] = None  # what :func:`.methods.register_method` made the class of

    method: str
    num_speculative_tokens: Count
    verify: RuleName | None = None
    top_m: Count = 1
    lenience: Lenience = DEFAULT_LENIENCE
    temperature: Temperature | None = None
    window: AnyWindow = dataclasses.field(default_factory=FixedWindow)
    bonus: Boolean = True
    num_drafts: Count = 1

    # --- what it is in a hierarchy

    @property
    def max_tokens(self) -> int:
        """The largest number of tokens of one draft."""
        return self.num_speculative_tokens

    @property
    def max_drafts(self) -> int:
        """The largest number of drafts at one position."""
        return self.num_drafts

    @property
    def only_drafts(self) -> str | None:
        """Why it cannot verify a draft, and what to do; ``None`` if it can."""
        return None

    # --- its model

    def make(self, target: TargetInfo) -> LevelModel:
        """Return what drafts; called once for each level.

        Raises:
            HierspecError: it cannot be read, or does not fit the target.
        """
        raise NotImplementedError

    def complete(self, root: Verify) -> Verify:
        """Return the finished hierarchy, changed as this level, a leaf of it, needs it.

        Raises:
            HierspecError: it has no place in that hierarchy.
        """
        return root

    def name_on(self, target: str, model: Any) -> str:
        """Return the name of its model, below a target of that name."""
        return self.method

    def read_layers(self, target: str, backend: Backend) -> Iterable[int]:
        """Return the layer counts of the target after which it reads the target's states."""
        return ()

    @property
    def files(self) -> str | None:
        """The name under which the files of its model or table are found; ``None`` without any."""
        return None

    @property
    def further_files(self) -> tuple[str, ...]:
        """The paths of other files that it reads."""
        return ()

    def files_on(self, target: str) -> str:
        """Return the name under which the files of its weights are found; its method's if none."""
        return target if self.capabilities.cache != "own" else self.files or self.method

    def weights_on(self, target: str, dtype: str, backend: str) -> str:
        """Return a name of the weights that it has in memory: levels of one name share them."""
        return self.files_on(target)

    def weight_bytes(self, model: Any) -> int | None:
        """Return the bytes of its model's weights; ``None``: those of the backend it runs on."""
        return None

    # --- what is known of it before it is measured

    @property
    def prior_acceptance(self) -> tuple[float, float]:
        """What share of its tokens a verifier keeps: of greedy drafts, and at temperature 1."""
        return self.capabilities.acceptance

    @classmethod
    def default_levels(cls, target: Any) -> Sequence[LevelConfig]:
        """Return levels, its own last, for a target without any; none where others draft better.

        Args:
            target: a :class:`.schema.TargetConfig`.
        """
        return ()

    @classmethod
    def names_for_auto(cls, target: Any) -> Sequence[str]:
        """Return the candidates of this method that ``auto`` measures for a target.

        Args:
            target: a :class:`.schema.TargetConfig`.
        """
        return ()

    # --- its names

    @classmethod
    def from_short(cls, draft: str) -> Mapping[str, Any] | None:
        """Return its options of a short form, as of ``--draft``; ``None`` if that is not its own.

        By default ``METHOD`` or ``METHOD:VALUE``, with the value of its first option; hyphens may
        stand for the underscores of its name.

        Raises:
            HierspecError: a value that it does not have.
        """
        name, colon, value = draft.partition(":")
        if name.replace("-", "_") != method_name(cls).replace("-", "_"):
            return None
        own = [f.name for f in dataclasses.fields(cls) if f.name not in _EVERY_LEVEL]
        if colon and not own:
            raise HierspecError(f"draft '{name}:{value}': {name} has no options: write {name}")
        return {own[0]: value} if colon else {}


_EVERY_LEVEL = frozenset(field.name for field in dataclasses.fields(LevelConfig))


def method_name(level: type[LevelConfig]) -> str:
    """Return the name of a class's method: the default of its key ``method``."""
    return str(level.__dataclass_fields__["method"].default)


# --- levels that copy text

_ONLY_COPIES = "cannot verify drafts, since it only copies text; put it first"
# Fields that mean nothing for a level that copies: field → the value that is allowed, and why.
_NOT_OF_LOOK_UPS = {
    "temperature": (None, "copies tokens and scores none, so temperature has no use; remove it"),
    "window": (
        FixedWindow(),
        "copies tokens and has no scores for a window to read; remove it "
        "(num_speculative_tokens limits a draft)",
    ),
    "num_drafts": (1, "makes only one draft; remove num_drafts"),
}


@checked_dataclass
class LookUpConfig(LevelConfig):
    """A level that copies tokens: it has no scores for a temperature or a window."""

    capabilities = Capabilities(verifies=False, copies=True, cost=0)

    @field_validator(*_NOT_OF_LOOK_UPS)
    @classmethod
    def _validate_unused(cls, value: Any, info: ValidationInfo) -> Any:
        allowed, message = _NOT_OF_LOOK_UPS[info.field_name or ""]
        if value != allowed:
            raise ValueError(f"{info.data['method']} {message}")
        return value

    @property
    def only_drafts(self) -> str:
        return f"{self.method} {_ONLY_COPIES}"

    def weight_bytes(self, model: Any) -> int:
        return 0

    def _validate_range(self, low: str, high: str) -> None:
        if getattr(self, high) < getattr(self, low):
            raise error_at([high], f"{high} must not be below {low}")


def validate_not_of_look_ups(level: LevelConfig) -> None:
    """Refuse what only levels that score may have, of one that turned out to copy."""
    for name, (allowed, message) in _NOT_OF_LOOK_UPS.items():
        if getattr(level, name) != allowed:
            raise HierspecError(f"{name}: {level.method} {message}")
    if level.verify is not None:
        raise HierspecError(f"{level.method} {_ONLY_COPIES}")
