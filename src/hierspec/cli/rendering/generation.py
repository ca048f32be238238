"""A generation on a terminal: text in the colours of its levels, what each did, and how fast."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from hierspec.utils.terminal import borderless

if TYPE_CHECKING:
    from hierspec.engine.control import Controller
    from hierspec.engine.generation import Generation
    from hierspec.engine.results import GenerationResult, TokenEvent
    from hierspec.planner.plan import Plan

# Lowest level first; the target writes in the terminal's own colour, bold, since its tokens are
# the rare ones. Hues are told apart by most colour-blind readers, and brightness differs as well.
_PALETTE = ("bright_cyan", "yellow", "magenta", "green", "bright_blue", "red")
_TARGET = "bold"


class Painter:
    """Prints events as they come, each token in the colour of the level that wrote it.

    Args:
        names: of the levels, lowest first, and last the target's.
        ids: print token ids instead of texts.
    """

    def __init__(self, console: Console, names: Sequence[str], ids: bool = False) -> None:
        self.console, self.ids = console, ids
        *levels, target = names
        self.styles = {name: _PALETTE[i % len(_PALETTE)] for i, name in enumerate(levels)}
        self.styles[target] = _TARGET

    def legend(self) -> None:
        """Print which colour is whose, where colours show."""
        if self.console.is_terminal:
            parts = [Text(f"■ {name}", style=style) for name, style in self.styles.items()]
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
        # Text, not markup: model output is full of brackets. soft_wrap leaves lines whole.
        if self.console.is_terminal:
            self.console.print(Text(text, style=style), end="", soft_wrap=True, highlight=False)
        else:
            self.console.file.write(text)
        self.console.file.flush()


def painter_for(generation: Generation, ids: bool = False) -> Painter:
    """Return what prints a generation's tokens on standard output."""
    names = [generation.names[i] for i in sorted(generation.names)]
    return Painter(Console(highlight=False), names, ids)


def run(generation: Generation, painter: Painter | None = None) -> bool:
    """Run a generation to its end, printing each token; return whether Ctrl-C cut it short."""
    events = iter(generation)
    try:
        for event in events:
            if painter is not None:
                painter.token(event)
    except KeyboardInterrupt:
        events.close()  # type: ignore[attr-defined]
        return True
    finally:
        if painter is not None:
            painter.end()
    return False


_ENDS = {"length": ", stopped at the length limit", "cancelled": ", cancelled"}
_SLOWER, _REPEATS = 0.95, 0.2  # ratio to plain decoding; share of tokens that differ


def summary(
    result: GenerationResult, plain: GenerationResult | None = None, same: bool | None = None
) -> list[Table | Text]:
    """Return acceptance per level, tokens per second, and plain decoding beside it."""
    text = Text(f"{ending(result)}, ")
    return [*levels(result), text + speeds(result, plain, verdict(result, plain, same))]


def ending(result: GenerationResult) -> str:
    """Return how long a text is, and what ended it."""
    return f"{result.num_tokens} tokens{_ENDS.get(result.finish_reason, '')}"


def verdict(result: GenerationResult, plain: GenerationResult | None, same: bool | None) -> str:
    """Return whether a text is plain decoding's; empty where it need not be (``None``)."""
    if plain is None or same is None:
        return ""
    if same:
        return ", same text"
    pairs = zip(result.token_ids, plain.token_ids, strict=False)
    alike = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
    alike = min(result.num_tokens, plain.num_tokens) if alike is None else alike
    return f", text differs from token {alike + 1} on (see the note)"


def speeds(result: GenerationResult, plain: GenerationResult | None, more: str = "") -> Text:
    """Return tokens per second, of a batch as a whole, and plain decoding beside it."""
    text = Text(
        f"{result.tokens_per_second:.1f} tokens/s, "
        f"{result.mean_acceptance_length:.2f} tokens per target call, "
        f"time to first token {result.time_to_first_token * 1e3:.0f} ms"
    )
    if plain is not None and plain.tokens_per_second > 0:
        ratio = result.tokens_per_second / plain.tokens_per_second
        text.append(
            f"\nplain decoding {plain.tokens_per_second:.1f} tokens/s: {ratio:.2f}×{more}",
            style="bold",
        )
        if advice := _advice(result, ratio):
            text.append(f"\n{advice}")
    if result.control:
        rounds = sorted(result.control["rounds"].items(), key=lambda item: -item[1])
        spent = ", ".join(f"{plan} ({_counted(count, 'round')})" for plan, count in rounds[:4])
        further = f" and {len(rounds) - 4} more" if len(rounds) > 4 else ""
        switches = _counted(result.control["switches"], "switch", "switches")
        text.append(f"\nplans followed: {spent}{further}; {switches}", style="bold")
    return text


