"""The best setting of a plan that another engine can express, in that engine's own form.

Other engines take one drafter below the target, or none. Among those settings the best is found
with the same latency model as the plan's, so that the note can say what the rest of the plan is
worth. Names of options as in vLLM's ``SpeculativeConfig`` and transformers' ``GenerationConfig``.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from hierspec.config import methods
from hierspec.config.chains import parse_level
from hierspec.config.levels import LevelConfig, method_name
from hierspec.config.schema import TargetConfig
from hierspec.errors import HierspecError
from hierspec.methods.draft_model import DraftModelConfig
from hierspec.methods.early_exit import EarlyExitConfig
from hierspec.methods.prompt_lookup import PromptLookupConfig
from hierspec.planner.estimates import Chain, Estimates
from hierspec.planner.latency import latency
from hierspec.planner.plan import Plan, PricedChain
from hierspec.utils.schema import validate


@dataclass(frozen=True, slots=True)
class OtherEngine:
    """Another engine and the settings it supports.

    Attributes:
        name: as people write it.
        can_draft: whether a level may be its one drafter.
        write: target, drafter with its budget or ``None`` → ``configuration`` and code to copy.
        note: a limit of all speculation there.
        limits: of single methods there.
    """

    name: str
    can_draft: Callable[[LevelConfig], bool]
    write: Callable[[TargetConfig, LevelConfig | None], dict[str, Any]]
    note: str = ""
    limits: Mapping[str, str] = field(default_factory=dict[str, str])


_DESCRIBED = {  # methods, in words
    "draft_model": "a draft model",
    "eagle3": "an EAGLE-3 drafter",
    "early_exit": "an early exit of the target",
    "ngram_table": "an n-gram table",
    "prompt_lookup": "prompt lookup",
    "quantized": "a copy of the target in fewer bits",
    "suffix": "a suffix automaton of the text",
}


def inexpressible(engine: OtherEngine, level: LevelConfig | None) -> str | None:
    """Return why ``engine`` cannot draft with a model; ``None`` if it can."""
    if level is None:
        return "a model that is not available"
    if not engine.can_draft(level):
        return _DESCRIBED.get(level.method, f"method {level.method}")
    if level.temperature is not None:
        return "a temperature of the drafter's own"
    if level.num_drafts > 1:
        return "several drafts of a place"
    if isinstance(level, EarlyExitConfig) and level.head is not None:
        return "a trained head of the exit's own"
    return level.window.signal and f"the {level.window.signal} window"


def _in_vllm(level: LevelConfig) -> dict[str, Any] | None:
    """Return a drafter as vLLM's ``speculative_config``; ``None``: it has no such method."""
    options: dict[str, Any] = {"num_speculative_tokens": level.num_speculative_tokens}
    if isinstance(level, DraftModelConfig):
        return {"method": "draft_model", "model": level.model, **options}
    if isinstance(level, PromptLookupConfig):
        options["prompt_lookup_max"] = level.prompt_lookup_max
        return {"method": "ngram", **options, "prompt_lookup_min": level.prompt_lookup_min}
    return None


def _vllm(target: TargetConfig, drafter: LevelConfig | None) -> dict[str, Any]:
    name = target.model
    command, keywords = f"vllm serve {shlex.quote(name)}", _dtype(target.dtype)
    if keywords:
        command += f" --dtype {shlex.quote(target.dtype)}"
    configuration: dict[str, Any] = {}
    if drafter is not None:
        speculative = _in_vllm(drafter)
        configuration = {"speculative_config": speculative}
        command += f" --speculative-config {shlex.quote(json.dumps(speculative))}"
        keywords += f", speculative_config={speculative!r}"
    python = f"from vllm import LLM\n\nllm = LLM(model={name!r}{keywords})\n"
    return {"configuration": configuration, "command": command, "python": python}


@dataclass(frozen=True, slots=True)
class Assistant:
    """A drafter as ``generate`` of transformers takes it.

    Attributes:
        generate: its arguments.
        configured: whose generation config has the budget: the ``target``'s, the ``assistant``'s
            (``model``), or none.
        model, dtype: of an assistant model.
    """

    generate: Mapping[str, Any]
    configured: Literal["", "target", "assistant"] = ""
    model: str = ""
    dtype: str | None = None


