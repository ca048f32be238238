"""What anyone can observe of hierspec, recorded before a refactoring and compared after it.

    git worktree add --detach OLD COMMIT
    cp benchmarks/unchanged.py OLD/benchmarks/recorder.py
    PYTHONPATH=OLD/src python OLD/benchmarks/recorder.py record -o before.json
    PYTHONPATH=src python benchmarks/unchanged.py record -o after.json --profile before.json
    python benchmarks/unchanged.py compare before.json after.json

``record`` writes after every part, and the same command goes on; records are hundreds of KB and
are not kept. ``compare`` prints a line per difference, ends with status 1 if there is one, and with
``-o`` writes on which commits it compared how many entries of each part, and which of them differ.
Only the command line and the public names of ``hierspec`` are used, so that the script outlives its
modules and records a tree that had another one. Times and what follows from them (``auto``, tuning,
costs) are left out; plans are of the profile that the first record measured. Token ids are
comparable on one kind of machine and one version of torch only: kernels round differently. Run it
with OMP_NUM_THREADS=1, and with each tree's own entry points. The copy has another name so that the
old tree stays as it was committed.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import math
import os
import re
import subprocess
import sys
import tempfile
import traceback
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from unchanged_inputs import (
    DRAFTS,
    ODD,
    ON_LARGE,
    PRESETS,
    PROBLEM_OPTIONS,
    PROBLEMS,
    PROFILE_OPTIONS,
    PROMPTS,
    REQUESTS,
    TARGET,
    certificate_cases,
)

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import hierspec  # its command line sets threads up: after the environment

ROOT = Path(__file__).resolve().parent.parent
TOLERANCE = 1e-12  # of numbers, absolute; above 1 relative
TIMES = {
    *("seconds", "decode_seconds", "forward_seconds", "verify_seconds", "search_seconds"),
    *("time_to_first_token", "tokens_per_second", "time", "began"),
}

Json = Any


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a ``hierspec`` command to its end."""
    line = [sys.executable, "-m", "hierspec", *map(str, arguments)]
    return subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=False)


def command(*arguments: str | Path) -> str:
    """Return the standard output of a ``hierspec`` command.

    Raises:
        RuntimeError: it failed.
    """
    process = run(*arguments)
    if process.returncode != 0:
        line = " ".join(map(str, arguments))
        raise RuntimeError(f"hierspec {line}: status {process.returncode}: {process.stderr[-800:]}")
    return process.stdout


def timeless(data: Json) -> Json:
    """Return the same without values that are times."""
    if isinstance(data, dict):
        return {k: "a time" if k in TIMES else timeless(v) for k, v in data.items()}
    return [timeless(value) for value in data] if isinstance(data, list) else data


def shape(data: Json) -> Json:
    """Return keys and types; of a list, the distinct shapes of its entries."""
    if isinstance(data, dict):
        return {key: shape(value) for key, value in data.items()}
    if isinstance(data, list):
        shapes = {json.dumps(shape(value), sort_keys=True): shape(value) for value in data}
        return [shapes[key] for key in sorted(shapes)]
    return "number" if type(data) in (int, float) else type(data).__name__


# -- generation -----------------------------------------------------------------------------------


def runs() -> Iterator[tuple[str, Json]]:
    """Yield the results of every hierarchy under every kind of request."""
    target = hierspec.TargetConfig(model=TARGET["model"], dtype=TARGET["dtype"])
    configs: dict[str, Any] = {
        name: hierspec.preset(name, target=target, drafts=list(DRAFTS)) for name in PRESETS
    }
    configs |= {name: json.dumps(config) for name, config in ODD.items()}
    for i, (name, config) in enumerate(configs.items()):
        say(f"runs: {name} ({i + 1} of {len(configs)})")
        hierarchy = hierspec.Hierarchy.from_config(config)
        for j, request in enumerate(REQUESTS):
            yield f"{name} / {request}", generated(hierarchy, request, i + j)
    large = hierspec.TargetConfig(model="zoo:large", dtype="float32")
    for name in ON_LARGE:
        say(f"runs: {name} on zoo:large")
        hierarchy = hierspec.Hierarchy.from_config(hierspec.preset(name, target=large))
        yield f"{name} on zoo:large / greedy", generated(hierarchy, "greedy", 0)


