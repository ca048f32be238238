"""The experiments that are run for evidence, each a few methods on one family of models.

Counting experiments run prompts in batches and count; their numbers do not depend on the machine's
load. Timed experiments run prompts one at a time, methods taking turns, on a machine that should
have nothing else to do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from . import methods
from .families import FAMILIES, Family
from .methods import MethodSpecs


@dataclass(frozen=True, slots=True)
class Experiment:
    """Methods to be compared on one family of models.

    Attributes:
        items: the papers' tables and figures it is about, for its result file.
        make_methods: returns the methods for a family.
        batch_size: prompts in a batch; 1 where time is measured.
        entropy_methods: methods for which the drafter's entropy is recorded with every verdict.
        compares_kept: compare how many tokens of every draft are kept with the distribution of that
            number under each rule.
        seed: of sampling; repetitions of an experiment have different ones.
        uses_chats: prompts are second turns of conversations, whole and in the chat template.
        dtype: of all models.
        keeps_rounds: record every round of the target; else levels' sums alone.
        looks: numbers of prompts at which it may stop; default: :data:`.sequential.LOOKS` up to
            ``max_prompts``.
    """

    name: str
    items: str
    family: Family
    make_methods: Callable[[Family], MethodSpecs]
    temperature: float
    max_new_tokens: int = 48
    batch_size: int = 12
    max_prompts: int = 24
    entropy_methods: tuple[str, ...] = ()
    compares_kept: bool = False
    seed: int = 0
    uses_chats: bool = False
    dtype: str = "float32"
    keeps_rounds: bool = True
    looks: tuple[int, ...] = ()

    @property
    def file(self) -> str:
        """The name of its result file; that of a recorded one may hold several temperatures."""
        return f"{self.name.partition(' at ')[0]}.json"

    @property
    def is_timed(self) -> bool:
        """Whether it measures time."""
        return self.batch_size == 1

    @property
    def methods(self) -> MethodSpecs:
        """The methods by name, in the order they are run in."""
        return self.make_methods(self.family)

    def drafter_note(self, names: Sequence[str]) -> str:
        """Return the family's remark on its larger drafter if one of the named methods uses it."""
        large = self.family.large.items()
        levels = [level for name in names for level in self.methods[name].levels]
        return self.family.large_note if any(large <= level.items() for level in levels) else ""


def _experiment(
    name: str,
    items: str,
    make_methods: Callable[[Family], MethodSpecs],
    temperature: float,
    family: str,
    **options: Any,
) -> Experiment:
    return Experiment(name, items, FAMILIES[family], make_methods, temperature, **options)


_trunk = partial(_experiment, family="trunk", max_prompts=60)
_smollm2 = partial(_experiment, family="smollm2", max_new_tokens=32)
_smollm2_chats = partial(_experiment, family="smollm2", uses_chats=True)
_timed = partial(_experiment, max_new_tokens=128, batch_size=1, dtype="bfloat16")
_timed_chats = partial(_timed, uses_chats=True)
REPETITIONS = (1, 2, 3)  # of P4's comparison of rules
FURTHER_TEMPERATURES = (0.4, 0.8)  # of P4's Table 3(a) beside .6 and 1
_ALL_DOMAINS = 8 * 24  # prompts: 24 of each domain
_ENTROPIES = ("vanilla M2", "vanilla M1")