def _assistant(level: LevelConfig) -> Assistant | None:
    if isinstance(level, DraftModelConfig):
        return Assistant({"assistant_model": level.model}, "assistant", level.model, level.dtype)
    if isinstance(level, EarlyExitConfig):
        return Assistant({"assistant_early_exit": level.exit_layer}, "target")
    if isinstance(level, PromptLookupConfig):
        budget, longest = level.num_speculative_tokens, level.prompt_lookup_max
        return Assistant({"prompt_lookup_num_tokens": budget, "max_matching_ngram_size": longest})
    return None


def _transformers(target: TargetConfig, drafter: LevelConfig | None) -> dict[str, Any]:
    """Write ``generate``'s arguments and, apart, the drafter's generation config.

    ``generate`` reads the drafter's budget from the drafter's own generation config (the target's
    for an early exit): as an argument it would be ignored, and 20 tokens drafted.
    """
    file = _file(target.model)
    lines = [
        "from transformers import AutoModelForCausalLM, AutoTokenizer",
        "",
        f"tokenizer = AutoTokenizer.from_pretrained({file})",
        f"target = AutoModelForCausalLM.from_pretrained({file}{_dtype(target.dtype)})",
    ]
    budget = drafter.num_speculative_tokens if drafter else 0
    # A threshold above 0 would stop drafts early, which the plan did not price.
    generation_config = {
        "num_assistant_tokens": budget,
        "num_assistant_tokens_schedule": "constant",
        "assistant_confidence_threshold": 0.0,
    }
    configuration: dict[str, Any] = {}
    arguments = ""
    assistant = None if drafter is None else _assistant(drafter)
    if assistant is not None:
        configuration = {"generate": dict(assistant.generate)}
        shown = {key: repr(value) for key, value in assistant.generate.items()}
        if assistant.model:
            dtype = _dtype(assistant.dtype or target.dtype)
            lines.append(
                f"assistant = AutoModelForCausalLM.from_pretrained({_file(assistant.model)}{dtype})"
            )
            shown["assistant_model"] = "assistant"
        if assistant.configured:
            configuration[f"{assistant.configured}_generation_config"] = generation_config
            lines.append(
                f"{assistant.configured}.generation_config.update(**{generation_config!r})"
            )
        arguments = "".join(f", {key}={value}" for key, value in shown.items())
    lines.append('inputs = tokenizer("your prompt", return_tensors="pt")')
    lines.append(f"output = target.generate(**inputs, max_new_tokens=128{arguments})")
    return {"configuration": configuration, "python": "\n".join(lines) + "\n"}


def _file(model: str) -> str:
    """Return the arguments that name a model: of a GGUF file, its folder and its own name."""
    path = Path(model)
    return (
        f"{str(path.parent)!r}, gguf_file={path.name!r}" if path.suffix == ".gguf" else repr(model)
    )


def _dtype(dtype: str) -> str:
    """Return the ``dtype`` argument; empty if it is the checkpoint's own."""
    return "" if dtype == "auto" else f", dtype={dtype!r}"


ENGINES = {
    "vllm": OtherEngine(
        "vLLM",
        lambda level: _in_vllm(level) is not None,
        _vllm,
        limits={
            "draft_model": "vLLM 0.13 and older refuse draft models. Newer ones draft greedily: "
            'when sampling, add "draft_sample_method": "probabilistic" where there is one.',
        },
    ),
    "transformers": OtherEngine(
        "transformers",
        lambda level: _assistant(level) is not None,
        _transformers,
        "One sequence at a time (batch size 1).",
        {
            "early_exit": "The target computes the exit's layers again; that is priced. Families "
            "whose forward does not read num_hidden_layers have no exits there: it would run all.",
            "prompt_lookup": "There is no prompt_lookup_min: shorter matches are drafted, too.",
        },
    ),
}


