"""What reproductions on real models work with: the models at hand, prompts, and a stop-watch.

A paper's numbers come from its models and machines; here the same experiment runs on yours, and
what was printed stands beside it for the shape of the result, not for the digits.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from hierspec.bench.methods.ours import BenchModels
from hierspec.bench.methods.base import Method, Request, Run, Unavailable
from hierspec.bench.turns import interleaved

Report = Callable[[str, float], None]


_FILES = {  # part of a file's name → data set
    "spec": "MT-Bench",
    "mt_bench": "MT-Bench",
    "mt-bench": "MT-Bench",
    "gsm": "GSM8K",
    "alpaca": "Alpaca",
    "humaneval": "HumanEval",
}


def draft_level(model: str, tokens: int, **more: Any) -> dict[str, Any]:
    """A draft model's level, as in a hierarchy file."""
    return {"method": "draft_model", "model": model, "num_speculative_tokens": tokens, **more}


@dataclass(slots=True, eq=False)
class Lab:
    """Models, prompts and limits of a measured reproduction.

    Attributes:
        models: target and drafts, smallest first.
        prompts: token ids.
        max_new_tokens: written after each prompt.
        temperatures: an experiment at several temperatures takes these.
        report: told what is being measured, and the share of it that is done.
        source: of the prompts, for the record: file name and sha256.
    """

    models: BenchModels
    prompts: Sequence[Sequence[int]]
    max_new_tokens: int = 64
    temperatures: tuple[float, ...] = (0.0, 1.0)
    seed: int = 0
    report: Report = lambda stage, share: None
    source: dict[str, Any] = field(default_factory=dict)

    def measure(
        self, methods: Sequence[Method], temperature: float, stage: str = "measuring"
    ) -> list[list[Run] | Unavailable]:
        """Each method's runs, one per prompt, methods taking turns; or why it cannot run."""
        request = Request(self.max_new_tokens, temperature, self.seed)
        out: list[list[Run] | Unavailable] = [[] for _ in methods]
        total = max(1, len(methods) * len(self.prompts))
        for done, (_, which, run) in enumerate(interleaved(methods, self.prompts, request), 1):
            self.report(stage, min(1.0, done / total))
            if isinstance(run, Unavailable):
                out[which] = run
            elif isinstance(runs := out[which], list):
                runs.append(run)
        return out

    def dataset(self, among: Collection[str], otherwise: str) -> str:
        """Which of a paper's data sets the prompts are of, by their file's name.

        Args:
            otherwise: where the name tells of none that is ``among`` them.
        """
        name = str(self.source.get("file", "")).lower()
        told = (data for part, data in _FILES.items() if part in name and data in among)
        return next(told, otherwise)

    def to_dict(self) -> dict[str, Any]:
        """What a result says about how it was measured."""
        return {
            "target": self.models.target.model,
            "dtype": self.models.target.dtype,
            "drafts": list(self.models.drafts),
            "prompts": {**self.source, "count": len(self.prompts)},
            "max_new_tokens": self.max_new_tokens,
            "seed": self.seed,
        }
