"""P4 Table A.3: gain and cost of verification without the cap.

P4 removes the cap and finds a little more speed and a little less task accuracy. Here the cost is
measured where it arises, in the law of the text: exactly, on tabular models, as the distance from
the target's law; on real models as a shift of the log-likelihood.

Under the target's own law, log p(x_t) + H(p_t), with H the entropy of the row that x_t was drawn
from, has mean 0 at every position, given any past. Its sum over a text is a martingale whose
variance adds up the rows' own, so a shift is seen without comparing texts.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from hierspec.lm.tabular import KINDS
from hierspec_lab.bench.correctness import Likelihood, likelihood
from hierspec_lab.bench.methods.base import Run
from hierspec_lab.papers.lab import Lab, draft_level
from hierspec_lab.papers.measured import tokens_per_call, tokens_per_second, uncompared_table
from hierspec_lab.papers.tables import Cell, Reproduction, Table, TableRow

from .lab import DRAFT_LENGTH, decoding_speedup, measure_methods, sampling_setup
from .tabular import certificate, random_pair
from .watching import DraftCollector, Mean, VerifiedDraft

RULES = ("block", "uncapped")
LENGTHS = (1, 2, 3, 4)  # of tabular models: enumeration grows like 3^(2n)
PAIRS = 20  # of models a family
_EXPERIMENTS = (("HSD + Capping", "block"), ("HSD", "uncapped"))

# P4 Table A.3: block efficiency and decoding speed, tokens/s, without and with the cap.
TABLE_A3 = {
    "GSM8K": {"uncapped": ("6.76", "33.63"), "block": ("6.63", "32.73")},
    "HumanEval": {"uncapped": ("5.60", "29.15"), "block": ("5.45", "27.54")},
}


def measure(
    lab: Lab, lengths: Sequence[int] = LENGTHS, pairs: int = PAIRS, length: int = DRAFT_LENGTH
) -> Reproduction:
    """Compute distances on tabular models, and measure the lab's at every temperature above 0.

    Args:
        lengths: of the certified drafts.
        pairs: of tabular models, for each family.
        length: of the drafts on real models.

    Raises:
        HierspecError: there is nothing to draft with, no prompt, or only greedy decoding.
    """
    chosen, model, record = sampling_setup(lab, "p4-cap")
    tables = [_certified(lab, lengths, pairs)]
    tables += [_measured(lab, model, temperature, length) for temperature in chosen]
    return Reproduction("p4-cap", tuple(tables), measured_on=record)


# --- exactly, on tabular models


def _certified(lab: Lab, lengths: Sequence[int], pairs: int) -> Table:
    rows, count = [], 0
    for kind in KINDS:
        for n in lengths:
            block_kept, uncapped_kept, distances, block_tv = [], [], [], 0.0
            for seed in range(pairs):
                draft, target = random_pair(kind, seed)
                capped, uncapped = (certificate(rule, draft, target, n) for rule in RULES)
                block_kept.append(capped.expected_accepted)
                uncapped_kept.append(uncapped.expected_accepted)
                distances.append(uncapped.tv)
                block_tv = max(block_tv, capped.tv)
                count += 1
                lab.report("p4-cap, certificates", count / (pairs * len(lengths) * len(KINDS)))
            figures = (
                statistics.mean(block_kept),
                statistics.mean(uncapped_kept),
                block_tv,
                statistics.median(distances),
                max(distances),
            )
            rows.append((f"{kind}, {n}", figures))
    return uncompared_table(
        "Certified distances",
        f"block and uncapped on {pairs} pairs of random models a row, by enumeration",
        "family, n",
        rows,
        ("block keeps", "uncapped keeps", "block's TV, largest", "uncapped's TV", "largest"),
        {"vocab": 3, "order": 1, "pairs": pairs, "lengths": list(lengths)},
        notes=(
            "TV: total variation distance of the first n + 2 tokens from the target's law; of "
            "uncapped the median over the pairs, and the largest.",
            "keeps: draft tokens kept in a round, mean. At n = 1 there is nothing to cap.",
        ),
    )


# --- on the models at hand


def _measured(lab: Lab, model: str, temperature: float, length: int) -> Table:
    level = draft_level(model, length)
    methods = [
        DraftCollector(
            rule, lab.models, [level], RULES, verify=rule, allow_lossy=rule == "uncapped"
        )
        for rule in RULES
    ]
    every = measure_methods(lab, methods, temperature, "p4-cap")
    runs: dict[str, list[Run]] = dict(zip(RULES, every, strict=True))
    drafts = [d for m, r in zip(methods, every, strict=True) for d in m.drafts(r)]
    speed = decoding_speedup(runs["uncapped"], runs["block"])
    gain = same_draft_gain(drafts)
    rows = []
    for label, rule in _EXPERIMENTS:
        printed = [(name, table[rule]) for name, table in TABLE_A3.items()]
        be, ds = tokens_per_call(runs[rule]), tokens_per_second(runs[rule])
        cells = [Cell(numbers[0], be, name) for name, numbers in printed]
        cells += [Cell(numbers[1], ds, name) for name, numbers in printed]
        text = total_likelihood(lab, runs[rule], temperature)
        shift, error = text.surplus / text.num_tokens, math.sqrt(text.variance) / text.num_tokens
        rows.append(TableRow(label, tuple(cells), (shift, error, text.law_z)))
    columns = tuple(f"{unit}, {name}" for unit in ("BE", "DS") for name in TABLE_A3)
    return Table(
        "Table A.3" if temperature == 1.0 else f"Table A.3 at temperature {temperature:g}",
        f"without and with the cap; here drafts of {length} tokens by {model}",
        "method",
        columns,
        tuple(rows),
        ("log-likelihood shift", "error", "z"),
        {
            "length": length,
            "temperature": temperature,
            "speed_uncapped_over_block": speed.to_dict(),
            "gain_same_drafts": {"mean": gain.value, "standard_error": gain.error},
        },
        compared=False,
        notes=(
            "One measurement is compared with both printed data sets. Accuracy on tasks is not "
            "measured: the law of the text is.",
            "Shift: mean of log p(x) + H(p) over the text's tokens, nats a token, p the "
            "target's law; 0 within its error for a lossless rule.",
            f"Given the same drafts, forgetting the cap keeps {gain.value:.4f} ± "
            f"{gain.error:.4f} more tokens a draft; decoding speed is "
            f"{speed.format(3, '')} times block's, paired per prompt.",
        ),
    )


def same_draft_gain(drafts: Sequence[VerifiedDraft]) -> Mean:
    """Return the mean over drafts of E[τ | draft] uncapped less block."""
    return Mean.from_values([draft.means["uncapped"] - draft.means["block"] for draft in drafts])


def total_likelihood(lab: Lab, runs: Sequence[Run], temperature: float) -> Likelihood:
    """Return the likelihood of all texts under the target, which scores their tokens once."""
    model = lab.models.plain.root.model
    total = Likelihood()
    for number, (prompt, run) in enumerate(zip(lab.prompts, runs, strict=True), 1):
        total += likelihood(model, prompt, run.token_ids, temperature)
        lab.report("p4-cap, scoring texts", number / len(runs))
    return total