def generated(hierarchy: hierspec.Hierarchy, request: str, place: int) -> Json:
    """Run one request; ``place`` chooses its prompts and its seed."""
    options = dict(REQUESTS[request])
    batch = options.pop("batch")
    if "sampling" in options:
        options["sampling"] = [hierspec.SamplingParams(**params) for params in options["sampling"]]
        options["until"] = lambda sequence, tokens: sequence == 1 and tokens[-1] == 199
    prompts = [PROMPTS[(place + k) % len(PROMPTS)] for k in range(batch)]
    try:
        generation = hierarchy.start(prompts, seed=100 + place, **options)
    except ValueError:
        return "refused"
    authors: list[list[str]] = [[] for _ in prompts]
    for event in generation:
        authors[event.sequence].append(event.level)
    results = generation.results()
    levels = [*results[0].levels, results[0].target]
    names = [level["name"] for level in levels]
    return {
        "ids": [list(result.token_ids) for result in results],
        "levels": ["".join(str(names.index(name)) for name in author) for author in authors],
        "ends": [result.finish_reason for result in results],
        "texts": [zlib.crc32(result.text.encode()) for result in results],
        "calls": [result.target_calls for result in results],
        "counters": [[value for k, value in level.items() if k not in TIMES] for level in levels],
        **({"logprobs": list(results[0].logprobs)} if options.get("logprobs") else {}),
    }


GENERATE = {
    "one": ["def f(x):"],
    "preset": ["import os", "--hierarchy", "hispec", "--temperature", "1", "--logprobs"],
    "stopped": ["for i in", "--stop", ":", "--include-stop", "--top-k", "20", "--compare"],
    "inline": ["x = 1", "--hierarchy", json.dumps(ODD["four levels"]), "--temperature", "0.7"],
}


def commands() -> Iterator[tuple[str, Json]]:
    """Yield what ``generate --json`` prints and traces."""
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.jsonl"
        for name, arguments in GENERATE.items():
            say(f"commands: generate, {name}")
            options = ["--max-new-tokens", "12", "--seed", "5", "--dtype", "float32", "--json"]
            options += ["--target", "zoo:trunk"] if "--hierarchy" not in arguments[:2] else []
            printed = json.loads(command("generate", *arguments, *options, "--trace", trace))
            compared = printed.pop("compare", {})
            yield name, {**timeless(printed), "compare": shape(compared)}
            lines = [json.loads(line) for line in trace.read_text().splitlines()]
            yield f"{name}, traced", timeless(lines)
        prompts = Path(folder) / "prompts.jsonl"
        texts = [prompt for prompt in PROMPTS if isinstance(prompt, str)][:4]
        prompts.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts))
        printed = command(
            *("generate", "--prompts", prompts, "--batch-size", "3", "--target", "zoo:trunk"),
            *("--max-new-tokens", "8", "--json", "--seed", "7", "--temperature", "0.7"),
        )
        yield "prompts", [timeless(json.loads(line)) for line in printed.splitlines()]


# -- certificates, plans, papers ------------------------------------------------------------------


def certificates() -> Iterator[tuple[str, Json]]:
    """Yield distances and yields; not how many paths an enumeration took."""
    files = sorted((ROOT / "examples" / "certify").glob("*.json"))
    cases = [(file.name, json.loads(file.read_text())) for file in files]
    for name, case in [*cases, *certificate_cases()]:
        say(f"certificates: {name}")
        try:
            certificate = hierspec.certify(case)
        except ValueError:
            yield name, "refused"
            continue
        yield (
            name,
            {
                "tv": certificate.tv,
                "expected_accepted": certificate.expected_accepted,
                "expected_tokens_per_target_call": certificate.expected_tokens_per_target_call,
            },
        )