def _advice(result: GenerationResult, ratio: float) -> str:
    """Return what a ratio does not tell a newcomer by itself."""
    if ratio < _SLOWER and result.levels and not result.control:
        return (
            "these drafts are kept too rarely, or cost too much, to pay on this text: --hierarchy "
            "auto measures what does"
        )
    few = len(set(result.token_ids)) < _REPEATS * result.num_tokens
    if ratio > 1 and few and result.num_tokens >= 32:
        return "the text repeats itself, which is easy to draft: expect less of other texts"
    return ""


def _counted(count: int, one: str, many: str = "") -> str:
    return f"{count} {one if count == 1 else many or one + 's'}"


def levels(result: GenerationResult) -> list[Table | Text]:
    """Return what every level did for the whole batch, of which ``result`` is any sequence's."""
    table = borderless(("level",), ("calls", "drafted", "kept", "acceptance", "time"))
    for level in result.levels:
        if level["name"].startswith("concatenate") and not level["calls"]:
            continue  # its parts have rows of their own
        table.add_row(
            Text(level["name"]),
            str(level["calls"]),
            str(level["num_draft_tokens"]),
            str(level["num_accepted_tokens"]),
            f"{level['acceptance_rate']:.0%}",
            f"{level['seconds']:.2f} s",
        )
    target = result.target
    name = Text(f"{target['name']} (target)")
    table.add_row(name, str(target["calls"]), "", "", "", f"{target['seconds']:.2f} s")
    if result.batch_size == 1:
        return [table]
    return [Text(f"all {result.batch_size} sequences together:", style="dim"), table]


def report(
    results: Sequence[GenerationResult],
    references: Sequence[GenerationResult | None],
    about: dict[str, Any] | None,
    ids: bool,
    fixed: bool,
    console: Console,
) -> None:
    """Print the results of a batch, with plain decoding beside them where there is some.

    Args:
        about: what JSON objects say of the models; ``None``: text is printed.
        fixed: whether texts must be plain decoding's.
    """
    batch = len(results) > 1
    for result, plain in zip(results, references, strict=True):
        same = result.token_ids == plain.token_ids if plain is not None and fixed else None
        if about is not None:
            found = {**_as_json(result, plain, same), **about}
            print(json.dumps(found, ensure_ascii=False), flush=True)
            continue
        if batch:
            print(" ".join(map(str, result.token_ids)) if ids else result.text, flush=True)
            console.print(f"{ending(result)}{verdict(result, plain, same)}", highlight=False)
            continue
        for part in summary(result, plain, same):
            console.print(part, highlight=False)
    if batch and about is None:
        for part in [*levels(results[0]), speeds(results[0], references[0])]:
            console.print(part, highlight=False)


def _as_json(
    result: GenerationResult, plain: GenerationResult | None, same: bool | None
) -> dict[str, Any]:
    """Return what ``--json`` prints of a result."""
    if plain is None:
        return result.to_dict()
    speed = plain.tokens_per_second
    compared = {
        "tokens_per_second": speed,
        "speedup": result.tokens_per_second / speed if speed else None,
        "same_tokens": same,
    }
    return {**result.to_dict(), "compare": compared}


def why_texts_differ(dtype: str, deterministic: bool) -> str:
    """Return why a text is not plain decoding's although nothing is lost, and what helps."""
    if deterministic:
        return (
            "hierspec: note: with --deterministic texts are equal: this is a bug, please report it"
        )
    wider = "; in --dtype float32 it is rare" if dtype in ("bfloat16", "float16") else ""
    return (
        f"hierspec: note: in {dtype} the last digits of scores depend on how many tokens a call "
        "holds, and two tokens that are nearly as likely may change places; with --deterministic "
        f"(Llama-shaped models on CPUs) they cannot{wider}"
    )


def planned(plan: Plan, controller: Controller | None) -> str:
    """Return the plan in words, and what else control may use while text is written."""
    names, chain = plan.estimates.names, plan.best.chain
    if chain.plain:
        return "plain decoding"
    below = [f"{names[i]} × {n}" for i, n in zip(chain.levels, chain.budgets, strict=False)]
    shown = " → ".join([*below, names[chain.levels[-1]]])
    more = [names[i] for i in getattr(controller, "models", ()) if i not in chain.levels]
    aside = f" (and {', '.join(more)} where the text is better served so)" if more else ""
    return f"{shown}{aside}, {plan.speedup:.2f}× plain decoding expected; your text decides"
