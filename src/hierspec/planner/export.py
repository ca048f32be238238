"""The best setting of a plan that another engine can express, in that engine's own form.

Other engines take one drafter below the target, or none. Among those settings the best is found
with the same latency model as the plan's, so that the note can say what the rest of the plan is
worth. Names of options as in vLLM's ``SpeculativeConfig`` and transformers' ``GenerationConfig``.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hierspec.errors import HierspecError

from .estimates import Chain, Estimates
from .latency import latency
from .plan import Plan, PricedChain

Model = Mapping[str, Any]
METHOD_DESCRIPTIONS = {
    "draft_model": "a draft model",
    "early_exit": "an early exit of the target",
    "prompt_lookup": "prompt lookup",
    "ngram_table": "an n-gram table",
    "suffix": "a suffix automaton of the text",
    "eagle3": "an EAGLE-3 drafter",
    "quantized": "a copy of the target in fewer bits",
}


@dataclass(frozen=True, slots=True)
class Engine:
    """Another engine and the settings it supports.

    Attributes:
        name: as people write it.
        methods: that its one drafter may have, in the hierarchy file's words.
        write: target, drafter or ``None``, budget → ``configuration`` and code to copy.
        notes: limits of a method (of all, under ``speculation``) that its options do not show.
    """

    name: str
    methods: tuple[str, ...]
    write: Callable[[Model, Model | None, int], dict[str, Any]]
    notes: Mapping[str, str]


def inexpressible(engine: Engine, model: Model | None) -> str | None:
    """Return why ``engine`` cannot draft with ``model``; ``None`` if it can."""
    if model is None:
        return "a model that is not available"
    method = model.get("method")
    if method not in METHOD_DESCRIPTIONS:
        raise HierspecError(
            f"a model's method is {method!r}; there are: {', '.join(METHOD_DESCRIPTIONS)}"
        )
    if method not in engine.methods:
        return METHOD_DESCRIPTIONS[method]
    if model.get("temperature") is not None:
        return "a temperature of the drafter's own"
    if model.get("num_drafts", 1) > 1:
        return "several drafts of a place"
    if model.get("head") is not None:
        return "a trained head of the exit's own"
    window = model.get("window", "fixed")
    kind = window.get("kind") if isinstance(window, Mapping) else window
    return None if kind == "fixed" else f"the {kind} window"


def _vllm(target: Model, drafter: Model | None, budget: int) -> dict[str, Any]:
    name = str(target["model"])
    command, keywords = f"vllm serve {shlex.quote(name)}", _dtype(target)
    if keywords:
        command += f" --dtype {shlex.quote(str(target['dtype']))}"
    configuration: dict[str, Any] = {}
    if drafter:
        if drafter["method"] == "prompt_lookup":
            speculative = {
                "method": "ngram",
                "num_speculative_tokens": budget,
                "prompt_lookup_max": drafter.get("prompt_lookup_max", 4),
                "prompt_lookup_min": drafter.get("prompt_lookup_min", 2),
            }
        else:
            speculative = {
                "method": "draft_model",
                "model": str(drafter["model"]),
                "num_speculative_tokens": budget,
            }
        configuration = {"speculative_config": speculative}
        command += f" --speculative-config {shlex.quote(json.dumps(speculative))}"
        keywords += f", speculative_config={speculative!r}"
    python = f"from vllm import LLM\n\nllm = LLM(model={name!r}{keywords})\n"
    return {"configuration": configuration, "command": command, "python": python}


def _transformers(target: Model, drafter: Model | None, budget: int) -> dict[str, Any]:
    """Write ``generate``'s arguments and, apart, the drafter's generation config.

    ``generate`` reads the drafter's budget from the drafter's own generation config (the target's
    for an early exit): as an argument it would be ignored, and 20 tokens drafted.
    """
    lines = [
        "from transformers import AutoModelForCausalLM, AutoTokenizer",
        "",
        f"tokenizer = AutoTokenizer.from_pretrained({str(target['model'])!r})",
        f"target = AutoModelForCausalLM.from_pretrained({str(target['model'])!r}{_dtype(target)})",
    ]
    # A threshold above 0 would stop drafts early, which the plan did not price.
    generation_config = {
        "num_assistant_tokens": budget,
        "num_assistant_tokens_schedule": "constant",
        "assistant_confidence_threshold": 0.0,
    }
    configuration: dict[str, Any] = {}
    arguments = ""
    if drafter and drafter["method"] == "prompt_lookup":
        generate = {
            "prompt_lookup_num_tokens": budget,
            "max_matching_ngram_size": drafter.get("prompt_lookup_max", 4),
        }
        configuration = {"generate": generate}
        arguments = "".join(f", {key}={value!r}" for key, value in generate.items())
    elif drafter and drafter["method"] == "early_exit":
        generate = {"assistant_early_exit": drafter["exit_layer"]}
        configuration = {"generate": generate, "target_generation_config": generation_config}
        lines.append(f"target.generation_config.update(**{generation_config!r})")
        arguments = f", assistant_early_exit={drafter['exit_layer']}"
    elif drafter:
        name = str(drafter["model"])
        configuration = {
            "generate": {"assistant_model": name},
            "assistant_generation_config": generation_config,
        }
        dtype = _dtype(drafter if drafter.get("dtype") else target)
        lines.append(f"assistant = AutoModelForCausalLM.from_pretrained({name!r}{dtype})")
        lines.append(f"assistant.generation_config.update(**{generation_config!r})")
        arguments = ", assistant_model=assistant"
    lines.append('inputs = tokenizer("your prompt", return_tensors="pt")')
    lines.append(f"output = target.generate(**inputs, max_new_tokens=128{arguments})")
    return {"configuration": configuration, "python": "\n".join(lines) + "\n"}


def _dtype(model: Model) -> str:
    """Return the ``dtype`` argument; empty if it is the checkpoint's own."""
    dtype = model.get("dtype")
    return "" if dtype in (None, "auto") else f", dtype={str(dtype)!r}"


