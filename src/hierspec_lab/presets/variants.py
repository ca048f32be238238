"""What the five papers compare their systems with: the same with a part left out or added.

Each is a function, as in :mod:`hierspec.presets.systems`, and found by an entry point of the group
``hierspec.presets``.
"""

from __future__ import annotations

from hierspec.config.chains import AnyLevelConfig, ConcatenateConfig
from hierspec.config.schema import HierarchyConfig
from hierspec.core.windows import EntropyWindow
from hierspec.presets.systems import (
    DRAFT_BUDGET,
    NUM_DRAFTS,
    WINDOW_SIZE,
    PresetModels,
    draft_level,
    register_preset,
)

TAIL_BUDGET = 10  # tokens of the smallest model after every level [P1 Appendix D]


# --- P1


@register_preset(
    "horizontal-tail", "as hierarchy; every level appends tokens of the smallest model", "P1"
)
def horizontal_tail(models: PresetModels) -> HierarchyConfig:
    """Append tokens of the smallest model to those of every level of ``hierarchy``.

    P1's HSD + HH (§5, Appendix D) takes the heuristic from CS-Drafting (Chen et al., 2023,
    arXiv 2312.11462). The smallest level has no tail, which would only make its draft longer. P1's
    smallest model is a table that costs next to nothing; ten tokens of a network are not free.
    """
    small, *larger = models.drafts
    below: AnyLevelConfig = draft_level(small, 3)
    for model in larger:
        chain, tail = (below, draft_level(model, 12, "block")), (draft_level(small, TAIL_BUDGET),)
        below = ConcatenateConfig(parts=(chain, tail))
    return models.with_levels(below, verify="block")


@register_preset("tempered", "as hierarchy, drafters at temperature 0.5; for requests at 0.6", "P1")
def tempered(models: PresetModels) -> HierarchyConfig:
    """Run the preset ``hierarchy`` with drafters at 0.5, for requests at 0.6 [P1 §5, Table 10].

    A level's temperature is absolute: for requests below 0.5 this would be hotter than the target.
    Greedy requests ignore it.
    """
    small, *larger = models.drafts
    levels = [
        draft_level(small, 3, temperature=0.5),
        *(draft_level(model, 12, "block", temperature=0.5) for model in larger),
    ]
    return models.with_levels(*levels, verify="block")


# --- P4


@register_preset(
    "multi-draft-tokenwise",
    "several drafts of one model a round, recursive rejection sampling",
    "P4",
    max_drafts=1,
)
def multi_draft_tokenwise(models: PresetModels) -> HierarchyConfig:
    """Verify several drafts by recursive rejection with replacement [P4 Table 2, its baseline]."""
    return models.with_levels(
        draft_level(models.drafts[-1], DRAFT_BUDGET, num_drafts=NUM_DRAFTS), verify="rrs"
    )


# --- P5: dynamic windows. Its Table 2 lists vanilla speculation, pre-verify, self-verify, both, and
# HSDDW. The paper's text describes the first, second and last fully, "both" only as the second with
# self-verify added, and says that HSDDW is more than that. Our reading: in "both" the *drafter*
# stops by its entropy and the middle model still gathers a fixed number of tokens; in HSDDW the
# middle model's entropy also decides when the target verifies. Vanilla is ``speculative``.


@register_preset("self-verify", "one draft model that stops by its own entropy", "P5", max_drafts=1)
def self_verify(models: PresetModels) -> HierarchyConfig:
    """Stop one draft model by its own entropy [P5 §3.1, Algorithm 1]; Table 2: self-verify."""
    return models.with_levels(draft_level(models.drafts[-1], WINDOW_SIZE, window=EntropyWindow()))


@register_preset("pre-verify", "two draft models, fixed windows, tokenwise", "P5", max_drafts=2)
def pre_verify(models: PresetModels) -> HierarchyConfig:
    """Run speculative decoding twice in sequence [P5 Figure 5a]; Table 2: pre-verify."""
    small, mid = models.pair("pre-verify")
    return models.with_levels(
        draft_level(small, WINDOW_SIZE), draft_level(mid, WINDOW_SIZE, "tokenwise")
    )


@register_preset(
    "pre-self-verify",
    "as pre-verify, the smaller model stops by its own entropy",
    "P5",
    max_drafts=2,
)
def pre_self_verify(models: PresetModels) -> HierarchyConfig:
    """Run :func:`pre_verify` with a drafter that stops by entropy [P5 Figure 5b]; Table 2: both."""
    small, mid = models.pair("pre-self-verify")
    return models.with_levels(
        draft_level(small, WINDOW_SIZE, window=EntropyWindow()),
        draft_level(mid, WINDOW_SIZE, "tokenwise"),
    )
