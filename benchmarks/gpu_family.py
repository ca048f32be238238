"""The stage ``family`` of ``gpu_once.py``: ``zoo:large``, our ways beside those of transformers."""

from __future__ import annotations

import contextlib
import itertools
import math
import re
import statistics
import time
from collections.abc import Iterator
from typing import Any

from gpu_stage import TINY, Stage, free, in_one_line

ASSISTED_TOKENS = 5  # that the assistant drafts, about
COMPILED = "transformers, static, compiled"
EPS = 0.2  # how far the target's distribution is from the trunk's
WIDTHS, DEPTHS = (2, 4, 8, 16), (2, 3, 4)  # deeper than that, no model of such a width is
_UNITS = {"M": 1e6, "B": 1e9}


def family(stage: Stage) -> None:
    from hierspec.config.schema import TargetConfig
    from hierspec_lab.bench.methods.ours import BenchModels

    tiny = stage.tiny
    name = target(stage.options.size, EPS)
    drafts = ("zoo:small", "zoo:mid") if tiny else ("zoo:small", "zoo:mid", "zoo:trunk")
    config = TargetConfig(model=name, dtype="bfloat16", device=stage.options.device)
    models = BenchModels(config, drafts)
    prompts, tuning, tokens = prompts_of(models, tiny)
    stage.settings |= {
        "target": name, "drafts": drafts, "tokens": tokens, "num_prompts": len(prompts), "eps": EPS,
    }  # fmt: skip
    began = time.monotonic()
    models.load_drafts()
    stage.add(what="loaded", layers=models.num_layers, seconds=time.monotonic() - began)
    peers_share = 0.0 if tiny else 60.0  # seconds for what is compiled, last
    until = stage.deadline - peers_share
    for number, temperature in enumerate((0.0, 1.0)):
        share = (until - time.monotonic()) / (2 - number)
        compare(stage, models, prompts, tuning, tokens, temperature, time.monotonic() + share)
    free(stage)
    static(stage, models, prompts, tokens)


def shape(size: str) -> tuple[int, int]:
    """Return ``widen`` and ``deepen`` that come nearest to ``"0.5B"``, ``"350M"``, … parameters.

    Raises:
        ValueError: no such size.
    """
    from hierspec_lab.bench.memory import count_parameters

    match = re.fullmatch(r"(\d+(?:\.\d+)?)([MB])", size.strip(), re.IGNORECASE)
    if match is None or not float(match[1]):
        raise ValueError(f"--size {size!r} is none: say {TINY}, 350M, 0.5B, 1B, 3B, …")
    wanted = float(match[1]) * _UNITS[match[2].upper()]
    return min(
        itertools.product(WIDTHS, DEPTHS),
        key=lambda factors: abs(
            math.log(count_parameters("zoo:large?widen={}&deepen={}".format(*factors)) / wanted)
        ),
    )


def target(size: str, eps: float) -> str:
    """Return the target's name. ``tiny`` is the trunk itself, for a dry run."""
    if size == TINY:
        return "zoo:trunk"
    widen, deepen = shape(size)
    return f"zoo:large?eps={eps:g}&widen={widen}&deepen={deepen}"


def prompts_of(models: Any, tiny: bool) -> tuple[list[list[int]], list[list[int]], int]:
    """Return prompts to measure on, others to tune on, and how many tokens to write."""
    from hierspec.profiling.texts import CODE
    from hierspec_lab.bench.prompt_ids import encode

    tokens = 6 if tiny else 96
    ids = encode(models, CODE[: 3 if tiny else 11], tokens)
    return (ids[:2], ids[2:], tokens) if tiny else (ids[:8], ids[8:], tokens)


def choices(models: Any, tiny: bool) -> dict[str, list[Any]]:
    """List the hierarchies of each kind to choose from by a short trial."""
    from hierspec_lab.bench.methods.ours import HierarchyMethod

    depth = models.num_layers
    level = models.level

    def method(name: str, *levels: dict[str, Any]) -> Any:
        return HierarchyMethod(name, models, list(levels), verify="block")

    *_, middle, largest = models.drafts
    eighth, quarter, half = depth // 8, depth // 4, depth // 2
    singles = [(largest, 4), (largest, 8), (largest, 14), (middle, 3), (middle, 6)]
    chains = [("zoo:small", 3, 8), ("zoo:small", 3, 14), (middle, 4, 10), ("ngram", 2, 8)]
    exits = [((eighth, 2),), ((quarter, 3),), ((half, 4),), ((eighth, 2), (half, 4))]
    if tiny:
        singles, chains, exits = singles[:1], chains[:1], exits[-1:]
    return {
        "one draft": [method("one draft", level(draft, n)) for draft, n in singles],
        "three levels": [
            method("three levels", level(low, n), level(largest, m, verify="block"))
            for low, n, m in chains
        ],
        "early exits": [
            method(
                "early exits",
                *(
                    level(f"exit:{layer}", n, **({"verify": "block"} if above else {}))
                    for above, (layer, n) in enumerate(some)
                ),
            )
            for some in exits
        ],
    }


