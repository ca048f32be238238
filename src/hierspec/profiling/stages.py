"""What is measured at one temperature, stage by stage; each stage's result can be written down."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hierspec.errors import HierspecError

from . import agreement, costs, curves, rates
from .candidates import Pool
from .settings import Report, Settings

LONG_CONTEXT = 1024  # tokens; costs are timed there too, to see what the context costs
MIN_CONTEXT = 96
MAX_PROMPT = 256  # tokens of a prompt that are used: its end
_CHECKED = 8  # tokens of the checks that are timed in a long context

Stage = Callable[[str, Callable[[], Any]], Any]  # name, work → result, maybe of an earlier run


class Stages:
    """The measurements on one set of models and prompts.

    Attributes:
        pool: entrants, cheapest first.
        alone: [K+1] milliseconds of a single call of each.
        share: where the work at this temperature begins, and how much of all work it is.

    Raises:
        ValueError: no prompt, or no room in the models' contexts.
    """

    def __init__(
        self, pool: Pool, prompts: Sequence[str], settings: Settings, report: Report
    ) -> None:
        self.pool, self.settings, self.report = pool, settings, report
        found = (_ids(pool, text) for text in prompts)
        self.prompts = [ids for ids in found if ids][: settings.prompts]
        if not self.prompts:
            raise HierspecError(
                "there is no prompt to measure on: --prompts has none of any length"
            )
        self.longest = min(entrant.model.max_length for entrant in pool.entrants if entrant.scores)
        self.tokens = self._tokens()
        self.share = (0.0, 1.0)
        self.alone: list[float] = []

    def _tokens(self) -> int:
        """How many the target writes: those wanted, or those that fit with drafts after them."""
        settings = self.settings
        spare = (settings.rounds + 2) * (settings.max_speculative_tokens + 1)
        room = self.longest - spare - max(len(prompt) for prompt in self.prompts)
        if room < 1:
            raise HierspecError(
                f"contexts of {self.longest} tokens have no room for prompts and drafts: give "
                "shorter prompts, or lower --max-speculative-tokens"
            )
        return min(settings.tokens, room)

    def tell(self, stage: str, part: float) -> None:
        start, length = self.share
        self.report(stage, start + length * part)

    def all(self, temperature: float, stage: Stage) -> dict[str, Any]:
        """Everything at one temperature, as the profile keeps it."""
        entrants, settings = self.pool.entrants, self.settings
        target = len(entrants) - 1
        plan = rates.Plan(
            settings.places,
            settings.rounds,
            settings.max_speculative_tokens,
            temperature,
            settings.seed,
        )
        self.tell("the target writes", 0.01)
        texts = stage(
            "texts", lambda: rates.continuations(self.pool, self.prompts, self.tokens, plan)
        )
        wanted = self.pairs()
        self.tell("agreement", 0.05)
        agreed, kinds = stage("agreement", lambda: self.agreements(texts, plan))
        starts = [len(prompt) for prompt in self.prompts]
        found = []
        for i in range(target):
            self.tell(f"drafts of {entrants[i].name}", 0.07 + 0.45 * i / target)

            def follow(i: int = i) -> Any:
                above = [k for j, k in wanted if j == i and k < target]
                drafts = rates.follow_drafts(self.pool, i, above, texts, starts, plan)
                return curves.pairs(i, self.pool, drafts, np.array(kinds), settings.seed)

            found += stage(f"drafts {i}", follow)
        for pair in found:
            pair |= agreed.get(f"{pair['drafter']} {pair['verifier']}", {})
        text = [token for one in texts for token in one]
        room = self.longest - _tokens_of_turn(settings.max_speculative_tokens)
        short = min(max(MIN_CONTEXT, len(texts[0])), room)
        self.tell("costs", 0.55)
        timed = stage("costs", lambda: self.costs(wanted, _of_length(text, short), temperature))
        self.tell("costs in a long context", 0.9)
        context = stage("context", lambda: self.contexts(text, short, temperature))
        token_ms = stage("token", lambda: self.token_ms(temperature))
        return {"pairs": found, "costs": timed, "context": context, "token_ms": token_ms}

    def pairs(self) -> list[tuple[int, int]]:
        """Who may draft for whom: everyone for the target, and the cheap for the dear."""
        entrants, ratio = self.pool.entrants, self.settings.min_ratio
        target = len(entrants) - 1
        return [
            (i, k)
            for k in range(1, target + 1)
            for i in range(k)
            if k == target or (entrants[k].verifies and self.alone[k] >= ratio * self.alone[i])
        ]

    def agreements(self, texts: list[list[int]], plan: rates.Plan) -> tuple[Any, Any]:
        """Acceptances of every pair of models, and the class of every place by ease of text."""
        begins = [len(prompt) for prompt in self.prompts]
        ends = [len(text) for text in texts]
        own, ease = agreement.agreements(self.pool, texts, begins, ends, plan)
        given, _ = agreement.agreements(self.pool, texts, [1] * len(texts), begins, plan)
        # A class needs some drafts, or chance alone makes classes differ.
        most = max(len(texts) * plan.places // self.settings.places_per_class, 1)
        kinds = agreement.classes(ease, plan, min(self.settings.classes, most))
        sums = {
            f"{i} {k}": {
                "acceptance": round(total.overlap / max(total.positions, 1), 5),
                "equal_argmax": round(total.equal / max(total.positions, 1), 5),
                "acceptance_on_prompts": _share(given[i, k]),
                "positions": total.positions,
            }
            for (i, k), total in own.items()
        }
        return sums, kinds.tolist()

    def costs(
        self, pairs: list[tuple[int, int]], text: list[int], temperature: float
    ) -> list[dict[str, Any]]:
        """Times of every model alone and of every pair at every length."""
        settings, entrants = self.settings, self.pool.entrants
        alone: list[tuple[int | None, int]] = [
            (None, k) for k, entrant in enumerate(entrants) if entrant.scores
        ]
        total = settings.repeats * (len(alone) + len(pairs) * len(settings.budgets()))
        done = 0

        def advance() -> None:
            nonlocal done
            done += 1
            self.tell("costs", 0.55 + 0.35 * done / total)

        times = costs.time_pairs(
            self.pool,
            [*alone, *pairs],
            text,
            budgets=settings.budgets(),
            repeats=settings.repeats,
            temperature=temperature,
            seed=settings.seed,
            done=advance,
        )
        return [
            {
                "drafter": i,
                "verifier": k,
                "draft": costs.summary(seen.draft),
                "check": costs.summary(seen.check),
            }
            for (i, k), seen in times.items()
        ]

    def contexts(self, text: list[int], short: int, temperature: float) -> dict[str, Any]:
        """What calls cost in a long context, as a slope in the number of tokens before them."""
        entrants = self.pool.entrants
        scoring = [k for k, entrant in enumerate(entrants) if entrant.scores]
        long = min(LONG_CONTEXT, self.longest - _tokens_of_turn(_CHECKED))
        base: dict[str, Any] = {"tokens": short, "long": long, "slopes": []}
        if long < 2 * short:
            return base
        first = scoring[0]
        wanted: list[tuple[int | None, int]] = [(None, k) for k in scoring]
        wanted += [(first, k) for k in scoring if k > first and entrants[k].verifies]
        low, high = (
            costs.time_pairs(
                self.pool,
                wanted,
                _of_length(text, length),
                budgets=(_CHECKED,),
                repeats=3,
                temperature=temperature,
            )
            for length in (short, long)
        )
        for k in scoring:
            slopes = {}
            for tokens, pair in ((0, (None, k)), (_CHECKED, (first, k))):
                if pair in low:
                    ms = [float(np.median(times[pair].check[tokens])) for times in (low, high)]
                    slopes[f"ms_per_token_{tokens}"] = (ms[1] - ms[0]) / (long - short)
            slopes.setdefault("ms_per_token_8", slopes["ms_per_token_0"])
            base["slopes"].append({"model": k, **slopes})
        return base

    def token_ms(self, temperature: float) -> float:
        """What a token costs outside rounds: text, stop conditions, the event."""
        from .costs import token_ms

        return token_ms(self.pool, self.prompts[0], temperature)


def _tokens_of_turn(budget: int) -> int:
    """What a turn of timed rounds adds to its text."""
    return (costs.WARM + costs.TIMED) * (budget + 1)


def _ids(pool: Pool, text: str) -> list[int]:
    if pool.tokenizer is None:
        raise HierspecError(
            f"{pool.target.model!r} has no tokenizer beside it, so prompts cannot be read: put "
            "its tokenizer.json there"
        )
    return pool.tokenizer(text, verbose=False)["input_ids"][-MAX_PROMPT:]


def _of_length(tokens: list[int], length: int) -> list[int]:
    """The first so many tokens; repeated where there are too few."""
    return (tokens * -(-length // len(tokens)))[:length]


def _share(total: agreement.Agreement) -> float | None:
    """1 − TV on average; ``None`` where there was nothing to compare."""
    return round(total.overlap / total.positions, 5) if total.positions else None
