"""What pages call between their comments (:mod:`report_pages`): figures of more than one number.

A function returns text as it is printed, or a number that the page formats. What a page can say
itself, as ``{own_bits.settings.positions:,}``, needs no function here.
"""

from __future__ import annotations

import gzip
import json
import statistics
from collections.abc import Callable, Iterable
from functools import cache
from itertools import pairwise
from typing import Any

import common

from hierspec_lab.bench import results
from hierspec_lab.bench.method_records import MethodRecord, PairedRatio
from hierspec_lab.bench.records import BenchResults, TemperatureRecord
from hierspec_lab.bench.summary import ratio


class _Object(dict[str, Any]):
    """A JSON object whose keys are attributes, too."""

    __getattr__ = dict.__getitem__


@cache
def data(name: str) -> Any:
    """A result file, by name; ``FileNotFoundError`` where there is none."""
    path = common.RESULTS / f"{name}.json"
    packed = path.with_name(f"{path.name}.gz")
    text = gzip.decompress(packed.read_bytes()) if packed.exists() else path.read_bytes()
    return json.loads(text, object_hook=_Object)


def short(value: float, digits: int = 2) -> str:
    """A figure without the zero before its point, as in ``.07``; two digits where it is small."""
    if abs(value) < 1e-12:  # rounding
        return "0"
    small = abs(value) < 0.01 and digits == 2
    return (f"{value:.2g}" if small else f"{value:.{digits}f}").replace("0.", ".", 1)


def shorts(digits: int, *values: float, between: str = " / ") -> str:
    return between.join(short(value, digits) for value in values)


def interval(found: dict[str, Any]) -> str:
    """As in ``2.68× [2.22, 3.35]``."""
    return PairedRatio.model_validate(found).format()


# --- results of ``hierspec bench``

CHATS = {0: "smollm2-greedy", 1: "smollm2-sampled"}  # on the released model, by temperature
HONEST = {0: "smollm2-16bit-greedy", 1: "smollm2-16bit-sampled"}  # no copy is the target itself
PEERS = {0: "smollm2-16bit-peers-greedy", 1: "smollm2-16bit-peers-sampled"}  # with transformers
# with llama.cpp in fewer bits
QUANTIZED_PEERS = {0: "smollm2-16bit-llama.cpp-greedy", 1: "smollm2-16bit-llama.cpp-sampled"}
OWN_BITS = {0: "smollm2-own-bits-greedy", 1: "smollm2-own-bits-sampled"}  # the 4-bit file as it is
OWN_BITS_PEERS = {0: "smollm2-own-bits-peers-greedy", 1: "smollm2-own-bits-peers-sampled"}
# the 16-bit target on a processor without AVX-512
AVX2 = {0: "smollm2-16bit-avx2-greedy", 1: "smollm2-16bit-avx2-sampled"}
AVX2_PLAN = "smollm2-16bit-avx2-plan"  # greedily again, a copy in 4 bits among the drafts
AVX2_DRAFTS = "smollm2-16bit-avx2-drafts"  # both temperatures
# exits with trained heads
AVX2_EXITS = {0: "smollm2-16bit-avx2-exits", 1: "smollm2-16bit-avx2-exits-sampled"}
# drafts under control, before and after places without a match were left out of its estimate
AVX2_CONTROL = ("smollm2-16bit-avx2-control-before", "smollm2-16bit-avx2-control")
OWN_BITS_AVX2 = "smollm2-own-bits-avx2-greedy"
RELEASED = (
    *(
        file
        for files in (HONEST, QUANTIZED_PEERS, PEERS, AVX2, OWN_BITS, OWN_BITS_PEERS, CHATS)
        for file in files.values()
    ),
    AVX2_PLAN,
    AVX2_DRAFTS,
    *AVX2_EXITS.values(),
    *AVX2_CONTROL,
    OWN_BITS_AVX2,
)
LLAMA_CPP = ("llama.cpp", "llama.cpp-prompt-lookup")
TRANSFORMERS = tuple(
    f"transformers{way}"
    for way in ("", "-assisted", "-assisted-dynamic", "-prompt-lookup", "-early-exit")
)
QUANTIZED_LLAMA_CPP = tuple(
    f"llama.cpp-{kind}{way}"
    for kind in ("Q8_0", "Q4_0", "Q4_K_M")
    for way in ("", "-prompt-lookup")
)
DRAFTERS = tuple(
    f"alone-{name}"
    for name in ("quantized-4", "quantized", "suffix", "smollm2-eagle3", "smollm2-sibling")
)
OWN = (*DRAFTERS, "hierarchy", "prompt-lookup", "layerskip", "hispec")