def plans(profile: Json) -> Iterator[tuple[str, Json]]:
    """Yield plans of problems, and of a profile measured when the file was recorded."""
    with tempfile.TemporaryDirectory() as folder:
        files = {file.name: file for file in sorted((ROOT / "examples" / "plan").glob("*.json"))}
        for name, problem in PROBLEMS.items():
            files[name] = Path(folder) / f"{name}.json"
            files[name].write_text(json.dumps(problem))
        for name, file in files.items():
            for options in PROBLEM_OPTIONS:
                yield planned(name, file, options)
        measured = Path(folder) / "profile.json"
        measured.write_text(json.dumps(profile))
        for options in PROFILE_OPTIONS:
            yield planned("the profile", measured, ["--force", *options])


def planned(name: str, file: Path, options: list[str]) -> tuple[str, Json]:
    title = " ".join([name, *options])
    say(f"plans: {title}")
    return title, timeless(json.loads(command("plan", file, *options, "--json")))


def papers() -> Iterator[tuple[str, Json]]:
    """Yield hashes of what is computed from printed numbers."""
    for name in ("p1-tables", "p2-orders"):
        say(f"papers: {name}")
        data = json.loads(command("reproduce", name, "--json"))
        yield name, hashlib.sha256(json.dumps(timeless(data)).encode()).hexdigest()


# -- what is measured -----------------------------------------------------------------------------


def profiled(*candidates: str, temperatures: tuple[str, ...], tokens: str) -> Json:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "profile.json"
        command(
            *("profile", "--target", "zoo:trunk", "--dtype", "float32", "-o", file),
            *("--candidates", *candidates, "--num-prompts", "2", "--tokens", tokens),
            *("--places", "2", "--repeats", "1", "--max-speculative-tokens", "3"),
            *(part for value in temperatures for part in ("--temperature", value)),
        )
        return json.loads(file.read_text())


def measured() -> Iterator[tuple[str, Json]]:
    """Yield the shapes of a profile and a bench, and what in them does not depend on time."""
    say("measured: a profile")
    profile = profiled("ngram", "zoo:small", temperatures=("0", "1"), tokens="8")
    yield "profile, shape", shape(profile)
    for temperature, temperature_data in profile["temperatures"].items():
        yield f"profile, pairs at {temperature}", temperature_data["pairs"]
    for key in ("kind", "schema_version", "target", "prompts", "settings", "memory"):
        yield f"profile, {key}", profile[key]
    say("measured: a bench")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "bench.json"
        command(
            *("bench", "--target", "zoo:trunk", "--dtype", "float32", "-o", file),
            *("--draft", "zoo:small", "--draft", "zoo:mid", "--num-prompts", "2"),
            *("--tune-prompts", "1", "--tune-tokens", "3", "--max-new-tokens", "8"),
            *("--methods", "plain,speculative,hierarchy,naive,hispec,multi-draft,lookahead"),
        )
        bench = json.loads(file.read_text())
        reloaded = json.loads(command("bench", "--from", file, "--json"))
    yield "bench, shown as written", reloaded == bench
    for key in ("schema_version", "kind", "finished", "settings", "notes"):
        yield f"bench, {key}", bench[key]
    for cell in bench["cells"]:
        for method in cell["methods"]:
            name = f"bench, {method['name']} at {cell['temperature']:g}"
            yield name, steady(method, cell["temperature"] == 0)
    yield "bench, shape", bench_shape(bench)


def steady(method: Json, greedy: bool) -> Json:
    """Return what tuning by time does not change: all of plain, and greedy texts."""
    constant = {key: method[key] for key in ("title", "group", "source", "lossless", "skipped")}
    untuned = method["tuning"] is None
    constant["num_tokens"] = [run["num_tokens"] for run in method["runs"]]
    if untuned or greedy:
        constant["ids"] = [run["token_ids"] for run in method["runs"]]
        constant["same_as_plain"] = [run["same_as_plain"] for run in method["runs"]]
    if untuned:
        constant["target"] = [timeless(run["target"]) for run in method["runs"]]
    return constant


