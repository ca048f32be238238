"""HiSpec and its single-exit baseline as methods, on early exits of any target [P3 §3].

HiSpec's final rule here is ``block``: with greedy decoding it keeps the same tokens as P3's own
leading-substring check; with sampling P3's is lossy as a final rule, while as an intermediate one
(``leading``) it is sound, since it reports the distribution of what it hands up (MATH §1).

Exits with trained heads use them, as the presets do.
"""

from __future__ import annotations

from typing import Any, cast

from hierspec.core.nodes import walk_levels
from hierspec.lm.eagle3.model import Eagle3Model
from hierspec.lm.exit_heads import ExitHead
from hierspec.lm.trunk.trunk import ExitModel, Trunk
from hierspec.methods.early_exit import EarlyExitConfig, trained_exits
from hierspec.presets.registry import preset
from hierspec.presets.systems import layers_at_shares
from hierspec_lab.bench.methods.ours import BenchModels, HierarchyMethod

N_D, N_I = 2, 4  # P3 §6: tokens drafted per step, tokens held before the target verifies
FRACTIONS = (1 / 16, 1 / 8, 1 / 4, 3 / 8, 1 / 2, 3 / 4)  # of the depth: exits worth trying


def default_exits(models: BenchModels) -> tuple[int, int]:
    """Return draft and intermediate exit of the ``hispec`` preset: about L/8 and L/4 [P3 §3.2].

    Raises:
        HierspecError: the target is too shallow for two exits below its last layer.
    """
    levels = preset("hispec", models.target).levels
    draft, intermediate = (cast(EarlyExitConfig, level).exit_layer for level in levels)
    return draft, intermediate


def exits_to_try(num_layers: int, *more_layers: int) -> tuple[int, ...]:
    """Return exits at :data:`FRACTIONS` of the depth and ``more_layers``, each once, ascending.

    P3 tries every layer; the number of pairs grows with its square, so here deep models have few.
    """
    valid = (layer for layer in more_layers if 0 < layer < num_layers)
    return tuple(sorted({*layers_at_shares(num_layers, FRACTIONS), *valid}))


def candidate_exits(models: BenchModels) -> tuple[int, ...]:
    """Return the exits to try, ascending; the default ones are among them.

    Where two or more have trained heads, only those: others draft badly.

    Raises:
        HierspecError: the target is too shallow for two exits below its last layer.
    """
    default = default_exits(models)
    _, trained = trained_exits(models.target.model)
    return trained if len(trained) >= 2 else exits_to_try(models.num_layers, *default)


def hispec(
    models: BenchModels,
    draft: int,
    intermediate: int,
    n_d: int = N_D,
    n_i: int = N_I,
    rule="leading",
) -> HierarchyMethod:
    """Return HiSpec: exit ``draft`` drafts, ``intermediate`` verifies by ``rule``."""
    levels = [
        exit_level(draft, n_d, head_of(models, draft)),
        {**exit_level(intermediate, n_i, head_of(models, intermediate)), "verify": rule},
    ]
    name = f"hispec {draft}-{intermediate} {n_d}/{n_i} {rule}"
    return HierarchyMethod(name, models, levels, verify="block")


def single_exit(models: BenchModels, layer: int, tokens: int = N_I) -> HierarchyMethod:
    """Return LayerSkip: one exit drafts for the target (Elhoushi et al., 2024)."""
    levels = [exit_level(layer, tokens, head_of(models, layer))]
    return HierarchyMethod(f"exit {layer}", models, levels, verify="block")


def exit_level(layer: int, tokens: int, head: str | None = None) -> dict[str, Any]:
    """Return an early exit's level, as in a hierarchy file.

    Args:
        head: file of its trained head; ``None``: the model's own final norm and head.
    """
    level = {"method": "early_exit", "exit_layer": layer, "num_speculative_tokens": tokens}
    return level if head is None else {**level, "head": head}


def head_of(models: BenchModels, layer: int) -> str | None:
    """Return the file with a trained head for this exit of the target, if there is one."""
    heads, trained = trained_exits(models.target.model)
    return heads if layer in trained else None


def head_bytes(method: HierarchyMethod) -> int:
    """Return the bytes of weights of a hierarchy's trained exit heads.

    Heads of a part of the vocabulary copy rows of the output matrix: these count too, once for all
    heads that share them.

    Raises:
        Unavailable: the models cannot form the hierarchy.
    """
    bytes_by_id: dict[int, int] = {}
    for node in walk_levels(method.hierarchy.root):
        head = node.model.head if isinstance(node.model, ExitModel) else None
        if isinstance(head, ExitHead):
            bytes_by_id[id(head)] = head.num_bytes
            if head.part is not None and head.part.matrix is not None:
                bytes_by_id[id(head.part)] = head.part.matrix.num_bytes
    return sum(bytes_by_id.values())


def cache_bytes(method: HierarchyMethod) -> int:
    """Return the bytes that a hierarchy keeps for every token of a text, all levels together.

    These are keys and values of each model, once for all of its exits, and the hidden states at
    each exit and at the last layer, from which a level above goes on.

    Raises:
        Unavailable: the models cannot form the hierarchy.
    """
    bytes_by_id: dict[int, int] = {}
    for node in walk_levels(method.hierarchy.root):
        model, owner = node.model, node.model.cache_owner
        if isinstance(owner, Trunk):
            bytes_by_id[id(owner)] = owner.bytes_per_token
        if isinstance(model, Eagle3Model):
            bytes_by_id[id(model)] = model.layer.model.new_cache(1).nbytes
    return sum(bytes_by_id.values())
