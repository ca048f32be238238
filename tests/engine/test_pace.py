"""By its own rounds a text knows whether its drafts paid."""

import pytest
import torch
from tiny_models import tiny_model

from hierspec import Hierarchy
from hierspec.engine.pace import Pace


@pytest.mark.parametrize(
    ("pace", "slowdown"),
    [
        (Pace(8, [0.3] * 8, plain=[0.2] * 3, checks=[0.25] * 5), 1.5),
        (Pace(8, [0.3] * 8, plain=[0.2] * 2, checks=[0.25] * 6), 1.2),  # less is known
        (Pace(24, [0.3] * 8, checks=[0.25] * 8), 0.4),
        (Pace(8, [0.3] * 7 + [9.0], plain=[0.3] * 3, checks=[0.25] * 5), 1.375),  # a busy machine
        (Pace(9, [0.2, 0.2, 0.5] * 3, plain=[0.2, 0.2, 0.5], checks=[0.2] * 6), 1.0),  # all along
        (Pace(7, [0.3] * 7, checks=[0.1] * 7), None),  # too few rounds
        (Pace(9, [0.3] * 9, plain=[0.3] * 9), None),  # nothing drafted
        (Pace(8, [0.3] * 8, checks=[0.0] * 8), None),  # too coarse a clock
    ],
)
def test_a_token_took_so_many_times_as_long_as_without_drafts(pace, slowdown):
    assert pace.slowdown == (slowdown and pytest.approx(slowdown))


@pytest.mark.parametrize("drafts", [[], ["ngram"], ["model"]])
def test_rounds_of_a_text_alone_are_measured(drafts):
    model = tiny_model("llama", seed=1, dtype=torch.float32)
    smaller = tiny_model("llama", seed=2, layers=1, dtype=torch.float32)
    fast = Hierarchy(model, drafts=[smaller if name == "model" else name for name in drafts])
    options = {"max_new_tokens": 40, "ignore_eos": True}
    generation = fast.start([[5, 9, 7]], **options)
    assert len(list(generation)) == 40
    (result,) = generation.results()
    pace = generation.requests[0].pace
    assert pace.num_tokens == 39
    assert len(pace.rounds) == len(pace.plain) + len(pace.checks) == result.target_calls
    assert sum(pace.rounds) <= result.decode_seconds
    assert sum(pace.checks) <= sum(pace.rounds)
    assert (result.slowdown is None) == (not drafts)
    assert len(pace.checks) == 38 or drafts != ["model"]  # but for the last, which has no room
    together = fast.generate_batch([[5, 9, 7], [8, 9]], **options)
    assert {one.slowdown for one in together} == {None}