@cache
def bench(file: str) -> BenchResults:
    return results.read(common.RESULTS / f"{file}.json.gz")


def cell(file: str, temperature: float) -> TemperatureRecord:
    (found,) = (one for one in bench(file).cells if one.temperature == temperature)
    return found


def way(file: str, temperature: float, name: str) -> MethodRecord:
    (found,) = (one for one in cell(file, temperature).measured if one.name == name)
    return found


def speedup(file: str, temperature: float, name: str) -> str:
    """Over plain decoding, with its interval; plain decoding's own is 1×."""
    found = way(file, temperature, name).final_summary.speedup
    return found.format() if found and name != "plain" else "1×"


def faster(file: str, temperature: float, name: str, *others: str) -> str:
    """How many times as fast a way is as the fastest of others by median time, paired by prompt."""
    some = [one for one in cell(file, temperature).measured if one.name in others]
    best = min(some, key=lambda one: one.final_summary.ms_per_token.median)
    return ratio(times(best), times(way(file, temperature, name))).format()


def over_single(file: str, temperature: float, name: str) -> str:
    return faster(file, temperature, name, "branch", "speculative")


def times(record: MethodRecord) -> list[float]:
    return [run.ms_per_token for run in sorted(record.runs, key=lambda run: run.prompt)]


def row(file: str, temperature: float, name: str) -> str:
    """A way's ms a token, speed-up and tokens a call."""
    found = way(file, temperature, name).final_summary
    length = found.mean_acceptance_length or 1
    return f"{found.ms_per_token.median:.1f} · {speedup(file, temperature, name)} · {length:.1f}"


def chats(name: str) -> str:
    """A way's row of the released model in bfloat16, at both temperatures."""
    return " | ".join(row(file, temperature, name) for temperature, file in CHATS.items())


def rows(files: dict[int, str], name: str, *temperatures: int) -> str:
    """A way's row of a bench with a file for each temperature."""
    return " | ".join(row(files[t], t, name) for t in temperatures)


def honest(name: str, *temperatures: int) -> str:
    """A way's row of the 16-bit target."""
    return rows(HONEST, name, *temperatures)


def peers(name: str, *temperatures: int) -> str:
    """A way's row of the 16-bit target in the bench with transformers."""
    return rows(PEERS, name, *temperatures)


def over(temperature: int, *others: str, name: str = "planned") -> str:
    """How many times as fast as the fastest of others a way is on the 16-bit target."""
    return faster(HONEST[temperature], temperature, name, *others)


def alone(drafter: str) -> str:
    """A drafter's row: speed-up and tokens a call, twice."""
    return " | ".join(
        f"{speedup(file, temperature, name)} | "
        f"{way(file, temperature, name).final_summary.mean_acceptance_length:.2f}"
        for name in [f"alone-{drafter}"]
        for temperature, file in CHATS.items()
    )


def systems(name: str) -> str:
    """A way's row at the synthetic cost: ms a token and speed-up, twice."""
    file = "bench-eps-0.2"
    return " | ".join(
        f"{way(file, t, name).final_summary.ms_per_token.median:.1f} · {speedup(file, t, name)}"
        for t in (0, 1)
    )


def fastest_of_transformers() -> str:
    out = []
    for temperature in (0, 1):
        names = [one.name for one in cell("bench-eps-0.2", temperature).measured]
        rows = [
            systems(name).split(" | ")[temperature]
            for name in names
            if name.startswith("transformers-")
        ]
        out.append(min(rows, key=lambda row: float(row.split()[0])))
    return " | ".join(out)


def by_domain(temperature: int) -> str:
    """The planned hierarchy's speed-ups on the released model, as in ``chat 2.1×, code 2.2×``."""
    found = way(CHATS[temperature], temperature, "planned").final_summary.by_category
    return ", ".join(f"{name.replace('_', ' ')} {one.speedup:.1f}×" for name, one in found.items())


