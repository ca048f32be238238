"""Greedy output against plain greedy decoding, token for token.

Every preset, alone and in a ragged batch of eight: float32 for the shipped family, float64 for
seven tiny random architectures. The reference is transformers' own ``generate``.

With ``--chats`` a released model takes their place: every preset that applies to it, and its best
drafters, on chats in ``--dtype``; and a χ² test of sampled text, the joint distribution of the
first three tokens. The released model's part is written after every preset, and the same command
goes on.

    python benchmarks/equality.py --prompts humaneval.jsonl
    python benchmarks/equality.py --chats FOLDER --num-prompts 100 --name equality-smollm2
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import common
import torch

from hierspec import (
    Hierarchy,
    HierarchyConfig,
    HierspecError,
    SamplingParams,
    TargetConfig,
    preset,
)
from hierspec.config.build import build
from hierspec.config.checkpoints import Loaded
from hierspec.lm.weights import build_hf_model
from hierspec.presets import defaults
from hierspec.presets.registry import PRESETS
from hierspec.zoo import registry

sys.path.append(str(common.ROOT / "tests"))
from joint_law import chi_square, joint_law, sample
from tiny_models import FAMILIES, save_tiny


def reference(model: Any, prompt: list[int], tokens: int) -> list[int]:
    """Return transformers' greedy continuation."""
    ids = torch.tensor([prompt])
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    with torch.inference_mode():
        out = model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=tokens,
            do_sample=False,
        )
    return out[0, len(prompt) :].tolist()


def compare(
    hierarchy: Hierarchy, prompts: list[list[int]], expected: list[list[int]], tokens: int
) -> dict[str, Any]:
    """Count outputs that equal the reference: one at a time, and in ragged batches of eight."""
    options = {"max_new_tokens": tokens, "ignore_eos": True, "seed": 0}
    single = [list(hierarchy.generate(prompt, **options).token_ids) for prompt in prompts]
    batched: list[list[int]] = []
    for start in range(0, len(prompts), 8):
        results = hierarchy.generate_batch(prompts[start : start + 8], **options)
        batched += [list(result.token_ids) for result in results]
    return {
        "prompts": len(prompts),
        "equal_alone": sum(a == b for a, b in zip(single, expected, strict=True)),
        "equal_batch8": sum(a == b for a, b in zip(batched, expected, strict=True)),
        "first_difference": [
            next((i for i, (x, y) in enumerate(zip(a, b, strict=True)) if x != y), None)
            for a, b in zip(single, expected, strict=True)
            if a != b
        ],
    }


def shipped(prompts: list[str], tokens: int, target: str) -> dict[str, Any]:
    model = build_hf_model(registry.resolve(target), torch.float32).eval()
    rows: dict[str, Any] = {}
    ids: list[list[int]] = []
    expected: list[list[int]] = []
    for name in PRESETS:
        try:
            config = preset(name, TargetConfig(model=target, dtype="float32"))
        except HierspecError as error:  # too few smaller models
            print(f"{target} {name}: {error}", flush=True)
            continue
        hierarchy = Hierarchy.from_config(config)
        if not ids:
            ids = [hierarchy.tokenizer(prompt)["input_ids"] for prompt in prompts]
            expected = [reference(model, prompt, tokens) for prompt in ids]
        began = time.perf_counter()
        rows[name] = compare(hierarchy, ids, expected, tokens)
        rows[name]["seconds"] = round(time.perf_counter() - began, 1)
        print(f"{target} {name}: {rows[name]}", flush=True)
    return rows


def tiny(tokens: int) -> dict[str, Any]:
    rows: dict[str, Any] = {}
    generator = torch.Generator().manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        for family in FAMILIES:
            target = save_tiny(family, Path(folder) / f"{family}-target", seed=1, layers=4)
            drafts = [
                save_tiny(family, Path(folder) / f"{family}-{seed}", seed=seed, layers=2)
                for seed in (2, 3)
            ]
            from transformers import AutoModelForCausalLM

            model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float64).eval()
            prompts = [
                torch.randint(3, 90, (n,), generator=generator).tolist() for n in range(3, 11)
            ]
            expected = [reference(model, prompt, tokens) for prompt in prompts]
            for name in PRESETS:
                chosen = TargetConfig(model=str(target), dtype="float64")
                hierarchy = Hierarchy.from_config(preset(name, chosen, [str(d) for d in drafts]))
                rows[f"{family} {name}"] = compare(hierarchy, prompts, expected, tokens)
            print(family, "done", flush=True)
    return rows


TOP_K, FIRST = 6, 3  # candidates kept a token, and tokens whose joint distribution is held
FALSE_FAILURES = 1e-3  # of a run, all its tests together


def hierarchies(target: TargetConfig) -> Iterator[tuple[str, HierarchyConfig | str]]:
    """Yield the best drafters and every preset: a configuration, or why there is none."""
    yield "default", defaults.best_unmeasured(target)
    for name in PRESETS:
        if name == "autoregressive":
            continue
        try:
            yield name, preset(name, target)
        except HierspecError as error:
            yield name, str(error)