ENGINES = {
    "vllm": Engine(
        "vLLM",
        ("draft_model", "prompt_lookup"),
        _vllm,
        notes={
            "draft_model": "vLLM 0.13 and older refuse draft models. Newer ones draft greedily: "
            'when sampling, add "draft_sample_method": "probabilistic" where there is one.',
        },
    ),
    "transformers": Engine(
        "transformers",
        ("draft_model", "early_exit", "prompt_lookup"),
        _transformers,
        notes={
            "speculation": "One sequence at a time (batch size 1).",
            "early_exit": "The target computes the exit's layers again; that is priced.",
            "prompt_lookup": "There is no prompt_lookup_min: shorter matches are drafted, too.",
        },
    ),
}


def export(plan: Plan, engine: str, models: Sequence[Model | None]) -> dict[str, Any]:
    """Return the best setting of ``plan``'s models that ``engine`` can express.

    Args:
        engine: ``vllm`` or ``transformers``.
        models: of each candidate, as a level of a hierarchy file (``{"method": "draft_model",
            "model": "PATH"}``, …), the target last (``{"model": "PATH"}``); ``None`` for a model
            that is not available.

    Returns:
        ``engine``, ``configuration`` (the engine's own options), ``command`` (vLLM) and
        ``python``: what to copy and paste; ``levels``, ``names``, ``num_speculative_tokens``,
        ``latency`` (ms a token), ``speedup``; ``loss_percent``: how much slower than the plan's
        best; ``note``: what the engine cannot express, and what that costs.

    Raises:
        HierspecError: there is no such engine, or ``models`` does not describe the plan's models.
    """
    if engine not in ENGINES:
        raise HierspecError(f"no engine called {engine!r}; there are: {', '.join(ENGINES)}")
    estimates, other_engine = plan.estimates, ENGINES[engine]
    target = models[-1] if models else None
    if len(models) != len(estimates.names) or not target or "model" not in target:
        raise HierspecError(
            f"models must describe the plan's {len(estimates.names)} models, smallest first, and "
            'end with the target: [..., {"model": "PATH"}]'
        )
    choice = best_setting(estimates, other_engine, models)
    chain = choice.chain
    drafter = None if chain.plain else models[chain.models[0]]
    loss = choice.ms / plan.best.ms - 1
    return {
        "engine": engine,
        **other_engine.write(target, drafter, 0 if chain.plain else chain.budgets[0]),
        "levels": list(chain.models),
        "names": [estimates.names[i] for i in chain.models],
        "num_speculative_tokens": list(chain.budgets),
        "latency": choice.ms,
        "speedup": estimates.plain_ms / choice.ms,
        "loss_percent": 100 * loss,
        "note": _note(plan, other_engine, models, choice, loss),
    }


