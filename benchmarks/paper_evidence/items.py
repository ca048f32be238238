"""Every table, figure, algorithm and theorem of the five papers, and two figures of their text.

An item is decided by measured claims (:mod:`.claims`) or by a computation or proof
(:class:`FixedVerdict`), or it cannot be had here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .sequential import ClaimVerdict

Status = ClaimVerdict | Literal["cannot be had here"]
ENUMERATION_SOURCE = "tests/exact, `certificates.json`"
TABLES_SOURCE = "`hierspec reproduce p1-tables`"


@dataclass(frozen=True, slots=True)
class FixedVerdict:
    """A verdict that does not depend on a measurement.

    Attributes:
        reason: the computation or proof, or what is missing.
        source: the file or command it comes from.
    """

    status: Status
    reason: str
    source: str = ""


@dataclass(frozen=True, slots=True)
class Item:
    """A table, figure, algorithm or theorem of a paper, or a figure of its text.

    Attributes:
        statement: what the paper shows by it.
        fixed: a verdict without measurement; where there are claims, it is combined with theirs.
    """

    name: str
    statement: str
    fixed: FixedVerdict | None = None


def _drawing(subject: str) -> FixedVerdict:
    return FixedVerdict("cannot be had here", f"a drawing of {subject}: nothing is measured in it")


def _proved(reason: str) -> FixedVerdict:
    return FixedVerdict("holds", reason, ENUMERATION_SOURCE)


def _lossy(reason: str) -> FixedVerdict:
    return FixedVerdict("does not hold", reason, "tests/exact/test_wrong_rules.py")


_PAIRS_IN_TIME = FixedVerdict(
    "undecided",
    "in time, on the synthetic cost, other pairs of fifteen measure faster than the one nearest, "
    "and their intervals overlap with its own",
    "`reproduce-p3-exits.json`",
)
_ONE_RULE = FixedVerdict(
    "does not hold",
    "the gain over blockwise, printed there too: the two are one rule; over tokenwise it holds",
    "docs/branch-is-block.md, tests/verifiers",
)

ITEMS = (
    Item(
        "P1 Algorithm 1",
        "stacked levels keep the target's law",
        _proved("TV below 10⁻¹² for stacks of up to four levels"),
    ),
    Item(
        "P1 Algorithm 2",
        "verification with full distributions handed up is lossless",
        _proved("with every token's full distribution; rules that come close to it are lossy"),
    ),
    Item(
        "P1 Theorem 2.1",
        "stacked levels keep the target's law",
        _proved("TV below 10⁻¹² for stacks of up to four levels"),
    ),
    Item("P1 Theorem 2.2", "the expected latency of a stack under independent acceptances"),
    Item(
        "P1 Theorem 3.7",
        "the shortest generalized path is the best hierarchy",
        FixedVerdict(
            "holds",
            "by the formula: dynamic programming, linear program and search over all agree",
            "tests/lab/papers/test_p1_p2_formulas.py, tests/lab/planning/test_formula.py",
        ),
    ),
    Item(
        "P1 Theorem 3.8",
        "the best hierarchy is found in O(T⁴K⁴ log TK)",
        FixedVerdict(
            "holds",
            "and is no tight bound: the graph has no cycles but loops at its ends, so dynamic "
            "programming takes O(T²K²)",
            "hierspec_lab/planning/dynamic.py",
        ),
    ),
    Item("P1 Figure 1", "an example of the recursion", _drawing("the stack")),
    Item("P1 Table 1", "expected speed-up grows with the number of models"),
    Item(
        "P1 Table 2",
        "edge costs and multipliers of the shortest-path problem",
        FixedVerdict(
            "holds",
            "dynamic programming, linear program and search agree",
            "tests/lab/papers/test_p1_p2_formulas.py",
        ),
    ),
    Item(
        "P1 Table 3",
        "the best hierarchy beats the best single draft, 1.03× to 1.18×",
        FixedVerdict(
            "undecided",
            "with levels and budgets that the planner chose (large, 24 prompts), three early exits "
            "over one, greedily: predicted 1.026×, measured 1.005×; three drafters of their own "
            "over one: predicted 1.005×, measured 0.978×; at temperature 1 it chooses a single "
            "draft of either",
            "`reproduce-p1-models.json`",
        ),
    ),
    Item(
        "P1 Table 4",
        "the hierarchy that P1's formula chooses is the fastest by weights; the heuristic adds",
    ),
    Item(
        "P1 §5",
        "what the formula chooses, with the heuristic, is within 2 % of an exhaustive sweep",
    ),
    Item(
        "P1 Table 5",
        "independent acceptances and constant costs predict within .3 %",
        FixedVerdict(
            "undecided",
            "independent acceptances and constant costs over the real thing: 0.997 greedily, 0.993 "
            "at temperature 1 (large, 24 prompts), the exact model 0.982 and 0.982; chance "
            "alone moves the latency of so many texts by 3 %, so .3 % cannot be measured",
            "`reproduce-p1-coin-flips.json`",
        ),
    ),
    Item(
        "P1 Table 6",
        "acceptance rates of the first example",
        FixedVerdict("holds", "an input: everything computed from it is in Table 1", TABLES_SOURCE),
    ),
    Item(
        "P1 Table 7",
        "acceptance rates of the second example",
        FixedVerdict("holds", "an input: everything computed from it is in Table 8", TABLES_SOURCE),
    ),
    Item("P1 Table 8", "in the second example, too, it grows with the number of models"),
    Item("P1 Table 9", "speed-ups over parameters"),
    Item("P1 Table 10", "a draft temperature of .5 is best for a request at .6"),
    Item("P2 Algorithm 1", "speculative decoding is lossless", _proved("`tokenwise`")),
    Item(
        "P2 Algorithm 2",
        "interleaved drafts may change the target's law, as §2.2 admits",
        FixedVerdict(
            "holds",
            "as printed they do; corrected with the slot's own residual they do not",
            "tests/exact/test_wrong_rules.py",
        ),
    ),
    Item("P2 Theorem 3.2", "expected tokens of an interleaved round"),
    Item(
        "P2 Theorem 3.4",
        "the improvement in time that follows from them",
        FixedVerdict(
            "holds",
            "those tokens over the time of a round, under independent acceptances, as simulated; "
            "what follows of interleaving is Figure 1's",
            "tests/lab/papers/test_simulated_formulas.py",
        ),
    ),
    Item("P2 Figure 1", "interleaving a smaller model does not help"),
    Item("P2 Figure 2", "a trace", _drawing("one round")),
    Item("P2 Table A.1", "how likely each number of tokens is in one round"),
    Item("P3 Figure 1", "HiSpec beats AdaDecode, Lookahead and LayerSkip"),
    Item("P3 Figure 2", "a check takes 2 to 10 times as long as drafting"),
    Item("P3 Figure 3", "the method", _drawing("Algorithm 1")),
    Item(
        "P3 Figure 4",
        "an exit at a quarter of the depth gives up to 69 % of the tokens (judged: at least half)",
    ),
    Item("P3 Figure 5", "the pair (L/8, L/4) is the fastest", _PAIRS_IN_TIME),
    Item("P3 Figure 6", "the intermediate check raises acceptance and throughput"),
    Item("P3 §3.3", "the intermediate check raises acceptance from 39.7 to 58.1 %"),
    Item("P3 Figure 7", "small N_d and N_i are best"),
    Item(
        "P3 Figure 8",
        "a pair near (L/8, L/4), layers 3 and 8 of 32, is the fastest of all pairs",
        _PAIRS_IN_TIME,
    ),
    Item(
        "P3 Figure 9",
        "prompts and outputs of the data sets differ in length",
        FixedVerdict(
            "holds",
            "median prompt of summarization 589 tokens, of GSM8K 56; median answer of SmolLM2 "
            "380 and 198",
            "`reproduce-p3-figure9.json`",
        ),
    ),
    Item(
        "P3 Algorithm 1",
        "greedy output is the target's",
        _proved(
            "greedy, one leading token: the target's text; sampling needs `block` at the target, "
            "since `leading` alone has TV 1/9"
        ),
    ),
    Item(
        "P3 Algorithm 2",
        "the same in detail, without bonus tokens",
        _proved(
            "the same recursive round: under Algorithm 1's conditions the text is the target's, "
            "with bonus tokens or without"
        ),
    ),
    Item("P3 Table 1", "HiSpec beats LayerSkip, 1.19× on average, and SWIFT"),
    Item("P3 Table 2", "a check takes 2 to 10 times as long as drafting"),
    Item(
        "P4 Algorithm 1",
        "naive branch resampling is lossless",
        _proved("for lengths fixed beforehand; it keeps most and needs further target calls"),
    ),
    Item(
        "P4 Algorithm 2",
        "capped branch resampling is lossless",
        _proved(
            "it is block verification, with the same output law; without the cap at the end, as "
            "printed, it is lossy"
        ),
    ),
    Item(
        "P4 Algorithm 3",
        "several drafts by carrying R_τ on",
        _lossy("as printed it is lossy in two ways; `block-rrs` is the corrected form"),
    ),
    Item(
        "P4 Theorem 1",
        "a part of the target's law can be recovered exactly if the draft's excess there covers "
        "its deficit",
    ),
    Item("P4 Theorem 2", "the two branch divergences differ by R − 1"),
    Item(
        "P4 Corollary 3",
        "so the target's law in a branch is recovered where the prefix's ratio is at most 1",
        FixedVerdict("holds", "the two theorems before, together", "computed there"),
    ),
    Item("P4 Theorem 4", "the children's excesses sum to their parent's branch divergence"),
    Item(
        "P4 Theorem 5",
        "naive branch resampling is lossless",
        _proved("for lengths fixed beforehand"),
    ),
    Item(
        "P4 Theorem 6",
        "capped branch resampling is lossless",
        _proved("with the cap at the end as well; without it, as Algorithm 2 is printed, lossy"),
    ),
    Item(
        "P4 Theorem 7",
        "HSD keeps more tokens than blockwise, and blockwise more than tokenwise",
        FixedVerdict(
            "does not hold",
            "the strict gain over blockwise: the two are one rule; over tokenwise it holds",
            "docs/branch-is-block.md, tests/verifiers",
        ),
    ),
    Item("P4 Figure 1", "resampling in a tree of branches", _drawing("the branches")),
    Item("P4 Figure 2", "an example with the cap", _drawing("one draft")),
    Item(
        "P4 Table 1",
        "branch resampling beats blockwise, and blockwise tokenwise",
        FixedVerdict(
            "does not hold",
            "over blockwise: the two are one rule, and no lossless rule for one draft keeps more "
            "without further calls",
            "docs/branch-is-block.md, tests/verifiers",
        ),
    ),
    Item("P4 Table 2", "several drafts beat one, and branch resampling recursive rejection"),
    Item("P4 Table 3", "the gain holds for draft lengths and temperatures", _ONE_RULE),
    Item(
        "P4 Table 4",
        "the gain holds for Llama 3.1 and for EAGLE-3",
        FixedVerdict(
            "does not hold",
            "EAGLE-3 as published picks its drafts, q is one-hot and block is tokenwise, so that "
            "the printed gain cannot be lossless; Llama 3.1 (a) is not measured",
            "docs/papers/p4.md, `hierspec reproduce p4-rules`",
        ),
    ),
    Item(
        "P4 Figure A.1",
        "how likely all of a draft is kept: HSD nearest the ideal, then blockwise, then tokenwise",
        FixedVerdict(
            "does not hold",
            "HSD over blockwise (Theorem 7): the two are one rule, so their chances are the same; "
            "the picture itself was not available, and its GSM8K is one of eight domains here",
            "docs/branch-is-block.md",
        ),
    ),
    Item("P4 Table A.1", "the gain is stable over repetitions", _ONE_RULE),
    Item("P4 Table A.2", "accuracy is that of tokenwise"),
    Item("P4 Table A.3", "forgetting the cap is a little faster and a little worse"),
    Item(
        "P4 Table A.4",
        "verification takes less than 1 % of decoding",
        FixedVerdict(
            "cannot be had here",
            "the share falls with the size of the models, and P4's target has 72 billion weights",
        ),
    ),
    Item(
        "P5 Algorithm 1",
        "self-verify is lossless",
        _lossy("as printed p is read one place late; the corrected form is exact"),
    ),
    Item(
        "P5 Algorithm 2",
        "the full system is lossless",
        _lossy(
            "as printed the target is never called, and if it were, as many of the earliest "
            "tokens as M2 recovered would not be shown to it; the corrected form is exact"
        ),
    ),
    Item("P5 Figure 1", "a smaller draft model has fewer tokens kept"),
    Item("P5 Figure 2", "speculative decoding", _drawing("one round")),
    Item("P5 Figure 3", "self-verify", _drawing("Algorithm 1")),
    Item("P5 Figure 4", "the full system", _drawing("Algorithm 2")),
    Item("P5 Figure 5", "pre-verify", _drawing("two arrangements")),
    Item(
        "P5 Figure 6",
        "entropy separates rejected from kept tokens, by a clear boundary",
        FixedVerdict(
            "does not hold",
            "there is no boundary: rejected tokens have more entropy in the mean, but not in every "
            "text, as P5 plots it, and of single tokens it tells little",
            "`hierspec reproduce p5-entropy`",
        ),
    ),
    Item("P5 Figure 7", "adapting windows vary less, and beat vanilla at every K"),
    Item("P5 Figure 8", "windows change over time, and more is kept than of M1 alone"),
    Item("P5 Table 1", "the full system's speed-up over plain decoding"),
    Item("P5 Table 2", "each part helps, and the full system most"),
    Item("P5 Table 3", "the gain over vanilla is lost on mathematics"),
    Item(
        "P5 Table 4", "σ and η of the full system are vanilla M2's; M1 alone calls far more often"
    ),
)
