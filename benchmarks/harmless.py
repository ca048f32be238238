"""Online control: what it costs where no draft is any good, and what it wins on mixed prompts.

Useless drafts are made in two ways, both against estimates that promise good ones: temperature 2,
and drafters of the same shape with random weights. Then code and prose prompts are mixed, and the
controller is compared with the best static plan for that mix, found by trying several on it.

    python benchmarks/harmless.py --prompts humaneval.jsonl --other-prompts gsm8k.jsonl
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import tempfile
from pathlib import Path
from typing import Any

import common
import torch

from hierspec import Hierarchy, HierarchyConfig, TargetConfig
from hierspec.config.build import build
from hierspec.config.checkpoints import Loaded
from hierspec.planner.estimates import Chain
from hierspec.planner.online.controller import OnlineController
from hierspec.profiling.auto import plan_of
from hierspec.profiling.candidates import parse
from hierspec.profiling.profile import from_dict
from hierspec.profiling.settings import ProfileSettings
from hierspec.zoo import registry
from hierspec_lab.planning.thorough import measure

TARGET = "zoo:large?eps=0.2"
CANDIDATES = ("ngram", "zoo:small", "zoo:mid", "zoo:trunk")
STATIC: list[dict[str, int]] = [
    {"zoo:trunk": 8},
    {"zoo:trunk": 4},
    {"zoo:small": 3},
    {"zoo:small": 2, "zoo:trunk": 8},
    {"zoo:small": 3, "zoo:trunk": 12},
]


def random_twin(name: str, folder: Path, seed: int) -> str:
    """Save a model of the same shape and tokenizer with random weights; return its path."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source = registry.resolve(name)
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(source.config, dtype=torch.bfloat16)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.normal_(0.0, weight.shape[-1] ** -0.5)
    path = folder / name.partition(":")[2]
    model.save_pretrained(path)
    AutoTokenizer.from_pretrained(source.tokenizer_path).save_pretrained(path)
    return str(path)


def with_models(config: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    """Return a hierarchy file with some models replaced by others."""
    levels = [
        {**level, "model": names.get(level["model"], level["model"])} if "model" in level else level
        for level in config["levels"]
    ]
    return {**config, "levels": levels}


def compare(
    methods: dict[str, Hierarchy], prompts: list[str], tokens: int, temperature: float, label: str
) -> dict[str, list[dict]]:
    runs: dict[str, list[dict]] = {name: [] for name in methods}
    for hierarchy in methods.values():
        common.decode(hierarchy, prompts[0], 16, temperature, 99)
    names = list(methods)
    for seed, prompt in enumerate(prompts):
        for name in names[seed % len(names) :] + names[: seed % len(names)]:
            runs[name].append(common.decode(methods[name], prompt, tokens, temperature, seed))
    print(
        label,
        {name: round(statistics.median(r["ms"] for r in rows), 2) for name, rows in runs.items()},
        flush=True,
    )
    return runs


def loss(runs: dict[str, list[dict]], name: str) -> dict[str, Any]:
    """Compare a method's times with plain decoding's, by prompt; count its rounds by plan."""
    times = {key: [r["ms"] for r in rows] for key, rows in runs.items()}
    rounds: dict[str, int] = {}
    for run in runs[name]:
        for plan_, count in ((run["control"] or {}).get("rounds") or {}).items():
            key = re.sub(r"\S*/(\w+)", r"random \1", plan_)
            rounds[key] = rounds.get(key, 0) + count
    return {
        "over_plain": common.ratio(times[name], times["plain"]),
        "mean_over_plain": sum(times[name]) / sum(times["plain"]),
        "ms": common.spread(times[name]),
        "rounds": rounds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--other-prompts", type=Path, required=True)
    parser.add_argument("--num-prompts", type=int, default=12)
    parser.add_argument("--long", type=int, default=512)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--keep", type=Path, help="folder for the profile, reused if there")
    parser.add_argument("--name", default="harmless")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    code, identity = common.read_prompts(args.prompts)
    prose, other_identity = common.read_prompts(args.other_prompts)
    n = args.num_prompts
    loaded = Loaded()
    data = measure(
        TargetConfig(model=TARGET),
        [parse(name) for name in CANDIDATES],
        code[1::2],
        [1.0],
        ProfileSettings(),
        path=args.keep / "harmless.json" if args.keep else None,
        loaded=loaded,
    )
    profile = from_dict(data)
    estimates = profile.estimates(1.0)
    best = plan_of(profile, 1.0).best.chain
    three = common.chain_of(profile, {"zoo:small": 3, "zoo:trunk": 12})
    report: dict[str, Any] = {
        "environment": common.environment(prompts=identity, other_prompts=other_identity),
        "note": "decoding only, after the first token; reading the prompt by drafters included",
        "target": TARGET,
        "planned": {"levels": best.models, "num_speculative_tokens": best.budgets},
        "useless": {},
    }

    def make(chain: Chain, online: bool, names: dict[str, str] | None = None) -> Hierarchy:
        config = with_models(profile.hierarchy(chain), names or {})
        built = build(HierarchyConfig.from_dict(config), loaded)
        if not online:
            return Hierarchy(built)
        return Hierarchy(built, controller=OnlineController(built.root, estimates, chain))

    plain = make(Chain((estimates.target,)), False)
    with tempfile.TemporaryDirectory() as folder:
        twins = {
            name: random_twin(name, Path(folder), seed)
            for seed, name in enumerate(("zoo:small", "zoo:mid", "zoo:trunk"))
        }
        for label, temperature, names in (
            ("temperature 2", 2.0, None),
            ("random drafters", 1.0, twins),
        ):
            methods = {
                "plain": plain,
                "static": make(three, False, names),
                "online": make(three, True, names),
            }
            for tokens in (64, args.long):
                subset = code[: 2 * n : 2] if tokens == 64 else code[: 2 * max(4, n // 2) : 2]
                runs = compare(methods, subset, tokens, temperature, f"{label}, {tokens} tokens")
                report["useless"][f"{label}, {tokens} tokens"] = {
                    name: loss(runs, name) for name in ("static", "online")
                }
    mixed = [text for pair in zip(code[: 2 * n : 2], prose[:n], strict=True) for text in pair]
    methods = {"plain": plain, "online": make(best if len(best.levels) > 1 else three, True)}
    if not best.plain:
        methods["planned"] = make(best, False)
    for budgets in STATIC:
        methods[" > ".join(f"{k} {v}" for k, v in budgets.items())] = make(
            common.chain_of(profile, budgets), False
        )
    runs = compare(methods, mixed, 128, 1.0, "mixed prompts")
    times = {name: [r["ms"] for r in rows] for name, rows in runs.items()}
    static = min((name for name in times if name != "online"), key=lambda name: sum(times[name]))
    report["mixed"] = {
        "methods": {name: loss(runs, name) for name in methods},
        "best_static": static,
        "online_over_best_static": common.ratio(times["online"], times[static]),
        "mean_online_over_best_static": sum(times["online"]) / sum(times[static]),
    }
    print(json.dumps(report["mixed"]["online_over_best_static"]))
    for label, cell in report["useless"].items():
        print(label, {k: round(v["over_plain"]["median"], 3) for k, v in cell.items()})
    report["environment"]["load_average_after"] = common.environment()["load_average"]
    common.write(args.name, report)


if __name__ == "__main__":
    main()
