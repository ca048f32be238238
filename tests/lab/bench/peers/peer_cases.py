"""What is asked of other engines, and which there are."""

from hierspec_lab.bench.methods.base import RunRequest
from hierspec_lab.bench.peers import catalogue

PROMPT = [5, 9, 40, 41, 5, 9, 40, 77, 5, 9]
TOKENS = 24
GREEDY = RunRequest(TOKENS)
ENTRIES = {entry.name: entry for entry in catalogue()}
