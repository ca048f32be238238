"""Nodes: a hierarchy as a tree of levels, each a small frozen description that a round reads."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic

from typing_extensions import TypeVar  # with defaults, which typing has from Python 3.13 on

from .proposals import States
from .rules import Verifier
from .windows import FixedWindow, Window

# What proposes or verifies at a level is the interpreter's: models and look-ups in the engine
# (:data:`hierspec.lm.base.ModelNode`), tables in certificates, numbers in simulations.
VerifierModel = TypeVar("VerifierModel", covariant=True, default=Any)
DrafterModel = TypeVar("DrafterModel", covariant=True, default=Any)


@dataclass(frozen=True, slots=True, eq=False)
class Draft(Generic[DrafterModel]):
    """A leaf: a model that drafts token by token until its window or budget stops it.

    Attributes:
        budget: how many tokens it must hold before it hands them up (``num_speculative_tokens``).
        temperature: of its distributions; ``None`` for the request's.
        num_drafts: how many alternative drafts it makes from the same position.
        distinct: whether their first tokens are drawn without replacement.
        drafter: makes what runs it in the engine, of the leaf; ``None``: its model decides.
    """

    index: int
    name: str
    model: DrafterModel
    budget: int
    window: Window = field(default_factory=FixedWindow)
    temperature: float | None = None
    num_drafts: int = 1
    distinct: bool = False
    drafter: Callable[[Draft], Any] | None = None

    def for_rule(self, rule: Verifier) -> Draft[DrafterModel]:
        """Return this leaf with its drafts drawn as ``rule`` needs them."""
        return dataclasses.replace(self, distinct=rule.distinct and self.num_drafts > 1)


@dataclass(frozen=True, slots=True, eq=False)
class Verify(Generic[VerifierModel, DrafterModel]):
    """A level that repeats: get a draft from ``below``, verify it, append; until it holds enough.

    Attributes:
        rule: how it verifies ``below``.
        below: the node that drafts for it; ``None`` for plain decoding.
        bonus: whether one more token of this level's model follows a draft that was accepted whole.
        exact_length: whether to cut what is handed up to ``budget``, as some rules above require.
    """

    index: int
    name: str
    model: VerifierModel
    budget: int
    rule: Verifier
    below: Node[VerifierModel, DrafterModel] | None
    window: Window = field(default_factory=FixedWindow)
    temperature: float | None = None
    bonus: bool = True
    exact_length: bool = False

    def for_rule(self, rule: Verifier) -> Verify[VerifierModel, DrafterModel]:
        """Return this level with what it hands up cut as ``rule`` needs it."""
        return dataclasses.replace(self, exact_length=rule.fixed_length)

    def over(self, below: Node | None) -> Verify[VerifierModel, DrafterModel]:
        """Return this level over another node, which is made to draft as its rule needs."""
        return dataclasses.replace(self, below=None if below is None else below.for_rule(self.rule))

    def as_leaf(self) -> Draft[VerifierModel]:
        """Return a leaf that drafts as this level does with nothing below it."""
        return Draft(self.index, self.name, self.model, self.budget, self.window, self.temperature)


@dataclass(frozen=True, slots=True, eq=False)
class Concatenate(Generic[VerifierModel, DrafterModel]):
    """Nodes that draft one after another, ``repeat`` times; each continues what came before.

    P2's interleaved order is [small × n, mid × 1] repeated m times, its horizontal order is
    [mid × m, small × n], CS-Drafting's tail is [level, smallest × h].
    """

    index: int
    name: str
    parts: tuple[Node[VerifierModel, DrafterModel], ...]
    repeat: int = 1

    def for_rule(self, rule: Verifier) -> Concatenate[VerifierModel, DrafterModel]:
        return dataclasses.replace(self, parts=tuple(part.for_rule(rule) for part in self.parts))


LevelNode = Verify[VerifierModel, DrafterModel] | Draft[DrafterModel]
Node = LevelNode[VerifierModel, DrafterModel] | Concatenate[VerifierModel, DrafterModel]
AnyNode = TypeVar("AnyNode", bound=Node)


def walk(
    node: Node[VerifierModel, DrafterModel] | None,
) -> Iterator[Node[VerifierModel, DrafterModel]]:
    """Yield every node at and below ``node``, lowest first."""
    if node is None:
        return
    if isinstance(node, Concatenate):
        for part in node.parts:
            yield from walk(part)
    elif isinstance(node, Verify):
        yield from walk(node.below)
    yield node


def walk_levels(
    node: Node[VerifierModel, DrafterModel] | None,
) -> Iterator[LevelNode[VerifierModel, DrafterModel]]:
    """Yield every node at and below ``node`` that has a model, lowest first."""
    return (each for each in walk(node) if not isinstance(each, Concatenate))


def replace_fields(node: AnyNode, fields: Callable[[Node], Mapping[str, Any]]) -> AnyNode:
    below: dict[str, Any] = {}
    if isinstance(node, Concatenate):
        below["parts"] = tuple(replace_fields(part, fields) for part in node.parts)
    elif isinstance(node, Verify) and node.below is not None:
        below["below"] = replace_fields(node.below, fields)
    return dataclasses.replace(node, **below, **fields(node))


def add_first_leaf(
    root: Verify[VerifierModel, DrafterModel], name: str, model: DrafterModel, budget: int
) -> Verify[VerifierModel, DrafterModel]:
    """Return a hierarchy with one more leaf, which drafts before all that is below its root.

    The leaf has index 0, the lowest, and other nodes' indices rise.
    """
    raised = replace_fields(root, lambda node: {"index": node.index + 1})
    leaf = Draft(0, name, model, budget)
    parts = (leaf,) if raised.below is None else (leaf, raised.below)
    below = Concatenate(raised.index, "levels", parts)
    return dataclasses.replace(raised, index=raised.index + 1).over(below)


def describe(node: Node | None, indent: str = "  ") -> str:
    """Describe the nodes at and below ``node``, highest first, one line each."""
    if node is None:
        return f"{indent}(nothing below: plain decoding)"
    if isinstance(node, Concatenate):
        times = f", {node.repeat} times" if node.repeat > 1 else ""
        parts = "\n".join(describe(part, indent + "  ") for part in node.parts)
        return f"{indent}one after another{times}:\n{parts}"
    is_target = isinstance(node, Verify) and node.budget == 1
    details = ["the target"] if is_target else [f"drafts {node.budget} tokens"]
    if node.window != FixedWindow():
        details.append(f"unless its {node.window.signal} window stops it earlier")
    if node.temperature is not None:
        details.append(f"temperature {node.temperature:g}")
    if isinstance(node, Draft):
        details += [f"{node.num_drafts} drafts side by side"] if node.num_drafts > 1 else []
        return f"{indent}{node.name}: {', '.join(details)}"
    if node.below is not None:
        details.append(f"verifies by {node.rule.name}" + ("" if node.bonus else ", no bonus"))
    return f"{indent}{node.name}: {', '.join(details)}\n{describe(node.below, indent)}"


def initial_states(root: Node) -> States:
    """Return the window states of a new sequence, by node index."""
    nodes = sorted(walk(root), key=lambda node: node.index)
    return tuple(() if isinstance(n, Concatenate) else n.window.init() for n in nodes)
