"""P5 Figure 6: entropies of drafted tokens that were accepted, and of those that were rejected.

Every judged token's history is the text itself: accepted tokens are in it, and the first rejected
one follows accepted ones (those after it were never judged). So one pass of the drafter over the
finished text gives its entropy at every judged token, and a trace gives the verdicts.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from hierspec.core.context import Context
from hierspec.core.nodes import Draft, Verify
from hierspec.core.windows import EntropyWindow
from hierspec.lm.base import Query
from hierspec.sampling.scores import compute_signals
from hierspec_lab.bench.methods.ours import BenchModels, HierarchyMethod
from hierspec_lab.papers.lab import Lab, draft_level
from hierspec_lab.papers.measured import model_notes, uncompared_table
from hierspec_lab.papers.tables import Curve, Figure, Reproduction, Table

from .rounds import Round, run_traced
from .systems import RULE, WINDOW, drafts, roles

_BINS = 24
_GROUPS = 5


@dataclass(frozen=True, slots=True)
class JudgedToken:
    """A drafted token that was judged.

    Attributes:
        position: in the text.
        entropy: the drafter's there, nats.
        kept: the verdict.
    """

    position: int
    entropy: float
    kept: bool


def judged_tokens(
    rounds: Sequence[Round], entropies: Sequence[float], start: int
) -> list[JudgedToken]:
    """Return the judged tokens of a text, in order.

    Args:
        entropies: of the drafter's rows for the tokens at places ``start``, ``start + 1``, …
    """
    return [
        JudgedToken(i, entropies[i - start], i < round_.at + round_.kept)
        for round_ in rounds
        for i in range(round_.at, round_.at + round_.kept + round_.rejected)
    ]


def entropies(model: Any, text: Sequence[int], start: int) -> list[float]:
    """Return entropies, in nats, of the model's untempered rows for the tokens from ``start`` on.

    Args:
        start: place of the first token, at least 1.
    """
    slot = model.open()
    try:
        scores = model.score([Query(slot, Context(text[:-1]), start)])
        return compute_signals(scores, text[start:], "entropy")
    finally:
        model.close(slot)


def area_under_curve(kept: Sequence[float], rejected: Sequence[float]) -> float:
    """Return the probability that a rejected token's entropy is above an accepted one's (AUC).

    Ties count half. 0.5: entropy tells nothing; 1: a threshold separates them; NaN without tokens
    of either kind.
    """
    if not len(kept) or not len(rejected):
        return float("nan")
    ordered = np.sort(np.asarray(kept, dtype=float))
    below = np.searchsorted(ordered, rejected, "left")
    at_or_below = np.searchsorted(ordered, rejected, "right")
    return float((below + at_or_below).mean() / (2 * len(ordered)))


def thresholds(tokens: Sequence[JudgedToken]) -> list[float]:
    """Return the running threshold, in nats, that holds at each judged token of a text.

    It is :class:`EntropyWindow`'s: the mean entropy at the tokens rejected before, 0 until then.
    """
    window, running = EntropyWindow(), list[float]()
    state = window.init()
    for token in tokens:
        running.append(window.threshold_after(state))
        state = window.observe(state, [token.entropy], int(token.kept))
    return running


@dataclass(frozen=True, slots=True)
class Pair:
    """A drafter and its verifier, as ``name``, and the judged tokens of each text."""

    name: str
    texts: tuple[tuple[JudgedToken, ...], ...]

    def entropies(self, kept: bool) -> list[float]:
        return [token.entropy for text in self.texts for token in text if token.kept == kept]

    def means(self, kept: bool) -> list[float | None]:
        """Return the mean entropy of a text's accepted or rejected tokens; ``None`` without any."""
        chosen = ([t.entropy for t in text if t.kept == kept] for text in self.texts)
        return [statistics.fmean(values) if values else None for values in chosen]


