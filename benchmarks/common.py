"""What every benchmark shares: prompts, statistics, and a record of where it ran."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pack

from hierspec.utils import threads
from hierspec_lab.bench import summary
from hierspec_lab.bench.environment import environment
from hierspec_lab.bench.summary import quartiles as spread

os.environ.setdefault("HF_HUB_OFFLINE", "1")
threads.prepare()  # nothing above loads torch

__all__ = [
    "RESULTS",
    "ROOT",
    "chain_of",
    "chat_prompts",
    "decode",
    "environment",
    "provenance",
    "ratio",
    "read_prompts",
    "spread",
    "write",
]

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"


def provenance(data: dict[str, Any]) -> str:
    """Say of a result file where it was measured."""
    e = data["environment"]
    versions = ", ".join(f"{k} {v}" for k, v in e["versions"].items() if k != "hierspec")
    return (
        f"Commit {e['commit']}; {e['cpu']}, {e['threads']} threads; {versions}; load average "
        f"{' / '.join(str(x) for x in e['load_average'])} at the start."
    )


def ratio(numerators: Sequence[float], denominators: Sequence[float]) -> dict[str, Any]:
    """Return paired ratios, ready for JSON."""
    return summary.ratio(numerators, denominators).to_dict()


def read_prompts(path: Path) -> tuple[list[str], dict[str, Any]]:
    """Return the prompts of a file and what identifies it."""
    from hierspec.utils.prompts import read_prompt_file

    file = read_prompt_file(path)
    return list(file.prompts), {"file": file.name, "sha256": file.sha256}


def chat_prompts(
    path: Path, count: int, num_others: int, hierarchy: Any, tokens: int = 200
) -> tuple[list[list[int]], list[list[int]], dict[str, Any]]:
    """Return chats of a file or folder as token ids, to measure and profile on, and its identity.

    Args:
        hierarchy: whose plain decoding answers the turns that others follow, in ``tokens``.
    """
    from hierspec_lab.bench import chats

    conversations, identity = chats.read(path)
    turns, other_turns = chats.choose(conversations, count, num_others)

    def answer(ids: list[int]) -> str:
        return hierarchy.generate(ids, max_new_tokens=tokens).text

    measured, others = (
        chats.token_ids(hierarchy.tokenizer, part, answer) for part in (turns, other_turns)
    )
    return measured, others, identity


def chain_of(profile: Any, budgets: dict[str, int]) -> Any:
    """Return a chain of a profile's models by name; the target is left out of ``budgets``."""
    from hierspec.planner.estimates import Chain

    names = [model.name for model in profile.models]
    levels = sorted(names.index(name) for name in budgets)
    return Chain((*levels, len(names) - 1), tuple(budgets[names[i]] for i in levels))


def decode(
    hierarchy: Any, prompt: str | list[int], tokens: int, temperature: float, seed: int
) -> dict[str, Any]:
    """Generate one text; return its ms a token after the first, and how it went."""
    generation = hierarchy.start(
        [prompt], max_new_tokens=tokens, seed=seed, ignore_eos=True, temperature=temperature
    )
    for _ in generation:
        pass
    result = generation.results()[0]
    return {
        "ms": 1e3 * result.decode_seconds / (result.num_tokens - 1),
        "tokens_per_call": result.mean_acceptance_length,
        "prompt": result.num_prompt_tokens,
        "control": result.control,
    }


def write(name: str, data: dict[str, Any]) -> Path:
    """Write ``benchmarks/results/NAME.json``, packed."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / f"{name}.json"
    pack.write(path, data)
    print(f"wrote {path.relative_to(ROOT)}")
    return path
