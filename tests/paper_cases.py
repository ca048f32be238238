"""Labs of tiny models, and what is read off and checked of any reproduction."""

import json

from hierspec.bench.methods.ours import BenchModels
from hierspec.config.schema import TargetConfig
from hierspec_papers.lab import Lab
from hierspec_papers.terminal import rendered

PROMPTS = ([1, 5, 9, 40, 7], [3, 11, 60])
HEADS = (2, 3, 5)  # layers of exits with trained heads
KNOWN = 40  # tokens that the heads score


def lab_of(target, drafts=(), prompts=PROMPTS, tokens=8, temperatures=(0.0, 1.0), dtype="float64"):
    models = BenchModels(TargetConfig(model=target, dtype=dtype), tuple(drafts))
    return Lab(models, prompts, tokens, temperatures)


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
