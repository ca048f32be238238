"""Presets from other papers, with which the five papers' systems are compared.

Each is a function, as in :mod:`hierspec.presets.systems`, and found by an entry point of the group
``hierspec.presets``; ``docs/presets.md`` lists how they differ from what their authors describe.
"""

from __future__ import annotations

from hierspec.config.chains import AnyLevelConfig, ConcatenateConfig
from hierspec.config.schema import HierarchyConfig
from hierspec.core.windows import ConfidenceWindow
from hierspec.errors import HierspecError
from hierspec.methods.prompt_lookup import PromptLookupConfig
from hierspec.presets.systems import (
    DRAFT_BUDGET,
    PAPERS,
    PresetModels,
    draft_level,
    layers_at_shares,
    nearest_layers,
    register_preset,
)
from hierspec_lab.acceptance.window import AcceptanceWindow
from hierspec_lab.families.code import MID_ACCEPTANCE_NAME
from hierspec_lab.methods.adaptive_exit import AdaptiveExitConfig
from hierspec_lab.methods.draft_ahead import DraftAheadConfig
from hierspec_lab.methods.layer_skip import LayerSkipConfig, SkipSearchConfig
from hierspec_lab.methods.lookahead import LookaheadConfig
from hierspec_lab.methods.retrieval import RetrievalConfig

PAPERS.update(
    {
        "SWIFT": "SWIFT: on-the-fly self-speculative decoding (Xia et al., 2025, arXiv 2410.06916)",
        "AdaDecode": "AdaDecode: adaptive layer parallelism (Wei et al., 2025, arXiv 2506.03700)",
        "SpecDec++": "SpecDec++: boosting speculative decoding via adaptive candidate lengths "
        "(Huang et al., 2024, arXiv 2405.19715)",
        "PEARL": "PEARL: parallel speculative decoding with adaptive draft length "
        "(Liu et al., 2024, arXiv 2408.11850)",
        "CS-Drafting": "Cascade speculative drafting for even faster LLM inference "
        "(Chen et al., 2023, arXiv 2312.11462)",
        "Lookahead": "Lookahead decoding: breaking the sequential dependency of inference "
        "(Fu et al., 2024, arXiv 2402.02057)",
        "TriForce": "TriForce: lossless acceleration of long sequence generation with hierarchical "
        "speculative decoding (Sun et al., 2024, arXiv 2404.11912)",
    }
)

SPECDEC_PP_BUDGET = 20  # [SpecDec++ §4]
CASCADE_BUDGET = 3  # of every part of a cascade; CS-Drafting tunes each
LENIENCE = 2.0  # between the drafters of a cascade; CS-Drafting tunes it


# --- baselines of the papers on drafting


@register_preset(
    "naive", "one draft model, naive branch resampling with its extra calls", "P4", max_drafts=1
)
def naive(models: PresetModels) -> HierarchyConfig:
    """Verify by naive branch resampling [P4 §5.1]: lossless at a fixed length, with more calls."""
    return models.with_levels(draft_level(models.drafts[-1], DRAFT_BUDGET), verify="naive")


@register_preset(
    "specdec++",
    "one draft model that ends a draft where a trained head predicts a rejection",
    "SpecDec++",
    max_drafts=1,
    drafts=("zoo:mid",),
    needs="a draft model with an acceptance head in its folder (hierspec heads train --kind "
    "acceptance makes one)",
)
def specdec_pp(models: PresetModels) -> HierarchyConfig:
    """Draft with one model and its acceptance head (Huang et al., 2024).

    A draft ends at 20 tokens, or where the predicted chance of a rejection exceeds 0.7.

    The head of zoo:mid is shipped; that of any other draft model is in its folder, where
    ``hierspec heads train --kind acceptance`` writes it.
    """
    draft = models.drafts[-1]
    head = MID_ACCEPTANCE_NAME if draft == "zoo:mid" else draft
    return models.with_levels(
        draft_level(draft, SPECDEC_PP_BUDGET, window=AcceptanceWindow(0.7, head))
    )


@register_preset(
    "pearl",
    "one draft model that drafts on while the target verifies, in a thread of its own",
    "PEARL",
    max_drafts=1,
    drafts=("zoo:mid",),
)
def pearl(models: PresetModels) -> HierarchyConfig:
    """Draft while the target verifies (Liu et al., 2024).

    They set the draft length to the ratio of the two speeds; here it is 4. The first token of a
    draft is written before the target's call; the paper begins both at once.
    """
    ahead = DraftAheadConfig(model=models.drafts[-1], num_speculative_tokens=4, ahead=True)
    return models.with_levels(ahead)


