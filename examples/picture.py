"""Draw docs/generation.svg: text in the colours of the levels that wrote it."""

import io
from pathlib import Path

from rich.console import Console

from hierspec import Hierarchy
from hierspec.cli.rendering.generation import Painter, summary

OUT = Path(__file__).resolve().parent.parent / "docs" / "generation.svg"
PROMPT = '''import os
import re


class ConfigReader:
    """Read a configuration file made of sections of key = value lines."""

    def __init__(self, filename):
        self.filename = filename
        self.sections = {}

    def read(self):
        """Parse the file and fill self.sections."""
'''


def main() -> None:
    console = Console(record=True, force_terminal=True, width=100, file=io.StringIO())
    hierarchy = Hierarchy.from_preset("hierarchy")
    generation = hierarchy.start(
        [PROMPT], max_new_tokens=160, temperature=0.8, seed=1, ignore_eos=True
    )
    names = [generation.names[i] for i in sorted(generation.names)]
    painter = Painter(console, names)
    painter.legend()
    painter.prompt(PROMPT)
    for event in generation:
        painter.token(event)
    painter.end()
    for line in summary(generation.results()[0]):
        console.print(line, highlight=False)
    console.save_svg(str(OUT), title="hierspec generate --hierarchy hierarchy --temperature 0.8")
    print(f"wrote {OUT.name}")


if __name__ == "__main__":
    main()
