"""Small mistakes, planted on paths that enumerating the rules does not take, are caught."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from engine_cases import SAMPLING, tv
from engine_paths import like, patched
from fakes.tables import Ahead, Device
from tabular_cases import models
from wrong_rules import LightResidual, SlightlyLenient

from hierspec.core import distributions as distributions
from hierspec.core.context import Context
from hierspec.core.nodes import Draft, Verify
from hierspec.core.rules import scan
from hierspec.core.windows import ConfidenceWindow, FixedWindow
from hierspec.drafters import model as drafting
from hierspec.lm.tabular import TabularModel
from hierspec.sampling import sampler as readings
from hierspec.sampling import scores as sampling
from hierspec.sampling.parameters import SamplingParams
from hierspec.verifiers import multi_draft
from hierspec.verifiers.paths import device
from hierspec.verifiers.registry import get


def lenient_scan(order, h, uniforms):
    return scan(order, h * 1.004, uniforms)


def tempered_search(cdf, u, real=distributions._search_row):
    law = np.diff(cdf / cdf[-1], prepend=0.0) ** 1.01
    return real(law.cumsum(), u)


def tempered_locate(probs, u):
    return distributions.locate(probs**1.01, u)


def tempered_draw(probs, uniforms):
    return distributions.draw(probs**1.03, uniforms)


def glad(choice, rng):
    """A multi-draft test that passes a little too often."""
    try:
        h = next(choice)
        while True:
            h = choice.send(bool(rng.take(1).item() < 1.01 * h))
    except StopIteration as stop:
        return stop.value


def drops_the_stopper(window, signals, state, real=drafting._keep_until_stop):
    """A chunk is cut before the token that its window stopped at."""
    n, stopped = real(window, signals, state)
    return (n - 1, True) if stopped and n > 1 else (n, stopped)


def forgets_the_draft(scores, context, start, *others, real=sampling.penalise):
    """Rows in the middle of a draft are penalised as the first one is."""
    text = Context(context.committed)
    for row in scores.split(1):
        real(row, text, len(text), *others)


FREQUENCY = SamplingParams(temperature=1.0, frequency_penalty=0.03)
PLANTED = {
    "lenient shortcut": ((), {"rule": SlightlyLenient()}),
    "light residual": ((), {"rule": LightResidual(), "seed": 0}),
    "lenient scan": (((device, "scan", lenient_scan),), {"path": "padded"}),
    "lenient scan, recorded": (((device, "scan", lenient_scan),), {"path": "recorded"}),
    "tempered draws": (((distributions, "_search_row", tempered_search),), {}),
    "tempered corrections": (((device, "locate", tempered_locate),), {"path": "blocks"}),
    "a draft's tempered draws": (((readings, "draw", tempered_draw),), {"drafter": Ahead}),
    "a device's tempered draws": (((readings, "locate", tempered_locate),), {"drafter": Device}),
    "multi-draft": (((multi_draft, "run_tests", glad),), {"rule": get("rrs")}),
    "a chunk's end": (
        ((drafting, "_keep_until_stop", drops_the_stopper),),
        {"drafter": Device, "window": ConfidenceWindow(floor=0.1), "seed": 8},
    ),
    "penalties": (((sampling, "penalise", forgets_the_draft),), {"params": FREQUENCY}),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_small_mistake_is_caught(name):
    changes, case = PLANTED[name]
    small, target = models("random", 2, seed=case.get("seed", 3))
    small = like(case.get("drafter", TabularModel), small)
    rule = case.get("rule", get("block"))
    leaf = Draft(0, "drafts", small, 2, case.get("window", FixedWindow()))
    leaf = dataclasses.replace(leaf, num_drafts=2 if rule.multi_draft else 1).for_rule(rule)
    root = Verify(1, "target", target, 1, rule, leaf)
    params, path = case.get("params", SAMPLING), case.get("path", "short")
    with patched(*changes):
        lost = tv(root, 3, params, path=path)
    assert 1e-5 < lost < 1e-2  # far above rounding, and below what samples show