def greedy_texts(*files: str) -> _Object:
    """Our greedy runs in bfloat16: all, those equal to plain decoding, and near-ties."""
    found = [
        greedy.compare(one)
        for file in files
        for greedy in bench(file).cells
        if greedy.greedy
        for one in greedy.measured
        if one.group != "peer" and one.name != "plain"
    ]
    keys = ("runs", "equal", "near_ties")
    return _Object({key: sum(getattr(one, key) for one in found) for key in keys})


def synthetic(machine: str = "") -> list[str]:
    """The benches at the synthetic cost, of a machine."""
    files = sorted(path.name[: -len(".json.gz")] for path in common.RESULTS.glob("bench-*.json.gz"))
    return [file for file in files if machine in (bench(file).environment.cpu or "")]


def outside_forwards(temperature: float, *files: str) -> str:
    """The range of hierarchies' median ms a token outside forwards, as in ``0.11–0.38``."""
    values = [
        one.final_summary.overhead_ms_per_token.median
        for file in files
        for some in bench(file).cells
        if some.temperature == temperature
        for one in some.measured
        if one.name in ("hierarchy", "planned") and one.final_summary.overhead_ms_per_token
    ]
    return f"{min(values):.2f}–{max(values):.2f}"


# --- predictions


def median_and_worst(errors: Iterable[float]) -> str:
    errors = [100 * error for error in errors]
    return f"{statistics.median(errors):.1f} % and {max(errors):.0f} %"


EARLIER_COSTS = "predicted_ms_with_earlier_costs"  # of ``predict.py``: the profile's own


def predictions(
    key: str = "predicted_ms", file: str = "predict", temperature: float | None = None
) -> list[float]:
    """Relative errors of ``predict.py``."""
    return [
        abs(row[key] / row["measured_ms"] - 1)
        for target in data(file)["targets"].values()
        for name, one in target.items()
        if isinstance(one, dict) and temperature in (None, float(name))
        for row in one["hierarchies"].values()
    ]


def shares_of_plain(file: str, temperature: float) -> list[float]:
    """Errors of a bench's predictions as shares of plain decoding's time."""
    cells = bench(file).cells
    found = [cell.errors_over_plain for cell in cells if cell.temperature == temperature]
    return [abs(error) for errors in found for error in errors]


def bench_predictions(*files: str, temperature: float | None = None) -> list[float]:
    """Errors of what benches predicted from their own profiles."""
    return [
        abs(one.prediction.error)
        for file in files
        for some in bench(file).cells
        if temperature in (None, some.temperature)
        for one in some.measured
        if one.prediction is not None
        and (file in RELEASED or one.name in ("branch", "speculative", "hierarchy", "planned"))
    ]


# --- one token, one command


SMALL, ROTATED, LARGE = "zoo:smollm2", "zoo:smollm2-16bit", "llama-1.2b"


def _ground(target: str, kind: str, avx512: bool = True) -> Any:
    """The last run of ``ground.py`` on two threads that has this kind of file."""
    return next(
        run
        for run in reversed(data("ground").runs)
        if (run.settings.target, run.settings.threads) == (target, 2)
        and f"{kind}, ours" in run.ways
        and ("avx512f" in run.environment.cpu) == avx512
    )


def token_ms(kind: str, who: str, target: str = SMALL) -> float:
    """Behind 128 tokens."""
    return _ground(target, kind).milliseconds["128"]["1"][f"{kind}, {who}"].median


def beside_llama_cpp(kind: str) -> str:
    """Ours and its share of the floor, llama.cpp's, and how many times as fast ours is; twice."""
    out = []
    for target in (SMALL, LARGE):
        ours, theirs = (token_ms(kind, who, target) for who in ("ours", "llama.cpp"))
        share = 100 * _ground(target, kind).floor_milliseconds[f"{kind}, ours"] / ours
        out.append(f"{ours:.1f} · {share:.0f} % | {theirs:.1f} | {theirs / ours:.2f}×")
    return " | ".join(out)


