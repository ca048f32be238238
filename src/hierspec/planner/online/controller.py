"""The planner during generation: budgets and levels follow the acceptance on this text.

Three things decide, all from finished rounds [MATH §4; :mod:`hierspec.engine.control`]:

- an *estimate of acceptance* on this text prices every plan with the latency model;
- *hysteresis*: a plan is replaced only by one that is better by a margin;
- an *account* from which rounds pay what they cost beyond plain decoding, and into which they pay
  what they save. A round is risked only if the account could pay for it, and half as much again,
  were all of its drafts rejected. So, as the estimates price calls, a text never costs more than
  plain decoding of it, plus ``loss_budget`` tokens, plus one per cent, whatever the drafts do.
  Savings are kept up to a limit only, which bounds the loss from any point of the text on. The
  account also makes the first rounds cautious, and lets them grow as soon as they pay.

When nothing pays, the target decodes plainly and tries a short draft after 16, 32, 64, 64, …
tokens. No clock is read: the same seed gives the same text.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from hierspec.core.nodes import Verify
from hierspec.core.windows import Counts
from hierspec.engine.control import RoundReport, levels_below, plan_of
from hierspec.errors import HierspecError
from hierspec.planner.estimates import Chain, Estimates

from .acceptance_estimate import Evidence, add_tests, fade, predict_passes, shifts_of
from .candidates import candidate_plans
from .prices import PriceList, counts_of_levels, default_catch_up, spent_ms, worst_ms

# Reading the prompt is free up to this part of the plain time of the text to come.
_FREE_PROMPT = 0.02
_MARGIN = 0.03  # gain, as a fraction, for which a plan is replaced; plain decoding needs none
_RISK = 0.01  # fraction of plain time that may be lost beyond the budget
_RESERVE = 1.5  # so that one bad round leaves enough for a shorter one


@dataclass(frozen=True, slots=True)
class OnlineState:
    """The controller's state for one text.

    Attributes:
        plan: in force, as an index of the plans; 0 is plain decoding.
        trial: a plan tried for one round in a plain phase.
        evidence: tests of each pair of levels on this text.
        account: ms that may still be lost.
        num_remaining: tokens that may still follow.
        unread: per level, tokens that it has not read, of the prompt and the output.
        plain_tokens: tokens decoded plainly since the last draft.
        wait: plain tokens before the next trial.
        trials: number of trials so far; the short drafts take turns.
    """

    plan: int
    trial: int | None
    evidence: tuple[Evidence, ...]
    account: float
    num_written: float
    num_remaining: float
    unread: tuple[float, ...]
    plain_tokens: float
    wait: float
    trials: int


class OnlineController:
    """Chooses among plans over the levels of one hierarchy; safe to share between threads.

    Args:
        root: the loaded hierarchy, as :func:`hierspec.engine.control.levels_below` takes it.
        estimates: expected acceptance and costs, of all models in ``chain`` at least.
        chain: which model of ``estimates`` each level is, smallest first, the target last; its
            budgets are among those tried.

    Attributes:
        loss_budget: plain tokens' time that may be lost for good.
        first_wait: plain tokens before the first trial; each failed one doubles it, up to
            ``longest_wait``.
        catch_up: per level below the target, ms to read one token that was emitted without it.

    Raises:
        HierspecError: the hierarchy is not that of ``chain``, or its levels cannot be varied.
    """

    loss_budget = 2.0
    first_wait, longest_wait = 16, 64

    def __init__(self, root: Verify, estimates: Estimates, chain: Chain) -> None:
        nodes = levels_below(root)
        if len(chain.levels) != len(nodes):
            raise HierspecError(
                f"the hierarchy has {len(nodes)} levels below the target and the chain "
                f"{len(chain.levels)}: give one model of the estimates for each level"
            )
        if chain.models[-1] != estimates.target:
            raise HierspecError("the chain must end with the estimates' target, their last model")
        # Classes are of many texts, easy and hard; here there is one text.
        estimates = replace(estimates, classes=())
        self.estimates, self.models = estimates, chain.models
        self.indices = tuple(node.index for node in nodes)
        self.pairs = tuple(
            (i, k)
            for n, i in enumerate(self.models)
            for k in self.models[n + 1 :]
            if estimates.can_draft(i, k)
        )
        self.root = plan_of(root, [node.budget for node in nodes])
        candidates = candidate_plans(root, estimates, chain)
        self.budgets = tuple(candidate.budgets for candidate in candidates)
        self.plans = tuple(candidate.plan for candidate in candidates)
        self.chains = tuple(candidate.chain for candidate in candidates)
        worst = [worst_ms(estimates, chain) for chain in self.chains]
        # The account holds what the most expensive plan needs.
        self.max_loss = tuple(ms - estimates.plain_ms for ms in worst)
        self.max_account = max(_RESERVE * max(self.max_loss), self.loss_budget * estimates.plain_ms)
        defaults = default_catch_up(estimates)
        self.catch_up = tuple(defaults[i] for i, _ in chain.levels)
        self._price_list = PriceList(estimates, self.chains, self.pairs)
        self._predicted = [predict_passes(estimates, i, k) for i, k in self.pairs]
        short = [n for n, c in enumerate(self.chains) if len(c.models) == 2 and c.budgets[0] <= 2]
        self.trials = tuple(sorted(short, key=worst.__getitem__))

    # --- the controller's contract

    def initial(self, num_prompt_tokens: int = 0, max_new_tokens: int = 128) -> OnlineState:
        state = OnlineState(
            plan=0,
            trial=None,
            evidence=(Evidence(),) * len(self.pairs),
            account=self.loss_budget * self.estimates.plain_ms,
            num_written=0.0,
            num_remaining=float(max_new_tokens),
            unread=(float(num_prompt_tokens),) * len(self.indices),
            plain_tokens=0.0,
            wait=float(self.first_wait),
            trials=0,
        )
        return replace(state, plan=self._best(state))

    def plan(self, state: OnlineState) -> Verify:
        return self.plans[self._current(state)]

    def update(self, state: OnlineState, report: RoundReport) -> OnlineState:
        current, emitted = self._current(state), float(report.num_emitted)
        used = [
            report.counts[index]
            for index, budget in zip(self.indices, self.budgets[current], strict=True)
            if budget
        ]
        used = counts_of_levels(self.chains[current], used)
        spent = spent_ms(self.estimates, self.chains[current], used)
        spent += self._reading_ms(current, state, state.num_written)
        plain = emitted * self.estimates.plain_ms
        gain = plain - spent
        unread = tuple(
            0.0 if budget else n + emitted
            for n, budget in zip(state.unread, self.budgets[current], strict=True)
        )
        state = replace(
            state,
            account=min(state.account + gain + _RISK * plain, self.max_account),
            num_written=state.num_written + emitted,
            num_remaining=max(state.num_remaining - emitted, 0.0),
            unread=unread,
            plain_tokens=state.plain_tokens + emitted if current == 0 else 0.0,
        )
        paid = state.trial is not None and gain > 0.0
        if current != 0:
            state = self._with_evidence(state, current, used, emitted)
        if state.trial is not None:
            wait = self.first_wait if paid else min(2.0 * state.wait, self.longest_wait)
            state = replace(state, trial=None, wait=float(wait))
        plan = self._best(state)
        if plan != 0:
            return replace(state, plan=plan, wait=float(self.first_wait))
        state = replace(state, plan=0)
        return self._start_trial(state) if paid or state.plain_tokens >= state.wait else state

    # --- deciding

    def _current(self, state: OnlineState) -> int:
        return state.plan if state.trial is None else state.trial

    def _best(self, state: OnlineState) -> int:
        """Return the next plan's index: the plan in force, unless another is clearly better."""
        shifts = shifts_of(state.evidence) if self.pairs else ()
        remaining = max(state.num_remaining / 2.0, 16.0)  # texts mostly end before their limit
        best, best_ms = 0, self.estimates.plain_ms
        for n in range(1, len(self.plans)):
            if self._can_afford(n, state):
                ms = self._price_list.price(n, shifts)
                if ms < best_ms:
                    ms += self._reading_ms(n, state) / remaining
                if ms < best_ms:
                    best, best_ms = n, ms
        if best == state.plan or best == 0:
            return best
        if not self._can_afford(state.plan, state):
            return best
        current_ms = self._price_list.price(state.plan, shifts)
        return state.plan if best_ms > (1.0 - _MARGIN) * current_ms else best

    def _start_trial(self, state: OnlineState) -> OnlineState:
        for turn in range(len(self.trials)):
            n = self.trials[(state.trials + turn) % len(self.trials)]
            if self._can_afford(n, state):
                return replace(state, trial=n, trials=state.trials + turn + 1)
        return state

    def _can_afford(self, n: int, state: OnlineState) -> bool:
        """Return whether the account can pay, with a reserve, for a round that yields one token."""
        if _RESERVE * self.max_loss[n] > state.account:
            return n == 0
        output_ms = self._reading_ms(n, state, state.num_written)
        free_ms = _FREE_PROMPT * state.num_remaining * self.estimates.plain_ms
        prompt_ms = max(self._reading_ms(n, state) - output_ms - free_ms, 0.0)
        return _RESERVE * (self.max_loss[n] + output_ms + prompt_ms) <= state.account

    def _reading_ms(self, n: int, state: OnlineState, at_most: float = float("inf")) -> float:
        """Return the ms that a plan's levels need to read up to ``at_most`` unread tokens each."""
        if not any(state.unread):
            return 0.0
        levels = zip(self.budgets[n], self.catch_up, state.unread, strict=True)
        return sum(ms * min(unread, at_most) for budget, ms, unread in levels if budget)

    # --- learning from a round

    def _with_evidence(
        self, state: OnlineState, current: int, used: list[Counts], emitted: float
    ) -> OnlineState:
        # Evidence on unused pairs fades towards the estimates, or bad luck would be final.
        evidence = [fade(pair, emitted) for pair in state.evidence]
        for p in self._price_list.pairs_of[current]:
            evidence[p] = state.evidence[p]
        for p, counts in zip(self._price_list.pairs_of[current], used, strict=True):
            evidence[p] = add_tests(evidence[p], self._predicted[p], counts)
        return replace(state, evidence=tuple(evidence))
