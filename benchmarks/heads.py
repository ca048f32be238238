"""Exit heads: acceptance before and after training, and tokens per target call while decoding.

``zoo:large``'s exits were trained with the trunk (its layers 2 and 4 are the trunk's 1 and 2);
those of ``zoo:mid`` never were. Counts only, nothing is timed.

    python benchmarks/heads.py --prompts humaneval.jsonl
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path
from typing import Any

import common

CASES = (
    ("zoo:mid", "transform", (1, 2, 3)),
    ("zoo:mid", "full", (1, 2, 3)),
    ("zoo:large?eps=0.2", "transform", (2, 4, 6)),
)
DRAFT = 4
NEW_TOKENS = 64


def tokens_per_call(
    model: str, layer: int, head: Path | None, prompts: list[str], temperature: float
) -> float:
    """Return the mean over prompts, with one exit drafting four tokens for the target."""
    from hierspec import Hierarchy

    level: dict[str, Any] = {
        "method": "early_exit",
        "exit_layer": layer,
        "num_speculative_tokens": DRAFT,
    }
    if head is not None:
        level["head"] = str(head)
    hierarchy = Hierarchy.from_config({"target": {"model": model}, "levels": [level]})
    results = hierarchy.generate_batch(
        prompts, max_new_tokens=NEW_TOKENS, temperature=temperature, seed=0, ignore_eos=True
    )
    return round(statistics.mean(r.mean_acceptance_length for r in results), 4)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--num-prompts", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=40_000)
    args = parser.parse_args()

    from hierspec_lab.training.heads.settings import HeadsSettings
    from hierspec_lab.training.heads.train import train

    prompts, source = common.read_prompts(args.prompts)
    prompts = prompts[: args.num_prompts]
    results = []
    with tempfile.TemporaryDirectory() as folder:
        for number, (name, kind, exits) in enumerate(CASES):
            path = Path(folder) / f"{number}.safetensors"
            settings = HeadsSettings(exits=exits, kind=kind, tokens=args.tokens)
            info = train(name, settings, path).info.to_dict()
            print(name, kind, info["before"], info["after"], f"{info['seconds']} s", flush=True)
            decoded = {}
            for layer in exits:
                for temperature in (0.0, 1.0):
                    own, trained = (
                        tokens_per_call(name, layer, head, prompts, temperature)
                        for head in (None, path)
                    )
                    row = {"before": own, "after": trained}
                    decoded[f"exit {layer}, temperature {temperature:g}"] = row
                    print(name, layer, temperature, row, flush=True)
            kept = ("kind", "settings", "parameters", "steps", "seconds", "dtype", "texts")
            result = {
                "model": name,
                **{key: info[key] for key in kept},
                "held_out": {"before": info["before"], "after": info["after"]},
                "tokens_per_target_call": decoded,
            }
            results.append(result)
    prompts_used = {**source, "used": len(prompts), "new_tokens": NEW_TOKENS, "draft": DRAFT}
    common.write(
        "heads", {"environment": common.environment(), "prompts": prompts_used, "results": results}
    )


if __name__ == "__main__":
    main()
