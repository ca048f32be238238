"""What the systems of :mod:`hierspec.presets.systems` are put together from.

Early exits at shares of a model's depth, as layer counts: after layer 1, one layer has run.

The papers' systems, and what people compare them with, built from the models at hand.

One function each, from :class:`Models` to a :class:`HierarchyConfig`;
:mod:`hierspec.presets.registry` gives
them names and citations. Numbers are the papers' own where they give any. What was mended to keep
the target's law stands in MATH's words: corrected and bonus tokens are handed up with the level's
own law, residuals use the law of the model that drafted the slot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from hierspec.config.schema import (
    AdaptiveExitConfig,
    AnyLevelConfig,
    ConcatenateConfig,
    DraftModelConfig,
    EarlyExitConfig,
    HierarchyConfig,
    LayerSkipConfig,
    NgramPoolConfig,
    PromptLookupConfig,
    TargetConfig,
)
from hierspec.core.windows import EntropyWindow, FixedWindow, Window
from hierspec.errors import HierspecError


@dataclass(frozen=True, slots=True)
class Models:
    """What a preset is built from.

    Attributes:
        target: the model whose law is kept.
        drafts: smaller models, smallest first.
        num_layers: of the target; early-exit presets place their exits by it.
    """

    target: TargetConfig
    drafts: tuple[str, ...]
    num_layers: Callable[[], int]

    def under(self, *levels: AnyLevelConfig, verify: str = "tokenwise") -> HierarchyConfig:
        """These levels below the target."""
        return HierarchyConfig(target=self.target, levels=levels, verify=verify)

    def pair(self, name: str) -> tuple[str, str]:
        """The smallest and the largest draft model.

        Raises:
            ValueError: there is one only.
        """
        if len(self.drafts) < 2:
            raise HierspecError(
                f"{name} needs two draft models: give --draft twice, smallest first"
            )
        return self.drafts[0], self.drafts[-1]

    def exits(self, name: str, *shares: float) -> tuple[int, ...]:
        """Exits at about these shares of the depth, each above the one before it.

        Raises:
            ValueError: the target is too shallow.
        """
        depth = self.num_layers()
        layers = one_each(depth, shares)
        if layers[-1] >= depth:
            raise HierspecError(
                f"{name} needs a target of at least {len(shares) + 1} layers, this one has {depth}"
            )
        return layers


def draft(model: str, num_tokens: int, window: Window | None = None) -> DraftModelConfig:
    """A first level."""
    return DraftModelConfig(
        model=model, num_speculative_tokens=num_tokens, window=window or FixedWindow()
    )


def over(model: str, num_tokens: int, verify: str, window: Window | None = None) -> AnyLevelConfig:
    """A level that verifies the one below."""
    return DraftModelConfig(
        model=model,
        num_speculative_tokens=num_tokens,
        verify=verify,
        window=window or FixedWindow(),
    )


def at_shares(depth: int, shares: Iterable[float]) -> tuple[int, ...]:
    """The different exits nearest to these shares of ``depth`` layers, ascending.

    Each lies between 1 and ``depth`` − 1, so a model of one layer has none.
    """
    if depth < 2:
        return ()
    return tuple(sorted({min(max(1, round(share * depth)), depth - 1) for share in shares}))


def one_each(depth: int, shares: Iterable[float]) -> tuple[int, ...]:
    """An exit for every share, each above the one before it; the last may reach past the end."""
    found = [0]
    for share in shares:
        found.append(max(found[-1] + 1, round(share * depth)))
    return tuple(found[1:])


TAIL = 10  # tokens of the smallest model after every level [P1 Appendix D]
SINGLE = 8  # draft length where a system has one drafter and its paper fixes none
NUM_DRAFTS = 4  # P4 uses 11, on an accelerator


def autoregressive(models: Models) -> HierarchyConfig:
    """The target alone."""
    return HierarchyConfig(target=models.target)


def speculative(models: Models) -> HierarchyConfig:
    """One drafter, the classical rule (Leviathan et al., Chen et al., 2023)."""
    return models.under(draft(models.drafts[-1], SINGLE))


# --- P1: a hierarchy of models, or of one model's exits


def hierarchy(models: Models) -> HierarchyConfig:
    """A chain of draft models [P1 Algorithm 1], verified by block."""
    small, *others = models.drafts
    levels = [draft(small, 3), *(over(model, 12, "block") for model in others)]
    return models.under(*levels, verify="block")


def self_speculative(models: Models) -> HierarchyConfig:
    """Two exits of the target as a hierarchy [P1 §4].

    P1's plans for LayerSkip models exit after 7 and 9 of 32, 7 and 18 of 40, 7 and 23 of 80 layers,
    with budgets of 2 and 5 or 6 (Table 3). Here: an eighth and a quarter, 2 and 6.
    """
    first, second = models.exits("self-speculative", 1 / 8, 1 / 4)
    return models.under(
        EarlyExitConfig(exit_layer=first, num_speculative_tokens=2),
        EarlyExitConfig(exit_layer=second, num_speculative_tokens=6, verify="block"),
        verify="block",
    )


def horizontal_tail(models: Models) -> HierarchyConfig:
    """``hierarchy``, where every level appends tokens of the smallest model to its own.

    P1's HSD + HH (§5, Appendix D) takes the heuristic from CS-Drafting (Chen et al., 2023,
    arXiv 2312.11462). The smallest level's tail would be more of the same, so it has none. P1's
    smallest model is a table that costs next to nothing; ten tokens of a network are not free.
    """
    small, *others = models.drafts
    below: AnyLevelConfig = draft(small, 3)
    for model in others:
        own = (below, over(model, 12, "block"))
        below = ConcatenateConfig(parts=(own, (draft(small, TAIL),)))
    return models.under(below, verify="block")


def tempered(models: Models) -> HierarchyConfig:
    """``hierarchy`` with drafters at temperature 0.5, for requests at 0.6 [P1 §5, Table 10].

    A level's temperature is absolute: for requests below 0.5 this would be hotter than the target.
    Greedy requests ignore it.
    """
    small, *others = models.drafts
    levels = [
        DraftModelConfig(model=small, num_speculative_tokens=3, temperature=0.5),
        *(
            DraftModelConfig(
                model=model, num_speculative_tokens=12, verify="block", temperature=0.5
            )
            for model in others
        ),
    ]
    return models.under(*levels, verify="block")


# --- P2: three models, one verification


def interleaved(models: Models) -> HierarchyConfig:
    """A token of the small model, a token of the larger one, four times."""
    small, mid = models.pair("interleaved")
    parts = ((draft(small, 1),), (draft(mid, 1),))
    return models.under(ConcatenateConfig(parts=parts, repeat=4))


def horizontal(models: Models) -> HierarchyConfig:
    """All tokens of the larger model first.

    No fewer tokens a call than interleaving wherever the larger model's are kept at least as often
    as the small one's [MATH §2].
    """
    small, mid = models.pair("horizontal")
    return models.under(ConcatenateConfig(parts=((draft(mid, 4),), (draft(small, 4),))))


# --- P3: exits of one model draft and pre-verify


def hispec(models: Models) -> HierarchyConfig:
    """Drafts from an eighth of the layers, pre-verified by a quarter of them [P3 §3, §6].

    N_d = 2 and N_i = 4 are P3's defaults. It keeps a draft token that is among the intermediate
    verifier's "top predictions" and does not say how many those are; with one the same rule is
    exact at the target too, as P3 says of it, so m = 1 here. Under sampling the intermediate level
    reports the mixture law that the rule causes, and block at the target keeps the output exact.
    """
    first, second = models.exits("hispec", 1 / 8, 1 / 4)
    return models.under(
        EarlyExitConfig(exit_layer=first, num_speculative_tokens=2),
        EarlyExitConfig(exit_layer=second, num_speculative_tokens=4, verify="leading"),
        verify="block",
    )


def layerskip(models: Models) -> HierarchyConfig:
    """One exit drafts (Elhoushi et al., 2024), after a quarter of the layers.

    P1's best single exits of such models are 8 of 32, 15 of 40 and 19 of 80 layers (Table 3).
    """
    (layer,) = models.exits("layerskip", 1 / 4)
    return models.under(EarlyExitConfig(exit_layer=layer, num_speculative_tokens=4))


# --- P4: branch resampling


def branch(models: Models) -> HierarchyConfig:
    """Capped branch resampling, which is block verification [MATH §1]."""
    return models.under(draft(models.drafts[-1], SINGLE), verify="block")


def naive(models: Models) -> HierarchyConfig:
    """Naive branch resampling [P4 §5.1]: lossless for a fixed length, with further target calls."""
    return models.under(draft(models.drafts[-1], SINGLE), verify="naive")


def multi_draft(models: Models) -> HierarchyConfig:
    """Several drafts, block verification of one after another: P4's Algorithm 3, mended."""
    return models.under(_several(models), verify="block-rrs")