def compare(
    stage: Stage,
    models: Any,
    prompts: list[list[int]],
    tuning: list[list[int]],
    tokens: int,
    temperature: float,
    until: float,
) -> None:
    """Tune, then run every method on one prompt after the other while there is time."""
    from hierspec.profiling.settings import ProfileSettings
    from hierspec_lab.bench.methods import planned
    from hierspec_lab.bench.methods.base import RunRequest
    from hierspec_lab.bench.methods.ours import HierarchyMethod
    from hierspec_lab.bench.turns import run_group, turn_order

    quick = ProfileSettings(
        max_speculative_tokens=2 if stage.tiny else 15,
        tokens=8 if stage.tiny else 64,
        places=1 if stage.tiny else 6,
        places_per_class=1 if stage.tiny else 16,
        prompts=1 if stage.tiny else 4,
        rounds=1, repeats=1 if stage.tiny else 3, cost_seconds=10, ignore_eos=True,
    )  # fmt: skip
    models.planning = models.planning or planned.Planning(models, tuning, quick)
    methods: dict[str, Any] = {"plain": HierarchyMethod("plain", models)}
    trial = RunRequest(max(2, tokens // 2), temperature, seed=900)
    tune_until = time.monotonic() + 0.3 * (until - time.monotonic())
    for kind, some in choices(models, stage.tiny).items():
        timed: list[tuple[float, Any]] = []
        for one in some:
            if timed and time.monotonic() > tune_until:
                break
            with recorded(stage, f"tuning {kind}", temperature):
                run_group(one, [tuning[0]], trial)  # shapes are recorded
                runs = [run_group(one, [prompt], trial)[0] for prompt in tuning[:2]]
                timed.append((statistics.mean(run.ms_per_token for run in runs), one))
        if timed:
            ms, methods[kind] = min(timed, key=lambda pair: pair[0])
            stage.add(
                what="tuned", kind=kind, temperature=temperature, ms_per_token=ms,
                configuration=methods[kind].configuration, tried=len(timed),
            )  # fmt: skip
    with recorded(stage, "planning", temperature):
        began = time.monotonic()
        (methods["planned"],) = planned.planned(models, temperature)
        stage.add(
            what="planned", temperature=temperature, seconds=time.monotonic() - began,
            configuration=methods["planned"].configuration,
        )  # fmt: skip
    with recorded(stage, "transformers", temperature):
        methods |= of_transformers(models)
    warm = RunRequest(tokens, temperature, seed=901)
    for name in list(methods):
        with recorded(stage, f"warming up {name}", temperature) as worked:
            run_group(methods[name], [tuning[-1]], warm)
        if not worked:
            del methods[name]
    for number, prompt in enumerate(prompts):
        if time.monotonic() > until and number:
            break
        names = list(methods)
        found = {}
        for index in turn_order(len(names), number, 0):
            request = RunRequest(tokens, temperature, seed=number)
            with recorded(stage, names[index], temperature):
                found[names[index]] = run_group(methods[names[index]], [prompt], request)[0]
        for name, run in found.items():
            add_run(stage, name, temperature, number, run, found.get("plain"))


def add_run(stage: Stage, name: str, temperature: float, prompt: int, run: Any, plain: Any) -> None:
    same = None if temperature or plain is None else run.token_ids == plain.token_ids
    stage.add(
        what="run", method=name, temperature=temperature, prompt=prompt,
        num_tokens=run.num_tokens, seconds=run.seconds, ms_per_token=run.ms_per_token,
        decode_ms_per_token=run.decode_ms_per_token, target_calls=run.target_calls,
        mean_acceptance_length=run.mean_acceptance_length, same_as_plain=same,
    )  # fmt: skip


@contextlib.contextmanager
def recorded(stage: Stage, what: str, temperature: float) -> Iterator[list[bool]]:
    """Put an error into the file, and go on; what is yielded is empty then."""
    worked: list[bool] = []
    try:
        yield worked
        worked.append(True)
    except Exception as error:
        stage.add(what=what, temperature=temperature, error=in_one_line(error))


def of_transformers(models: Any) -> dict[str, Any]:
    """Return transformers' plain and assisted generation, the draft our largest."""
    from hierspec_lab.bench.peers import hf

    (plain,) = hf.plain(models, 0.0)
    some = zip(hf.assisted(models, 0.0), hf.drafts_and_lengths(models), strict=True)
    of_largest = {n: method for method, (draft, n) in some if draft == models.draft_models[-1]}
    assisted = of_largest[min(of_largest, key=lambda n: abs(n - ASSISTED_TOKENS))]
    return {"transformers": plain, "transformers, assisted": assisted}


def static(stage: Stage, models: Any, prompts: list[list[int]], tokens: int) -> None:
    """Run transformers with a static cache on the same prompts; on a GPU it compiles its step."""
    from hierspec_lab.bench.methods.base import RunRequest
    from hierspec_lab.bench.peers.hf import TransformersMethod
    from hierspec_lab.bench.turns import run_group

    name = COMPILED if stage.cuda else "transformers, static"
    method = TransformersMethod(name, models, {"generate": {"cache_implementation": "static"}})
    longest = max(prompts, key=len)  # first, since a longer one would be compiled anew
    for temperature in (0.0, 1.0):
        began = time.monotonic()
        with recorded(stage, name, temperature) as worked:
            run_group(method, [longest], RunRequest(tokens, temperature, seed=901))
        if not worked:
            return
        stage.add(what=f"{name}, first", temperature=temperature, seconds=time.monotonic() - began)
        for number, prompt in enumerate(prompts):
            if number and stage.left() < 3:
                break
            with recorded(stage, name, temperature):
                request = RunRequest(tokens, temperature, seed=number)
                (run,) = run_group(method, [prompt], request)
                add_run(stage, name, temperature, number, run, None)
