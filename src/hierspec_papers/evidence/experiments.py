"""The experiments that are run for evidence, each a few methods on one family of models.

Counting experiments run prompts in batches and count; their numbers do not depend on the machine's
load. Clock experiments time prompts one at a time, methods in turns, on a machine that should have
nothing else to do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from . import methods
from .families import FAMILIES, Family
from .methods import MethodSpecs


@dataclass(frozen=True, slots=True)
class Experiment:
    """Methods to be compared on one family of models.

    Attributes:
        shows: the papers' items it is about, for the page.
        make: returns the methods for a family.
        tokens: new tokens after each prompt.
        together: prompts in a batch; 1 where time is measured.
        most: number of prompts at most.
        entropies: methods for which the drafter's entropy is recorded with every verdict.
        gains: whether every draft that the target verifies is compared with the exact law.
        seed: of sampling; repetitions of an experiment have others.
        chats: prompts are second turns of conversations, whole and in the chat template.
        looks: numbers of prompts at which it may stop; default: the usual ones up to ``most``.
    """

    name: str
    shows: str
    family: Family
    make: Callable[[Family], MethodSpecs]
    temperature: float
    tokens: int = 48
    together: int = 12
    most: int = 24
    entropies: tuple[str, ...] = ()
    gains: bool = False
    seed: int = 0
    chats: bool = False
    looks: tuple[int, ...] = ()

    @property
    def file(self) -> str:
        """The name of its result file; that of a recorded one may hold several temperatures."""
        return f"{self.name.partition(' at ')[0]}.json"

    @property
    def clock(self) -> bool:
        """Whether it measures time."""
        return self.together == 1

    @property
    def methods(self) -> MethodSpecs:
        """The methods by name, in the order they are run in."""
        return self.make(self.family)

    def note_on(self, names: Sequence[str]) -> str:
        """Return the family's remark on its larger drafter if one of the named methods uses it."""
        large = self.family.large.items()
        levels = [level for name in names for level in self.methods[name].levels]
        return self.family.large_note if any(large <= level.items() for level in levels) else ""


def _experiment(
    name: str,
    shows: str,
    family: str,
    make: Callable[[Family], MethodSpecs],
    temperature: float,
    **more: Any,
) -> Experiment:
    return Experiment(name, shows, FAMILIES[family], make, temperature, **more)


def _clock(
    name: str, shows: str, family: str, make: Callable[[Family], MethodSpecs], temperature: float
) -> Experiment:
    return _experiment(name, shows, family, make, temperature, tokens=32, together=1)


REPETITIONS = (1, 2, 3)  # of P4's comparison of rules
COOLER = (0.4, 0.8)  # temperatures of P4's Table 3(a) beside .6 and 1
DOMAINS = 24  # prompts of each of the eight domains
_ENTROPIES = ("vanilla M2", "vanilla M1")

