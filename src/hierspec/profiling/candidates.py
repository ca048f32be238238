"""Candidates for a level: parsed from the command line, chosen by default, and loaded."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hierspec.config import methods
from hierspec.config.build import LevelModels
from hierspec.config.checkpoints import Loaded, device_of
from hierspec.config.drafts import to_level
from hierspec.config.in_memory import ModelInMemory
from hierspec.config.levels import LevelConfig
from hierspec.config.model_defaults import add_tokenizer_eos
from hierspec.config.schema import HierarchyConfig, TargetConfig
from hierspec.core.windows import FixedWindow, WatchingWindow, Window
from hierspec.drafters.base import LookUp
from hierspec.errors import HierspecError
from hierspec.lm.encoder_decoder import validate_decoder_only
from hierspec.utils.schema import json_object
from hierspec.utils.validation import is_number
from hierspec.zoo import registry

_OPTIONS = ("temperature", "window", "dtype", "backend", "head", "num_drafts", "calibrate")
_TREE = 4  # drafts of the token tree that ``auto`` tries
_PLANNED = ("num_speculative_tokens", "verify", "top_m", "bonus")  # chosen by the planner


@dataclass(frozen=True, slots=True)
class Candidate:
    """A model that may become a level.

    Attributes:
        name: as the user wrote it; names differ.
        level: as in the hierarchy file; its budget is a placeholder of 1.
    """

    name: str
    level: LevelConfig

    @property
    def can_verify(self) -> bool:
        """Whether it may also verify: makers of several drafts, and what costs nothing, do not."""
        known = self.level.capabilities
        return known.verifies and known.cost > 0 and self.makes_one

    @property
    def makes_several(self) -> bool:
        """Whether it makes several drafts at once: a token tree, right below the target."""
        return self.level.num_drafts > 1

    @property
    def makes_one(self) -> bool:
        """Whether it makes one draft and could make several: its window reads no signal."""
        return not self.makes_several and not self.level.window.signal

    def with_drafts(self, count: int) -> Candidate:
        """Return the same model with ``count`` drafts at a place."""
        level = dataclasses.replace(self.level, num_drafts=count)
        return Candidate(f"{self.name},num_drafts={count}", level)

    def level_dict(self, target: TargetConfig) -> dict[str, Any]:
        """Return the level as in a hierarchy file for ``target``, without a budget."""
        hierarchy = HierarchyConfig(target=target, levels=(self.level,)).to_dict()
        return {k: v for k, v in hierarchy["levels"][0].items() if k != "num_speculative_tokens"}

    def owner(self, target: TargetConfig) -> str:
        """Return the name of the weights in memory that it needs."""
        return self.level.weights_on(target.model, target.dtype, target.backend)


def parse(text: str) -> Candidate:
    """Parse a candidate from the command line.

    ``MODEL`` (directory, hub id, ``zoo:NAME``), a method's short form (``exit:LAYER``; ``ngram`` is
    the shipped table here), or a level of the hierarchy file as JSON; then, after commas,
    ``temperature=0.8``, ``window=entropy``, ``dtype=float32``, ``head=PATH``, ``num_drafts=4``.

    Raises:
        HierspecError: with what is wrong and how it is written.
    """
    if isinstance(text, ModelInMemory):
        return _candidate(str(text), to_level(text))
    text = text.strip()
    if text.startswith("{"):
        return _candidate(text, json_object(text, f"candidate {text[:40]!r}", "a level"))
    head, *rest = text.split(",")
    if not head:
        raise HierspecError(
            f"a candidate is empty: name a model, {', '.join(methods.short_forms())}"
        )
    # The shipped table; in Python's list of drafts a look-up.
    level: dict[str, Any] = {"method": "ngram_table"} if head == "ngram" else to_level(head)
    for option in rest:
        key, equals, value = option.partition("=")
        if key not in _OPTIONS or not equals:
            raise HierspecError(
                f"candidate {text!r}: {option!r} is not an option; there are: "
                + ", ".join(f"{name}=..." for name in _OPTIONS)
            )
        if key in level:
            raise HierspecError(f"candidate {text!r}: {key} is given twice; leave one out")
        if key == "num_drafts":
            level[key] = int(value) if value.isdecimal() else value
        elif key == "calibrate":
            level[key] = {"true": True, "false": False}.get(value, value)
        else:
            level[key] = _number(text, value) if key == "temperature" else value
    return _candidate(text, level)


def validate_planned(candidates: Sequence[Candidate]) -> None:
    """Refuse candidates that the planner cannot choose."""
    for candidate in candidates:
        if not candidate.level.capabilities.planned:
            raise HierspecError(
                f"candidate {candidate.name!r}: {candidate.level.method} comes from a plug-in and "
                "cannot be planned; name it in a hierarchy"
            )


def choose_candidates(target: TargetConfig, names: Sequence[str]) -> list[Candidate]:
    """Return the candidates that ``auto`` measures, given those that the user named.

    Named models are measured beside drafters that need no further model: look-ups, copies of the
    target, what is shipped for it. A list that names one of these itself is not extended; an
    empty one means :func:`default_names`. On an accelerator the first model also makes a token
    tree, since a check of many rows takes little longer there than one of few. On a CPU it takes
    several times as long, so trees are measured only if they are named.
    """
    parsed = [parse(text) for text in names]
    validate_planned(parsed)
    if any(candidate.level.method != "draft_model" for candidate in parsed):
        return parsed
    defaults = [parse(name) for name in default_names(target)]
    if parsed:
        defaults = [c for c in defaults if c.level.method != "draft_model"]
    copies = [c for c in defaults if c.level.capabilities.cost > 2]  # of the whole target
    candidates = [*(c for c in defaults if c not in copies), *parsed, *copies]
    if device_of(target).type == "cpu" or any(c.makes_several for c in candidates):
        return candidates
    for place, candidate in enumerate(candidates, start=1):
        if candidate.level.capabilities.trees and candidate.makes_one:
            return [*candidates[:place], candidate.with_drafts(_TREE), *candidates[place:]]
    return candidates


def possible_pairs(
    candidates: Sequence[Candidate], call_ms: Sequence[float], min_ratio: float
) -> list[tuple[int, int]]:
    """Return (drafter, verifier) pairs: all with the target, cheap models with expensive ones.

    A maker of several drafts is paired with the target alone.

    Args:
        candidates: cheapest first, without the target; ``call_ms``: [K+1], the target's last.
    """
    target = len(candidates)
    return [
        (i, k)
        for k in range(1, target + 1)
        for i in range(k)
        if k == target
        or (
            candidates[k].can_verify
            and not candidates[i].makes_several
            and call_ms[k] >= min_ratio * call_ms[i]
        )
    ]


def default_names(target: TargetConfig) -> list[str]:
    """Return the default candidates for a target, as :func:`parse` reads them.

    Unless its entry in the zoo names some, it gets those of every method: look-ups, copies, and
    whatever is shipped for it.
    """
    entry = registry.installed(target.model)
    if entry and entry.candidates:
        return list(entry.candidates)
    return [name for level in methods.built_in() for name in level.names_for_auto(target)]


def _number(text: str, value: str) -> float:
    with contextlib.suppress(ValueError):
        if is_number(number := float(value)):
            return number
    raise HierspecError(f"candidate {text!r}: temperature must be a number, not {value!r}")


def _candidate(name: str, level: dict[str, Any]) -> Candidate:
    method, planned = level.get("method"), [key for key in _PLANNED if key in level]
    problem = None
    if planned:
        problem = f"leave {planned[0]} out, the planner chooses it"
    elif isinstance(method, str) and (known := methods.find(method)) is not None:
        if known.maker is None and not known.capabilities.planned:
            problem = f"{method} is not planned; leave it out"
        elif "store" in level:
            problem = "the planner knows no store; leave it out, and add it to the plan's file"
    elif method == methods.CONCATENATE:
        problem = "a concatenation cannot be one; name its parts, which the planner joins"
    if problem:
        raise HierspecError(f"candidate {name!r}: {problem}")
    hierarchy = {"target": {"model": "target"}, "levels": [{"num_speculative_tokens": 1, **level}]}
    try:
        parsed = HierarchyConfig.from_dict(hierarchy).levels[0]
    except HierspecError as error:
        reason = str(error).removeprefix("hierarchy.levels[0]").lstrip(".: ")
        raise HierspecError(f"candidate {name!r}: {reason}") from None
    assert isinstance(parsed, LevelConfig)
    return Candidate(name, parsed)


@dataclass(frozen=True, slots=True, eq=False)
class PoolMember:
    """A loaded candidate, or the target itself.

    Attributes:
        model: what the engine runs: a look-up, a language model, an EAGLE-3 network.
        owner: name of the weights in memory that it needs; the same weights in another data type
            or backend than the target's have another owner.
        candidate: ``None`` for the target.
        source: name of its files; default: the owner's name.
    """

    name: str
    model: Any
    owner: str
    candidate: Candidate | None = None
    source: str = ""

    @property
    def files(self) -> str:
        """The name under which the files of its model or table are found."""
        return self.source or self.owner

    @property
    def scores(self) -> bool:
        """Whether it has a next-token distribution after any text; look-ups have none."""
        return not isinstance(self.model, LookUp)

    @property
    def survives_on_texts(self) -> bool:
        """Whether scores of a text say how much of its drafts there is accepted."""
        if self.candidate is None or not self.candidate.makes_one:
            return False
        return self.candidate.level.capabilities.drafts_as_it_scores

    @property
    def num_bytes(self) -> int:
        """Bytes of the weights that it needs."""
        own = self.candidate and self.candidate.level.weight_bytes(self.model)
        return self.model.backend.num_bytes if own is None else own

    @property
    def num_drafts(self) -> int:
        return self.candidate.level.num_drafts if self.candidate else 1

    @property
    def temperature(self) -> float | None:
        return self.candidate.level.temperature if self.candidate else None

    @property
    def window(self) -> Window:
        """A window that reads the signal of the candidate's window and never stops."""
        signal = None if self.candidate is None else self.candidate.level.window.signal
        return FixedWindow() if signal is None else WatchingWindow(signal)


