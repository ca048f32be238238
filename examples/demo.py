"""What `make demo` runs: a released chat model answers, then decodes plainly, side by side.

Without the package that carries the model, three levels of the shipped family continue a program.
"""

import sys

from hierspec.cli import run
from hierspec.presets import defaults

QUESTION = (
    "Write a Python class Stack with the methods push, pop, peek, is_empty and size. "
    "Then show how it is used."
)
PROGRAM = '''import os
import re


class ConfigReader:
    """Read a configuration file made of sections of key = value lines."""

    def __init__(self, filename):
        self.filename = filename
        self.sections = {}

    def read(self):
        """Parse the file and fill self.sections."""
'''

if __name__ == "__main__":
    if defaults.missing_packages():
        options = ["--hierarchy", "hierarchy", "--temperature", "0.8", "--seed", "1", "--compare"]
        command, shown = [PROGRAM, *options, "--ignore-eos"], ["PROGRAM", *options]
        print(f"hierspec: {defaults.missing_packages()}", file=sys.stderr)
    else:
        command, shown = [QUESTION, "--compare"], [f'"{QUESTION}"', "--compare"]
    print(f"$ hierspec generate {' '.join(shown)}\n", file=sys.stderr, flush=True)
    sys.exit(run(["generate", *command, "--max-new-tokens", "256"]))
