"""What ``unchanged.py`` runs: hierarchies, requests, certificate cases, planning problems.

All of it is fixed: a change here makes every recorded file worthless.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

PRESETS = (
    *("autoregressive", "speculative", "hierarchy", "self-speculative", "horizontal-tail"),
    *("tempered", "hispec", "layerskip", "branch", "naive", "multi-draft"),
    *("multi-draft-tokenwise", "dynamic-windows", "self-verify", "pre-verify"),
    *("pre-self-verify", "interleaved", "horizontal", "prompt-lookup", "swift", "adadecode"),
    "lookahead",
)
ON_LARGE = ("speculative", "hispec", "dynamic-windows")  # on the shipped target, with greedy only
DRAFTS = ("zoo:small", "zoo:mid")
TARGET = {"model": "zoo:trunk", "dtype": "float32"}

PROMPTS: tuple[str | list[int], ...] = (
    "def quicksort(items):\n",
    "import os\nimport sys\n\n\ndef main(argv):\n    for name in argv:\n",
    "for i in range(10):\n    print(i)\nfor i in range(10):\n    print(i)\nfor i in",
    'class Stack:\n    """A last-in, first-out list."""\n\n    def push(self, item):\n',
    [295, 291, 8, 88, 265],
    "x = 1\n",
    "The quick brown fox jumps over the lazy dog. The quick brown",
)

REQUESTS: dict[str, dict[str, Any]] = {
    "greedy": {"batch": 1, "max_new_tokens": 24},
    "greedy-penalties": {
        "batch": 3,
        "max_new_tokens": 20,
        "repetition_penalty": 1.2,
        "frequency_penalty": 0.3,
        "presence_penalty": 0.2,
    },
    "one": {"batch": 1, "max_new_tokens": 32, "temperature": 1.0, "ignore_eos": True},
    "five": {"batch": 5, "max_new_tokens": 16, "temperature": 0.7},
    "truncated": {
        "batch": 3,
        "max_new_tokens": 16,
        "temperature": 1.0,
        "top_p": 0.9,
        "top_k": 40,
        "repetition_penalty": 1.1,
    },
    "stop": {
        "batch": 3,
        "max_new_tokens": 24,
        "temperature": 0.7,
        "stop": ["\n\n", "return", "):"],
        "include_stop_str": True,
    },
    "biased": {
        "batch": 1,
        "max_new_tokens": 24,
        "temperature": 0.7,
        "min_p": 0.05,
        "logit_bias": {199: -2.0, 291: 1.5, 8: float("-inf")},
        "eos_token_id": [259],
        "logprobs": True,
    },
    "mixed": {
        "batch": 3,
        "max_new_tokens": 16,
        "sampling": [
            {"temperature": 1.0, "presence_penalty": 0.5},
            {},
            {"temperature": 0.7, "top_k": 5},
        ],
    },
}


def _small(tokens: int, **extra: Any) -> dict[str, Any]:
    return {
        "method": "draft_model",
        "model": "zoo:small",
        "num_speculative_tokens": tokens,
        **extra,
    }


def _mid(tokens: int, **extra: Any) -> dict[str, Any]:
    return _small(tokens, model="zoo:mid", **extra)


def _exit(layer: int, tokens: int, **extra: Any) -> dict[str, Any]:
    return {
        "method": "early_exit",
        "exit_layer": layer,
        "num_speculative_tokens": tokens,
        **extra,
    }


def _look_up(method: str, tokens: int, **extra: Any) -> dict[str, Any]:
    return {"method": method, "num_speculative_tokens": tokens, **extra}


def _concatenated(*parts: Any, repeat: int = 1) -> dict[str, Any]:
    return {"method": "concatenate", "repeat": repeat, "parts": list(parts)}


_ENTROPY = {"kind": "entropy"}
_SURE = {"kind": "confidence", "floor": 0.4}

# Levels smallest first, then what stands beside them in the file.
_ODD: dict[str, tuple[list[dict[str, Any]], dict[str, Any]]] = {
    "four levels": (
        [
            _look_up("ngram_table", 2, max_order=3),
            _small(3, verify="tokenwise"),
            _mid(6, verify="block"),
        ],
        {"verify": "block"},
    ),
    "five levels of exits": (
        [
            _look_up("ngram_table", 1),
            _exit(1, 2, verify="block"),
            _exit(2, 3, verify="tokenwise"),
            _exit(4, 5, verify="block"),
        ],
        {"verify": "tokenwise"},
    ),
    "an exit above a model": ([_small(3), _exit(4, 6, verify="block")], {"verify": "block"}),
    "mid then small": ([_concatenated(_mid(3), _small(2))], {"verify": "tokenwise"}),
    "chains in turn": (
        [
            _concatenated(
                [_look_up("ngram_table", 1), _small(2, verify="tokenwise")],
                _exit(2, 1),
                repeat=2,
            )
        ],
        {"verify": "block"},
    ),
    "a concatenation below": (
        [
            _concatenated(_small(2), _look_up("prompt_lookup", 2), repeat=2),
            _mid(6, verify="block"),
        ],
        {"verify": "tokenwise"},
    ),
    "adapting windows": (
        [_small(6, window=_ENTROPY), _mid(8, verify="tokenwise", window=_ENTROPY)],
        {"verify": "block"},
    ),
    "a threshold": ([_small(8, window={**_ENTROPY, "threshold": 1.5})], {"verify": "block"}),
    "confidence": ([_small(8, window=_SURE), _mid(8, window=_SURE)], {"verify": "tokenwise"}),
    "leading below": ([_small(3), _mid(5, verify="leading")], {"verify": "block"}),
    "leading of three": ([_exit(1, 3), _exit(2, 4, verify="leading", top_m=3)], {}),
    "leading at the target": (
        [_small(4)],
        {"verify": "leading", "top_m": 2, "allow_lossy": True},
    ),
    "naive above naive": ([_small(2), _mid(4, verify="naive")], {"verify": "naive"}),
    "naive above windows": ([_small(4, window=_ENTROPY)], {"verify": "naive"}),
    "uncapped": ([_small(4)], {"verify": "uncapped", "allow_lossy": True}),
    "three drafts, rrs": ([_small(3, num_drafts=3)], {"verify": "rrs"}),
    "distinct drafts": (
        [_small(3, num_drafts=3)],
        {"verify": "rrs-without-replacement"},
    ),
    "three drafts of an exit": ([_exit(2, 3, num_drafts=3)], {"verify": "block-rrs"}),
    "several drafts below": (
        [_small(2, num_drafts=2), _mid(5, verify="block-rrs")],
        {"verify": "block"},
    ),
    "an n-gram table": ([_look_up("ngram_table", 4, max_order=2)], {"verify": "block"}),
    "prompt look-up": (
        [_look_up("prompt_lookup", 5, prompt_lookup_min=1, prompt_lookup_max=3)],
        {"verify": "block"},
    ),
    "a pool below a model": (
        [_look_up("ngram_pool", 3, ngram_max=3), _small(5, verify="tokenwise")],
        {"verify": "block"},
    ),
    "a shared pool": (
        [_look_up("ngram_pool", 4, shared=True, ngram_min=2)],
        {"verify": "tokenwise"},
    ),
    "an adaptive exit": (
        [
            _look_up("ngram_pool", 2),
            _look_up("adaptive_exit", 4, exit_layers=[1, 2, 4], confidence=0.5, verify="block"),
        ],
        {"verify": "block"},
    ),
    "skipped layers": (
        [_look_up("layer_skip", 4, skip_layers=[2, 3, 5])],
        {"verify": "tokenwise"},
    ),
    "a skipped share": ([_small(2), _look_up("layer_skip", 5, skip=0.5)], {"verify": "block"}),
    "dropped bonuses": (
        [_look_up("ngram_table", 2), _small(4, bonus=False), _mid(6, bonus=False)],
        {"verify": "block"},
    ),
    "temperatures": (
        [_small(3, temperature=0.0), _mid(6, verify="block", temperature=1.5)],
        {"verify": "block"},
    ),
    "other temperatures": ([_exit(2, 4, temperature=0.4)], {"verify": "tokenwise"}),
    "by transformers": ([_small(4)], {"target": {**TARGET, "backend": "hf"}}),
    "greater than its target": ([_mid(4)], {"target": {**TARGET, "model": "zoo:small"}}),
}

ODD = {
    name: {"target": TARGET, "levels": levels, **extra} for name, (levels, extra) in _ODD.items()
}


# -- certificates ---------------------------------------------------------------------------------

SEEDS = range(60)  # some are refused, as they should be: that is recorded as well


def certificate_cases() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield small random cases by name; the same ones every time."""
    for seed in SEEDS:
        yield f"random {seed}", _case(random.Random(seed))


