"""Predicted against measured milliseconds a token, and whether the plan is the fastest there is.

Profiles the shipped family on some prompts, predicts a set of hierarchies (two to four levels;
exits, tables, look-ups and separate models), then runs them all interleaved on other prompts.

With ``--chats`` a released model takes the family's place, with whatever drafts for it by
default, each alone and in twos, on chats in its template. ``errors_with_earlier_costs`` is the
error with the profile's own costs; ``median_error`` has costs timed again between the runs.

    python benchmarks/predict.py --prompts humaneval.jsonl
    python benchmarks/predict.py --chats FOLDER --targets zoo:smollm2-16bit --name predict-16bit
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import common
import torch

from hierspec import Hierarchy, HierarchyConfig, TargetConfig
from hierspec.config.build import build
from hierspec.config.checkpoints import Loaded
from hierspec.planner.estimates import Chain
from hierspec.planner.latency import latency
from hierspec.presets import defaults
from hierspec.profiling import costs
from hierspec.profiling.auto import plan_of
from hierspec.profiling.candidates import CandidatePool, default_names, load, parse
from hierspec.profiling.profile import Profile, from_dict
from hierspec.profiling.schema import CallSamples
from hierspec.profiling.settings import ProfileSettings
from hierspec_lab.planning.thorough import in_context, measure

# Names of the candidates, smallest first, each with its budget; the target is left out.
HIERARCHIES: dict[str, tuple[tuple[str, ...], list[dict[str, int]]]] = {
    "zoo:large?eps=0.2": (
        ("ngram", "zoo:small", "zoo:mid", "zoo:trunk", "prompt-lookup"),
        [
            {},
            {"zoo:small": 3},
            {"zoo:mid": 4},
            {"zoo:trunk": 6},
            {"zoo:trunk": 12},
            {"ngram": 2},
            {"prompt-lookup": 6},
            {"ngram": 2, "zoo:trunk": 8},
            {"zoo:small": 2, "zoo:trunk": 8},
            {"zoo:small": 3, "zoo:trunk": 12},
            {"zoo:mid": 4, "zoo:trunk": 10},
            {"zoo:small": 3, "zoo:mid": 6},
            {"ngram": 2, "zoo:small": 3, "zoo:trunk": 10},
            {"zoo:small": 3, "zoo:mid": 5, "zoo:trunk": 12},
        ],
    ),
    "zoo:trunk": (
        ("ngram", "zoo:small", "exit:1", "exit:2", "exit:4"),
        [
            {},
            {"exit:1": 2},
            {"exit:2": 3},
            {"exit:1": 2, "exit:4": 4},
            {"zoo:small": 3},
            {"zoo:small": 2, "exit:4": 4},
        ],
    ),
}


class Retimer:
    """Times the profile's pairs again, a little between any two prompts.

    Clouds and laptops drift by several per cent within minutes. What is on trial is the model, not
    the weather: so costs are sampled in the same minutes as the runs, on other text, by the
    profiler's own stopwatch.
    """

    def __init__(
        self, profile: Profile, pool: CandidatePool, temperature: float, text: list[int]
    ) -> None:
        self.measured = profile.measured(temperature)
        self.pool, self.temperature = pool, temperature
        self.text = text[: self.measured.context.tokens]
        self.pairs = [(row.drafter, row.verifier) for row in self.measured.costs]
        self.times: dict[costs.ModelPair, CallSamples] = {}

    def sample(self, seed: int) -> None:
        calls = costs.timed_calls(self.pairs, ProfileSettings().budgets())
        timed = costs.time_calls(
            self.pool, calls, self.text, repeats=1, temperature=self.temperature, seed=seed
        )
        for pair, times in timed.items():
            mine = self.times.setdefault(pair, times)
            if mine is not times:
                for own, new in ((mine.draft, times.draft), (mine.check, times.check)):
                    for n, values in new.items():
                        own.setdefault(n, []).extend(values)

    def profile(self, profile: Profile) -> Profile:
        """Return the same rates with the costs timed here."""
        rows = [costs.entry(samples) for samples in self.times.values()]
        measured = self.measured.model_copy(update={"costs": rows})
        temperatures = {**profile.temperatures, repr(self.temperature): measured}
        return profile.model_copy(update={"temperatures": temperatures})


def released(profile: Profile, temperature: float, lengths: Sequence[int]) -> list[dict[str, int]]:
    """List plain decoding, every drafter alone with these lengths, and the measured pairs."""
    *names, _ = (model.name for model in profile.models)
    chosen: list[dict[str, int]] = [{}, *({name: n} for name in names for n in lengths)]
    for row in profile.measured(temperature).costs:
        low, high = row.drafter, row.verifier
        if low is not None and high < len(names):
            chosen.append({names[low]: 3, names[high]: 8})
    return chosen


def _ids(pool: CandidatePool, prompt: str | list[int]) -> list[int]:
    return pool.tokenizer(prompt, verbose=False)["input_ids"] if isinstance(prompt, str) else prompt


def examine(
    profile: Profile, loaded: Loaded, budget_sets: list[dict[str, int]], temperature: float,
    prompts: list[Any], tokens: int, pool: CandidatePool,
) -> dict[str, Any]:  # fmt: skip
    chains: dict[str, Chain] = {}
    for budgets in budget_sets:
        name = " > ".join(f"{model} {n}" for model, n in budgets.items()) or "plain"
        chains[name] = common.chain_of(profile, budgets)
    general = plan_of(profile, temperature)
    chains["planned"] = general.best.chain
    built = {
        name: Hierarchy(build(HierarchyConfig.from_dict(profile.hierarchy(chain)), loaded))
        for name, chain in chains.items()
    }
    runs: dict[str, list[dict]] = {name: [] for name in built}
    for hierarchy in built.values():
        common.decode(hierarchy, prompts[0], 16, temperature, 0)
    names = list(built)
    text = [token for prompt in prompts for token in _ids(pool, prompt)]
    retimer = Retimer(profile, pool, temperature, text)
    for seed, prompt in enumerate(prompts):
        if seed % 2 == 0:
            retimer.sample(seed)
        for name in names[seed % len(names) :] + names[: seed % len(names)]:
            runs[name].append(common.decode(built[name], prompt, tokens, temperature, seed))
        print(f"  {seed + 1}/{len(prompts)} prompts at temperature {temperature}", flush=True)
    context = statistics.mean(r["prompt"] for r in runs["plain"]) + tokens / 2
    estimates = in_context(retimer.profile(profile), context).estimates(temperature)
    earlier = in_context(profile, context).estimates(temperature)
    out: dict[str, Any] = {"planned": general.to_dict(), "hierarchies": {}}
    for name, chain in chains.items():
        ms = [r["ms"] for r in runs[name]]
        predicted = latency(estimates, chain)
        measured = statistics.mean(ms)
        out["hierarchies"][name] = {
            "levels": list(chain.models),
            "num_speculative_tokens": list(chain.budgets),
            "predicted_ms": predicted.ms_per_token,
            "predicted_ms_with_earlier_costs": latency(earlier, chain).ms_per_token,
            "measured_ms": measured,
            "error": predicted.ms_per_token / measured - 1.0,
            "predicted_tokens_per_call": predicted.tokens_per_call,
            "measured_tokens_per_call": statistics.mean(r["tokens_per_call"] for r in runs[name]),
            "per_prompt": common.spread(ms),
            "planned_over_this": common.ratio([r["ms"] for r in runs["planned"]], ms),
        }
    errors = [abs(cell["error"]) for cell in out["hierarchies"].values()]
    earlier_errors = [
        abs(cell["predicted_ms_with_earlier_costs"] / cell["measured_ms"] - 1.0)
        for cell in out["hierarchies"].values()
    ]
    out["errors_with_earlier_costs"] = {
        "median": statistics.median(earlier_errors),
        "worst": max(earlier_errors),
    }
    out["median_error"], out["worst_error"] = statistics.median(errors), max(errors)
    slower = [
        name
        for name, cell in out["hierarchies"].items()
        if name != "planned" and cell["planned_over_this"]["low95"] > 1.0
    ]
    out["faster_than_planned"] = slower
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=Path)
    parser.add_argument("--chats", type=Path, help="prompt files of chats: a released model")
    parser.add_argument("--num-prompts", type=int, default=16)
    parser.add_argument("--profile-prompts", type=int, default=40)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 1.0])
    parser.add_argument("--targets", nargs="+", default=None)
    parser.add_argument("--places", type=int, default=6)
    parser.add_argument("--lengths", type=int, nargs="+", default=[3, 6], help="of single drafts")
    parser.add_argument("--keep", type=Path, help="folder for the profiles, reused if there")
    parser.add_argument("--name", default="predict")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.chats is not None:
        args.targets = args.targets or [defaults.SMOLLM2_NAME]
        (target,) = args.targets
        names = tuple(default_names(TargetConfig(model=target)))
        HIERARCHIES[target] = names, []
        chains = 2 + len(args.lengths) * len(names) + len(names) ** 2 // 2
        runs = len(args.temperatures) * chains * args.num_prompts * args.tokens
        print(f"expected: {runs * 25 / 60_000:.0f} minutes and the profile, at 25 ms a token")
        plain = Hierarchy.from_config({"target": target})
        measured, profiling, identity = common.chat_prompts(
            args.chats, args.num_prompts, args.profile_prompts, plain, args.tokens
        )
        del plain
    elif args.prompts is None:
        parser.error("give --prompts, or --chats for a released model")
    else:
        args.targets = args.targets or list(HIERARCHIES)
        prompts, identity = common.read_prompts(args.prompts)
        profiling = prompts[1::2][: args.profile_prompts]
        measured = prompts[::2][: args.num_prompts]
    report: dict[str, Any] = {
        "environment": common.environment(prompts=identity),
        "note": "profiled on later chats than those measured"
        if args.chats
        else "profiled on every other prompt of the file, measured on those between; "
        "zoo:large is a synthetic cost with a real distribution",
        "tokens": args.tokens,
        "prompts": args.num_prompts,
        "targets": {},
    }
    settings = ProfileSettings(
        prompts=args.profile_prompts, places=args.places, tokens=args.tokens, repeats=3
    )
    for target in args.targets:
        candidates, budget_sets = HIERARCHIES[target]
        loaded, began = Loaded(), time.perf_counter()
        data = measure(
            TargetConfig(model=target),
            [parse(name) for name in candidates],
            profiling,
            args.temperatures,
            settings,
            path=args.keep / f"{target.partition('?')[0][4:]}.json" if args.keep else None,
            loaded=loaded,
        )
        cells: dict[str, Any] = {"profile_seconds": time.perf_counter() - began}
        print(f"{target}: profiled in {cells['profile_seconds']:.0f} s", flush=True)
        profile = from_dict(data)
        by_name = {name: parse(name) for name in candidates}
        ordered = [by_name[model.name] for model in profile.models[:-1]]
        pool = load(TargetConfig(model=target), ordered, loaded)
        for temperature in args.temperatures:
            chains = budget_sets or released(profile, temperature, args.lengths)
            cell = examine(profile, loaded, chains, temperature, measured, args.tokens, pool)
            cells[str(temperature)] = cell
            for name, row in cell["hierarchies"].items():
                print(
                    f"  {name:36} predicted {row['predicted_ms']:6.2f} measured "
                    f"{row['measured_ms']:6.2f} ({row['error']:+.1%})  tokens a call "
                    f"{row['predicted_tokens_per_call']:.2f} / "
                    f"{row['measured_tokens_per_call']:.2f}"
                )
            print(
                f"  median error {cell['median_error']:.1%}, worst {cell['worst_error']:.1%} "
                f"(with the costs of some minutes before: {cell['errors_with_earlier_costs']}); "
                f"faster than planned: {cell['faster_than_planned'] or 'none'}",
                flush=True,
            )
            report["targets"][target] = cells
            report["environment"]["load_average_after"] = common.environment()["load_average"]
            common.write(args.name, report)  # after each temperature: a run may be cut short


if __name__ == "__main__":
    main()
