"""What tables, pictures and the page take from a result of ``hierspec bench`` (schema 1)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hierspec.bench.results import KIND, SCHEMA_VERSION
from hierspec.errors import HierspecError

GROUPS = {  # group → what it is called
    "plain": "plain decoding",
    "planned": "planned",
    "paper": "papers' systems",
    "baseline": "baselines",
    "peer": "other libraries",
}


def check(results: Mapping[str, Any]) -> None:
    """Refuse what is no result of a bench.

    Raises:
        ValueError: it is something else, or of a later schema.
    """
    if not isinstance(results, Mapping) or results.get("kind") != KIND:
        raise HierspecError(
            f"these are no results of hierspec bench (their kind would be {KIND!r})"
        )
    if results.get("schema_version") != SCHEMA_VERSION:
        found = results.get("schema_version")
        raise HierspecError(
            f"bench results of schema {found!r}; this hierspec reads {SCHEMA_VERSION}"
        )


def ran(cell: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Methods of a temperature that were measured to the end."""
    return [method for method in cell["methods"] if method.get("summary")]


def skipped(cell: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Methods of a temperature that were not, or not yet, measured."""
    return [method for method in cell["methods"] if not method.get("summary")]


def why_skipped(method: Mapping[str, Any]) -> str:
    return method.get("skipped") or "not measured"


@dataclass(frozen=True, slots=True)
class Compared:
    """How many of a method's greedy texts are plain decoding's, part from it at a near-tie, are
    wrong."""

    equal: int
    near_ties: int
    wrong: int

    @property
    def runs(self) -> int:
        return self.equal + self.near_ties + self.wrong


def compared(cell: Mapping[str, Any], method: Mapping[str, Any]) -> Compared:
    """Run by run. One that differs parts at a near-tie if the two tokens where it first does score
    alike in one pass of the target, as far as its data type can tell."""
    limit = cell.get("near_tie_tolerance", 0.0)
    others = [run for run in method["runs"] if not run["same_as_plain"]]
    gaps = [run.get("first_difference_gap") for run in others]
    ties = sum(gap is not None and gap <= limit for gap in gaps)
    return Compared(len(method["runs"]) - len(others), ties, len(others) - ties)


def speedup(method: Mapping[str, Any]) -> Mapping[str, float] | None:
    """Paired ratios over plain decoding; plain decoding itself has 1 without an interval."""
    found = method["summary"].get("speedup")
    if found is None and method["name"] == "plain":
        return {"median": 1.0}
    return found


def interval(ratio: Mapping[str, float]) -> tuple[float, float] | None:
    """The 95 % interval of a paired ratio; none of a single prompt's, or of one over itself."""
    if ratio.get("low95", 1.0) >= ratio.get("high95", 1.0):
        return None
    return ratio["low95"], ratio["high95"]


def mean(spread: Mapping[str, float] | None) -> float | None:
    """Of a spread (S of the schema)."""
    return None if spread is None else spread["mean"]


def error_of_prediction(method: Mapping[str, Any]) -> tuple[float, float, float] | None:
    """Predicted and measured ms a token after the first (means), and predicted / measured − 1."""
    predicted = method.get("predicted_ms_per_token")
    measured = mean(method["summary"].get("decode_ms_per_token"))
    if predicted is None or not measured:
        return None
    return predicted, measured, predicted / measured - 1


def sampled(floor: Mapping[str, Any]) -> str:
    """What the floor's bandwidth comes from: files without ``samples`` hold a single one."""
    count = len(floor.get("samples") or [None])
    many = f"the best of {count} samples of memory's bandwidth"
    return "one sample of memory's bandwidth" if count == 1 else many


def described(method: Mapping[str, Any]) -> str:
    """The title, where it says more than the name that is typed; else empty."""
    words = [
        text.lower().replace("-", " ").replace(",", "")
        for text in (method["name"], method["title"])
    ]
    return "" if words[0] == words[1] else method["title"]


def called(method: Mapping[str, Any]) -> str:
    """``hierarchy (chain of drafts)``."""
    more = described(method)
    return f"{method['name']} ({more})" if more else method["name"]


def conditions(results: Mapping[str, Any], cell: Mapping[str, Any]) -> str:
    """``zoo:large, bfloat16, temperature 0 (greedy), 20 prompts × 200 tokens``."""
    settings = results["settings"]
    dtype = settings.get("dtype")
    words = [settings["target"], "" if dtype == "auto" else dtype, warmth(cell["temperature"])]
    batch = settings.get("batch_size", 1)
    if batch and batch > 1:
        words.append(f"{batch} at once")
    words.append(f"{settings['num_prompts']} prompts × {settings['max_new_tokens']} tokens")
    return ", ".join(word for word in words if word)


def warmth(temperature: float) -> str:
    """``temperature 0 (greedy)``."""
    return f"temperature {temperature:g}" + (" (greedy)" if temperature == 0 else "")