def chi_square_test(
    hierarchy: Hierarchy, prompts: list[list[int]], samples: int, tests: int
) -> dict[str, Any]:
    """Test the joint distribution of samples' first tokens, by prompt, against the target's.

    Fails where one p-value is below ``FALSE_FAILURES`` over the number of all tests (Bonferroni).
    """
    params = SamplingParams(temperature=1.0, top_k=TOP_K)
    limit, results = math.log10(FALSE_FAILURES / max(1, tests)), []
    for number, prompt in enumerate(prompts):
        joint = joint_law(hierarchy, prompt, params, FIRST)
        counts = sample(hierarchy, prompt, params, FIRST, samples, seed=number)
        results.append(chi_square(counts, joint))
    values = [result.log10_p for result in results]
    return {"log10_p": values, "limit": limit, "passes": min(values) >= limit, "samples": samples}


def released(args: argparse.Namespace) -> None:
    """Test greedy equality and χ² on a released model; the file has whatever is finished."""
    target = TargetConfig(model=args.targets[0], dtype=args.dtype)
    loaded, path = Loaded(), common.RESULTS / f"{args.name}.json"
    plain = Hierarchy(build(HierarchyConfig(target=target), loaded))
    ids, chi_ids, identity = common.chat_prompts(
        args.chats, args.num_prompts, args.chi_prompts, plain, args.tokens
    )
    if args.longest:
        ids, chi_ids = ([text[-args.longest :] for text in texts] for texts in (ids, chi_ids))
        identity["longest"] = args.longest
    settings = {
        "target": target.model,
        "dtype": target.dtype,
        "prompts": args.num_prompts,
        "tokens": args.tokens,
        "samples": args.samples,
        "chi_prompts": args.chi_prompts,
        **identity,
    }
    report: dict[str, Any] = {"environment": common.environment(), "settings": settings, "rows": {}}
    if path.exists() and (previous := json.loads(path.read_text()))["settings"] == settings:
        report["rows"] = previous["rows"]
    configs = [(n, c) for n, c in hierarchies(target) if not args.presets or n in args.presets]
    tests = sum(not isinstance(config, str) for _, config in configs) * args.chi_prompts
    report["false_failure_rate"] = FALSE_FAILURES
    options: dict[str, Any] = {"max_new_tokens": args.tokens, "ignore_eos": True, "seed": 0}
    expected: list[list[int]] = []
    began = time.monotonic()
    for name, config in configs:
        if name in report["rows"]:
            continue
        if args.time_limit is not None and time.monotonic() - began > 60 * args.time_limit:
            print("the time is up: the same command goes on")
            return
        if isinstance(config, str):
            report["rows"][name] = {"skipped": config}
            continue
        expected = expected or [list(plain.generate(i, **options).token_ids) for i in ids]
        hierarchy = Hierarchy(build(config, loaded))
        row: dict[str, Any] = {"hierarchy": config.to_dict()}
        try:
            row |= compare(hierarchy, ids, expected, args.tokens)
            if chi_ids:
                row["joint"] = chi_square_test(hierarchy, chi_ids, args.samples, tests)
        except HierspecError as error:  # a rule that is unsound where text is sampled
            row["refused"] = str(error)
        report["rows"][name] = row
        print(name, {k: v for k, v in row.items() if k != "hierarchy"}, flush=True)
        _write_sums(args.name, report)
    _write_sums(args.name, report)


def _write_sums(name: str, report: dict[str, Any]) -> None:
    rows = [row for row in report["rows"].values() if "prompts" in row]
    report["outputs"] = 2 * sum(row["prompts"] for row in rows)
    report["equal"] = sum(row["equal_alone"] + row["equal_batch8"] for row in rows)
    joint = [row["joint"]["passes"] for row in rows if "joint" in row]
    report["joint_tests_passed"], report["joint_tests"] = sum(joint), len(joint)
    common.write(name, report)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=Path)
    parser.add_argument("--chats", type=Path, help="prompt files of chats: a released model")
    parser.add_argument("--dtype", default="float32", help="of the released model")
    parser.add_argument("--presets", nargs="+", help="of the released model; default: all")
    parser.add_argument("--longest", type=int, help="cut chats to their last tokens: much faster")
    parser.add_argument("--samples", type=int, default=2000, help="a prompt, for each χ² test")
    parser.add_argument("--chi-prompts", type=int, default=2)
    parser.add_argument("--time-limit", type=float, help="minutes; the same command goes on then")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--name", default="equality")
    parser.add_argument("--num-prompts", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--targets", nargs="+")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.chats is not None:
        args.targets = args.targets or [defaults.SMOLLM2_NAME]
        print("expected: about 20 minutes a hierarchy for 100 prompts × 64 tokens", flush=True)
        released(args)
        return
    if args.prompts is None:
        parser.error("give --prompts, or --chats for a released model")
    args.targets = args.targets or ["zoo:large?eps=0.2"]
    prompts, identity = common.read_prompts(args.prompts)
    report: dict[str, Any] = {
        "environment": common.environment(prompts=identity),
        "tokens": args.tokens,
        "float64 tiny": tiny(min(args.tokens, 24)),
    }
    for target in args.targets:
        report[f"float32 {target}"] = shipped(prompts[: args.num_prompts], args.tokens, target)
    cells = [row for part in report.values() if isinstance(part, dict) for row in part.values()
             if isinstance(row, dict) and "prompts" in row]  # fmt: skip
    report["outputs"] = 2 * sum(row["prompts"] for row in cells)
    report["equal"] = sum(row["equal_alone"] + row["equal_batch8"] for row in cells)
    common.write(args.name, report)
    print(f"{report['equal']} of {report['outputs']} outputs equal plain greedy decoding")


if __name__ == "__main__":
    main()
