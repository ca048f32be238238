"""P3's Table 2 and Figure 2, the "verification wall": drafting time against verification time.

A draft model writes six tokens, the target checks them in one call: which takes longer? Measured
for every draft at hand, separate models and early exits of the target.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hierspec.errors import HierspecError
from hierspec.presets.systems import layers_at_shares
from hierspec_lab.bench.methods.base import Run
from hierspec_lab.bench.methods.ours import HierarchyMethod
from hierspec_lab.papers.lab import Lab, draft_level
from hierspec_lab.papers.measured import (
    Measured,
    model_notes,
    side_by_side,
    target_forwards,
    uncompared_table,
)
from hierspec_lab.papers.measured import drafted as drafted_tokens
from hierspec_lab.papers.tables import Curve, Figure, Reproduction, Table

from .systems import exit_level

DRAFTED = 6  # tokens per iteration [P3 Appendix B]
SHARES = (1 / 8, 1 / 4, 1 / 2)  # of the depth: exits that draft

# target, draft, T_gen and T_verif in ms (vLLM, eight H100, ShareGPT), T_verif / T_gen as printed
TABLE_2 = (
    ("opt-66b", "opt-1.3b", "9.14", "26.83", "2.9"),
    ("opt-66b", "opt-2.7b", "12.23", "26.83", "2.2"),
    ("opt-66b", "opt-6.7b", "13.48", "26.83", "2"),
    ("Llama-3.1-70B", "Llama-3.2-1B", "7.10", "42.54", "6"),
    ("Llama-3.1-70B", "Llama-3.2-3B", "10.58", "42.54", "4"),
    ("Llama-3.1-70B", "Llama-3.1-8B", "17.42", "42.54", "2.4"),
    ("Llama-3.1-405B", "Llama-3.2-1B", "7.10", "72.97", "10.3"),
    ("Llama-3.1-405B", "Llama-3.2-3B", "10.58", "72.97", "6.9"),
    ("Llama-3.1-405B", "Llama-3.1-8B", "17.42", "72.97", "4.2"),
)


@dataclass(frozen=True, slots=True)
class Wall:
    """How the time of one draft-and-verify iteration is spent.

    Attributes:
        draft_ms: drafting six tokens.
        verify_ms: one call of the target, sampling and verification included.
        drafting, verifying, outside: shares of decoding time; they sum to 1.
    """

    draft_ms: float
    verify_ms: float
    drafting: float
    verifying: float
    outside: float

    @property
    def ratio(self) -> float:
        """Verification over drafting, per iteration."""
        return self.verify_ms / self.draft_ms if self.draft_ms else float("inf")


def wall(runs: Sequence[Run], drafted: int = DRAFTED) -> Wall:
    """Return the times of all runs of one drafter under the target together.

    The last iteration of a text drafts fewer tokens, so drafting time is taken per token.

    Raises:
        HierspecError: nothing was drafted, or nothing after the first token was written.
    """
    tokens, calls = drafted_tokens(runs, 0), target_forwards(runs)
    total = sum(run.decode_seconds or 0.0 for run in runs)
    if not tokens or not calls or not total:
        raise HierspecError("nothing was drafted: write more tokens after each prompt")
    draft = sum(run.levels[0].seconds for run in runs)
    verify = sum(run.counters[-1].seconds for run in runs)
    return Wall(
        1e3 * drafted * draft / tokens,
        1e3 * verify / calls,
        draft / total,
        verify / total,
        1.0 - (draft + verify) / total,
    )


def measure(lab: Lab) -> Reproduction:
    """Measure the target with each draft model and each early exit in turn.

    Raises:
        HierspecError: there is neither a draft model nor an early exit.
    """
    exits = layers_at_shares(lab.models.num_layers, SHARES)
    methods = [
        *(
            HierarchyMethod(name, lab.models, [draft_level(name, DRAFTED)], verify="block")
            for name in lab.models.drafts
        ),
        *(
            HierarchyMethod(f"exit {layer}", lab.models, [exit_level(layer, DRAFTED)])
            for layer in exits
        ),
    ]
    if not methods:
        raise HierspecError(
            "p3-wall needs something that drafts: give --draft, or a target of two layers or more"
        )
    tables, figures = [], []
    for temperature in lab.temperatures:
        plain, *measurements = side_by_side(lab, methods, temperature, "p3-wall")
        tables.append(_table(lab, temperature, plain, measurements))
        figures.append(_figure(lab, temperature, measurements))
    return Reproduction("p3-wall", (*tables, _printed()), tuple(figures), lab.to_dict())


def _table(
    lab: Lab, temperature: float, plain: Measured, measurements: Sequence[Measured]
) -> Table:
    target = lab.target
    rows = []
    for method in measurements:
        if method.reason:
            rows.append((method.name, (*("",) * 6, method.reason)))
            continue
        times = wall(method.runs)
        shares = (times.drafting, times.verifying, times.outside)
        rows.append((method.name, (times.draft_ms, times.verify_ms, times.ratio, *shares, "")))
    return uncompared_table(
        f"Table 2, temperature {temperature:g}",
        f"milliseconds of drafting {DRAFTED} tokens and of one check by {target}, and their shares "
        "of decoding",
        "draft",
        rows,
        ("T_gen", "T_verif", "ratio", "drafting", "verifying", "outside", "skipped"),
        {"drafted": DRAFTED, "plain_ms_per_token": plain.decode_ms},
        notes=(
            f"Plain decoding: {plain.decode_ms:.2f} ms a token. Times include distributions, draws "
            "and verification rules; an exit's check takes only the layers above it, since hidden "
            "states and keys are shared.",
            "P3 says verification takes 2 to 10.3 times as long as drafting, and 60 to 90 % of the "
            "time. That holds where the target's call is dear beside six calls of the draft; "
            "where drafts are not much cheaper, drafting is the larger part.",
            *model_notes(lab),
        ),
    )


def _printed() -> Table:
    return uncompared_table(
        "Table 2 as printed",
        "milliseconds on eight H100 with vLLM, ShareGPT, six tokens per iteration",
        "target",
        [(target, tuple(cells)) for target, *cells in TABLE_2],
        ("draft", "T_gen", "T_verif", "ratio"),
        notes=(
            "Not reproducible here: models of 66 B to 405 B parameters on eight accelerators. P3 "
            "does not say whether T_gen is of one draft token or of all six.",
        ),
    )


def _figure(lab: Lab, temperature: float, measurements: Sequence[Measured]) -> Figure:
    ran = [method for method in measurements if not method.reason]
    walls = [wall(method.runs) for method in ran]
    x = tuple(float(number) for number in range(1, len(ran) + 1))
    return Figure(
        f"Figure 2, temperature {temperature:g}",
        f"drafting {DRAFTED} tokens against one check by {lab.target}",
        "draft (numbered)",
        "milliseconds an iteration",
        (
            Curve("drafting", x, tuple(times.draft_ms for times in walls), "bars"),
            Curve("verification", x, tuple(times.verify_ms for times in walls), "bars"),
        ),
        notes=(
            "Drafts: " + ", ".join(f"{n}: {m.name}" for n, m in enumerate(ran, 1)) + ".",
            *model_notes(lab),
        ),
    )
