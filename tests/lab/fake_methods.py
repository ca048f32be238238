"""Stand-ins for methods of a bench and for its models."""

from __future__ import annotations

from hierspec.config.schema import TargetConfig
from hierspec_lab.bench.methods.base import Run
from hierspec_lab.bench.methods.ours import BenchModels


class FakeMethod:
    """A method from a function prompt, request → token ids; it remembers what it was asked."""

    def __init__(self, name, write, log=None, ms=1.0):
        self.name, self.write, self.ms = name, write, ms
        self.log = [] if log is None else log
        self.configuration = {"fake": name}

    def run(self, prompt, request):
        self.log.append((self.name, tuple(prompt), request.seed))
        ids = self.write(prompt, request)
        return Run(token_ids=tuple(ids), seconds=self.ms * len(ids) / 1e3)


class FakeBatchMethod(FakeMethod):
    """Runs batches, and remembers their sizes."""

    def run_batch(self, prompts, request):
        return [self.run(prompt, request) for prompt in prompts]


def fixed(prompt, request):
    """Writes 0, 1, 2, …"""
    return range(request.max_new_tokens)


class SmallModels(BenchModels):
    """Names as they are, and the smallest model in every place."""

    @property
    def plain(self):
        return BenchModels(TargetConfig(model="zoo:small")).hierarchy()