def without_avx512(kind: str) -> str:
    """Milliseconds of 1, 8 and 16 rows: ours, llama.cpp's, how many times as fast ours is."""
    times = _ground(SMALL, kind, avx512=False).milliseconds["128"]
    cells = []
    for rows in ("1", "8", "16"):
        ours, theirs = (times[rows][f"{kind}, {who}"].median for who in ("ours", "llama.cpp"))
        cells.append(f"{ours:.1f} | {theirs:.1f} | {theirs / ours:.2f}×")
    return " | ".join(cells)


def widened(rows: int) -> str:
    """How long so many rows take in bfloat16, of their time in float32, without AVX-512."""
    ms = data("dtype-auto").milliseconds
    return short(ms.bfloat16[str(rows)].median / ms.float32[str(rows)].median)


def prompt_ms(who: str, target: str = SMALL, length: int = 512) -> float:
    """What reading a prompt takes."""
    (run,) = (
        run
        for run in data("ground").runs
        if run.settings.target == target and length in run.settings.prompts
    )
    return run.milliseconds[str(length)].prompt[who].median


def auto(target: str, rivals: bool = False) -> Any:
    """Whole commands with ``auto``, or its plan beside other ways, greedily."""
    (run,) = (
        run
        for run in data("auto").runs
        if run.settings.target == target and bool(run.settings.rivals) == rivals
    )
    return run.temperatures["0.0"]


def auto_over_plain(target: str, way: str) -> float:
    """A way's time over plain decoding's, in all: ``auto``'s plan, stack, or that in control."""
    cell = auto(target, rivals=True)
    name = getattr(cell, way) + (", under control" if way == "control" else "")
    return cell.ways[name].loses_to_plain


def loaded(name: str) -> str:
    """A loaded model's row: ms a token, by way."""
    ways = data(f"loaded-{name}").results[0].ways
    shown = ("generate", "custom_generate", "Hierarchy, plain")
    return " | ".join(f"{ways[one].ms_per_token.median:.1f}" for one in shown)


def other_types() -> tuple[float, float]:
    """Of a file in other types: the largest difference, and the per cent of equal choices."""
    found = data("own-bits").results
    others = [one for name, one in found.items() if name not in ("the file", "BF16")]
    least = min(one.equal_argmax for one in others)
    return max(one.largest_difference for one in others), 100 * least


def copy_in(bits: int) -> str:
    """Cells on a copy in so many bits: agreement, calibrated and not, its cost, the speed-ups."""
    found, name = data("copies"), f"{bits} bits"
    cells = list[str]()
    for temperature, measure in {"0": "equal_argmax", "1": "overlap"}.items():
        of = found.agreement[temperature].copies
        kinds = [of[one] for one in (name, f"{name}, each weight by itself") if one in of]
        cells.append(" / ".join(f"{100 * one[measure]:.1f} %" for one in kinds))
    cells.append(f"{found.ms[name][1] / found.ms['1 rows'][1]:.2f}")
    cells += [f"{found.by_formula[temperature][name][0]:.2f}×" for temperature in "01"]
    return " | ".join(cells)


def families() -> str:
    """Ways into families of models that gave transformers' tokens, of all."""
    rows = data("first-hour").families
    ways = [equal for row in rows for equal in row.get("equal", {}).values()]
    return f"{sum(ways)} of {len(ways)}"


def acceptance_of_match(what: str) -> str:
    return f"{data('match').acceptance.small[what]:.3f}"


def kernels_gain() -> float:
    """How many times as fast plain decoding is in our kernels, on the released model."""
    plain = data("deterministic-smollm2").plain.ms_per_token
    return plain.usual.median / plain.deterministic.median


# --- serving


def streams(number: int) -> str:
    """A row of the service's throughput."""
    (row,) = (row for row in data("serving-throughput").rows if row.streams == number)
    rates = f"{row.service.median:.0f} | {row.plain.median:.0f}"
    return f"{number} | {rates} | {row.over_plain.median:.2f}×"


def over_plain(number: int) -> str:
    (row,) = (row for row in data("serving-throughput").rows if row.streams == number)
    found = row.over_plain
    return f"{found.median:.2f} [{found.low95:.2f}, {found.high95:.2f}]"


def sixteen_streams() -> float:
    """How many times as many tokens a second sixteen streams write as one."""
    rows = {row.streams: row.service.median for row in data("serving-throughput").rows}
    return rows[16] / rows[1]


