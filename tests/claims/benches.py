"""Figures of results of ``hierspec bench``, as pages print them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache

from hierspec_lab.bench import results
from hierspec_lab.bench.method_records import MethodRecord, PairedRatio
from hierspec_lab.bench.records import BenchResults
from hierspec_lab.bench.summary import ratio

from .base import RESULTS, Claim, data, words

# The benches on a released model, by temperature.
EVERY = {0.0: "smollm2-greedy", 1.0: "smollm2-sampled"}
TRANSFORMERS = ("transformers", "transformers-prompt-lookup", "transformers-early-exit")


@cache
def bench(name: str) -> BenchResults:
    """A result file of ``hierspec bench``."""
    return results.read(
        RESULTS / f"{name if name.startswith('smollm2') else f'bench-eps-{name}'}.json.gz"
    )


def method(file: str, temperature: float, name: str) -> MethodRecord:
    (cell,) = (cell for cell in bench(file).cells if cell.temperature == temperature)
    (found,) = (one for one in cell.measured if one.name == name)
    return found


def all_benches() -> list[str]:
    paths = RESULTS.glob("bench-eps-*.json.gz")
    return sorted(path.name[len("bench-eps-") : -len(".json.gz")] for path in paths)


def runs_on(machine: str) -> list[str]:
    return [name for name in all_benches() if machine in bench(name).environment.cpu]


def speedup(file: str, temperature: float, name: str) -> str:
    """Over plain decoding, as in ``2.68× [2.22, 3.35]``."""
    found = method(file, temperature, name).final_summary.speedup
    assert found is not None
    return found.format()


def over_best_single(file: str, temperature: float, name: str) -> str:
    """Over the single draft whose median time is the least, paired per prompt."""
    (cell,) = (cell for cell in bench(file).cells if cell.temperature == temperature)
    singles = [one for one in cell.measured if one.name in ("branch", "speculative")]
    single = min(singles, key=lambda one: one.final_summary.ms_per_token.median)
    found: PairedRatio = ratio(_times(single), _times(method(file, temperature, name)))
    return found.format()


def over(temperature: float, slow: str | Iterable[str], fast: str) -> str:
    """How many times as fast one way is as another, or as the fastest of several, by prompt."""
    (cell,) = (one for one in bench(EVERY[temperature]).cells if one.temperature == temperature)
    names = {slow} if isinstance(slow, str) else set(slow)
    some = [one for one in cell.measured if one.name in names]
    best = min(some, key=lambda one: one.final_summary.ms_per_token.median)
    return ratio(_times(best), _times(method(EVERY[temperature], temperature, fast))).format()


def _times(record: MethodRecord) -> list[float]:
    return [run.ms_per_token for run in sorted(record.runs, key=lambda run: run.prompt)]


def table_cell(name: str, temperature: float) -> str:
    """As in ``7.3 · 2.65× [2.50, 2.84] · 13.5``."""
    found = method(EVERY[temperature], temperature, name).final_summary
    length = found.mean_acceptance_length
    assert found.speedup is not None
    return f"{found.ms_per_token.median:.1f} · {found.speedup.format()} · {length:.1f}"


def both_temperatures(
    page: str, rows: dict[str, str], plain: str, cell: Callable[[str, float], str]
) -> list[Claim]:
    """A claim for each row, by the method it is about, and one for plain decoding's."""

    def times() -> list[float]:
        return [method(EVERY[t], t, "plain").final_summary.ms_per_token.median for t in EVERY]

    every = (
        Claim(page, f"{row} {{}} | {{}} |", lambda name=name: [cell(name, t) for t in EVERY])
        for row, name in rows.items()
    )
    return [*every, Claim(page, plain, times)]


def every_settings() -> tuple[object, ...]:
    """Prompts, their domains, tokens of an answer."""
    settings = bench(EVERY[0.0]).settings
    domains = method(EVERY[0.0], 0.0, "planned").final_summary.by_category
    assert settings.num_prompts == len(method(EVERY[1.0], 1.0, "planned").runs)
    return settings.num_prompts, words(len(domains)), settings.max_new_tokens


def chats_ties(file: str) -> tuple[int, int, int]:
    """Greedy runs of ours on the released model: all, equal to plain decoding, near-ties."""
    (cell,) = (cell for cell in bench(file).cells if cell.greedy)
    own = [one for one in cell.measured if one.group != "peer" and one.name != "plain"]
    found = [cell.compare(one) for one in own]
    return (
        sum(one.runs for one in found),
        sum(one.equal for one in found),
        sum(one.near_ties for one in found),
    )


def by_domain(temperature: float, file: str) -> str:
    """The planned hierarchy's speed-ups, as in ``chat 2.1×, code 2.2×``."""
    found = method(file, temperature, "planned").final_summary.by_category
    return ", ".join(f"{name.replace('_', ' ')} {one.speedup:.1f}×" for name, one in found.items())


def useless(length: int) -> str:
    found = data("harmless")["useless"][f"random drafters, {length} tokens"]["online"]
    return f"{100 * (found['over_plain']['median'] - 1):.0f} %"
