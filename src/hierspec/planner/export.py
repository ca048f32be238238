"""The best setting of a plan that another engine can express, in that engine's own form.

Other engines take one drafter below the target, or none. Among those settings the best is found
with the same latency model as the plan's, so that the note can say what the rest of the plan is
worth.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from .chain import Chain
from .engines import ENGINES, Engine, Model, inexpressible
from .estimates import Estimates
from .latency import latency
from .plan import Choice, Plan


def export(plan: Plan, engine: str, models: Sequence[Model | None]) -> dict[str, Any]:
    """The best setting of ``plan``'s models that ``engine`` can express.

    Args:
        engine: ``vllm`` or ``transformers``.
        models: of each candidate, as a level of a hierarchy file (``{"method": "draft_model",
            "model": "PATH"}``, …), the target last (``{"model": "PATH"}``); ``None`` for a model
            that is nowhere to be had.

    Returns:
        ``engine``, ``configuration`` (the engine's own options), ``command`` (vLLM) and
        ``python``: what to copy and paste; ``levels``, ``names``, ``num_speculative_tokens``,
        ``latency`` (ms a token), ``speedup``; ``loss_percent``: how much slower than the plan's
        best; ``note``: what the engine cannot express, and what that costs.

    Raises:
        ValueError: there is no such engine, or ``models`` does not describe the plan's models.
    """
    if engine not in ENGINES:
        raise ValueError(f"no engine called {engine!r}; there are: {', '.join(ENGINES)}")
    estimates, spoken = plan.estimates, ENGINES[engine]
    target = models[-1] if models else None
    if len(models) != len(estimates.names) or not target or "model" not in target:
        raise ValueError(
            f"models must describe the plan's {len(estimates.names)} models, smallest first, and "
            'end with the target: [..., {"model": "PATH"}]'
        )
    choice = best_setting(estimates, spoken, models)
    chain = choice.chain
    drafter = None if chain.plain else models[chain.levels[0]]
    loss = choice.ms / plan.best.ms - 1
    return {
        "engine": engine,
        **spoken.write(target, drafter, 0 if chain.plain else chain.budgets[0]),
        "levels": list(chain.levels),
        "names": [estimates.names[i] for i in chain.levels],
        "num_speculative_tokens": list(chain.budgets),
        "latency": choice.ms,
        "speedup": estimates.plain_ms / choice.ms,
        "loss_percent": 100 * loss,
        "note": _note(plan, spoken, models, choice, loss),
    }


def best_setting(estimates: Estimates, engine: Engine, models: Sequence[Model | None]) -> Choice:
    """Plain decoding, or one expressible drafter with its best budget below the target."""
    target = estimates.target
    plain = Chain((target,))
    choices = [Choice(plain, latency(estimates, plain))]
    for i, model in enumerate(models[:-1]):
        if not estimates.can_draft(i, target) or inexpressible(engine, model):
            continue
        priced = estimates
        if model and model["method"] == "early_exit":
            priced = without_sharing(estimates, i)
        longest = min(estimates.max_budget, estimates.survival.shape[2] - 1)
        for budget in range(1, longest + 1):
            chain = Chain((i, target), (budget,))
            choices.append(Choice(chain, latency(priced, chain)))
    return min(choices, key=lambda choice: choice.ms)


def without_sharing(estimates: Estimates, exit_: int) -> Estimates:
    """Prices where the target computes the exit's layers again, as other engines do.

    The plan prices the target's call over an exit's tokens without the layers that they have been
    through. Plain decoding pays all layers for one token; the call is scaled by that.
    """
    verify = np.array(estimates.verify_ms)
    remaining = verify[exit_, estimates.target]
    verify[exit_, estimates.target] = remaining * max(1.0, estimates.plain_ms / remaining[1])
    classes = tuple(without_sharing(one, exit_) for one in estimates.classes)
    return replace(estimates, verify_ms=verify, classes=classes)


def _note(
    plan: Plan, engine: Engine, models: Sequence[Model | None], choice: Choice, loss: float
) -> str:
    """Sentences for people; the first says what is lost, the others what to know."""
    best, names = plan.best.chain, plan.estimates.names
    missing = _missing(best, engine, models, names)
    out = []
    if missing:
        out.append(f"{engine.name} cannot express {_listed(missing)}.")
    if loss > 5e-4:
        out.append(f"This is expected to be {100 * loss:.1f} % slower a token than the full plan.")
    elif choice.chain == best:
        out.append("This is the whole plan: nothing is lost.")
    else:
        out.append("Nothing is expected to be lost against the full plan.")
    used = [models[i] or {} for i in choice.chain.levels]
    if not choice.chain.plain:
        out += [
            engine.about[key] for key in ("speculation", used[0]["method"]) if key in engine.about
        ]
    if any(str(model.get("model", "")).startswith("zoo:") for model in used):
        out.append("zoo: names are known to hierspec only; give other engines a directory.")
    return " ".join(out)


def _missing(
    best: Chain, engine: Engine, models: Sequence[Model | None], names: Sequence[str]
) -> list[str]:
    out = []
    if len(best.levels) > 2:
        out.append(f"{len(best.levels)} levels ({' → '.join(names[i] for i in best.levels)})")
    reasons = (inexpressible(engine, models[i]) for i in best.levels[:-1])
    out += dict.fromkeys(reason for reason in reasons if reason)
    if best.order != "chain":
        out.append(f"the {best.order} order")
    if best.tail:
        out.append("a tail of the smallest model")
    return out


def _listed(parts: Sequence[str]) -> str:
    return " or ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)