def server(name: str) -> str:
    rows = [row for row in data("serving-peers").rows if row.server == name]
    return " | ".join(f"{row.rate.median:.0f}" for row in rows)


def complies() -> str:
    """Tests of another's suite that pass, of all."""
    kinds = data("serving-llm-comply")
    tests = [*kinds["openai-chat"].results, *kinds["open-responses"].results]
    return f"{sum(test.status == 'passed' for test in tests)} of {len(tests)}"


def same_seed() -> str:
    """Seeded answers that equal those alone at 1, 8 and 32 streams, in the file's worst case."""
    cases = [case.kernels.equal for case in data("same-seed").cases.values()]
    one, eight, many = (min(equal[n] for equal in cases) for n in ("1", "8", "32"))
    return f"{data('same-seed').config.count} seeded answers in bfloat16 {one}, {eight} and {many}"


# --- drafters that are trained


def eagle3_step(step: int) -> str:
    found = data("trained-eagle3").figures["held out"]
    return shorts(3, found.acceptance[step - 1], found.agreement[step - 1], between=" | ")


def eagle3_anew(number: int) -> str:
    """What is kept of held-out first tokens at a point of the training begun anew."""
    found = data("trained-eagle3-anew").measured[number]
    return f"{short(found.acceptance[0], 3)} after {found.tokens:,} tokens"


def calls(found: Any, between: str = " / ") -> str:
    """Tokens a call, at temperature 1 and greedily."""
    return f"{found.tokens_per_call:.2f}{between}{found.greedy_tokens_per_call:.2f}"


def eagle3(domain: str) -> str:
    found = data("trained-eagle3").figures["by domain"][domain]
    steps = [shorts(2, found.acceptance[i], found.agreement[i]) for i in (0, 2)]
    return " | ".join([*steps, calls(found)])


def exit_after(layer: int) -> str:
    found = data("trained-heads").after[str(layer)]
    return shorts(3, found.acceptance, found.agreement, between=" | ")


def exits(domain: str, file: str = "trained-heads") -> str:
    found = [data(file).domains[domain][str(n)] for n in data(file).exits]
    return " | ".join(shorts(2, one.acceptance, one.agreement) for one in found)


def by_law(name: str, tokens: int) -> str:
    """Acceptance after so many tokens by the law through a training's curve."""
    curve = data("training-curves").curves[name]
    law = curve.fit.law
    return short(curve.known * (1 - law.a - law.b * (tokens / 1e5) ** -law.c))


def tenfold(name: str, kind: str = "fit") -> str:
    """Acceptance by a training curve's fit at ten times its tokens, as in ``.48 [.39, .48]``."""
    middle, *bounds = data("training-curves").curves[name][kind].acceptance_at_tenfold
    return f"{short(middle)} [{shorts(2, *bounds, between=', ')}]"


def tenfold_calls(name: str, kind: str = "fit") -> str:
    """Tokens a call, with drafts of five, by the fit of the share of them that is kept."""
    middle, low, high = data("training-curves").curves[name][kind].acceptance_at_tenfold
    return f"{1 + 5 * middle:.2f} [{1 + 5 * low:.2f}, {1 + 5 * high:.2f}]"


@cache
def sibling() -> Any:
    path = common.ROOT / "src/hierspec/zoo/data/smollm2-sibling/sibling.json"
    return json.loads(path.read_text(), object_hook=_Object)


def sibling_on(domain: str) -> str:
    found = sibling().figures[domain]
    return f"{shorts(2, found.acceptance, found.agreement)} | {calls(found)}"


def sibling_by_position(temperature: int) -> str:
    """The shares of its drafts' tokens that the 16-bit target kept, first to last."""
    summary = way(HONEST[temperature], temperature, "alone-smollm2-sibling").final_summary
    (shares,) = summary.acceptance_per_position.values()
    return ", ".join(f"{share:.2f}"[1:] for share in shares)


def times_the_tokens() -> float:
    """How many times as many tokens the sibling has seen as the one before."""
    lines = [_Object(seconds=0.0), *sibling().curve]
    seen = sum(b.tokens_per_s * (b.seconds - a.seconds) for a, b in pairwise(lines))
    return seen / data("training-curves").curves.sibling.points[-1][0]


