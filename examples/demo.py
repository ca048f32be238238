"""What `make demo` runs: three levels of the shipped family on one prompt, then plain decoding."""

import sys

from hierspec.cli import run

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

if __name__ == "__main__":
    command = ["generate", PROMPT, "--hierarchy", "hierarchy", "--max-new-tokens", "200"]
    command += ["--temperature", "0.8", "--seed", "1", "--ignore-eos", "--compare"]
    shown = "hierspec generate PROMPT --hierarchy hierarchy --temperature 0.8 --seed 1 --compare"
    print(f"$ {shown}\n", file=sys.stderr)
    sys.exit(run(command))
