"""Is quality unchanged? Answers to GSM8K with drafts and without, on a released model.

Greedy, in float32: every answer must be plain decoding's, token for token. At temperature 1: the
share of right answers with and without drafts, with 95 % intervals (Wilson) and of their difference
(Newcombe). One question at a time greedily, batches of eight at temperature 1. The results file is
written after every question or batch, and the same command goes on where it was.

    python benchmarks/quality.py --prompts gsm8k.jsonl --time-limit 60
"""

from __future__ import annotations

import argparse
import json
import math
import re
import time
from pathlib import Path
from typing import Any

import common
import torch

from hierspec import Hierarchy, TargetConfig
from hierspec.config.build import build
from hierspec.config.checkpoints import Loaded
from hierspec.config.schema import HierarchyConfig
from hierspec.presets import defaults
from hierspec.utils.prompts import apply_chat

ASK = "\nThink step by step. End with the answer as a number alone on the last line."
BATCH = 8
_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")


def answer(text: str) -> float | None:
    """Return the last number of a text."""
    numbers = _NUMBER.findall(text)
    return float(numbers[-1].replace(",", "")) if numbers else None


def interval(right: int, n: int, z: float = 1.96) -> tuple[float, float]:
    """Return Wilson's interval of a share (1927)."""
    if n == 0:
        return 0.0, 1.0
    share = right / n
    middle = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    return middle - half, middle + half


def difference(a: tuple[int, int], b: tuple[int, int]) -> tuple[float, float, float]:
    """Return a − b of two shares (right, n), and its 95 % interval (Newcombe 1998, method 10)."""
    p, q = a[0] / max(1, a[1]), b[0] / max(1, b[1])
    (low_p, high_p), (low_q, high_q) = interval(*a), interval(*b)
    down = math.hypot(p - low_p, high_q - q)
    up = math.hypot(high_p - p, q - low_q)
    return p - q, p - q - down, p - q + up


def summed(rows: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    """Sum right answers of a kind of rows: plain decoding's and the hierarchy's."""
    matching = [row for row in rows if row["kind"] == kind]
    right = {
        method: sum(row[method]["right"] for row in matching) for method in ("plain", "drafted")
    }
    n = len(matching)
    out: dict[str, Any] = {"questions": n}
    for method, count in right.items():
        out[method] = {"right": count, "share": count / max(1, n), "interval95": interval(count, n)}
    out["difference"] = difference((right["drafted"], n), (right["plain"], n))
    if kind == "greedy":
        out["equal"] = sum(row["equal"] for row in matching)
    return out


class Quality:
    """The questions and the answers so far; written to a file after every step."""

    def __init__(self, path: Path, head: dict[str, Any], questions: list[dict[str, Any]]) -> None:
        self.path, self.head, self.questions = path, head, questions
        self.rows: list[dict[str, Any]] = []
        if path.exists():
            data = json.loads(path.read_text())
            if data["settings"] == head["settings"]:
                self.rows = data["rows"]

    def todo(self, kind: str) -> list[int]:
        """Return the numbers of the questions that lack an answer of a kind."""
        answered = {row["question"] for row in self.rows if row["kind"] == kind}
        return [i for i in range(len(self.questions)) if i not in answered]

    def add(self, kind: str, number: int, plain: Any, drafted: Any) -> None:
        truth = answer(self.questions[number]["answer"])
        row: dict[str, Any] = {"kind": kind, "question": number}
        for method, result in (("plain", plain), ("drafted", drafted)):
            predicted = answer(result.text)
            row[method] = {
                "answer": predicted,
                "right": predicted is not None and predicted == truth,
                "tokens": result.num_tokens,
                "seconds": result.decode_seconds,
            }
        row["equal"] = plain.token_ids == drafted.token_ids
        self.rows.append(row)

    def save(self) -> None:
        summary = {kind: summed(self.rows, kind) for kind in ("greedy", "temperature 1")}
        common.write(self.path.stem, {**self.head, "summary": summary, "rows": self.rows})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=Path, required=True, help="gsm8k.jsonl")
    parser.add_argument("--target", default=defaults.SMOLLM2_NAME)
    parser.add_argument("--hierarchy", help="file or JSON; default: the best drafters shipped")
    parser.add_argument("--num-questions", type=int, default=100)
    parser.add_argument("--tokens", type=int, default=320)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--time-limit", type=float, help="minutes; the same command goes on then")
    parser.add_argument("--name", default="quality")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    began = time.monotonic()
    print("expected: 100 questions take about 40 minutes at 25 ms a token", flush=True)
    target = TargetConfig(model=args.target, dtype="float32")
    config = defaults.best_unmeasured(target)
    if args.hierarchy:
        config = HierarchyConfig.load(args.hierarchy)
    loaded = Loaded()
    drafted = Hierarchy(build(config, loaded))
    plain = Hierarchy(build(HierarchyConfig(target=config.target), loaded))
    lines = args.prompts.read_text(encoding="utf-8").splitlines()
    questions = [json.loads(line) for line in lines if line.strip()][: args.num_questions]
    _, identity = common.read_prompts(args.prompts)
    head = {
        "environment": common.environment(prompts=identity),
        "settings": {"hierarchy": config.to_dict(), "tokens": args.tokens, **identity},
    }
    quality = Quality(common.RESULTS / f"{args.name}.json", head, questions)
    ids = [apply_chat(plain.tokenizer, row["question"] + ASK) for row in questions]

    def late() -> bool:
        spent = (time.monotonic() - began) / 60
        return args.time_limit is not None and spent > args.time_limit

    todo = quality.todo("greedy")
    for number in todo:
        if late():
            break
        options: dict[str, Any] = {"max_new_tokens": args.tokens, "seed": number}
        pair = plain.generate(ids[number], **options), drafted.generate(ids[number], **options)
        quality.add("greedy", number, *pair)
        quality.save()
    todo = quality.todo("temperature 1")
    for start in range(0, len(todo), BATCH):
        if late():
            break
        chunk = todo[start : start + BATCH]
        options = {"max_new_tokens": args.tokens, "temperature": 1.0}
        texts = [ids[number] for number in chunk]
        pairs = zip(
            plain.generate_batch(texts, seed=1 + chunk[0], **options),
            drafted.generate_batch(texts, seed=1_000_001 + chunk[0], **options),
            strict=True,
        )
        for number, results in zip(chunk, pairs, strict=True):
            quality.add("temperature 1", number, *results)
        quality.save()
    for kind in ("greedy", "temperature 1"):
        print(kind, json.dumps(summed(quality.rows, kind)))


if __name__ == "__main__":
    main()
