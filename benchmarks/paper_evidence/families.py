"""The models that evidence is measured on, and their drafters as levels of a hierarchy file.

A family has a target, a small and a larger drafter (P5's M1 and M2, P2's M_s and M_q), and early
exits at about an eighth, a quarter, half of its depth and beyond.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hierspec.config.schema import TargetConfig
from hierspec.zoo.registry import SMOLLM2_HEADS
from hierspec_lab.bench.methods.ours import BenchModels

LevelEntry = dict[str, Any]  # a level as in a hierarchy file
TRAINED_MODELS = "build/evidence"  # in the repository; written by benchmarks/evidence_models.py


@dataclass(frozen=True, slots=True)
class Family:
    """A target and its drafters.

    Attributes:
        description: what the models are, for the page.
        small, large: the drafters as levels without ``num_speculative_tokens``.
        exits: layers of early exits, ascending; the first two are P3's pair (about L/8 and L/4).
        heads: file of trained heads of the exits, if there is one.
        large_note: why the larger drafter is unusually close to the target, if it is.
        rivals: presets of other papers to compare with P5's full system.
    """

    name: str
    target: str
    description: str
    small: Mapping[str, Any]
    large: Mapping[str, Any]
    exits: tuple[int, ...]
    heads: str | None = None
    large_note: str = ""
    rivals: tuple[str, ...] = ()

    def models(self, dtype: str = "float32") -> BenchModels:
        """Return the family's models; a checkpoint is loaded when it is needed."""
        return BenchModels(TargetConfig(model=self.target, dtype=dtype))

    def exit_level(self, layer: int, num_tokens: int, **options: Any) -> LevelEntry:
        """Return an early exit as a level, with its trained head."""
        head = {"head": self.heads} if self.heads else {}
        level = {"method": "early_exit", "exit_layer": layer}
        return drafter_level(level, num_tokens, **head, **options)


def drafter_level(drafter: Mapping[str, Any], num_tokens: int, **options: Any) -> LevelEntry:
    """Return a drafter as a level with ``num_speculative_tokens``."""
    return {**drafter, "num_speculative_tokens": num_tokens, **options}


def _model(name: str) -> LevelEntry:
    return {"method": "draft_model", "model": name}


def _exit(layer: int) -> LevelEntry:
    return {"method": "early_exit", "exit_layer": layer, "head": SMOLLM2_HEADS}


FAMILIES = {
    family.name: family
    for family in (
        Family(
            "smollm2",
            "zoo:smollm2",
            "SmolLM2-135M-Instruct; M1 its exit after layer 5 with a trained head, M2 its copy in "
            "4 bits",
            _exit(5),
            {"method": "quantized", "bits": 4},
            (5, 10, 15, 20),
            SMOLLM2_HEADS,
            "M2 is the target's own copy in 4 bits",
            ("eagle3",),
        ),
        Family(
            "exits",
            "zoo:smollm2",
            "SmolLM2-135M-Instruct and two of its exits with trained heads: M_s after layer 5, "
            "M_q after layer 15",
            _exit(5),
            _exit(15),
            (5, 10, 15, 20),
            SMOLLM2_HEADS,
        ),
        Family(
            "trunk",
            "zoo:trunk",
            "the shipped trunk (8 layers, trained with early exits, Python sources); M1 zoo:small, "
            "M2 zoo:mid",
            _model("zoo:small"),
            _model("zoo:mid"),
            (1, 2, 4),
        ),
        Family(
            "tuned",
            "zoo:trunk",
            "the shipped trunk; M1 zoo:small, fine-tuned to write what M2, zoo:mid, would",
            _model(f"{TRAINED_MODELS}/tuned"),
            _model("zoo:mid"),
            (1, 2, 4),
        ),
        Family(
            "t5",
            f"{TRAINED_MODELS}/t5-target",
            "three T5-shaped models, trained for an hour on Python sources: an encoder reads, a "
            "decoder of 4, 2 (M2) or 1 (M1) layers writes",
            _model(f"{TRAINED_MODELS}/t5-small"),
            _model(f"{TRAINED_MODELS}/t5-mid"),
            (),
        ),
        Family(
            "large",
            "zoo:large?eps=0.2",
            "a synthetic cost with a real distribution (116 M parameters); M1 zoo:small, M2 "
            "zoo:trunk",
            _model("zoo:small"),
            _model("zoo:trunk"),
            (2, 4, 8),
            large_note="the target's distribution is made from M2's",
            rivals=("specdec++", "pearl"),
        ),
    )
}