@dataclass(frozen=True, slots=True, eq=False)
class CandidatePool:
    """The loaded models to be measured."""

    target: TargetConfig
    members: tuple[PoolMember, ...]
    tokenizer: Any
    eos_ids: frozenset[int] = frozenset()

    @property
    def vocab_size(self) -> int:
        return self.members[-1].model.vocab_size

    @property
    def candidates(self) -> list[Candidate]:
        return [member.candidate for member in self.members if member.candidate]

    @property
    def memory(self) -> dict[str, int]:
        """Bytes of weights by owner: what early exits of one trunk share counts once."""
        first: dict[str, PoolMember] = {}
        for member in self.members:
            first.setdefault(member.owner, member)
        return {owner: member.num_bytes for owner, member in first.items()}

    def ordered(self, order: Sequence[int]) -> CandidatePool:
        """Return the same pool with the members in another order."""
        return dataclasses.replace(self, members=tuple(self.members[i] for i in order))


def load(
    target: TargetConfig, candidates: Sequence[Candidate], loaded: Loaded | None = None
) -> CandidatePool:
    """Load the models; one checkpoint is loaded once.

    Raises:
        HierspecError: two equal candidates, a model that cannot be loaded, or another vocabulary.
    """
    names = [candidate.name for candidate in candidates]
    if duplicates := [name for name in names if names.count(name) > 1]:
        raise HierspecError(f"candidate {duplicates[0]!r} is given twice; leave one out")
    loaded = loaded or Loaded()
    models = LevelModels(target, [candidate.level for candidate in candidates], loaded)
    top = models.target_view()
    validate_decoder_only(
        top, "profiling", "name a hierarchy, such as speculative or prompt-lookup"
    )
    members = [
        PoolMember(
            candidate.name,
            models.model(candidate.level)[0],
            candidate.owner(target),
            candidate,
            candidate.level.files_on(target.model),
        )
        for candidate in candidates
    ]
    members.append(PoolMember(target.model, top, target.model))
    tokenizer = loaded.tokenizers.get(target.model)
    eos_ids = add_tokenizer_eos(loaded.eos_ids(target.model), tokenizer)
    return CandidatePool(target, tuple(members), tokenizer, eos_ids)