def multi_draft_tokenwise(models: Models) -> HierarchyConfig:
    """P4's baseline for several drafts (Table 2): recursive rejection with replacement."""
    return models.under(_several(models), verify="rrs")


def _several(models: Models) -> AnyLevelConfig:
    return DraftModelConfig(
        model=models.drafts[-1], num_speculative_tokens=SINGLE, num_drafts=NUM_DRAFTS
    )


# --- P5: dynamic windows. Its Table 2 lists vanilla speculation, pre-verify, self-verify, both, and
# HSDDW. The paper's text describes the first, second and last fully, "both" only as the second with
# self-verify added, and says that HSDDW is more than that. Read here as: in "both" the *drafter*
# stops by its entropy and the middle model still gathers a fixed number of tokens; in HSDDW the
# middle model's entropy also decides when the target is asked. Vanilla is ``speculative``.

WINDOW = 10  # P5's K (Appendix A.1)


def self_verify(models: Models) -> HierarchyConfig:
    """One draft model, stopped by its own entropy [P5 §3.1, Algorithm 1]; Table 2: self-verify."""
    return models.under(draft(models.drafts[-1], WINDOW, EntropyWindow()))


def pre_verify(models: Models) -> HierarchyConfig:
    """Two speculative decodings one after the other [P5 Figure 5a]; Table 2: pre-verify."""
    small, mid = models.pair("pre-verify")
    return models.under(draft(small, WINDOW), over(mid, WINDOW, "tokenwise"))