def bench_shape(bench: Json) -> Json:
    """Return :func:`shape` without what tuning decides: configurations and positions."""
    for cell in bench["cells"]:
        for method in cell["methods"]:
            method["configuration"] = sorted(method["configuration"])
            for trial in (method["tuning"] or {}).get("trials", []):
                trial["configuration"] = sorted(trial["configuration"])
            positions = method["summary"]["acceptance_per_position"]
            method["summary"]["acceptance_per_position"] = type(positions).__name__
            for run in method["runs"]:
                for level in [*run["levels"], run["target"]]:
                    level["num_accepted_tokens_per_pos"] = "list"
                    level["acceptance_rate"] = "a number or null"
            for level in method["summary"]["levels"]:
                level["acceptance_rate"] = "a number or null"
    return shape(bench)


# -- names ----------------------------------------------------------------------------------------


def names() -> Iterator[tuple[str, Json]]:
    """Yield public names, commands and their options, and exit statuses of mistakes."""
    yield "hierspec", sorted(hierspec.__all__)
    for kind in (hierspec.GenerationResult, hierspec.SamplingParams, hierspec.TokenEvent):
        yield kind.__name__, [field.name for field in dataclasses.fields(kind)]
    yield "Hierarchy", sorted(name for name in dir(hierspec.Hierarchy) if name[0] != "_")
    yield from options_of([])
    yield "doctor", shape(json.loads(command("doctor", "--json")))
    for title, arguments in STATUSES.items():
        say(f"names: {title}")
        process = run(*arguments)
        yield title, {"status": process.returncode, "lines": len(process.stderr.splitlines())}


STATUSES = {
    "a lossless case": ["certify", "examples/certify/four-levels.json"],
    "a lossy case": ["certify", "examples/certify/worked-example-uncapped.json"],
    "an unknown preset": ["generate", "x", "--hierarchy", "nosuch"],
    "an unknown option": ["generate", "x", "--nosuch"],
    "a wrong key": ["generate", "x", "--hierarchy", '{"target": {"modle": "zoo:trunk"}}'],
    "no such file": ["plan", "nosuch.json"],
    "not a problem": ["plan", "examples/certify/tail.json"],
    "not a case": ["certify", "examples/plan/p1-first.json"],
}


def options_of(path: list[str]) -> Iterator[tuple[str, Json]]:
    """Yield names of options, of this command and of those below it."""
    say(f"names: {' '.join(['hierspec', *path])}")
    text = command(*path, "--help")
    options = set(re.findall(r"^ +(?:-\w, )?(--[\w-]+)", text, re.M))
    yield " ".join(["hierspec", *path]), sorted(options)
    below = text.partition("\nCommands:\n")[2]
    for name in re.findall(r"^  (\w[\w-]*)", below, re.M):
        yield from options_of([*path, name])


# -- recording and comparing ----------------------------------------------------------------------


def sections(profile: Json) -> dict[str, Callable[[], Iterator[tuple[str, Json]]]]:
    return {
        "names": names,
        "commands": commands,
        "certificates": certificates,
        "plans": lambda: plans(profile),
        "papers": papers,
        "measured": measured,
        "runs": runs,
    }


def record(output: Path, only: list[str], profile_from: Path | None) -> int:
    """Write the parts that ``output`` lacks; the profile is measured unless another record has it.

    A section that fails keeps what it found before, and an entry that says how it ended.
    """
    from common import environment

    parts: dict[str, Json] = json.loads(output.read_text()) if output.exists() else {}
    now = environment()
    if parts and parts["environment"]["commit"] != now["commit"]:
        say(f"{output} is of commit {parts['environment']['commit']}, this is {now['commit']}")
        return 2
    parts.setdefault("environment", now)
    if "profile" not in parts:
        say("a profile to plan with")
        parts["profile"] = (
            json.loads(profile_from.read_text())["profile"] if profile_from else profile_to_plan()
        )
    for name, section in sections(parts["profile"]).items():
        if name in parts or (only and name not in only):
            continue
        parts[name] = entries(section)
        output.write_text(compact(parts))
        say(f"wrote {output}: {len(parts[name])} {name}")
    return 0


def profile_to_plan() -> Json:
    return profiled(
        *("ngram", "zoo:small", "zoo:mid,window=entropy", "exit:2", "exit:4"),
        temperatures=("0", "1"),
        tokens="16",
    )