def measure(lab: Lab) -> Reproduction:
    """Trace vanilla drafting by M2 and M1 for the target, and by M1 for M2, at each temperature."""
    small, large = drafts(lab, "p5-entropy")
    middle_target = dataclasses.replace(lab.models.target, model=large)
    middle = BenchModels(middle_target, (small,), lab.models.loaded)
    plans = (
        ("M2 for the target", lab.models, large),
        ("M1 for the target", lab.models, small),
        ("M1 for M2", middle, small),
    )
    tables, figures = [], []
    total = len(lab.temperatures) * len(plans)
    for i, temperature in enumerate(lab.temperatures):
        pairs = []
        for j, (name, models, draft) in enumerate(plans):
            stage = f"p5-entropy, {name}, temperature {temperature:g}"
            share = (i * len(plans) + j) / total
            method = HierarchyMethod(name, models, [draft_level(draft, WINDOW)], verify=RULE)
            pairs.append(_pair(lab, method, temperature, stage, share, 1 / total))
        tables += [
            _separation_table(lab, temperature, pairs),
            _threshold_table(lab, temperature, pairs),
        ]
        figures.append(_calibration(lab, temperature, pairs))
        for pair in pairs:
            figures += [_per_text(lab, temperature, pair), _histogram(lab, temperature, pair)]
    return Reproduction("p5-entropy", tuple(tables), tuple(figures), lab.to_dict())


def _pair(
    lab: Lab, method: HierarchyMethod, temperature: float, stage: str, share: float, part: float
) -> Pair:
    below = method.hierarchy.root.below
    assert isinstance(below, Draft | Verify)
    model = below.model
    texts = []
    for number, prompt in enumerate(lab.prompts):
        run, rounds = run_traced(lab, method, temperature, number)
        text = [*prompt, *run.token_ids]
        key = f"{method.name}, temperature {temperature:g}, prompt {number}: entropies"
        values = lab.once(key, partial(entropies, model, text, len(prompt)))
        texts.append(tuple(judged_tokens(rounds, values, len(prompt))))
        lab.report(stage, share + part * (number + 1) / len(lab.prompts))
    return Pair(method.name, tuple(texts))


def _separation_table(lab: Lab, temperature: float, pairs: list[Pair]) -> Table:
    return uncompared_table(
        f"Figure 6 in numbers, temperature {temperature:g}",
        "entropies of drafted tokens, nats, and how well they tell what will be rejected",
        "pair",
        [(pair.name, _separation_cells(pair)) for pair in pairs],
        ("kept", "rejected", "mean kept", "mean rejected", "AUC", "texts apart"),
        {**roles(lab), "K": WINDOW},
        notes=(
            "P5 shows pictures only. AUC: the probability that a rejected token has more entropy "
            "than a kept one; 0.5 says nothing. Texts apart: in how many texts the rejected "
            "tokens have the greater mean.",
            "Tokens after the first rejected one of a draft were never judged and do not count.",
            "P5's text names the pairs 70b-7b and 7b-68m, its caption 70b-7b and 70b-68m: all "
            "three are here. M1 for M2 continues M2's own text.",
            "Verification is token by token and windows are fixed, as in the paper's vanilla "
            "decoding. Entropies are the drafter's untempered ones, from a pass over the text.",
            *model_notes(lab),
        ),
    )


def _threshold_table(lab: Lab, temperature: float, pairs: list[Pair]) -> Table:
    return uncompared_table(
        f"The running threshold, temperature {temperature:g}",
        "where self-verify's threshold would stand, nats, and what it would have decided",
        "pair",
        [(pair.name, _threshold_cells(pair)) for pair in pairs],
        ("at the end", "kept, gone on", "rejected, stopped", "first rejection"),
        {**roles(lab), "K": WINDOW},
        notes=(
            "Not in P5. The threshold is the running mean over the text of entropies at rejected "
            "tokens; its last value is a mean over texts.",
            "With the value in force at each token: the share of kept tokens after which "
            "self-verify would have gone on, and of rejected ones at which it would have stopped.",
            "First rejection: the mean number of tokens judged until then (texts without one "
            "count whole): so long the threshold is 0 and would stop every draft at one token.",
            *model_notes(lab),
        ),
    )