def sibling_of(size: str) -> str:
    """What a size of the sibling before was worth."""
    found = data("sibling-sizes").sizes[size]
    share = shorts(3, found.acceptance, found.cost, between=" | ")
    return f"{share} | {found.draft} | {found.speedup:.2f}×"


def head(model: str, kind: str, layer: int) -> str:
    """A row of trained exit heads, before and after their training."""
    (found,) = (one for one in data("heads").results if (one.model, one.kind) == (model, kind))
    before, after = (found.held_out[when][str(layer)] for when in ("before", "after"))
    tokens = found.tokens_per_target_call[f"exit {layer}, temperature 0"]
    return (
        f"{before.acceptance:.3f} → {after.acceptance:.3f} | {before.kl:.2f} → {after.kl:.2f} | "
        f"{tokens.before:.2f} → {tokens.after:.2f}"
    )


# --- several drafts


def pairs(number: int) -> str:
    """A row of random pairs of models."""
    found = data("several-drafts").cells[number]
    names = ("one draft, block", "block-rrs", "traversal", "induced-block", "optimum")
    means = " | ".join(f"{found.mean_tokens[name]:.3f}" for name in names)
    more, less = (
        found.wins[key] for key in ("induced-block over traversal", "traversal over induced-block")
    )
    return f"{found.vocab}, {found.length}, {found.num_drafts} | {means} | {more} : {less}"


def one_token(number: int) -> str:
    some = [found[number] for found in data("several-drafts").one_token.values()]
    rules = ("rrs", "rrs-without-replacement", "induced-block", "optimum")
    means = [short(one.mean_kept[rule]) for one in some for rule in rules]
    return " | ".join([str(some[0].num_drafts), *means])


def longer(number: int) -> str:
    found = data("several-drafts").longer[number]
    rules = ("block-rrs", "traversal", "induced-block", "optimum")
    means = " | ".join(f"{found.mean_tokens[rule]:.2f}" for rule in rules)
    return f"{found.vocab}, {found.length}, {found.num_drafts} | {means}"


def optimum_over_traversal() -> str:
    """By how many per cent the optimum lies above Traversal's tokens, as in ``3 to 8``."""
    means = [found.mean_tokens for found in data("several-drafts").cells]
    gaps = [100 * (one.optimum / one.traversal - 1) for one in means]
    return f"{min(gaps):.0f} to {max(gaps):.0f}"


def trees(name: str) -> str:
    rows = [by[name] for by in data("token-trees-smollm2").temperatures.values()]
    return " | ".join(
        f"{row.tokens_per_call.median:.2f} | {row.over_plain.median:.2f}×" for row in rows
    )


# --- mistakes in rules: distances of ``planted-errors.json``


def lossy(mistake: str) -> str:
    """Median and largest distance from the target's law, as in ``.05 / .24``."""
    tv = data("planted-errors").tv[mistake]
    return shorts(2, statistics.median(tv), max(tv))


def worst(mistake: str) -> str:
    return short(max(data("planted-errors").tv[mistake]))


def naive(length: int, say: Callable[[list[float]], float] = statistics.fmean) -> str:
    """Tokens a call over tokenwise's."""
    return short(say(data("planted-errors").naive_over_tokenwise[str(length)]))


def never_less(rule: str, other: str) -> str:
    """Random pairs on which a rule keeps no less than another, of all."""
    found = data("planted-errors").several_drafts
    return f"{found.pairs - found[f'{rule} keeps less than {other}']} of {found.pairs}"


def formula_over_exact(say: Callable[[list[float]], float] = statistics.fmean) -> str:
    """By how many per cent P1's formula lies above the exact model."""
    return f"{say([100 * (one - 1) for one in data('planted-errors').formula_over_exact]):.0f}"


def search_seconds(candidates: int, model: str) -> float:
    (row,) = (
        row
        for row in data("search").searches
        if (row.candidates, row.latency_model) == (candidates, model)
    )
    return row.seconds.median


def verification_ms(rule: str) -> str:
    """Of a draft of ten tokens, float32, alone."""
    (row,) = (
        row
        for row in data("verification").rows
        if (row.dtype, row.batch, row.length) == ("float32", 1, 10)
    )
    return f"{row.verification.get(rule, row.laws):.2f}"