def _case(rng: random.Random) -> dict[str, Any]:
    kind = rng.choice(["chain", "chain", "chain", "several", "concatenate", "control"])
    vocab, count = rng.choice([2, 2, 3]), rng.choice([2, 3, 3, 4])
    if kind == "concatenate":
        count = 3
    order = rng.choice([0, 1])
    models = [_model(rng, vocab, order) for _ in range(count)]
    max_budget = 3 if count == 2 else 2 if vocab == 2 and count == 3 else 1
    if kind == "concatenate":
        parts = [{"model": i, "num_speculative_tokens": rng.randint(1, 2)} for i in range(2)]
        levels = [{"method": "concatenate", "parts": parts, "repeat": rng.randint(1, 2)}]
        return {"vocab": vocab, "models": models, "levels": [*levels, _top(rng)]}
    levels: list[dict[str, Any]] = [{"num_speculative_tokens": rng.randint(1, max_budget)}]
    for _ in range(count - 2):
        levels.append(
            {
                "num_speculative_tokens": rng.randint(1, max_budget),
                "verify": rng.choice(["tokenwise", "block", "leading"]),
                "bonus": rng.random() < 0.7,
            }
        )
    for level in levels:
        if kind == "chain" and rng.random() < 0.4:
            level["window"] = rng.choice([_ENTROPY, {**_ENTROPY, "threshold": 0.6}, _SURE])
    case = {"vocab": vocab, "models": models, "levels": [*levels, _top(rng)]}
    if kind == "several":
        levels[0]["num_drafts"] = rng.randint(2, 3)
        case["levels"][1]["verify"] = rng.choice(["rrs", "rrs-without-replacement", "block-rrs"])
    if kind == "control":
        below = len(levels)
        plans = [[rng.randint(0, max_budget) for _ in range(below)] for _ in range(2)]
        case["control"] = [*plans, [0] * below]
    return case