def _separation_cells(pair: Pair) -> tuple[object, ...]:
    kept, rejected = pair.entropies(True), pair.entropies(False)
    means = zip(pair.means(True), pair.means(False), strict=True)
    pairs = [(a, b) for a, b in means if a is not None and b is not None]
    area = area_under_curve(kept, rejected)
    return (
        len(kept),
        len(rejected),
        _mean(kept),
        _mean(rejected),
        "none" if math.isnan(area) else area,
        f"{sum(b > a for a, b in pairs)} of {len(pairs)}",
    )


def _threshold_cells(pair: Pair) -> tuple[object, ...]:
    decisions = [
        (token, limit)
        for text in pair.texts
        for token, limit in zip(text, thresholds(text), strict=True)
    ]
    return (
        _mean([statistics.fmean(values) for values in map(_rejected, pair.texts) if values]),
        _mean([float(token.entropy <= limit) for token, limit in decisions if token.kept]),
        _mean([float(token.entropy > limit) for token, limit in decisions if not token.kept]),
        _mean([_first_rejection(text) for text in pair.texts if text]),
    )


def _rejected(text: tuple[JudgedToken, ...]) -> list[float]:
    return [token.entropy for token in text if not token.kept]


def _first_rejection(text: tuple[JudgedToken, ...]) -> int:
    """Count the tokens judged up to the first rejected one, inclusive."""
    return next((i for i, token in enumerate(text, 1) if not token.kept), len(text))


def _mean(values: list[float] | list[int]) -> float | str:
    return statistics.fmean(values) if values else "none"


def _calibration(lab: Lab, temperature: float, pairs: list[Pair]) -> Figure:
    """Return a figure of the share of rejected tokens by entropy."""
    curves = []
    for pair in pairs:
        tokens = sorted((t for text in pair.texts for t in text), key=lambda token: token.entropy)
        groups = [g for g in np.array_split(np.arange(len(tokens)), _GROUPS) if len(g)]
        if not groups:
            continue
        curves.append(
            Curve(
                pair.name,
                tuple(statistics.fmean(tokens[i].entropy for i in g) for g in groups),
                tuple(statistics.fmean(float(not tokens[i].kept) for i in g) for g in groups),
            )
        )
    return Figure(
        f"Rejection by entropy, temperature {temperature:g}",
        f"share of judged tokens that were rejected, in {_GROUPS} groups of equal size by entropy",
        "mean entropy of the group, nats",
        "rejected",
        tuple(curves),
        notes=(
            "Not in P5. A threshold on entropy is worth what this curve rises: a flat one means "
            "that stopping there saves no more rejections than stopping anywhere.",
            *model_notes(lab),
        ),
    )


def _per_text(lab: Lab, temperature: float, pair: Pair) -> Figure:
    curves = []
    for label, kept in (("kept", True), ("rejected", False)):
        points = [(i, y) for i, y in enumerate(pair.means(kept), 1) if y is not None]
        if points:
            x, y = zip(*points, strict=True)
            curves.append(Curve(label, tuple(map(float, x)), y, "points"))
    return Figure(
        f"Figure 6: {pair.name}, temperature {temperature:g}",
        "mean entropy of a text's kept and rejected draft tokens",
        "text",
        "entropy, nats",
        tuple(curves),
        notes=model_notes(lab),
    )


def _histogram(lab: Lab, temperature: float, pair: Pair) -> Figure:
    kept, rejected = pair.entropies(True), pair.entropies(False)
    edges = np.linspace(0.0, max([*kept, *rejected, 1e-9]), _BINS + 1)
    middles = tuple(float(x) for x in (edges[:-1] + edges[1:]) / 2)
    curves = []
    for label, values in (("kept", kept), ("rejected", rejected)):
        if values:
            counts, _ = np.histogram(values, edges)
            curves.append(Curve(label, middles, tuple(float(c) for c in counts / len(values))))
    return Figure(
        f"Figure 6, tokens: {pair.name}, temperature {temperature:g}",
        "how entropies are spread over kept and over rejected tokens",
        "entropy, nats",
        "share of tokens",
        tuple(curves),
        notes=model_notes(lab),
    )
