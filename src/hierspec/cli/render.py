"""How a generation looks on a terminal: coloured tokens, a legend, a table of levels."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..generate import GenerationResult
from ..types import TokenEvent

# Lowest level first; the target writes in the terminal's own colour, bold, since its tokens are
# the rare ones. Hues are told apart by most colour-blind readers, and brightness differs as well.
_PALETTE = ("bright_cyan", "yellow", "magenta", "green", "bright_blue", "red")
_TARGET = "bold"


class Painter:
    """Prints events as they come, each token in the colour of the level that wrote it."""

    def __init__(self, console: Console, levels: Sequence[str], target: str) -> None:
        self.console = console
        self.styles = {name: _PALETTE[i % len(_PALETTE)] for i, name in enumerate(levels)}
        self.styles[target] = _TARGET

    def legend(self) -> None:
        """Which colour is whose; only where colours show."""
        if self.console.is_terminal:
            parts = [Text(f"■ {name}", style=style) for name, style in self.styles.items()]
            self.console.print(Text("written by  ", style="dim") + Text("   ").join(parts))

    def prompt(self, text: str) -> None:
        self._out(text, "dim")

    def token(self, event: TokenEvent) -> None:
        self._out(event.text, self.styles.get(event.level, ""))

    def end(self) -> None:
        self._out("\n", "")

    def _out(self, text: str, style: str) -> None:
        # Text, not markup: model output is full of brackets. soft_wrap leaves lines whole.
        if self.console.is_terminal:
            self.console.print(Text(text, style=style), end="", soft_wrap=True, highlight=False)
        else:
            self.console.file.write(text)
        self.console.file.flush()


def summary(
    result: GenerationResult, plain: GenerationResult | None, same: bool | None
) -> list[Table | Text]:
    """Acceptance per level, tokens per second, and plain decoding beside it."""
    return [*levels(result), figures(result, plain, same)]


def figures(result: GenerationResult, plain: GenerationResult | None, same: bool | None) -> Text:
    """Tokens per second of one sequence, and plain decoding beside it."""
    lines = [
        f"{result.num_tokens} tokens ({result.finish_reason}), "
        f"{result.tokens_per_second:.1f} tokens/s, "
        f"{result.mean_acceptance_length:.2f} tokens per target call, "
        f"first after {result.time_to_first_token * 1e3:.0f} ms"
    ]
    if plain is not None and plain.tokens_per_second > 0:
        ratio = result.tokens_per_second / plain.tokens_per_second
        verdict = "" if same is None else (", same text" if same else ", text differs")
        lines.append(
            f"plain decoding {plain.tokens_per_second:.1f} tokens/s: {ratio:.2f}× {verdict}"
        )
    if result.control:
        rounds = sorted(result.control["rounds"].items(), key=lambda item: -item[1])
        spent = ", ".join(f"{plan} ({count} rounds)" for plan, count in rounds[:4])
        more = f" and {len(rounds) - 4} more" if len(rounds) > 4 else ""
        lines.append(f"plans followed: {spent}{more}; {result.control['switches']} switches")
    text = Text(lines[0])
    for line in lines[1:]:
        text.append(f"\n{line}", style="bold")
    return text


def levels(result: GenerationResult) -> list[Table | Text]:
    """What every level did for the whole batch; any of its results tells."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("level")
    for name in ("calls", "drafted", "kept", "acceptance", "time"):
        table.add_column(name, justify="right")
    for level in result.levels:
        table.add_row(
            level["name"],
            str(level["calls"]),
            str(level["num_draft_tokens"]),
            str(level["num_accepted_tokens"]),
            f"{level['acceptance_rate']:.0%}",
            f"{level['seconds']:.2f} s",
        )
    target = result.target
    table.add_row(
        f"{target['name']} (target)", str(target["calls"]), "", "", "", f"{target['seconds']:.2f} s"
    )
    if result.batch_size == 1:
        return [table]
    return [Text(f"all {result.batch_size} sequences together:", style="dim"), table]