def best_setting(
    estimates: Estimates, engine: Engine, models: Sequence[Model | None]
) -> PricedChain:
    """Return the fastest of plain decoding and one expressible drafter with its best budget."""
    target = estimates.target
    plain = Chain((target,))
    choices = [PricedChain(plain, latency(estimates, plain))]
    for i, model in enumerate(models[:-1]):
        if not estimates.can_draft(i, target) or inexpressible(engine, model):
            continue
        priced = estimates
        if model and model["method"] == "early_exit":
            priced = without_sharing(estimates, i)
        chains = [Chain((i, target), (budget,)) for budget in estimates.budgets]
        choices += [PricedChain(chain, latency(priced, chain)) for chain in chains]
    return min(choices, key=lambda choice: choice.ms)


def without_sharing(estimates: Estimates, exit_: int) -> Estimates:
    """Return estimates in which the target recomputes the exit's layers, as in other engines.

    The plan prices the target's call over an exit's tokens without the layers that the exit has
    run. Plain decoding pays all layers for one token; the call is scaled by that.
    """
    verify = np.array(estimates.verify_ms)
    remaining = verify[exit_, estimates.target]
    verify[exit_, estimates.target] = remaining * max(1.0, estimates.plain_ms / remaining[1])
    classes = tuple(without_sharing(part, exit_) for part in estimates.classes)
    return replace(estimates, verify_ms=verify, classes=classes)


def _note(
    plan: Plan, engine: Engine, models: Sequence[Model | None], choice: PricedChain, loss: float
) -> str:
    """Write sentences for people: first what is lost, then what else to know."""
    best, names = plan.best.chain, plan.estimates.names
    missing = _missing(best, engine, models, names)
    sentences = []
    if missing:
        sentences.append(f"{engine.name} cannot express {_join_with_or(missing)}.")
    if loss > 5e-4:
        sentences.append(
            f"This is expected to be {100 * loss:.1f} % slower a token than the full plan."
        )
    elif choice.chain == best:
        sentences.append("This is the whole plan: nothing is lost.")
    else:
        sentences.append("Nothing is expected to be lost against the full plan.")
    used = [models[i] or {} for i in choice.chain.models]
    if not choice.chain.plain:
        sentences += [
            engine.notes[key] for key in ("speculation", used[0]["method"]) if key in engine.notes
        ]
    if any(str(model.get("model", "")).startswith("zoo:") for model in used):
        sentences.append("zoo: names are known to hierspec only; give other engines a directory.")
    return " ".join(sentences)


def _missing(
    best: Chain, engine: Engine, models: Sequence[Model | None], names: Sequence[str]
) -> list[str]:
    """List the parts of the best chain that the engine cannot express."""
    parts = []
    if len(best.models) > 2:
        parts.append(f"{len(best.models)} levels ({' → '.join(names[i] for i in best.models)})")
    reasons = (inexpressible(engine, models[i]) for i in best.models[:-1])
    parts += dict.fromkeys(reason for reason in reasons if reason)
    parts += [f"the {best.order} order"] if best.order != "chain" else []
    return parts + (["a tail of the smallest model"] if best.tail else [])


def _join_with_or(parts: Sequence[str]) -> str:
    return " or ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)
