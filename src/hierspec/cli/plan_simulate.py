"""``hierspec plan --simulate``: the chains of an answer run by the simulated interpreter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..planner.plan import Plan
from ..planner.simulated import ACCEPTANCES, COSTS, check_name, simulated
from ..planner.sources import Records
from ..simulate import Simulation


@dataclass(frozen=True, slots=True)
class Simulations:
    """Of the best chain and its runners-up, in that order."""

    each: tuple[Simulation, ...]
    acceptances: str
    costs: str
    rounds: int
    note: str = ""

    def described(self, out: dict[str, Any]) -> dict[str, Any]:
        """A plan's JSON object with ``simulated`` beside every chain."""
        best, *others = (
            {
                "ms_per_token": found.ms_per_token,
                "standard_error": found.standard_error,
                "acceptances": self.acceptances,
                "costs": self.costs,
                "rounds": self.rounds,
            }
            for found in self.each
        )
        runners = zip(out["runners_up"], others, strict=True)
        return {
            **out,
            "simulated": best,
            "runners_up": [{**runner, "simulated": found} for runner, found in runners],
        }

    def caption(self) -> str:
        """What the figures are, in a line."""
        acceptances = {
            "iid": "independent acceptances",
            "curves": "acceptances by the measured curves",
            "recorded": "recorded drafts in order",
        }[self.acceptances]
        costs = {"real": "costs by pair and length", "artificial": "a constant cost per call"}
        return (
            f"simulated ± standard error: {self.rounds} rounds each, {acceptances}, "
            f"{costs[self.costs]}{self.note}"
        )


def check(acceptances: str | None, costs: str | None, rounds: int | None, profile: Any) -> None:
    """Refuse options that are none, or that the file has nothing for."""
    if rounds is None:
        if acceptances is not None or costs is not None:
            raise ValueError("--acceptances and --costs are for --simulate ROUNDS: add it")
        return
    if acceptances is not None:
        check_name(acceptances, ACCEPTANCES, "--acceptances")
    if costs is not None:
        check_name(costs, COSTS, "--costs")
    if profile is None and acceptances == "recorded":
        raise ValueError("--acceptances recorded is for profiles; this file is a problem")


def simulations(
    answer: Plan,
    rounds: int,
    acceptances: str | None = None,
    costs: str | None = None,
    profile: Any = None,
    temperature: float = 0.0,
) -> Simulations:
    """Run every chain of ``answer``.

    Args:
        acceptances: default: a profile's curves; a problem's rates, which are independent.
    """
    kind = acceptances or ("iid" if profile is None else "curves")
    source: str | Records = kind
    note = ""
    if kind == "recorded":
        assert profile is not None
        measured = profile.nearest(temperature)
        source = Records.of(profile.measured(measured)["pairs"])
        if answer.estimates.classes:
            note = "; every draft counts alike, where plans weigh kinds of text by their tokens"
        if measured > 0:
            note += "; drafts are kept as by tokenwise verification, plans are for block"
    chains = [choice.chain for choice in (answer.best, *answer.runners_up)]
    priced = costs or "real"
    run = (simulated(answer.estimates, chain, source, priced, rounds) for chain in chains)
    return Simulations(tuple(run), kind, priced, rounds, note)
