"""What other engines can be told, and how: one drafter below the target, or none.

Names of options as in vLLM's ``SpeculativeConfig`` and transformers' ``GenerationConfig``.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Model = Mapping[str, Any]
WORDS = {
    "draft_model": "a draft model",
    "early_exit": "an early exit of the target",
    "prompt_lookup": "prompt lookup",
    "ngram_table": "an n-gram table",
}


@dataclass(frozen=True, slots=True)
class Engine:
    """What an engine can be told.

    Attributes:
        name: as people write it.
        methods: that its one drafter may have, in the hierarchy file's words.
        write: target, drafter or ``None``, budget → ``configuration`` and a line to copy.
        about: what to know of a method (of any, under ``speculation``) beyond its options.
    """

    name: str
    methods: tuple[str, ...]
    write: Callable[[Model, Model | None, int], dict[str, Any]]
    about: Mapping[str, str]


def inexpressible(engine: Engine, model: Model | None) -> str | None:
    """Why ``engine`` cannot draft with ``model``; ``None``: it can."""
    if model is None:
        return "a model that is not at hand"
    method = model.get("method")
    if method not in WORDS:
        raise ValueError(f"a model's method is {method!r}; there are: {', '.join(WORDS)}")
    if method not in engine.methods:
        return WORDS[method]
    if model.get("temperature") is not None:
        return "a temperature of the drafter's own"
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
    """``configuration``: arguments of ``generate`` and, apart, the drafter's generation config.

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
    own = {
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
        configuration = {"generate": generate, "target_generation_config": own}
        lines.append(f"target.generation_config.update(**{own!r})")
        arguments = f", assistant_early_exit={drafter['exit_layer']}"
    elif drafter:
        name = str(drafter["model"])
        configuration = {
            "generate": {"assistant_model": name},
            "assistant_generation_config": own,
        }
        own_dtype = _dtype(drafter if drafter.get("dtype") else target)
        lines.append(f"assistant = AutoModelForCausalLM.from_pretrained({name!r}{own_dtype})")
        lines.append(f"assistant.generation_config.update(**{own!r})")
        arguments = ", assistant_model=assistant"
    lines.append('inputs = tokenizer("your prompt", return_tensors="pt")')
    lines.append(f"output = target.generate(**inputs, max_new_tokens=128{arguments})")
    return {"configuration": configuration, "python": "\n".join(lines) + "\n"}


def _dtype(model: Model) -> str:
    """An argument that says it, where it is not the checkpoint's own."""
    dtype = model.get("dtype")
    return "" if dtype in (None, "auto") else f", dtype={str(dtype)!r}"


ENGINES = {
    "vllm": Engine(
        "vLLM",
        ("draft_model", "prompt_lookup"),
        _vllm,
        about={
            "draft_model": "vLLM 0.13 and older refuse draft models. Newer ones draft greedily: "
            'when sampling, add "draft_sample_method": "probabilistic" where there is one.',
        },
    ),
    "transformers": Engine(
        "transformers",
        ("draft_model", "early_exit", "prompt_lookup"),
        _transformers,
        about={
            "speculation": "One sequence at a time (batch size 1).",
            "early_exit": "The target computes the exit's layers again; that is priced.",
            "prompt_lookup": "There is no prompt_lookup_min: shorter matches are drafted, too.",
        },
    ),
}
