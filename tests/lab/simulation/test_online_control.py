"""The plan of every next round, simulated: little harm whatever drafts do, gains near the best."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
from estimate_cases import COSTS, GOOD, GROWTH, estimates, rates
from hypothesis import given, settings
from hypothesis import strategies as st
from numbered_chains import chain as numbered

from hierspec.planner.estimates import Chain
from hierspec.planner.latency import latency
from hierspec.planner.online.controller import OnlineController
from hierspec_lab.planning.simulated import build_root
from hierspec_lab.simulation import CoinFlips, simulate

PLAIN = COSTS[-1]
CATCH_UP = [GROWTH * ms for ms in COSTS]
USELESS = rates(0.0, 0.0, 0.0)
STACK = Chain((0, 1, 2), (4, 6))
CONTINUED = [Chain((0, 1, 2), (3, 6), "horizontal"), Chain((0, 1, 2), (2, 6), tail=3)]


def controlled(chain):
    return OnlineController(build_root(chain), estimates(), chain)


@pytest.fixture(scope="module")
def controller():
    return controlled(STACK)


def simulated(source, controller, tokens, chain=STACK):
    return simulate(
        build_root(chain),
        source,
        lambda model, scored: COSTS[model] * (1.0 + GROWTH * (scored - 1)),
        tokens=tokens,
        controller=controller,
        catch_up=CATCH_UP,
    )


class Changing:
    """Coin flips whose rates change after a number of the target's tokens."""

    def __init__(self, first, then, after, seed):
        self.sources, self.after, self.emitted = (
            (CoinFlips(first, seed), CoinFlips(then, ~seed & 99)),
            after,
            0,
        )

    def kept(self, model, owners):
        kept = self.sources[self.emitted >= self.after].kept(model, owners)
        self.emitted += (kept + 1) * (model == 2)
        return kept


def loss(result):
    """Tokens of plain decoding by which a run was dearer than plain decoding."""
    return result.num_tokens * (result.ms_per_token / PLAIN - 1.0)


@given(
    st.sampled_from([STACK, *CONTINUED]),
    st.lists(st.integers(0, 12), min_size=1, max_size=40),
    st.integers(1, 150),
)
@settings(max_examples=120, deadline=None)
def test_loss_is_bounded_whatever_is_kept(chain, kept, tokens):
    """Not on average: every sequence of outcomes stays within ``loss_budget`` and ``risk``."""
    controller = _CONTROLLERS[chain]
    calls = iter(kept * 100_000)

    class Adversary:
        def kept(self, model, owners):
            return min(next(calls), len(owners))

    bound = controller.loss_budget + 0.01 * tokens
    assert loss(simulated(Adversary(), controller, tokens, chain)) <= bound + 1e-9


_CONTROLLERS = {chain: controlled(chain) for chain in (STACK, *CONTINUED)}


@pytest.mark.parametrize("acceptance", [USELESS, rates(0.8, 0.0, 0.0)])
def test_useless_drafts_do_little_harm(controller, acceptance):
    for tokens, most in ((64, 0.08), (500, 0.03)):
        result = simulated(CoinFlips(acceptance, seed=3), controller, tokens)
        assert loss(result) / tokens < most
        assert result.control["rounds"]["plain"] > 0.6 * tokens


def test_gains_come_near_the_plan_the_text_asks_for(controller):
    """Within 8 % of the best fixed plan where the estimates are right; beyond it elsewhere."""
    best = min(
        latency(estimates(), Chain((0, 1, 2), (i, j))).ms_per_token
        for i in range(1, 9)
        for j in range(1, 13)
    )
    as_estimated = simulated(CoinFlips(GOOD, seed=1), controller, 1500)
    assert as_estimated.ms_per_token < 1.08 * best
    for acceptance, gain in (
        (rates(0.95, 0.97, 0.92), 3.8),
        (rates(0.0, 0.9, 0.0), 1.6),  # the smallest level is left out
        (rates(0.2, 0.1, 0.7), 1.9),  # the middle one is
        (rates(0.5, 0.5, 0.4), 1.2),
    ):
        source = CoinFlips(acceptance, seed=2)
        assert PLAIN / simulated(source, controller, 1500).ms_per_token > gain


@pytest.mark.parametrize("chain", CONTINUED)
@pytest.mark.parametrize("across", [0.7, 0.0])
def test_gains_of_drafts_that_a_drafter_continues(chain, across):
    """Near the best fixed plan, also where the target keeps nothing of what continues them."""
    acceptance, budgets = rates(0.8, 0.9, across), range(9)
    best = min(
        latency(estimates(acceptance=acceptance), chain.with_budgets(used)).ms_per_token
        for used in itertools.product(*[budgets[1:]] * (len(chain.levels) - 1), budgets)
    )
    found = simulated(CoinFlips(acceptance, seed=1), _CONTROLLERS[chain], 1500, chain)
    assert found.ms_per_token < (1.08 if across else 1.15) * best


def test_it_follows_a_text_that_turns(controller):
    """Static plans: good then useless costs 2.2 times plain decoding."""
    down = simulated(Changing(GOOD, USELESS, 500, 1), controller, 1000)
    assert down.ms_per_token < 0.78 * PLAIN
    up = simulated(Changing(USELESS, GOOD, 500, 1), controller, 1000)
    assert up.ms_per_token < 0.88 * PLAIN
    assert up.control["switches"] > 2


def test_kinds_of_text_in_the_estimates_do_not_hide_what_a_text_shows():
    known = estimates()
    kinds = dataclasses.replace(known, classes=(known, known))
    chain, useless = Chain((0, 1, 2), (4, 6)), rates(0.0, 0.0, 0.0)
    spent = [
        simulated(CoinFlips(useless, seed=1), OnlineController(numbered([4, 6]), each, chain), 400)
        for each in (known, kinds)
    ]
    assert spent[0].ms_per_token == spent[1].ms_per_token


def test_two_levels_without_a_choice_of_models():
    """The common case: one drafter over the target; catch-up priced from the estimates."""
    known = estimates((1.0, 10.0), [[0.0, 0.8], [0.0, 0.0]])
    online = OnlineController(numbered([4]), known, Chain((0, 1), (4,)))
    assert online.catch_up == pytest.approx((0.04,))
    result = simulate(
        numbered([4]),
        CoinFlips([[0.0, 0.8], [0.0, 0.0]]),
        lambda model, n: (1.0, 10.0)[model] * (1 + GROWTH * (n - 1)),
        tokens=600,
        controller=online,
    )
    best = min(latency(known, Chain((0, 1), (n,))).ms_per_token for n in range(1, 12))
    assert result.ms_per_token < 1.1 * best
    with pytest.raises(ValueError, match="rounds to run or the tokens"):
        simulate(numbered([4]), CoinFlips(GOOD), COSTS)


def test_states_are_values(controller):
    result = simulated(CoinFlips(GOOD, seed=1), controller, 40)
    again = simulated(CoinFlips(GOOD, seed=1), controller, 40)
    assert result.control == again.control
    assert hash(controller.initial()) == hash(controller.initial())
