"""Measuring a profile from beginning to end: restartable, and with a word on how far it is."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..build import Loaded
from ..config import HierarchyConfig, TargetConfig
from ..windows import EntropyWindow
from . import costs, fingerprint, rates, sizes
from .candidates import Candidate, Pool, load
from .profile import KIND, SCHEMA_VERSION, save
from .rates import Drafts

LONG_CONTEXT = 1024  # tokens; costs are timed there too, to see what the context costs
MIN_CONTEXT = 96
MAX_PROMPT = 256  # tokens of a prompt that are used: its end

Report = Callable[[str, float], None]  # stage, share of all work done


@dataclass(frozen=True, slots=True)
class Settings:
    """How much to measure.

    Attributes:
        max_speculative_tokens: largest budget to know about.
        tokens: of the target's own after each prompt; drafts are tried along them.
        places: where along each text.
        rounds: drafts at each place.
        classes: kinds of text, by how easy they are, whose curves are kept apart.
        prompts: how many of the prompts to use.
        repeats: how often every cost is timed, two rounds each.
        min_ratio: a model verifies another only if its call costs this many times as much.
    """

    max_speculative_tokens: int = 15
    tokens: int = 128
    places: int = 6
    rounds: int = 2
    classes: int = 3
    prompts: int = 16
    repeats: int = 6
    min_ratio: float = 1.25
    seed: int = 0

    def budgets(self) -> tuple[int, ...]:
        """Draft lengths whose costs are timed."""
        steps = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
        most = self.max_speculative_tokens
        return (*(n for n in steps if n < most), most)


def measure(
    target: TargetConfig,
    candidates: Sequence[Candidate],
    prompts: Sequence[str],
    temperatures: Sequence[float],
    settings: Settings,
    *,
    path: Path | None = None,
    source: dict[str, Any] | None = None,
    loaded: Loaded | None = None,
    report: Report = lambda stage, share: None,
) -> dict[str, Any]:
    """Measure, and return the profile's JSON object.

    Args:
        path: where it is kept; what an interrupted run left there is continued, provided that
            it was the same request on the same machine.
        source: where the prompts are from, for the record.
        report: told what is being done.

    Raises:
        ValueError: nothing to measure, or a model or a prompt that cannot be used.
    """
    if not candidates:
        raise ValueError("there are no candidates: name at least one that may draft")
    report("loading", 0.0)
    pool = load(target, candidates, loaded)
    run = _Run(pool, prompts, settings, report)
    hardware = fingerprint.hardware(pool.entrants[-1].model.device)
    request = fingerprint.key(
        [
            target,
            [c.name for c in candidates],
            dataclasses.asdict(settings),
            list(prompts),
            hardware,
        ]
    )
    data = _resumed(path, request) or {
        "kind": KIND,
        "schema_version": SCHEMA_VERSION,
        "request": request,
        "hardware": hardware,
        "target": _plain_target(target),
        "prompts": {"count": len(run.prompts), **(source or {})},
        "settings": dataclasses.asdict(settings),
        "temperatures": {},
        "stages": {},
    }
    stages = data["stages"]
    todo = [t for t in temperatures if repr(float(t)) not in data["temperatures"]]

    def stage(name: str, work: Callable[[], Any]) -> Any:
        if name not in stages:
            stages[name] = work()
            if path is not None:
                save({**data, "unfinished": True}, path)
        return stages[name]

    ms = stage("alone", lambda: costs.alone(pool, run.prompts[0], 0.0))
    order = costs.order(pool, ms)
    run.pool = pool = pool.ordered(order)
    run.alone = [ms[i] for i in order]
    data["models"] = [_described(pool, i) for i in range(len(pool.entrants))]
    data["memory"] = sizes.memory(pool)
    for number, temperature in enumerate(todo):
        run.share = (number / len(todo), 1 / len(todo))
        label = repr(float(temperature))
        data["temperatures"][label] = run.all(
            temperature, lambda name, work, at=label: stage(f"{at} {name}", work)
        )
    data.pop("stages")
    if path is not None:
        save(data, path)
    report("done", 1.0)
    return data


class _Run:
    def __init__(
        self, pool: Pool, prompts: Sequence[str], settings: Settings, report: Report
    ) -> None:
        self.pool, self.settings, self.report = pool, settings, report
        self.prompts = [_ids(pool, text) for text in prompts[: settings.prompts]]
        self.prompts = [ids for ids in self.prompts if ids]
        if not self.prompts:
            raise ValueError("there is no prompt to measure on: --prompts has none of any length")
        self.share = (0.0, 1.0)
        self.alone: list[float] = []  # milliseconds of a single call, by entrant

    def tell(self, stage: str, part: float) -> None:
        start, length = self.share
        self.report(stage, start + length * part)

    def all(self, temperature: float, stage: Callable[[str, Callable[[], Any]], Any]) -> Any:
        entrants, settings = self.pool.entrants, self.settings
        target = len(entrants) - 1
        plan = rates.Plan(
            settings.places,
            settings.rounds,
            settings.max_speculative_tokens,
            temperature,
            settings.seed,
        )
        starts = [len(prompt) for prompt in self.prompts]
        self.tell("the target writes", 0.01)
        texts = stage(
            "texts",
            lambda: rates.continuations(self.pool, self.prompts, self.room(), plan),
        )
        pairs = [
            (i, k)
            for k in range(1, target + 1)
            for i in range(k)
            if entrants[k].verifies
            and (k == target or self.alone[k] >= settings.min_ratio * self.alone[i])
        ]
        self.tell("agreement", 0.05)
        agreed, kinds = stage("agreement", lambda: self.agreements(texts, plan))
        found = []
        for i in range(target):
            above = [k for j, k in pairs if j == i and k < target]
            self.tell(f"drafts of {entrants[i].name}", 0.07 + 0.45 * i / target)

            def follow(i: int = i, above: list[int] = above) -> Any:
                drafts = rates.follow_drafts(self.pool, i, above, texts, starts, plan)
                return self.curves(i, drafts, np.array(kinds))

            found += stage(f"drafts {i}", follow)
        for pair in found:
            pair |= agreed.get(f"{pair['drafter']} {pair['verifier']}", {})
        text = _of_length([token for one in texts for token in one], MIN_CONTEXT, texts[0])
        self.tell("costs", 0.55)
        timed = stage("costs", lambda: self.costs(pairs, text, temperature, 0.55, 0.35))
        self.tell("costs in a long context", 0.9)
        context = stage("context", lambda: self.contexts(texts, len(text), temperature))
        token_ms = stage("token", lambda: self.token_ms(temperature))
        return {"pairs": found, "costs": timed, "context": context, "token_ms": token_ms}

    def room(self) -> int:
        """Tokens that may follow the longest prompt, with drafts after them."""
        settings = self.settings
        longest = min(entrant.model.max_length for entrant in self.pool.entrants if entrant.scores)
        spare = (settings.rounds + 2) * (settings.max_speculative_tokens + 1)
        room = longest - spare - max(len(prompt) for prompt in self.prompts)
        if room < 1:
            raise ValueError(
                f"contexts of {longest} tokens have no room for prompts and drafts: give shorter "
                "prompts, or lower --max-speculative-tokens"
            )
        return min(settings.tokens, room)

    def curves(self, drafter: int, drafts: Drafts, kinds: np.ndarray) -> list[dict[str, Any]]:
        candidate = self.pool.entrants[drafter].candidate
        assert candidate is not None
        lengths = np.array(drafts.lengths)
        varied = not candidate.level.window.fixed_length or not self.pool.entrants[drafter].scores
        if candidate.level.window.signal:
            lengths = stopping_places(candidate.level.window, drafts)
        out = []
        for verifier in drafts.block:
            curves = {
                "block": np.stack(drafts.block[verifier]),
                "tokenwise": np.stack(drafts.tokenwise[verifier]),
            }
            mean = curves["block"].sum(1)
            pair: dict[str, Any] = {
                "drafter": drafter,
                "verifier": verifier,
                "drafts": len(lengths),
                "survival": {name: _rounded(rows.mean(0)) for name, rows in curves.items()},
                "classes": [
                    {name: _rounded(rows[kinds == c].mean(0)) for name, rows in curves.items()}
                    for c in range(int(kinds.max()) + 1)
                ],
                "tokens_per_call": round(float(mean.mean()), 5),
                "standard_error": round(float(mean.std() / len(mean) ** 0.5), 5),
            }
            if verifier == len(self.pool.entrants) - 1:
                pair["kept"] = drafts.kept
            if varied:
                pair["joint"] = {name: _joint(lengths, rows) for name, rows in curves.items()}
                for c, entry in enumerate(pair["classes"]):
                    some = kinds == c
                    entry["joint"] = {
                        name: _joint(lengths[some], rows[some]) for name, rows in curves.items()
                    }
            out.append(pair)
        return out

    def agreements(self, texts: list[list[int]], plan: rates.Plan) -> tuple[Any, list[int]]:
        """Acceptances of every pair of models, and the class of every draft by ease of text."""
        begins = [len(prompt) for prompt in self.prompts]
        ends = [len(text) for text in texts]
        own, ease = rates.agreements(self.pool, texts, begins, ends, plan)
        given, _ = rates.agreements(self.pool, texts, [1] * len(texts), begins, plan)
        known = max(map(np.max, ease)) > 0  # else no candidate has a law
        kinds = rates.classes(ease, plan, self.settings.classes if known else 1)
        sums = {
            f"{i} {k}": {
                "acceptance": round(total.overlap / max(total.positions, 1), 5),
                "equal_argmax": round(total.equal / max(total.positions, 1), 5),
                "acceptance_on_prompts": round(
                    given[i, k].overlap / max(given[i, k].positions, 1), 5
                ),
                "positions": total.positions,
            }
            for (i, k), total in own.items()
        }
        return sums, kinds.tolist()

    def costs(
        self,
        pairs: list[tuple[int, int]],
        text: list[int],
        temperature: float,
        start: float,
        length: float,
    ) -> list[dict[str, Any]]:
        settings, entrants = self.settings, self.pool.entrants
        wanted: list[tuple[int | None, int]] = [
            *((None, k) for k, entrant in enumerate(entrants) if entrant.scores),
            *pairs,
        ]
        total = settings.repeats * (len(pairs) * len(settings.budgets()) + len(wanted) - len(pairs))
        done = 0

        def advance() -> None:
            nonlocal done
            done += 1
            self.tell("costs", start + length * done / total)

        times = costs.time_pairs(
            self.pool,
            wanted,
            text,
            budgets=settings.budgets(),
            repeats=settings.repeats,
            temperature=temperature,
            seed=settings.seed,
            done=advance,
        )
        return [
            {
                "drafter": i,
                "verifier": k,
                "draft": costs.summary(seen.draft),
                "check": costs.summary(seen.check),
            }
            for (i, k), seen in times.items()
        ]

    def contexts(self, texts: list[list[int]], short: int, temperature: float) -> dict[str, Any]:
        """What calls cost in a long context, as a slope in the number of tokens before them."""
        entrants = self.pool.entrants
        scoring = [k for k, entrant in enumerate(entrants) if entrant.scores]
        room = min(entrants[k].model.max_length for k in scoring) - 64
        long = min(LONG_CONTEXT, room)
        base: dict[str, Any] = {"tokens": short, "long": long, "slopes": []}
        if long < 2 * short:
            return base
        text = _of_length([token for one in texts for token in one], long, texts[0])
        numbers = [k for k in scoring if k and entrants[k].verifies and scoring[0] < k]
        wanted: list[tuple[int | None, int]] = [(None, k) for k in scoring]
        wanted += [(scoring[0], k) for k in numbers]
        both = [
            costs.time_pairs(
                self.pool, wanted, tokens, budgets=(8,), repeats=3, temperature=temperature
            )
            for tokens in (text[:short], text)
        ]
        for k in scoring:
            slopes = {}
            for tokens, pair in ((0, (None, k)), (8, (scoring[0], k))):
                if pair in both[0]:
                    low, high = (float(np.median(times[pair].check[tokens])) for times in both)
                    slopes[f"ms_per_token_{tokens}"] = (high - low) / (long - short)
            slopes.setdefault("ms_per_token_8", slopes["ms_per_token_0"])
            base["slopes"].append({"model": k, **slopes})
        return base

    def token_ms(self, temperature: float) -> float:
        """What a token costs outside rounds: text, stop conditions, the event."""
        from .loop import token_ms

        return token_ms(self.pool, self.prompts[0], temperature)


def stopping_places(window: Any, drafts: Drafts) -> np.ndarray:
    """Where a window would have stopped each draft, [N] tokens.

    A running threshold is taken where it settles: the mean of the entropies at tokens that the
    target rejected.
    """
    if isinstance(window, EntropyWindow) and window.threshold is None:
        rejected = [
            signals[kept]
            for signals, kept in zip(drafts.entropies, drafts.kept, strict=True)
            if kept < len(signals)
        ]
        window = EntropyWindow(threshold=float(np.mean(rejected)) if rejected else 0.0)
    out = []
    for signals in drafts.entropies:
        stops = [n for n, value in enumerate(signals, 1) if window.stops((value,), window.init())]
        out.append(stops[0] if stops else len(signals))
    return np.array(out)


def _joint(lengths: np.ndarray, curves: np.ndarray) -> list[list[float]]:
    """[M+1, M+1]: probability of stopping after n tokens with the first m of them kept."""
    size = curves.shape[1]
    out = np.zeros((size, size))
    for n, curve in zip(lengths, curves, strict=True):
        out[n, : n + 1] += curve[: n + 1]
    return [_rounded(row) for row in out / len(lengths)]


def _rounded(row: np.ndarray) -> list[float]:
    return [round(float(value), 6) for value in row]


def _ids(pool: Pool, text: str) -> list[int]:
    if pool.tokenizer is None:
        raise ValueError("the target has no tokenizer beside it, so prompts cannot be read")
    return pool.tokenizer(text, verbose=False)["input_ids"][-MAX_PROMPT:]


def _of_length(tokens: list[int], length: int, first: list[int]) -> list[int]:
    """At least ``first``, as many tokens as asked for; repeated where there are too few."""
    wanted = max(length, len(first)) if length == MIN_CONTEXT else length
    return (tokens * (1 + wanted // max(len(tokens), 1)))[:wanted]


def _described(pool: Pool, number: int) -> dict[str, Any]:
    entrant = pool.entrants[number]
    level = None
    if entrant.candidate is not None:
        whole = HierarchyConfig(target=pool.target, levels=(entrant.candidate.level,)).to_dict()
        level = {k: v for k, v in whole["levels"][0].items() if k != "num_speculative_tokens"}
    readable = entrant.scores or entrant.owner == pool.target.model
    return {
        "name": entrant.name,
        "level": level,
        "owner": entrant.owner,
        "weights": fingerprint.weights(entrant.owner) if readable else None,
    }


def _plain_target(target: TargetConfig) -> dict[str, Any]:
    return HierarchyConfig(target=target).to_dict()["target"]


def _resumed(path: Path | None, request: str) -> dict[str, Any] | None:
    """What an interrupted run of the same request left, or a finished profile to add to."""
    if path is None or not path.exists():
        return None
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None  # not one of ours, or damaged: measured anew
    if not isinstance(data, dict) or data.get("request") != request:
        return None
    data.pop("unfinished", None)
    data.setdefault("stages", {})
    return data
