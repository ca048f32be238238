"""HiSpec and its single-exit baseline as methods, on early exits of any target [P3 §3].

HiSpec's final rule here is ``block``: greedy it is P3's own leading-substring check token for
token; with sampling P3's is lossy as a final rule, while as an intermediate one (``leading``) it
is sound, since the law of what it hands up is reported (MATH §1).
"""

from __future__ import annotations

from hierspec.bench.methods.ours import BenchModels, HierarchyMethod
from hierspec.presets.registry import preset
from hierspec.presets.systems import at_shares

N_D, N_I = 2, 4  # P3 §6: tokens drafted per step, tokens held before the target verifies
FRACTIONS = (1 / 16, 1 / 8, 1 / 4, 3 / 8, 1 / 2, 3 / 4)  # of the depth: exits worth trying


def default_exits(models: BenchModels) -> tuple[int, int]:
    """Draft and intermediate exit of the ``hispec`` preset: about L/8 and L/4 [P3 §3.2].

    Raises:
        HierspecError: the target is too shallow for two exits below its last layer.
    """
    levels = preset("hispec", models.target).levels
    draft, intermediate = (level.exit_layer for level in levels)  # type: ignore[union-attr]
    return draft, intermediate


def exits_to_try(num_layers: int, *also: int) -> tuple[int, ...]:
    """At most one exit for each of :data:`FRACTIONS` of the depth, and ``also``, ascending.

    P3 tries every layer; the number of pairs grows with its square, so deep models are sampled.
    """
    others = (layer for layer in also if 0 < layer < num_layers)
    return tuple(sorted({*at_shares(num_layers, FRACTIONS), *others}))


def hispec(
    models: BenchModels,
    draft: int,
    intermediate: int,
    n_d: int = N_D,
    n_i: int = N_I,
    rule="leading",
) -> HierarchyMethod:
    """Exit ``draft`` writes, exit ``intermediate`` verifies by ``rule``, the target by block."""
    levels = [
        exit_level(draft, n_d),
        {**exit_level(intermediate, n_i), "verify": rule},
    ]
    name = f"hispec {draft}-{intermediate} {n_d}/{n_i} {rule}"
    return HierarchyMethod(name, models, levels, verify="block")


def single_exit(models: BenchModels, layer: int, tokens: int = N_I) -> HierarchyMethod:
    """LayerSkip's way: one exit drafts for the target (Elhoushi et al., 2024)."""
    return HierarchyMethod(f"exit {layer}", models, [exit_level(layer, tokens)], verify="block")


def exit_level(layer: int, tokens: int) -> dict:
    return {"method": "early_exit", "exit_layer": layer, "num_speculative_tokens": tokens}