COUNTING = {  # in the order they are run in
    experiment.name: experiment
    for experiment in (
        _experiment(
            "p5-trunk-1",
            "P5 Tables 2–4, Figures 1, 6, 8",
            "trunk",
            methods.systems,
            1.0,
            most=60,
            entropies=_ENTROPIES,
        ),
        _experiment(
            "p3-smollm2", "P3 Figures 5, 6, Table 1", "smollm2", methods.exits, 0.0, tokens=32
        ),
        _experiment(
            "p4-trunk", "P4 Tables 1, 3, A.3", "trunk", methods.rules, 1.0, most=60, gains=True
        ),
        _experiment(
            "p3-trunk", "P3 Figures 5, 6, 8, Table 1", "trunk", methods.exits, 0.0, most=60
        ),
        _experiment(
            "p1-trunk-0", "P1 Tables 3, 4", "trunk", methods.stacks, 0.0, tokens=32, most=60
        ),
        _experiment(
            "p4-eagle3", "P4 Table 4(b)", "smollm2", methods.eagle, 1.0, tokens=32, gains=True
        ),
        _experiment(
            "p3-trunk-lengths",
            "P3 Figure 7",
            "trunk",
            methods.hispec_lengths,
            0.0,
            tokens=32,
            most=60,
        ),
        _experiment(
            "p5-trunk-0",
            "P5 Tables 1, 4, Figure 6",
            "trunk",
            methods.systems,
            0.0,
            most=60,
            entropies=_ENTROPIES,
        ),
        _experiment("p2-trunk-0", "P2 Figure 1", "trunk", methods.orders, 0.0, tokens=32, most=60),
        _experiment(
            "p5-smollm2-1",
            "P5 Tables 2–4, Figures 1, 6, 8",
            "smollm2",
            methods.systems,
            1.0,
            tokens=32,
            entropies=_ENTROPIES,
        ),
        _experiment(
            "p3-trunk-others",
            "P3 Table 1, Figure 1",
            "trunk",
            methods.hispec_baselines,
            0.0,
            tokens=32,
            most=60,
        ),
        _experiment(
            "p4-trunk-several",
            "P4 Table 2",
            "trunk",
            methods.several_drafts,
            1.0,
            tokens=32,
            most=60,
            gains=True,
        ),
        _experiment(
            "p5-trunk-windows", "P5 Figure 7", "trunk", methods.windows, 1.0, tokens=32, most=36
        ),
        _experiment(
            "p1-trunk-tails",
            "P1 Table 4",
            "trunk",
            methods.horizontal_tails,
            0.0,
            tokens=32,
            most=60,
        ),
        _experiment(
            "p1-trunk-warmths",
            "P1 Table 10",
            "trunk",
            methods.draft_temperatures,
            0.6,
            tokens=32,
            most=60,
            gains=True,
        ),
        _experiment(
            "p4-trunk-cool", "P4 Table 3(a)", "trunk", methods.rules_short, 0.6, most=60, gains=True
        ),
        *(
            _experiment(
                f"p4-trunk-at-{temperature:g}",
                "P4 Table 3(a)",
                "trunk",
                methods.rules_short,
                temperature,
                most=60,
                gains=True,
            )
            for temperature in COOLER
        ),
        _experiment(
            "p4-smollm2", "P4 Table 1", "smollm2", methods.rules_short, 1.0, tokens=32, gains=True
        ),
        *(
            _experiment(
                f"p4-trunk-again-{n}",
                "P4 Table A.1",
                "trunk",
                methods.rules_short,
                1.0,
                gains=True,
                seed=1000 * n,
            )
            for n in REPETITIONS
        ),
        _experiment(
            "p3-smollm2-pairs", "P3 Figures 5, 8", "smollm2", methods.exit_pairs, 0.0, tokens=32
        ),
        _experiment("p3-trunk-pairs", "P3 Figures 5, 8", "trunk", methods.exit_pairs, 0.0),
        _experiment(
            "p4-eagle3-several",
            "P4 Table 4(b)",
            "smollm2",
            methods.eagle_several,
            1.0,
            tokens=32,
            gains=True,
        ),
        _experiment("p4-trunk-long", "P4 Figure A.1", "trunk", methods.block_long, 1.0, gains=True),
        _experiment(
            "p4-smollm2-long",
            "P4 Figure A.1",
            "smollm2",
            methods.block_long,
            1.0,
            tokens=32,
            gains=True,
        ),
        _experiment(
            "p1-trunk-1", "P1 Tables 3, 4", "trunk", methods.stacks, 1.0, tokens=32, most=60
        ),
        _experiment("p2-trunk-1", "P2 Figure 1", "trunk", methods.orders, 1.0, tokens=32, most=60),
        _experiment(
            "p5-trunk-thresholds",
            "P5 Table 2",
            "trunk",
            methods.thresholds,
            1.0,
            tokens=32,
            most=60,
        ),
        _experiment(
            "p5-trunk-domains",
            "P5 Table 3",
            "trunk",
            methods.full_and_vanilla,
            1.0,
            most=8 * DOMAINS,
            looks=(8 * DOMAINS,),
        ),
        _experiment(
            "p3-smollm2-chats", "P3 Figure 6, Table 1", "smollm2", methods.exits, 0.0, chats=True
        ),
        _experiment(
            "p5-smollm2-chats", "P5 Tables 2, 4", "smollm2", methods.systems, 1.0, chats=True
        ),
        _experiment("p1-t5-0", "P1 Table 4", "t5", methods.stacks, 0.0, tokens=32, most=60),
        _experiment("p1-t5-1", "P1 Table 4", "t5", methods.stacks, 1.0, tokens=32, most=60),
        _experiment("p1-tuned-0", "P1 Table 4", "tuned", methods.stacks, 0.0, tokens=32, most=60),
        _experiment("p1-tuned-1", "P1 Table 4", "tuned", methods.stacks, 1.0, tokens=32, most=60),
    )
}
CLOCK = {  # in order of importance
    experiment.name: experiment
    for experiment in (
        _clock("clock-p3-smollm2", "P3 Table 1, Table 2", "smollm2", methods.timed_hispec, 0.0),
        _clock(
            "clock-p5-large-1", "P5 Tables 1–4", "large", methods.with_plain(methods.systems), 1.0
        ),
        _clock("clock-p1-large-0", "P1 Table 3", "large", methods.timed_stacks, 0.0),
        _clock("clock-p4-large", "P4 Tables 1, 3", "large", methods.timed_rules, 1.0),
        _clock("clock-p4-smollm2", "P4 Table A.4", "smollm2", methods.timed_rules, 1.0),
        _clock("clock-p5-large-0", "P5 Table 1", "large", methods.with_plain(methods.systems), 0.0),
        _clock("clock-p3-large", "P3 Table 1, Table 2", "large", methods.timed_hispec, 0.0),
        _clock("clock-p3-smollm2-others", "P3 Figure 1", "smollm2", methods.timed_baselines, 0.0),
        _clock("clock-p1-smollm2-exits", "P1 Table 3", "smollm2", methods.exit_stacks, 0.0),
        _clock("clock-p5-large-thresholds", "P5 Table 2", "large", methods.thresholds, 1.0),
        _clock("clock-p5-large-rivals", "P5 Table 1", "large", methods.rivals, 1.0),
        _clock("clock-p5-smollm2-rivals", "P5 Table 1", "smollm2", methods.rivals, 1.0),
        _clock("clock-p2-smollm2", "P2 Figure 1", "exits", methods.with_plain(methods.orders), 0.0),
    )
}
RECORDED = {  # timed by ``hierspec reproduce``
    experiment.name: experiment
    for experiment in (
        _experiment(
            f"reproduce-p3-table1 at {temperature:g}",
            "P3 Figure 1",
            "large",
            methods.presets,
            temperature,
            tokens=40,
            together=1,
        )
        for temperature in (0.0, 1.0)
    )
}
EXPERIMENTS = {**COUNTING, **CLOCK, **RECORDED}