def export(
    plan: Plan,
    engine: str,
    models: Sequence[Mapping[str, Any] | None],
    max_models: int | None = None,
    memory: int | None = None,
) -> dict[str, Any]:
    """Return the best setting of ``plan``'s models that ``engine`` can express.

    Args:
        engine: ``vllm`` or ``transformers``.
        models: of each candidate, as a level of a hierarchy file (``{"method": "draft_model",
            "model": "PATH"}``, …), the target last (``{"model": "PATH"}``); ``None`` for a model
            that is not available.
        max_models, memory: limits of the search, which hold for this setting, too.

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
    if len(models) != len(estimates.names) or "model" not in (models[-1] or {}):
        raise HierspecError(
            f"models must describe the plan's {len(estimates.names)} models, smallest first, and "
            'end with the target: [..., {"model": "PATH"}]'
        )
    target = validate(TargetConfig, models[-1], f"models[{estimates.target}]")
    drafters = [_parse_drafter(model, i) for i, model in enumerate(models[:-1])]
    for i in range(estimates.target):
        too_large = memory is not None and estimates.bytes((i, estimates.target)) > memory
        if too_large or max_models == 1:
            drafters[i] = None
    choice = best_setting(estimates, other_engine, drafters)
    chain, drafter = choice.chain, None
    if not chain.plain:
        level = drafters[chain.models[0]]
        assert level is not None  # it is expressible
        drafter = replace(level, num_speculative_tokens=chain.budgets[0])
    losses = _losses(plan, other_engine, drafters, choice)
    return {
        "engine": engine,
        **other_engine.write(target, drafter),
        "levels": list(chain.models),
        "names": [estimates.names[i] for i in chain.models],
        "num_speculative_tokens": list(chain.budgets),
        "latency": choice.ms,
        "speedup": estimates.plain_ms / choice.ms,
        "loss_percent": 100 * _loss(plan, choice),
        "note": " ".join([*losses, *_limits(other_engine, target, drafter)]),
    }


def _parse_drafter(model: Mapping[str, Any] | None, number: int) -> LevelConfig | None:
    if model is None:
        return None
    method = model.get("method")
    known = isinstance(method, str) and methods.find(method)
    if not known or not known.capabilities.planned:
        planned = [method_name(level) for level in methods.built_in() if level.capabilities.planned]
        raise HierspecError(f"a model's method is {method!r}; there are: {', '.join(planned)}")
    return parse_level(model, f"models[{number}]")


def best_setting(
    estimates: Estimates, engine: OtherEngine, drafters: Sequence[LevelConfig | None]
) -> PricedChain:
    """Return the fastest of plain decoding and one expressible drafter with its best budget."""
    target = estimates.target
    plain = Chain((target,))
    choices = [PricedChain(plain, latency(estimates, plain))]
    for i, level in enumerate(drafters):
        if not estimates.can_draft(i, target) or inexpressible(engine, level):
            continue
        priced = estimates
        if level is not None and level.capabilities.cache == "layers":
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


def _loss(plan: Plan, choice: PricedChain) -> float:
    """Return how much slower a token is than by the plan, both priced by the same model."""
    return choice.ms / latency(plan.estimates, plan.best.chain).ms_per_token - 1


def _losses(
    plan: Plan, engine: OtherEngine, drafters: Sequence[LevelConfig | None], choice: PricedChain
) -> list[str]:
    best = plan.best.chain
    missing = _missing(best, engine, drafters, plan.estimates.names)
    sentences = [f"{engine.name} cannot express {_join_with_or(missing)}."] if missing else []
    loss = _loss(plan, choice)
    if loss > 5e-4:
        sentences.append(
            f"This is expected to be {100 * loss:.1f} % slower a token than the full plan."
        )
    elif choice.chain == best:
        sentences.append("This is the whole plan: nothing is lost.")
    else:
        sentences.append("Nothing is expected to be lost against the full plan.")
    return sentences


def _limits(engine: OtherEngine, target: TargetConfig, drafter: LevelConfig | None) -> list[str]:
    names, sentences = [target.model], []
    if drafter is not None:
        names.append(drafter.files or "")
        notes = (engine.note, engine.limits.get(drafter.method, ""))
        sentences = [note for note in notes if note]
    if any(name.startswith("zoo:") for name in names):
        sentences.append("zoo: names are known to hierspec only; give other engines a directory.")
    return sentences


def _missing(
    best: Chain, engine: OtherEngine, drafters: Sequence[LevelConfig | None], names: Sequence[str]
) -> list[str]:
    parts = []
    if len(best.models) > 2:
        parts.append(f"{len(best.models)} levels ({' → '.join(names[i] for i in best.models)})")
    reasons = (inexpressible(engine, drafters[i]) for i in best.models[:-1])
    parts += dict.fromkeys(reason for reason in reasons if reason)
    parts += [f"the {best.order} order"] if best.order != "chain" else []
    return parts + (["a tail of the smallest model"] if best.tail else [])


def _join_with_or(parts: Sequence[str]) -> str:
    return " or ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)