def entries(section: Callable[[], Iterator[tuple[str, Json]]]) -> Json:
    """Run a section; a failure becomes an entry after those before it."""
    found: dict[str, Json] = {}
    try:
        for name, entry in section():
            found[name] = entry
    except Exception as error:
        traceback.print_exc()
        found[f"FAILED: {error!r}"] = None
    return found


def compact(parts: Mapping[str, Json]) -> str:
    """Return JSON with a line for each entry of each part."""
    blocks = []
    for name, part in parts.items():
        entries = {key: json.dumps(value, separators=(",", ":")) for key, value in part.items()}
        lines = [f"  {json.dumps(key)}: {entry}" for key, entry in entries.items()]
        blocks.append(f" {json.dumps(name)}: {{\n" + ",\n".join(lines) + "\n }")
    return "{\n" + ",\n".join(blocks) + "\n}\n"


def compare(before: Path, after: Path, output: Path | None) -> int:
    """Print what differs, and write a summary to ``output``; 1 if anything does."""
    old, new = (json.loads(file.read_text()) for file in (before, after))
    versions = [record["environment"]["versions"]["torch"] for record in (old, new)]
    if versions[0] != versions[1]:
        say(f"recorded with torch {versions[0]} and {versions[1]}: tokens may differ")
    names = [name for name in sections({}) if name in old and name in new]
    found = {
        f"{name} > {entry}": list(
            differences(*({entry: part[entry]} if entry in part else {} for part in parts), name)
        )
        for name in names
        for parts in [(old[name], new[name])]
        for entry in {**parts[0], **parts[1]}
    }
    found = {entry: lines for entry, lines in found.items() if lines}
    print(*(line for lines in found.values() for line in lines), sep="\n", flush=True)
    say(f"{len(found)} entries differ")
    if output is not None:
        import pack

        summary = {
            "before": old["environment"],
            "after": new["environment"],
            "compared": {name: len({**old[name], **new[name]}) for name in names},
            "entries that differ": {
                entry: {"first": lines[0].removeprefix(entry).lstrip(" >:"), "lines": len(lines)}
                for entry, lines in found.items()
            },
        }
        pack.write(output, summary)
    return int(len(found) > 0)


def differences(old: Json, new: Json, path: str) -> Iterator[str]:
    """Yield a line for every position where two JSON values differ."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in {**old, **new}:
            key_path = f"{path} > {key}"
            if key not in new or key not in old:
                yield f"{key_path}: {'gone' if key in old else 'new'}"
            else:
                yield from differences(old[key], new[key], key_path)
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for i, pair in enumerate(zip(old, new, strict=True)):
            different = list(differences(*pair, f"{path}[{i}]"))
            yield from different
            if different and (path.endswith("traced") or not isinstance(pair[0], dict | list)):
                return  # after the first other token, or event, all others follow
    elif all(isinstance(names, list) and {type(n) for n in names} == {str} for names in (old, new)):
        changes = {
            "gone": [n for n in old if n not in new],
            "new": [n for n in new if n not in old],
        }
        yield f"{path}: " + "; ".join(
            f"{k} {' '.join(found)}" for k, found in changes.items() if found
        )
    elif not equal_values(old, new):
        yield f"{path}: {brief(old)} → {brief(new)}"


def equal_values(old: Json, new: Json) -> bool:
    if type(old) in (int, float) and type(new) in (int, float):
        return math.isclose(old, new, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
    return type(old) is type(new) and old == new


def brief(data: Json) -> str:
    text = json.dumps(data)
    return text if len(text) <= 100 else f"{text[:100]}…"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    ways = parser.add_subparsers(dest="way", required=True)
    recording = ways.add_parser("record")
    recording.add_argument("-o", "--output", type=Path, required=True)
    recording.add_argument("--only", nargs="+", default=[], choices=sorted(sections({})))
    recording.add_argument("--profile", type=Path, help="the record whose profile is planned with")
    comparing = ways.add_parser("compare")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    comparing.add_argument("-o", "--output", type=Path)
    chosen = parser.parse_args()
    if chosen.way == "record":
        return record(chosen.output, chosen.only, chosen.profile)
    return compare(chosen.before, chosen.after, chosen.output)


if __name__ == "__main__":
    sys.exit(main())
