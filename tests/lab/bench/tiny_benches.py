"""Benches of tiny models and of methods made up, ready to run, and what is printed of them."""

import io

from fake_methods import FakeMethod
from rich.console import Console

from hierspec_lab.bench import results
from hierspec_lab.bench.methods.catalogue import catalogue
from hierspec_lab.bench.methods.entry import MethodEntry
from hierspec_lab.bench.records import BenchSettings
from hierspec_lab.bench.report.table import rendered
from hierspec_lab.bench.run import Bench

PROMPTS = [[5, 9, 33, 7], [11, 2, 60], [70, 8, 8, 41, 3]]
TUNING = [[4, 44, 17]]
TOKENS = 10


def entry(name, candidates, group="baseline"):
    return MethodEntry(name, name, group, "", "for a test", candidates)


def fake_entry(name, write, **more):
    return entry(name, lambda models, temperature: [FakeMethod(name, write, **more)])


def bench(models, entries, path=None, temperatures=(0.0,), overwrite=False, **more):
    """A bench of plain decoding and these, ready to run."""
    plain = catalogue()["plain"]
    settings = BenchSettings(
        target="tiny",
        methods=("plain", *(one.name for one in entries)),
        temperatures=temperatures,
        max_new_tokens=more.pop("tokens", TOKENS),
        num_prompts=len(PROMPTS),
        tune_tokens=4,
        **more,
    )
    data = results.resume(path, results.make(settings, {"cpu": "here"}), overwrite)
    return Bench(models, settings, [plain, *entries], PROMPTS, TUNING, data, path=path)


def methods_of(data, cell=0):
    """Records by name, of results or of a file's JSON."""
    if isinstance(data, dict):
        data = results.parse(data, "a test's file")
    return {record.name: record for record in data.cells[cell].methods}


def shown(data, width=200):
    """What is printed on a console of this width."""
    console = Console(width=width, record=True, file=io.StringIO())
    for part in rendered(data):
        console.print(part)
    return console.export_text()
