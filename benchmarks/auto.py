"""``--hierarchy auto``: what its first use takes, and whether anything is faster than its plan.

Whole commands: the first with an empty cache, kernels compiled included, one of which half the time
is over when it is interrupted and then given again, and a later one; when each says its first plan,
and how far its estimates of the time left were off. With ``--chats`` the plan, its runners-up, the
best stack of levels alone and plain decoding take turns on other prompts, beside plan and stack
under online control, and under control the slowest of them, whose drafts do not pay. A run is added
to those in the result file.

    python benchmarks/auto.py [--target zoo:smollm2] [--folder FOLDER]
    python benchmarks/auto.py --chats FOLDER
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import common
import torch
from pack import rounded
from random_models import checkpoint

from hierspec import Hierarchy, HierarchyConfig, TargetConfig
from hierspec.config.build import build
from hierspec.planner.estimates import Chain
from hierspec.planner.online.controller import OnlineController
from hierspec.planner.search import Variations, plan
from hierspec.profiling.auto import choose, control_chain

_LEFT = re.compile(r"about (\d+) (s|min) left")


def run(
    target: TargetConfig, cache: str, temperature: float, tokens: int, stop_at: float | None = None
) -> dict[str, Any]:
    """Run the whole command in a process of its own, loading and generating included.

    Args:
        stop_at: seconds after which it is interrupted.
    """
    command = [sys.executable, "-m", "hierspec", "generate", "def quicksort(items):"]
    command += ["--target", str(target.model), "--dtype", target.dtype, "--hierarchy", "auto"]
    command += ["--seed", "0", "--temperature", str(temperature), "--json"]
    began, promised = time.perf_counter(), list[float]()
    process = subprocess.Popen(
        [*command, "--ignore-eos", "--max-new-tokens", str(tokens)],
        env={**os.environ, "HIERSPEC_CACHE": cache},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    timer = threading.Timer(stop_at or 3600, process.send_signal, [signal.SIGINT])
    timer.start()
    said, first_plan = "", None
    for line in process.stderr:
        said, measured = said + line, time.perf_counter() - began
        if first_plan is None and "so far: " in line:
            first_plan = measured
        if found := _LEFT.search(line):
            promised.append(measured + int(found[1]) * (60 if found[2] == "min" else 1))
    out = process.stdout.read()
    timer.cancel()
    if process.wait() and stop_at is None:
        raise SystemExit(said)
    found = {"seconds": time.perf_counter() - began, "promised": promised}
    found |= {} if first_plan is None else {"first_plan_seconds": first_plan}
    return found | (
        {"tokens_per_second": json.loads(out)["tokens_per_second"]} if stop_at is None else {}
    )


def first_uses(args: argparse.Namespace, target: TargetConfig, temperature: float) -> Any:
    uses: dict[str, Any] = {}

    def use(name: str, cache: str, stop_at: float | None = None) -> None:
        uses[name] = run(target, cache, temperature, args.tokens, stop_at)
        print(f"{temperature} {name}: {uses[name]['seconds']:.1f} s", flush=True)

    with tempfile.TemporaryDirectory() as cache:
        use("first", cache)
        print("  first plan after", round(uses["first"]["first_plan_seconds"], 1), "s;", end=" ")
        print("promised to end at", [round(end, 1) for end in uses["first"]["promised"]])
        if "later" in args.uses:
            use("later", cache)
    if "interrupted" in args.uses:
        with tempfile.TemporaryDirectory() as cache:
            use("interrupted", cache, stop_at=uses["first"]["seconds"] / 2)
            use("continued", cache)
    return uses


def rivals(args: argparse.Namespace, target: TargetConfig, temperature: float) -> Any:
    """Time the plan and its runners-up on chats, and what control makes of the slowest."""
    choice = choose(target, temperature=temperature, chat=True)
    estimates, best = choice.plan.estimates, choice.plan.best

    def name(chain: Chain) -> str:
        return chain.describe(lambda model, n: f"{estimates.names[model]} {n}") or "plain"

    def static(chain: Chain) -> Hierarchy:
        return Hierarchy(build(choice.hierarchy(chain), choice.loaded))

    def controlled(chain: Chain) -> Hierarchy:
        built = build(choice.hierarchy(chain), choice.loaded)
        controller = OnlineController(built.root, estimates, chain)
        return Hierarchy(built, controller=controller)

    runners_up = choice.plan.runners_up[: args.rivals]
    stack = plan(estimates, variations=Variations(dropped_bonus=True))
    ways = {name(one.chain): static(one.chain) for one in (best, stack.best, *runners_up)}
    ways["plain"] = Hierarchy(build(HierarchyConfig(target=target), choice.loaded))
    slowest = max((best, *runners_up), key=lambda one: one.ms).chain
    controls = (choice.control, control_chain(choice.profile, stack), slowest)
    for chain in {name(c): c for c in controls if not c.plain}.values():
        ways[f"{name(chain)}, under control"] = controlled(chain)
    prompts, _, identity = common.chat_prompts(args.chats, args.num_prompts, 0, ways["plain"])
    ms: dict[str, list[float]] = {key: [] for key in ways}
    order = list(ways)
    for number, prompt in enumerate([prompts[0], *prompts]):
        for key in order[number % len(order) :] + order[: number % len(order)]:
            found = common.decode(
                ways[key], prompt[-args.longest :], args.tokens, temperature, number
            )
            if number:  # the first compiles
                ms[key].append(found["ms"])
    planned = name(best.chain)
    rows = {
        key: {
            "ms": common.spread(times),
            "plan_gains": common.ratio(times, ms[planned]),
            "gains_in_all": sum(times) / sum(ms[planned]),
            "loses_to_plain": sum(times) / sum(ms["plain"]),
        }
        for key, times in ms.items()
    }
    for key, row in rows.items():
        gain = row["plan_gains"]
        print(
            f"{temperature} {key}: {row['ms']['median']:.2f} ms, the plan is {gain['median']:.3f}x "
            f"[{gain['low95']:.3f}, {gain['high95']:.3f}], {row['gains_in_all']:.3f}x in all, as "
            f"fast; {row['loses_to_plain']:.3f} of plain decoding's time"
        )
    return {
        "plan": planned,
        "stack": name(stack.best.chain),
        "control": name(choice.control),
        "ways": rows,
        "prompts": identity,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--target", default="zoo:smollm2", help="a model, or one of random_models")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.0])
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument(
        "--uses", nargs="*", default=["later"], choices=["later", "interrupted"],
        help="of the command, beside its first",
    )  # fmt: skip
    parser.add_argument("--folder", type=Path, help="for random models; default: a temporary one")
    parser.add_argument("--chats", type=Path, help="prompt files of chats: time the plan's rivals")
    parser.add_argument("--num-prompts", type=int, default=24)
    parser.add_argument("--longest", type=int, default=64, help="cut chats to their last tokens")
    parser.add_argument("--rivals", type=int, default=4)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        model = checkpoint(args.target, args.folder or Path(scratch))
        target = TargetConfig(model=model, dtype=args.dtype)
        measure = first_uses if args.chats is None else rivals
        cells = {str(t): measure(args, target, t) for t in args.temperatures}
    settings = {k: v for k, v in vars(args).items() if k not in ("folder", "chats")}
    settings["rivals"] = args.rivals if args.chats else 0
    file = common.RESULTS / "auto.json"
    before = json.loads(file.read_text()).get("runs", []) if file.exists() else []
    kept = [one for one in before if one["settings"] != settings]
    one = {"environment": common.environment(), "settings": settings, "temperatures": cells}
    common.write("auto", {"runs": [*kept, rounded(one)]})


if __name__ == "__main__":
    torch.set_num_threads(2)
    main()
