"""What the drafts of one model say about the models above it, as the profile keeps it."""

from __future__ import annotations

from typing import Any
from zlib import crc32

import numpy as np

from hierspec.core.windows import Window

from .candidates import Pool
from .rates import Drafts

Curves = dict[str, np.ndarray]  # by rule, [N, M+1]: a survival curve per draft


def pairs(
    drafter: int, pool: Pool, drafts: Drafts, kinds: np.ndarray, seed: int
) -> list[dict[str, Any]]:
    """An entry per verifier that saw the drafts.

    Args:
        drafter: its number in the pool.
        kinds: [texts, places], classes of the places (:func:`.agreement.classes`).
    """
    names = [entrant.name for entrant in pool.entrants]
    entrant, target = pool.entrants[drafter], len(names) - 1
    assert entrant.candidate is not None
    window, lengths = entrant.candidate.window, np.array(drafts.lengths)
    seen = {k: _curves(drafts, k) for k in drafts.block}
    # Numbers follow measured costs, so dice are keyed by names.
    kept = {
        k: sampled(curves["tokenwise"], (seed, crc32(f"{names[drafter]} {names[k]}".encode())))
        for k, curves in seen.items()
    }
    if window.signal:
        lengths = stopping_places(window, drafts, kept[target])
    varied = bool(window.signal) or not entrant.scores
    kind = np.array([kinds[text, place] for text, place in drafts.where])
    out = []
    for k, curves in seen.items():
        mean = curves["block"].sum(1)
        pair: dict[str, Any] = {
            "drafter": drafter,
            "verifier": k,
            "drafts": len(lengths),
            **_summary(curves, lengths if varied else None),
            "classes": [
                _class(curves, lengths if varied else None, kind == c)
                for c in range(int(kinds.max()) + 1)
            ],
            "tokens_per_call": round(float(mean.mean()), 5),
            "standard_error": round(float(mean.std() / len(mean) ** 0.5), 5),
            "lengths": lengths.tolist(),
            "kept": np.minimum(kept[k], lengths).tolist(),
        }
        out.append(pair)
    return out


def sampled(curves: np.ndarray, seed: tuple[int, ...]) -> np.ndarray:
    """How many tokens of each draft the tokenwise rule keeps, [N], drawn from its curve [N, M+1].

    One uniform u per draft: τ is the number of m ≥ 1 with u < curve[m], since the curve falls.
    """
    uniforms = np.random.default_rng(seed).random(len(curves))
    return (uniforms[:, None] < curves[:, 1:]).sum(1)


def stopping_places(window: Window, drafts: Drafts, kept: np.ndarray) -> np.ndarray:
    """Where a window would have stopped each draft, [N] tokens.

    A threshold that runs is taken where it settles: the drafts are gone through once, as one
    long text, and then cut with the threshold that has been reached.

    Args:
        kept: [N] tokens of each whole draft that the target keeps; of a draft that was cut it
            keeps those that are left of them.
    """
    state = window.init()
    for signals, tau in zip(drafts.signals, kept, strict=True):
        length = _stop(window, signals, state)
        state = window.observe(state, signals[:length], min(int(tau), length))
    return np.array([_stop(window, signals, state) for signals in drafts.signals])


def joint(lengths: np.ndarray, curves: np.ndarray) -> np.ndarray:
    """[M+1, M+1]: probability of stopping after n tokens with the first m of them kept.

    Args:
        lengths: [N] of the drafts; ``curves``: [N, M+1], their survival.
    """
    size = curves.shape[1]
    out = np.zeros((size, size))
    for n, curve in zip(lengths, curves, strict=True):
        out[n, : n + 1] += curve[: n + 1]
    return out / len(lengths)


def rounded(row: np.ndarray) -> list[float]:
    """For JSON: six digits are more than any sample knows."""
    return [round(float(value), 6) for value in row]


def _curves(drafts: Drafts, verifier: int) -> Curves:
    return {
        "block": np.stack(drafts.block[verifier]),
        "tokenwise": np.stack(drafts.tokenwise[verifier]),
    }


def _class(curves: Curves, lengths: np.ndarray | None, some: np.ndarray) -> dict[str, Any]:
    part = {rule: rows[some] for rule, rows in curves.items()}
    summary = _summary(part, None if lengths is None else lengths[some])
    return {**summary.pop("survival"), **summary}


def _summary(curves: Curves, lengths: np.ndarray | None) -> dict[str, Any]:
    out: dict[str, Any] = {
        "survival": {rule: rounded(rows.mean(0)) for rule, rows in curves.items()}
    }
    if lengths is not None:
        out["joint"] = {
            rule: [rounded(row) for row in joint(lengths, rows)] for rule, rows in curves.items()
        }
    return out


def _stop(window: Window, signals: tuple[float, ...], state: tuple[float, ...]) -> int:
    for n, value in enumerate(signals, 1):
        if window.stops((value,), state):
            return n
    return len(signals)
