"""The profile's entries for one drafter: survival curves against each verifier."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from zlib import crc32

import numpy as np

from hierspec.core.windows import Window

from .candidates import CandidatePool
from .rates import FollowedDrafts
from .schema import FollowedPair, MeasuredClass, Rule, Survival

Curves = Mapping[Rule, np.ndarray]  # [N, M+1]: a survival curve per draft


def pairs(
    drafter: int,
    pool: CandidatePool,
    drafts: FollowedDrafts,
    classes: Sequence[Sequence[int]],
    seed: int,
) -> list[FollowedPair]:
    """Return an entry per verifier that saw the drafts.

    Args:
        classes: the class of every place of every text (:func:`.agreement.classes`).
    """
    names = [member.name for member in pool.members]
    member, target = pool.members[drafter], len(names) - 1
    assert member.candidate is not None
    window, lengths = member.candidate.level.window, np.array(drafts.lengths)
    by_verifier: dict[int, Curves] = {
        k: {"block": np.stack(drafts.block[k]), "tokenwise": np.stack(drafts.tokenwise[k])}
        for k in drafts.block
    }
    # Keyed by names: the models' numbers depend on measured costs.
    kept = {
        k: draw_kept(curves["tokenwise"], (seed, crc32(f"{names[drafter]} {names[k]}".encode())))
        for k, curves in by_verifier.items()
    }
    if window.signal:
        lengths = stopping_lengths(window, drafts, kept[target])
    stopping = lengths if window.signal or not member.scores else None
    class_of_draft = np.array([classes[text][place] for text, place in drafts.places])
    num_classes = 1 + max(number for text in classes for number in text)
    in_class = [class_of_draft == number for number in range(num_classes)]
    out: list[FollowedPair] = []
    for k, curves in by_verifier.items():
        tokens = curves["block"].sum(1)
        average = _summary(curves, stopping)
        out.append(
            FollowedPair(
                drafter=drafter,
                verifier=k,
                drafts=len(lengths),
                survival=Survival(block=average.block, tokenwise=average.tokenwise),
                classes=[  # where texts are short, no draft may begin in one: it is as all are
                    _summary(curves, stopping, chosen if chosen.any() else slice(None))
                    for chosen in in_class
                ],
                tokens_per_call=round(float(tokens.mean()), 5),
                standard_error=round(float(tokens.std() / len(tokens) ** 0.5), 5),
                lengths=lengths.tolist(),
                kept=np.minimum(kept[k], lengths).tolist(),
                **({"joint": average.joint} if average.joint else {}),
            )
        )
    return out


def _summary(
    curves: Curves, lengths: np.ndarray | None, selected: np.ndarray | slice = slice(None)
) -> MeasuredClass:
    """Average the curves of the selected drafts; with ``lengths``, also by length."""
    block, tokenwise = curves["block"][selected], curves["tokenwise"][selected]
    average = MeasuredClass(block=_rounded(block.mean(0)), tokenwise=_rounded(tokenwise.mean(0)))
    if lengths is None:
        return average
    joint = {
        "block": [_rounded(row) for row in joint_survival(lengths[selected], block)],
        "tokenwise": [_rounded(row) for row in joint_survival(lengths[selected], tokenwise)],
    }
    return average.model_copy(update={"joint": joint})


def draw_kept(curves: np.ndarray, seed: tuple[int, ...]) -> np.ndarray:
    """Draw how many tokens of each draft tokenwise keeps, [N], from its curve [N, M+1].

    One uniform u per draft: τ is the number of m ≥ 1 with u < curve[m], since the curve falls.
    """
    uniforms = np.random.default_rng(seed).random(len(curves))
    return (uniforms[:, None] < curves[:, 1:]).sum(1)


def stopping_lengths(window: Window, drafts: FollowedDrafts, kept: np.ndarray) -> np.ndarray:
    """Return where a window would have stopped each draft, [N] tokens.

    An adaptive threshold is first run over all drafts, as if they were one long text; then every
    draft is cut with the value it has reached.

    Args:
        kept: [N] tokens of each whole draft that the target keeps; of a cut draft it keeps at most
            all that is left.
    """
    state = window.init()
    for signals, tau in zip(drafts.signals, kept, strict=True):
        length = _stopping_length(window, signals, state)
        state = window.observe(state, signals[:length], min(int(tau), length))
    return np.array([_stopping_length(window, signals, state) for signals in drafts.signals])


def joint_survival(lengths: np.ndarray, curves: np.ndarray) -> np.ndarray:
    """Return the probability of stopping after n tokens with the first m accepted, [M+1, M+1].

    Args:
        lengths: [N] of the drafts; ``curves``: [N, M+1], their survival.
    """
    size = curves.shape[1]
    out = np.zeros((size, size))
    for n, curve in zip(lengths, curves, strict=True):
        out[n, : n + 1] += curve[: n + 1]
    return out / len(lengths)


def _rounded(row: np.ndarray) -> list[float]:
    return [round(float(value), 6) for value in row]


def _stopping_length(window: Window, signals: tuple[float, ...], state: tuple[float, ...]) -> int:
    for n in range(1, len(signals) + 1):
        if window.stops(signals[:n], state):
            return n
    return len(signals)
