"""Labs of tiny models, figures, and what is read off and checked of any reproduction."""

import dataclasses
import json
from importlib import import_module

from hierspec.config.schema import TargetConfig
from hierspec_lab.bench.method_records import LevelCounters
from hierspec_lab.bench.methods.ours import BenchModels
from hierspec_lab.papers import MEASURED, Curve, Figure, Grid
from hierspec_lab.papers.lab import Lab
from hierspec_lab.papers.terminal import rendered

PROMPTS = ([1, 5, 9, 40, 7], [3, 11, 60])
P4_PROMPTS = ((5, 6, 7, 8, 9, 10), (20, 21, 22, 23), (40, 41, 42, 43, 44))
HEADS = (2, 3, 5)  # layers of exits with trained heads
KNOWN = 40  # tokens that the heads score
STEPS = tuple(i // 2 for i in range(16))
FIGURES = (
    Figure("Figure 7", "curves of a figure", "n", "share", (
        Curve("first [d]", (1, 2, 3), (0.5, 0.25, 0.125), spread=(0.1, 0.1, 0.1)),
        Curve("second", (1, 3), (0.9, 0.8), "points"),
    )),
    Figure("Figure 8", "a long curve", "n", "share", (Curve("long", tuple(range(1, 17)), STEPS),)),
    Figure("Figure 9", "speed-up of pairs", "draft", "intermediate", grid=Grid(
        ("r1", "r2"), ("c1", "c2"), ((1.5, None), (1.25, 2.5)))),
)  # fmt: skip


def lab_of(target, drafts=(), prompts=PROMPTS, tokens=8, temperatures=(0.0, 1.0), dtype="float64"):
    models = BenchModels(TargetConfig(model=target, dtype=dtype), tuple(drafts))
    return Lab(models, prompts, tokens, temperatures)


def counters_of(**values):
    """Return the counters of a level in a run, 0 where none is given."""
    zeros = dict.fromkeys(LevelCounters.model_fields, 0)
    return LevelCounters(**{**zeros, "name": "x", "num_accepted_tokens_per_pos": [], **values})


def columns(table):
    """Return the values of every extra column, by its title."""
    return {name: [row.extra[at] for row in table.rows] for at, name in enumerate(table.extra)}


def check_lossless(table, prompts=2):
    """Check that in greedy tables all methods wrote plain decoding's tokens."""
    same = columns(table)["same as plain"]
    greedy = table.name.endswith(("temperature 0", "temperature 0.0"))
    assert set(same) == ({f"{prompts} of {prompts}"} if greedy else {""})


def check_prints(found):
    """Check that the result is plain JSON and that there is something to print."""
    assert json.loads(json.dumps(found.to_dict()))["what"] == found.what
    assert all(note.strip() for table in found.tables for note in table.notes)
    assert len(list(rendered(found))) >= 2 * len(found.tables)


def replayed(what, lab, data):
    """Compute a measured reproduction again from its file's content, without running a model."""
    recorded = dataclasses.replace(lab, record=data["record"])
    return import_module(f"hierspec_lab.papers.{MEASURED[what][0]}").measure(recorded)