def _top(rng: random.Random) -> dict[str, Any]:
    rules = ["tokenwise", "block", "block", "naive", "uncapped", "leading"]
    rule = rng.choice(rules)
    return {"verify": rule, "top_m": 2} if rule == "leading" else {"verify": rule}


def _model(rng: random.Random, vocab: int, order: int) -> dict[str, Any]:
    contexts = ["", *(str(token) for token in range(vocab))] if order else [""]
    return {"order": order, "table": {context: _row(rng, vocab) for context in contexts}}


def _row(rng: random.Random, vocab: int) -> list[float]:
    """Draw probabilities of three digits that add up to 1."""
    cuts = sorted(rng.randint(0, 1000) for _ in range(vocab - 1))
    ends = [0, *cuts, 1000]
    return [(high - low) / 1000 for low, high in pairwise(ends)]


# -- planning -------------------------------------------------------------------------------------

PROBLEMS: dict[str, dict[str, Any]] = {
    "two drafts": {"costs": [0.5, 3.0, 30.0], "acceptance": [[0, 0.8, 0.72], [0, 0, 0.9]]},
    "hopeless": {"costs": [9.0, 10.0], "acceptance": [[0, 0.2]]},
    "with gaps and weights": {
        "names": ["table", "exit", "model", "target"],
        "costs": [0.01, 1.5, 2.0, 20.0],
        "acceptance": [[0, 0.6, 0.5, 0.4], [0, 0, None, 0.8], [0, 0, 0, 0.85]],
        "memory_bytes": [1000000, 0, 500000000, 8000000000],
        "max_speculative_tokens": 10,
    },
}
PROBLEM_OPTIONS = (
    [],
    ["--latency-model", "corollary"],
    ["--max-models", "2"],
    ["--max-models", "3", "--max-speculative-tokens", "6", "--top", "8"],
    ["--simulate", "200"],
    ["--simulate", "200", "--costs", "artificial"],
)
PROFILE_OPTIONS = (
    [],
    ["--temperature", "1"],
    ["--max-models", "2", "--top", "10"],
    ["--memory-budget", "70MB"],
    ["--latency-model", "corollary"],
    ["--simulate", "200"],
    ["--simulate", "200", "--acceptances", "recorded", "--temperature", "1"],
    ["--to", "vllm"],
    ["--to", "transformers"],
)
