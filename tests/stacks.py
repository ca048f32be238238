"""Hierarchies of every kind below the tiny target, and prompts for them."""

from __future__ import annotations

from installed import installed
from loading import hierarchy_of

PROMPTS = [[5, 9, 7], [11, 4, 4, 30, 8, 2, 2, 61, 17], [60]]  # ragged


def model(path, budget, **more):
    return {"method": "draft_model", "model": path, "num_speculative_tokens": budget, **more}


def stacks(family):
    """Hierarchies below the tiny target, by name."""
    draft, small = family["draft"], family["small"]
    exit_1 = {"method": "early_exit", "exit_layer": 1, "num_speculative_tokens": 2}
    exit_2 = {"method": "early_exit", "exit_layer": 2, "num_speculative_tokens": 4}
    lookup = {"method": "prompt_lookup", "num_speculative_tokens": 3}
    pool = {"method": "ngram_pool", "num_speculative_tokens": 3}
    adaptive = {"method": "adaptive_exit", "exit_layers": [1, 2], "confidence": 0.5}
    parts = [[lookup], [model(small, 2)], [model(draft, 2)]]
    entropy = {"kind": "entropy"}
    confident = {"kind": "confidence", "floor": 0.3}
    found = {
        "two levels": {"levels": [model(draft, 4)]},
        "three levels": {"levels": [model(small, 2), model(draft, 5, verify="block")]},
        "early exits": {"levels": [exit_1, {**exit_2, "verify": "block"}]},
        "adaptive exit": {"levels": [{**adaptive, "num_speculative_tokens": 4}]},
        "layers skipped": {
            "levels": [{"method": "layer_skip", "skip_layers": [1], "num_speculative_tokens": 3}]
        },
        "prompt lookup below a draft": {"levels": [lookup, model(draft, 5, verify="tokenwise")]},
        "pool of n-grams": {"levels": [pool]},
        "one after another": {"levels": [{"method": "concatenate", "parts": parts}]},
        "windows": {
            "levels": [
                model(small, 4, window=confident),
                model(draft, 8, verify="block", window=entropy),
            ]
        },
        "leading": {"levels": [model(small, 3), model(draft, 5, verify="leading", top_m=2)]},
        "leading, of a greedy level": {
            "levels": [
                model(small, 3, temperature=1.0),
                model(draft, 5, verify="leading", top_m=2, temperature=0.0),
            ]
        },
        "naive": {"levels": [model(draft, 3)], "verify": "naive"},
        "several drafts": {"levels": [model(draft, 3, num_drafts=3)], "verify": "block-rrs"},
        "several, distinct": {
            "levels": [model(draft, 3, num_drafts=3)],
            "verify": "rrs-without-replacement",
        },
        "several, as a trie": {"levels": [model(draft, 3, num_drafts=3)], "verify": "traversal"},
        "several, a preferred path": {
            "levels": [model(draft, 3, num_drafts=3)],
            "verify": "induced-block",
        },
    }
    return installed(found)


def built(family, config, device, dtype="float32", backend="auto"):
    target = {"model": family["target"], "dtype": dtype, "device": device, "backend": backend}
    found = {"verify": "block", **config}
    for level in found["levels"]:
        if level["method"] == "draft_model":
            level["backend"] = backend
    return hierarchy_of({"target": target, **found})
