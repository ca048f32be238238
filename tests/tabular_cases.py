"""Small tabular hierarchies for the tests: families of models, and chains of levels over them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from hierspec.core.nodes import Concatenate, Draft, Node, Verify
from hierspec.core.round import Coroutine
from hierspec.core.rules import Verifier
from hierspec.core.windows import ConfidenceWindow, EntropyWindow, FixedWindow, Window
from hierspec.engine.control import Controller
from hierspec.engine.trace import Tracer, event_of
from hierspec.exact.interpreter import ExactInterpreter
from hierspec.exact.output import Rounds, join_rounds
from hierspec.lm.tabular import TabularModel
from hierspec.verifiers.registry import get
from hierspec.verifiers.soundness import validate

FAMILIES = ("random", "peaked", "zeros", "disjoint", "equal")
# V ≥ 3 throughout: with two tokens a residual of p − q instead of w·p − q cannot be told apart.
V = 3
WINDOWS: dict[str, Window] = {
    "fixed": FixedWindow(),
    "entropy": EntropyWindow(threshold=0.8),
    "adaptive": EntropyWindow(),
    "confidence": ConfidenceWindow(floor=0.4),
}


def models(family: str, count: int, order: int = 1, seed: int = 0) -> list[TabularModel]:
    """Models of one family, smallest first."""
    generator = torch.Generator().manual_seed(seed)
    if family == "equal":
        return [TabularModel.random(V, order, generator)] * count
    if family == "disjoint":  # neighbours in the hierarchy never agree
        half, tables = V // 2, ({}, {})
        for key in TabularModel.random(V, order, generator).table():
            low, high = (TabularModel.random(n, 0, generator).table()[""] for n in (half, V - half))
            tables[0][key] = [*low, *[0.0] * (V - half)]
            tables[1][key] = [*[0.0] * half, *high]
        return [TabularModel(V, order, tables[i % 2]) for i in range(count)]
    return [TabularModel.random(V, order, generator, family) for _ in range(count)]


def chain(
    tables: Sequence[TabularModel],
    rules: Sequence[str | Verifier],
    budgets: Sequence[int],
    windows: Sequence[Window] | None = None,
    bonus: Sequence[bool] | None = None,
    below: Node | None = None,
) -> Verify:
    """A drafter (unless ``below`` is one), then a verifying level per rule, the target last.

    ``budgets`` and ``windows`` are of all levels but the target.
    """
    found = [get(rule) if isinstance(rule, str) else rule for rule in rules]
    windows = windows or [FixedWindow()] * len(budgets)
    bonus = bonus or [True] * len(rules)
    tables, budgets, windows = list(tables), list(budgets), list(windows)
    index = 0
    if below is None:
        below = Draft(0, "level 0", tables.pop(0), budgets.pop(0), windows.pop(0))
        index = 1
    else:
        index = below.index + 1
    for i, rule in enumerate(found):
        last = i == len(found) - 1
        common: dict[str, Any] = {"index": index + i, "name": f"level {index + i}"}
        below = Verify(
            **common,
            model=tables[i],
            budget=1 if last else budgets[i],
            rule=rule,
            below=below,
            window=FixedWindow() if last else windows[i],
            bonus=bonus[i],
            exact_length=not last and found[i + 1].fixed_length,
        )
    assert isinstance(below, Verify)
    return below


def pair(vocab: int, order: int, seed: int, kind: str = "random") -> list[TabularModel]:
    """A drafter and a target."""
    generator = torch.Generator().manual_seed(seed)
    return [TabularModel.random(vocab, order, generator, kind) for _ in range(2)]


def several(
    q: TabularModel, p: TabularModel, rule: str | Verifier, drafts: int, length: int, **options: Any
) -> Verify:
    """A target that verifies several drafts of a drafter."""
    rule = get(rule) if isinstance(rule, str) else rule
    leaf = Draft(0, "drafter", q, length, num_drafts=drafts).for_rule(rule)
    root = Verify(1, "target", p, 1, rule, leaf, **options)
    validate(root, allow_lossy=True)
    return root


def drive(coroutine, interpreter):
    """Any interpreter will do: this one takes the likeliest branch."""
    answer = None
    while True:
        try:
            request = coroutine.send(answer)
        except StopIteration as stop:
            return stop.value
        interpreter._prefetch([request])
        answer = max(interpreter._answers(request), key=lambda branch: branch[0])[1]


def record_requests(
    coroutine: Coroutine, tracer: Tracer, sequence: int = 0, committed: int = 0
) -> Coroutine:
    """Wrap a coroutine for any interpreter, so that each request is recorded with its answer.

    Requests of coroutines that it waits for are recorded only if those are wrapped too.
    """
    answer: Any = None
    while True:
        try:
            request = coroutine.send(answer)
        except StopIteration as stop:
            return stop.value
        answer = yield request
        event = event_of(request, answer, sequence, committed)
        if event is not None:
            tracer.record(event)


def continued(tables: Sequence[TabularModel], rule: str, budgets: Sequence[int]) -> Verify:
    """A level whose drafts the smallest model continues; of three budgets it is below, too."""
    small, mid, target = tables
    *others, budget, tail = budgets
    first: Node = Draft(0, "mid", mid, budget)
    if others:
        below = Draft(0, "small", small, others[0])
        first = Verify(1, "mid", mid, budget, get(rule), None).over(below)
    last = Draft(first.index + 1, "behind", small, tail)
    return chain([target], [rule], [], below=Concatenate(last.index + 1, "both", (first, last)))


def output_law(
    interpreter: ExactInterpreter,
    states: Any,
    horizon: int,
    cut_at_horizon: bool = False,
    controller: Controller | None = None,
) -> np.ndarray:
    """The law of the first ``horizon`` tokens, [V, …, V], from window states of the root."""
    rounds = Rounds(interpreter, controller)
    return join_rounds(rounds, rounds.initial(states, horizon), horizon, cut_at_horizon)
