"""A generation on a terminal: text in the colours of its levels, their counts, and its speed."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from hierspec.lm import dtypes
from hierspec.lm.backend import backend_of
from hierspec.lm.native.backend import why_rows_differ
from hierspec.utils.files import without_folders
from hierspec.utils.terminal import borderless, counted

from . import say

if TYPE_CHECKING:
    from hierspec.engine.control import Controller
    from hierspec.engine.generation import Generation
    from hierspec.engine.results import GenerationResult, TokenEvent
    from hierspec.planner.plan import Plan

# Lowest level first; the target's tokens, which are rare, have the terminal's own colour in bold.
# Most colour-blind readers can distinguish the hues, and brightness differs as well.
_PALETTE = ("bright_cyan", "yellow", "magenta", "green", "bright_blue", "red")
_TARGET = "bold"


class Painter:
    """Prints a generation's tokens as they come, each in the colour of the level that wrote it.

    Args:
        ids: print token ids instead of texts.
    """

    def __init__(self, generation: Generation, ids: bool = False) -> None:
        self.console, self.ids = Console(highlight=False), ids
        *levels, target = (generation.names[i] for i in sorted(generation.names))
        self.styles = {name: _PALETTE[i % len(_PALETTE)] for i, name in enumerate(levels)}
        self.styles[target] = _TARGET

    def legend(self) -> None:
        """Print the colour of each level, on a terminal."""
        if self.console.is_terminal:
            parts = [
                Text(f"■ {without_folders(name)}", style=style)
                for name, style in self.styles.items()
            ]
            self.console.print(Text("written by  ", style="dim") + Text("   ").join(parts))

    def prompt(self, prompt: str | Sequence[int]) -> None:
        text = prompt if isinstance(prompt, str) else " ".join(map(str, prompt))
        self._print(text, "dim")

    def token(self, event: TokenEvent) -> None:
        text = f" {event.token_id}" if self.ids else event.text
        self._print(text, self.styles.get(event.level, ""))

    def end(self) -> None:
        self._print("\n", "")

    def _print(self, text: str, style: str) -> None:
        # Text, not markup: model output is full of brackets. soft_wrap does not break lines.
        if self.console.is_terminal:
            self.console.print(Text(text, style=style), end="", soft_wrap=True, highlight=False)
        else:
            self.console.file.write(text)
        self.console.file.flush()


def run(generation: Generation, painter: Painter | None = None) -> bool:
    """Run a generation to its end, printing each token; return whether Ctrl-C stopped it."""
    events = iter(generation)
    try:
        for event in events:
            if painter is not None:
                painter.token(event)
    except KeyboardInterrupt:
        events.close()
        return True
    finally:
        if painter is not None:
            painter.end()
    return False


_ENDINGS = {"length": ", stopped at the length limit", "cancelled": ", cancelled"}
_SLOWER = 0.95  # speed over that of plain decoding, below which drafts do not pay
MEASURE = "--hierarchy auto measures what pays here, --hierarchy autoregressive leaves drafts out"
_PLAIN = "--hierarchy autoregressive leaves drafts out"  # where what pays was measured
_REPETITIVE = 0.2  # share of distinct tokens, below which a text repeats itself


def _compare_texts(
    result: GenerationResult, plain: GenerationResult | None, same_text: bool | None
) -> str:
    if plain is None or same_text is None:
        return ""
    if same_text:
        return ", same text"
    pairs = zip(result.token_ids, plain.token_ids, strict=False)
    shorter = min(result.num_tokens, plain.num_tokens)
    first = next((i for i, (a, b) in enumerate(pairs) if a != b), shorter)
    return f", text differs from token {first + 1} on (see the note)"


def describe_speed(
    result: GenerationResult, plain: GenerationResult | None, comparison: str = ""
) -> Text:
    """Return tokens per second, and those of plain decoding."""
    parts = [f"time to first token {result.time_to_first_token * 1e3:.0f} ms"]
    if result.tokens_per_second:  # not of a single token
        parts.insert(0, f"{result.mean_acceptance_length:.2f} tokens per target call")
        parts.insert(0, f"{result.tokens_per_second:.1f} tokens/s")
    text = Text(", ".join(parts))
    if plain is not None and plain.tokens_per_second > 0:
        ratio = result.tokens_per_second / plain.tokens_per_second
        text.append(
            f"\nplain decoding {plain.tokens_per_second:.1f} tokens/s: {ratio:.2f}×{comparison}",
            style="bold",
        )
        if ratio < _SLOWER and result.levels:
            advice = _PLAIN if result.control else MEASURE
            text.append(f"\ndrafts do not pay on this text: {advice}")
        elif ratio > 1 and _repeats_itself(result):
            text.append(
                "\nthe text repeats itself, which is easy to draft: expect less of other texts"
            )
    elif result.batch_size == 1 and (advice := tell_slowdown(result, MEASURE)):
        text.append(f"\n{advice}")
    if result.control:
        rounds = sorted(result.control["rounds"].items(), key=lambda item: -item[1])
        plans = ", ".join(f"{plan} ({counted(count, 'round')})" for plan, count in rounds[:4])
        further = f" and {len(rounds) - 4} more" if len(rounds) > 4 else ""
        count = result.control["switches"]
        switches = f"{count} switch{'es' * (count != 1)}"
        text.append(f"\nplans followed: {plans}{further}; {switches}", style="bold")
    return text


def tell_slowdown(result: GenerationResult, advice: str) -> str:
    """Return a line where a text's own rounds show that its drafts did not pay; else nothing.

    Args:
        advice: what to do, where nothing has been measured yet.
    """
    if result.slowdown is None or result.slowdown * _SLOWER < 1:
        return ""
    return (
        f"drafts did not pay on this text: a token took at least {result.slowdown:.2f} times as "
        f"long as without them: {_PLAIN if result.control else advice}"
    )


def _repeats_itself(result: GenerationResult) -> bool:
    is_repetitive = len(set(result.token_ids)) < _REPETITIVE * result.num_tokens
    return is_repetitive and result.num_tokens >= 32


def _describe_levels(result: GenerationResult) -> list[Table | Text]:
    """Return a table of what every level did; each result has the counts of its whole batch.

    A text that ended with its prompt's reading has none.
    """
    if not any(level["calls"] for level in (*result.levels, result.target)):
        return []
    table = borderless(("level",), ("calls", "drafted", "kept", "acceptance", "time"))
    for level in result.levels:
        if level["name"].startswith("concatenate") and not level["calls"]:
            continue  # the concatenated levels have their own rows
        table.add_row(
            Text(without_folders(level["name"])),
            str(level["calls"]),
            str(level["num_draft_tokens"]),
            str(level["num_accepted_tokens"]),
            f"{level['acceptance_rate']:.0%}",
            f"{level['seconds']:.2f} s",
        )
    target = result.target
    name = Text(f"{without_folders(target['name'])} (target)")
    table.add_row(name, str(target["calls"]), "", "", "", f"{target['seconds']:.2f} s")
    if result.batch_size == 1:
        return [table]
    return [Text(f"all {result.batch_size} sequences together:", style="dim"), table]


def print_results(
    generation: Generation,
    references: Sequence[GenerationResult],
    as_json: bool,
    ids: bool,
    console: Console,
) -> None:
    """Print the results of a batch.

    Args:
        references: those of plain decoding; empty: there is nothing to compare with.
    """
    results, model = generation.results(), generation.root.model
    dtype = dtypes.weight_dtype_name(model)
    # Drafts cannot change such a text.
    rule, greedy = generation.root.rule, generation.requests[0].params.greedy
    must_match = (greedy and rule.exact_for(greedy)) or rule.draft_independent
    is_batch, shown = len(results) > 1, list[Table | Text]()
    for result, plain in zip_longest(results, references):
        same_text = result.token_ids == plain.token_ids if plain and must_match else None
        if as_json:
            fields = {**_as_json(result, plain, same_text), "dtype": dtype}
            print(json.dumps(fields, ensure_ascii=False), flush=True)
            continue
        length = f"{counted(result.num_tokens, 'token')}{_ENDINGS.get(result.finish_reason, '')}"
        comparison = _compare_texts(result, plain, same_text)
        if is_batch:
            print(" ".join(map(str, result.token_ids)) if ids else result.text, flush=True)
            console.print(f"{length}{comparison}", highlight=False)
        else:
            speed = Text(f"{length}, ") + describe_speed(result, plain, comparison)
            shown = [*_describe_levels(result), speed]
    if as_json:
        return
    if is_batch:
        plain = _together(references) if references else None
        shown = [*_describe_levels(results[0]), describe_speed(_together(results), plain)]
    for part in shown:
        console.print(part, highlight=False)
    if must_match and _texts_differ(results, references):
        say(console, _explain_difference(dtype, why_rows_differ(backend_of(model))))
    if any(
        result.finish_reason == "length" and result.num_tokens < (request.stop.max_new_tokens or 0)
        for result, request in zip(results, generation.requests, strict=True)
    ):
        say(console, "hierspec: note: a text ended because the model's context is full")


def _together(results: Sequence[GenerationResult]) -> GenerationResult:
    """Return a result with the speed of a whole batch: all tokens after the first of each text."""
    first, *others = results
    ids = first.token_ids + tuple(token for one in others for token in one.token_ids[1:])
    calls = sum(one.target_calls for one in results)
    return dataclasses.replace(
        first,
        token_ids=ids,
        decode_seconds=max(one.decode_seconds for one in results),
        target_calls=calls,
        mean_acceptance_length=(len(ids) - 1) / calls if calls else first.mean_acceptance_length,
    )


def _texts_differ(
    results: Sequence[GenerationResult], references: Sequence[GenerationResult]
) -> bool:
    pairs = zip(results, references, strict=False)
    return any(result.token_ids != plain.token_ids for result, plain in pairs)


def _as_json(
    result: GenerationResult, plain: GenerationResult | None, same_text: bool | None
) -> dict[str, Any]:
    if plain is None:
        return result.to_dict()
    speed = plain.tokens_per_second
    comparison = {
        "tokens_per_second": speed,
        "speedup": result.tokens_per_second / speed if speed else None,
        "same_tokens": same_text,
    }
    return {**result.to_dict(), "compare": comparison}


def _explain_difference(dtype: str, reason: str | None) -> str:
    """Return a note on why a text is not plain decoding's although decoding is lossless.

    Args:
        reason: why scores depend on how many tokens a call holds; ``None``: they do not.
    """
    if reason is None:
        return (
            "hierspec: note: in the compiled kernels both texts are equal: this is a bug, report it"
        )
    remedy = "; in --dtype float32 it is rare" if dtype in ("bfloat16", "float16") else ""
    return (
        f"hierspec: note: the target {reason}, so in {dtype} the last digits of scores depend on "
        "how many tokens a call holds, and two tokens that are almost equally likely may change "
        f"places{remedy}"
    )


def describe_plan(plan: Plan, controller: Controller | None) -> str:
    """Return a plan in words, and the other models that control may use during generation."""
    names, chain = [*map(without_folders, plan.estimates.names)], plan.best.chain
    if chain.plain:
        return "plain decoding"
    below = chain.describe(lambda model, budget: f"{names[model]} × {budget}", " → ")
    levels = f"{below} → {names[chain.models[-1]]}"
    others = [names[i] for i in getattr(controller, "models", ()) if i not in chain.models]
    further = f" (and {', '.join(others)} where they are faster)" if others else ""
    return f"{levels}{further}, {plan.speedup:.2f}× plain decoding expected; depends on your text"