def pre_self_verify(models: Models) -> HierarchyConfig:
    """``pre-verify``, where the drafter stops by entropy [P5 Figure 5b]; Table 2: both."""
    small, mid = models.pair("pre-self-verify")
    return models.under(draft(small, WINDOW, EntropyWindow()), over(mid, WINDOW, "tokenwise"))


def dynamic_windows(models: Models) -> HierarchyConfig:
    """Every level hands up when its entropy says so [P5 §3.2, Algorithm 2]; Table 2: HSDDW."""
    small, *others = models.drafts
    levels = [over(model, 15, "tokenwise", EntropyWindow()) for model in others]
    return models.under(draft(small, WINDOW, EntropyWindow()), *levels)


# --- what people use besides


def prompt_lookup(models: Models) -> HierarchyConfig:
    """No draft model: copies from the context."""
    return models.under(PromptLookupConfig(num_speculative_tokens=SINGLE))


def swift(models: Models) -> HierarchyConfig:
    """The target drafts without 45 % of its layers (Xia et al., 2024).

    SWIFT searches for the layers to leave out while it decodes, attention and MLP parts apart;
    here whole layers are left out at even distances, and nothing is searched.
    """
    return models.under(LayerSkipConfig(skip=0.45, num_speculative_tokens=4))


def adadecode(models: Models) -> HierarchyConfig:
    """Each token from the first sure one of three exits (Wei et al., 2025).

    AdaDecode trains heads for its exits and lets the full model write a token that no exit is sure
    of; here all exits share the target's head, and the last one drafts what none is sure of.
    """
    depth = models.num_layers()
    layers = at_shares(depth, (1 / 8, 1 / 4, 1 / 2))
    if len(layers) < 2:
        raise HierspecError(f"adadecode needs a target of at least 3 layers, this one has {depth}")
    return models.under(AdaptiveExitConfig(exit_layers=layers, num_speculative_tokens=4))


def lookahead(models: Models) -> HierarchyConfig:
    """Drafts from a pool of n-grams (Fu et al., 2024), without the Jacobi iterations that fill it.

    :mod:`hierspec.drafters.ngram_pool` says what that leaves.
    """
    return models.under(NgramPoolConfig(num_speculative_tokens=4))
