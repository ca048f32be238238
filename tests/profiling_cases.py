"""Tiny models on disk with a tokenizer, what is measured of them, and pools of random tables."""

from __future__ import annotations

import numpy as np
import torch
from fakes.tokenizers import bytes_tokenizer
from tiny_models import add_noise, tiny_model

from hierspec import TargetConfig
from hierspec.lm.tabular import TabularModel
from hierspec.profiling import costs
from hierspec.profiling.candidates import CandidatePool, PoolMember, parse, possible_pairs
from hierspec.profiling.settings import ProfileSettings
from hierspec.profiling.stages import Stages

V = 256
SMALL = ProfileSettings(
    max_speculative_tokens=3,
    tokens=12,
    places=2,
    rounds=1,
    places_per_class=1,
    prompts=2,
    repeats=1,
)
PROMPTS = ["hello world, hello world", "abcabcabcabc"]


def save_model(folder, noise=0.0, tokenizer=None):
    model = tiny_model("llama", seed=1, layers=3, vocab_size=V, max_position_embeddings=256)
    add_noise(model, noise).save_pretrained(folder)
    (bytes_tokenizer() if tokenizer is None else tokenizer).save_pretrained(folder)
    return str(folder)


class EveryPair(Stages):
    """Real drafts of all pairs, so that tests find what they look for whatever it costs here."""

    def on_texts(self, i):
        return not self.pool.members[i].scores

    def pairs(self, agreed):
        return possible_pairs(self.pool.candidates, self.call_ms, self.settings.min_ratio)

    def timed_calls(self, pairs):
        single = costs.timed_calls(self.single_calls(pairs), ())
        return [*single, *costs.timed_calls(pairs, self.settings.budgets())]


def made(**changes):
    """Two models: 1 ms and 9 ms a call, checks of n tokens 9 + n, α = 0.8 and 0.5."""

    def times(table):
        return {
            str(n): {"mean": ms, "median": ms, "low": ms, "high": ms, "count": 1} for n, ms in table
        }

    def curve(a, m=4):
        return [a**n for n in range(m + 1)]

    both = [{"block": curve(a), "tokenwise": curve(a / 2)} for a in (0.5, 0.8)]
    measured = {
        "pairs": [
            {
                "drafter": 0,
                "verifier": 1,
                "drafts": 0,
                "survival": {
                    rule: np.mean([part[rule] for part in both], axis=0).tolist()
                    for rule in ("block", "tokenwise")
                },
                "classes": both,
                "tokens_per_call": 1.0,
                "standard_error": 0.0,
                "lengths": [],
                "kept": [],
            }
        ],
        "costs": [
            {"drafter": None, "verifier": 0, "draft": {}, "check": times([(0, 1.0)])},
            {"drafter": None, "verifier": 1, "draft": {}, "check": times([(0, 9.0)])},
            {
                "drafter": 0,
                "verifier": 1,
                "draft": times([(1, 1.5), (4, 4.5)]),
                "check": times([(1, 10.0), (4, 13.0)]),
            },
        ],
        "context": {
            "tokens": 100,
            "long": 1000,
            "slopes": [
                {"model": 0, "ms_per_token_0": 0.001, "ms_per_token_8": 0.001},
                {"model": 1, "ms_per_token_0": 0.01, "ms_per_token_8": 0.02},
            ],
        },
        "token_ms": 0.25,
        **changes,
    }
    names = ("draft", "target")
    return [described(name) for name in names], {"draft": 10, "target": 90}, measured


def described(name):
    return {"name": name, "owner": name, "level": None, "weights": None, "call_ms": 1.0}


def tables(*found, temperatures=None):
    """A pool of tabular models, the target last."""
    temperatures = temperatures or [None] * len(found)
    members = [
        PoolMember(
            f"m{i}",
            model,
            f"m{i}",
            parse(f"m{i}" if t is None else f"m{i},temperature={t}"),
        )
        for i, (model, t) in enumerate(zip(found[:-1], temperatures, strict=False))
    ]
    members.append(PoolMember("target", found[-1], "target"))
    return CandidatePool(TargetConfig(model="target"), tuple(members), None)


def random_tables(count, vocab=4, order=1, seed=3):
    generator = torch.Generator().manual_seed(seed)
    return [TabularModel.random(vocab, order, generator) for _ in range(count)]


class Stop(Exception):  # noqa: N818 not an error
    """Ends a measurement in its middle."""