COUNTING = {  # in the order they are run in
    experiment.name: experiment
    for experiment in (
        _trunk(
            "p5-trunk-1",
            "P5 Tables 2–4, Figures 1, 6, 8",
            methods.systems,
            1.0,
            entropy_methods=_ENTROPIES,
        ),
        _smollm2("p3-smollm2", "P3 Figures 5, 6, Table 1", methods.exits, 0.0),
        _trunk("p4-trunk", "P4 Tables 1, 3, A.3", methods.rules, 1.0, compares_kept=True),
        _trunk("p3-trunk", "P3 Figures 5, 6, 8, Table 1", methods.exits, 0.0),
        _trunk("p1-trunk-0", "P1 Tables 3, 4", methods.stacks, 0.0, max_new_tokens=32),
        _smollm2("p4-eagle3", "P4 Table 4(b)", methods.eagle, 1.0, compares_kept=True),
        _trunk("p3-trunk-lengths", "P3 Figure 7", methods.hispec_lengths, 0.0, max_new_tokens=32),
        _trunk(
            "p5-trunk-0",
            "P5 Tables 1, 4, Figure 6",
            methods.systems,
            0.0,
            entropy_methods=_ENTROPIES,
        ),
        _trunk("p2-trunk-0", "P2 Figure 1", methods.orders, 0.0, max_new_tokens=32),
        _smollm2(
            "p5-smollm2-1",
            "P5 Tables 2–4, Figures 1, 6, 8",
            methods.systems,
            1.0,
            entropy_methods=_ENTROPIES,
        ),
        _trunk(
            "p3-trunk-others",
            "P3 Table 1, Figure 1",
            methods.hispec_baselines,
            0.0,
            max_new_tokens=32,
        ),
        _trunk(
            "p4-trunk-several",
            "P4 Table 2",
            methods.several_drafts,
            1.0,
            max_new_tokens=32,
            compares_kept=True,
        ),
        _trunk(
            "p5-trunk-windows",
            "P5 Figure 7",
            methods.windows,
            1.0,
            max_new_tokens=256,
            batch_size=6,
            dtype="bfloat16",
            keeps_rounds=False,
        ),
        _trunk("p1-trunk-tails", "P1 Table 4", methods.horizontal_tails, 0.0, max_new_tokens=32),
        _trunk(
            "p1-trunk-warmths",
            "P1 Table 10",
            methods.draft_temperatures,
            0.6,
            max_new_tokens=32,
            compares_kept=True,
        ),
        _trunk("p4-trunk-cool", "P4 Table 3(a)", methods.rules_short, 0.6, compares_kept=True),
        *(
            _trunk(
                f"p4-trunk-at-{temperature:g}",
                "P4 Table 3(a)",
                methods.rules_short,
                temperature,
                compares_kept=True,
            )
            for temperature in FURTHER_TEMPERATURES
        ),
        _smollm2("p4-smollm2", "P4 Table 1", methods.rules_short, 1.0, compares_kept=True),
        *(
            _trunk(
                f"p4-trunk-again-{n}",
                "P4 Table A.1",
                methods.rules_short,
                1.0,
                compares_kept=True,
                seed=1000 * n,
                max_prompts=24,
            )
            for n in REPETITIONS
        ),
        _smollm2("p3-smollm2-pairs", "P3 Figures 5, 8", methods.exit_pairs, 0.0),
        _trunk(
            "p3-trunk-tuned", "P3 Table 1", methods.hispec_and_layerskip, 0.0, keeps_rounds=False
        ),
        _smollm2(
            "p3-smollm2-tuned",
            "P3 Table 1",
            methods.hispec_and_layerskip,
            0.0,
            max_prompts=60,
            dtype="bfloat16",
            keeps_rounds=False,
        ),
        _trunk("p3-trunk-pairs", "P3 Figures 5, 8", methods.exit_pairs, 0.0, max_prompts=24),
        _smollm2(
            "p4-eagle3-several", "P4 Table 4(b)", methods.eagle_several, 1.0, compares_kept=True
        ),
        _trunk(
            "p4-trunk-long",
            "P4 Figure A.1",
            methods.block_long,
            1.0,
            compares_kept=True,
            max_prompts=24,
        ),
        _smollm2("p4-smollm2-long", "P4 Figure A.1", methods.block_long, 1.0, compares_kept=True),
        _trunk("p1-trunk-1", "P1 Tables 3, 4", methods.stacks, 1.0, max_new_tokens=32),
        _trunk("p2-trunk-1", "P2 Figure 1", methods.orders, 1.0, max_new_tokens=32),
        *(
            _trunk(
                f"p1-trunk-sweep-{temperature:g}",
                "P1 §5",
                methods.sweep,
                temperature,
                max_new_tokens=32,
                keeps_rounds=False,
            )
            for temperature in (0.0, 1.0)
        ),
        *(
            _experiment(
                f"p5-{family}-long",
                "P5 Tables 2, 4",
                methods.readings,
                1.0,
                family,
                max_new_tokens=256,
                batch_size=size,
                dtype="bfloat16",
                keeps_rounds=False,
            )
            for family, size in (("trunk", 6), ("large", 4))
        ),
        *(
            _experiment(
                f"p5-{family}-rounds",
                "P5 Figures 1, 8",
                methods.single_drafters_and_full,
                1.0,
                family,
                max_new_tokens=256,
                batch_size=size,
                dtype="bfloat16",
                max_prompts=max_prompts,
            )
            for family, size, max_prompts in (("trunk", 6, 60), ("large", 4, 24))
        ),
        _trunk(
            "p5-trunk-domains",
            "P5 Table 3",
            methods.single_drafters_and_full,
            1.0,
            max_new_tokens=256,
            batch_size=24,
            dtype="bfloat16",
            keeps_rounds=False,
            max_prompts=_ALL_DOMAINS,
            looks=(_ALL_DOMAINS,),
        ),
        _smollm2_chats("p3-smollm2-chats", "P3 Figure 6, Table 1", methods.exits, 0.0),
        _smollm2_chats("p5-smollm2-chats", "P5 Tables 2, 4", methods.systems, 1.0),
        *(
            _experiment(
                f"p1-{family}-{temperature:g}",
                "P1 Table 4",
                methods.stacks,
                temperature,
                family,
                max_new_tokens=32,
                max_prompts=60,
            )
            for family in ("t5", "tuned")
            for temperature in (0.0, 1.0)
        ),
    )
}
TIMED = {  # in order of importance
    experiment.name: experiment
    for experiment in (
        _timed_chats(
            "clock-p3-smollm2", "P3 Table 1, Table 2", methods.timed_hispec, 0.0, "smollm2"
        ),
        _timed("clock-p5-large-1", "P5 Tables 1–4", methods.timed_systems, 1.0, "large"),
        _timed("clock-p1-large-0", "P1 Table 3", methods.timed_stacks, 0.0, "large"),
        _timed("clock-p4-large", "P4 Tables 1, 3", methods.timed_rules, 1.0, "large"),
        _timed_chats("clock-p4-smollm2", "P4 Table A.4", methods.timed_rules, 1.0, "smollm2"),
        _timed("clock-p5-large-0", "P5 Table 1", methods.timed_systems, 0.0, "large"),
        _timed("clock-p3-large", "P3 Table 1, Table 2", methods.timed_hispec, 0.0, "large"),
        _timed_chats(
            "clock-p3-smollm2-others", "P3 Figure 1", methods.timed_baselines, 0.0, "smollm2"
        ),
        _timed_chats("clock-p1-smollm2-exits", "P1 Table 3", methods.exit_stacks, 0.0, "smollm2"),
        _timed("clock-p5-large-rivals", "P5 Table 1", methods.rivals, 1.0, "large"),
        _timed_chats("clock-p5-smollm2-rivals", "P5 Table 1", methods.rivals, 1.0, "smollm2"),
        _timed_chats("clock-p2-smollm2", "P2 Figure 1", methods.timed_orders, 0.0, "exits"),
    )
}
RECORDED = {  # timed by ``hierspec reproduce``
    experiment.name: experiment
    for experiment in (
        _experiment(
            f"reproduce-p3-table1 at {temperature:g}",
            "P3 Figure 1",
            methods.presets,
            temperature,
            "large",
            max_new_tokens=128,
            batch_size=1,
        )
        for temperature in (0.0, 1.0)
    )
}
EXPERIMENTS = {**COUNTING, **TIMED, **RECORDED}
