"""Hierarchies of the tiny family, by name, and what its target writes alone."""

import json
from pathlib import Path

import torch
from acceptance_cases import with_acceptance_head
from eagle3_cases import save_drafter
from loading import hierarchy_of

from hierspec import HierarchyConfig, TargetConfig, preset

PROMPTS = [
    [5, 9, 7],
    [11, 4, 4, 30, 8],
    [60],
    list(range(3, 40)),
    [7, 7, 7, 7],
    [80, 3],
    [2, 9],
    [42],
]


def draft(model, tokens, **more):
    return {"method": "draft_model", "model": model, "num_speculative_tokens": tokens, **more}


EXIT1 = {"method": "early_exit", "exit_layer": 1, "num_speculative_tokens": 2}
LOOK = {"method": "prompt_lookup", "num_speculative_tokens": 3}
ENTROPY = {"window": {"kind": "entropy"}}
CONFIGS = {
    "four levels, mixed": {
        "levels": [
            {**EXIT1, "window": {"kind": "confidence", "floor": 0.3}},
            draft("small", 3, verify="leading", top_m=2),
            draft("draft", 6, verify="tokenwise", **ENTROPY),
        ],
        "verify": "block",
    },
    "six levels": {
        "levels": [
            LOOK,
            EXIT1 | {"verify": "block"},
            EXIT1 | {"exit_layer": 2, "num_speculative_tokens": 3, "verify": "tokenwise"},
            draft("small", 4, verify="block"),
            draft("draft", 6, verify="block"),
        ],
    },
    "naive": {"levels": [draft("small", 2), draft("draft", 4, verify="block")], "verify": "naive"},
    "no bonus": {
        "levels": [EXIT1, EXIT1 | {"exit_layer": 2, "verify": "block", "bonus": False}],
        "verify": "tokenwise",
    },
    "tails": {
        "levels": [
            {
                "method": "concatenate",
                "repeat": 2,
                "parts": [[draft("small", 2), draft("draft", 2, verify="block")], LOOK, EXIT1],
            }
        ],
    },
}


def plain_greedy(path, prompts, tokens, dtype=torch.float64):
    """The reference: argmax over transformers' own forward, whole context each time."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(path, dtype=dtype)
    out = []
    for prompt in prompts:
        ids = list(prompt)
        with torch.no_grad():
            for _ in range(tokens):
                ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
        out.append(tuple(ids[len(prompt) :]))
    return out


def built(tiny_family, name):
    """A preset, or one of ``CONFIGS`` with the models' paths in the place of their names."""
    target = TargetConfig(model=tiny_family["target"], dtype="float64")
    if name in CONFIGS:
        text = json.dumps(
            {"target": {"model": target.model, "dtype": target.dtype}} | CONFIGS[name]
        )
        for model in ("small", "draft"):
            text = text.replace(f'"{model}"', json.dumps(tiny_family[model]))
        return hierarchy_of(HierarchyConfig.load(text))
    drafts = [tiny_family["small"], tiny_family["draft"]]
    if name == "eagle3":
        drafts = [eagle3_drafter(target.model)]
    if name == "specdec++":
        drafts = [predicting_draft(tiny_family["small"])]
    return hierarchy_of(preset(name, target, drafts))


def eagle3_drafter(target):
    """The folder of a random one, beside the target."""
    from transformers import AutoConfig

    folder = Path(target).with_name("eagle3")
    return folder if folder.is_dir() else save_drafter(folder, AutoConfig.from_pretrained(target))


def predicting_draft(model):
    """The folder of a copy with an acceptance head, beside the model."""
    folder = Path(model).with_name("predicting")
    return str(folder) if folder.is_dir() else with_acceptance_head(model, folder)