@register_preset(
    "cs-drafting",
    "larger drafters first, smaller ones after, each reviewing what lies below it leniently",
    "CS-Drafting",
)
def cs_drafting(models: PresetModels) -> HierarchyConfig:
    """Stack all draft models and a look-up in vertical and horizontal cascades (Chen et al., 2023).

    A cascade of drafters for a level runs the largest one first, then each smaller one and at last
    the look-up (horizontal), and every model of it drafts by a cascade of the smaller ones
    (vertical), so that no model writes token by token. Drafters verify each other leniently and
    report the distribution that results; the target verifies tokenwise.
    """
    look_up: AnyLevelConfig = PromptLookupConfig(
        num_speculative_tokens=CASCADE_BUDGET, prompt_lookup_min=1, prompt_lookup_max=8
    )
    cascade: list[tuple[AnyLevelConfig, ...]] = [(look_up,)]
    for model in models.drafts:
        below = cascade[0] if len(cascade) == 1 else (ConcatenateConfig(parts=tuple(cascade)),)
        cascade.insert(
            0, (*below, draft_level(model, CASCADE_BUDGET, "lenient", lenience=LENIENCE))
        )
    return models.with_levels(ConcatenateConfig(parts=tuple(cascade)))


@register_preset(
    "swift",
    "the target drafts without 45 % of its attentions and MLPs, searched for while decoding; "
    "a chain in place of a tree",
    "SWIFT",
    max_drafts=0,
)
def swift(models: PresetModels) -> HierarchyConfig:
    """Draft with the target without 45 % of its attentions and MLPs (Xia et al., 2025).

    A search for the ones to leave out runs while it decodes, one search for all greedy texts. A
    draft stops after a token that is less likely than 0.8, and at 25 tokens, as in their code. They
    verify further candidates beside each drafted token; here it is one chain.
    """
    skipping = LayerSkipConfig(
        skip=0.45,
        search=SkipSearchConfig(shared=True),
        num_speculative_tokens=25,
        window=ConfidenceWindow(0.8),
    )
    return models.with_levels(skipping)


@register_preset(
    "adadecode",
    "each token from the first sure one of three exits, else from the target; trained heads where "
    "there are some",
    "AdaDecode",
    max_drafts=0,
)
def adadecode(models: PresetModels) -> HierarchyConfig:
    """Draft each token with the first of three exits that is sure of it (Wei et al., 2025).

    If none is sure the draft ends, and the target writes the token. The exits are after a quarter,
    half and three quarters of the layers, as theirs of Llama 3.1 8B, with trained heads if the
    target has some (they train one set for each task). The paper does not limit a draft's length;
    here it is at most 16.
    """
    depth = models.num_layers()
    layers = layers_at_shares(depth, (1 / 4, 1 / 2, 3 / 4))
    if len(layers) < 2:
        raise HierspecError(f"adadecode needs a target of at least 3 layers, this one has {depth}")
    heads = models.heads if len(models.trained) >= len(layers) else None
    if heads is not None:
        layers = nearest_layers(layers, models.trained)
    exits = AdaptiveExitConfig(
        exit_layers=layers, head=heads, unsure="target", num_speculative_tokens=16
    )
    return models.with_levels(exits)


@register_preset(
    "lookahead",
    "the target writes n-grams beside its checks, by Jacobi iterations",
    "Lookahead",
    max_drafts=0,
)
def lookahead(models: PresetModels) -> HierarchyConfig:
    """Decode by lookahead (Fu et al., 2024) with their example's window: N = 5, W = 7, G = 7.

    :mod:`hierspec_lab.methods.lookahead.window` says how, and what differs.
    """
    return models.with_levels(LookaheadConfig(num_speculative_tokens=4), verify="rrs")


@register_preset(
    "triforce",
    "a draft model under the target on chosen parts of its cache, for long texts",
    "TriForce",
    max_drafts=1,
)
def triforce(models: PresetModels) -> HierarchyConfig:
    """Draft with a small model for the target on a part of its cache, which drafts for the target.

    After Sun et al. (2024), who keep 4,096 of 120,000 tokens, and of the small model's cache only
    its first and latest tokens; here the small model keeps its whole cache, and the budget is its
    default, 512, since the available models read 8,192 tokens at most.
    """
    small = draft_level(models.drafts[-1], 3)
    return models.with_levels(small, RetrievalConfig(num_speculative_tokens=8, verify="tokenwise"))
