"""The setting of a reproduction on real models: models, prompts, limits, and a record of runs.

A paper's numbers come from its models and machines; here the same experiment runs on yours, and
the printed numbers beside it are for the shape of the result, not for the digits.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hierspec.config.schema import TargetConfig
from hierspec.config.target import model_config
from hierspec.errors import HierspecError
from hierspec.profiling.settings import ReportProgress
from hierspec.profiling.texts import builtin
from hierspec.utils import schema
from hierspec.utils.prompts import read_prompt_file
from hierspec_lab.bench.methods.base import Method, Run, RunRequest, Unavailable
from hierspec_lab.bench.methods.ours import BenchModels, shipped_drafts
from hierspec_lab.bench.turns import run_interleaved

from . import prompts as data_sets

MAX_PROMPT_TOKENS = 512  # its last ones: reading the prompt should not be what is measured

_FILES = {  # part of a file's name → data set
    "spec": "MT-Bench",
    "mt_bench": "MT-Bench",
    "mt-bench": "MT-Bench",
    "gsm": "GSM8K",
    "alpaca": "Alpaca",
    "humaneval": "HumanEval",
}


def draft_level(model: str, tokens: int, **options: Any) -> dict[str, Any]:
    """Return a draft model's level, as in a hierarchy file."""
    return {"method": "draft_model", "model": model, "num_speculative_tokens": tokens, **options}


@dataclass(slots=True, eq=False)
class Lab:
    """Models, prompts and limits of a measured reproduction.

    Attributes:
        models: target and drafts, smallest first.
        prompts: token ids.
        max_new_tokens: written after each prompt.
        temperatures: for experiments at several temperatures.
        report: called with what is being measured and the share of it that is done.
        source: file name and sha256 of the prompts, for the result.
        record: every run and other observation, by a key that describes it (:meth:`once`). A lab
            with the record of another measures nothing again.
        domains: data set or kind of text of each prompt.
        lengths: tokens of each prompt before it was cut.
        texts: the prompts as they were read, before they were cut.
    """

    models: BenchModels
    prompts: Sequence[Sequence[int]]
    max_new_tokens: int = 64
    temperatures: tuple[float, ...] = (0.0, 1.0)
    seed: int = 0
    report: ReportProgress = lambda stage, share: None
    source: dict[str, Any] = field(default_factory=dict)
    record: dict[str, Any] = field(default_factory=dict)
    domains: Sequence[str] = ()
    lengths: Sequence[int] = ()
    texts: Sequence[str] = ()

    @classmethod
    def load(
        cls,
        target: TargetConfig,
        drafts: tuple[str, ...] | None = None,
        prompts: Path | None = None,
        *,
        num_prompts: int = 8,
        max_new_tokens: int = 64,
        report: ReportProgress = lambda stage, share: None,
        **attributes: Any,
    ) -> Lab:
        """Read the prompts and load the target; drafts are loaded when they are needed.

        Args:
            drafts: smallest first; ``None``: those that ship with the target.
            prompts: a file of prompts, or the folder of data sets that :mod:`.prompts` mixes;
                ``None``: built-in ones.
            num_prompts: how many of the first prompts are used.
            attributes: further ones of the lab.

        Raises:
            HierspecError: an argument cannot be used, with the fix.
        """
        max_tokens = MAX_PROMPT_TOKENS
        source: dict[str, Any]
        domains: list[str] = []
        if prompts is None:
            texts, source = builtin(target.model), {"file": "built in"}
        elif prompts.is_dir():
            mixed, files = data_sets.read(prompts, num_prompts)
            texts, max_tokens = [prompt.text for prompt in mixed], data_sets.MAX_PROMPT_TOKENS
            domains = [prompt.domain for prompt in mixed]
            source = {"file": "FOLDER", "files": files}
        else:
            file = read_prompt_file(prompts)
            texts, source = file.prompts, {"file": file.name, "sha256": file.sha256}
        models = BenchModels(target, shipped_drafts(target.model) if drafts is None else drafts)
        report(f"loading {target.model}", 0.0)
        context = int(models.plain.root.model.max_length)
        for draft in models.drafts:
            context = min(context, getattr(model_config(draft), "max_position_embeddings", context))
        room = min(max_tokens, context - max_new_tokens)
        if room < 1:
            raise HierspecError(
                f"--max-new-tokens {max_new_tokens} leaves no room for a prompt: a model's "
                f"context ends at {context} tokens"
            )
        texts = texts[:num_prompts]
        domains = domains or [source["file"]] * len(texts)
        rows = zip(_token_ids(models, texts), domains, texts, strict=True)
        ids, used_domains, used_texts = zip(*(row for row in rows if row[0]), strict=True)
        if max(map(len, ids)) > room:
            source["truncated_to"] = room
        return cls(
            models,
            [prompt[-room:] for prompt in ids],
            max_new_tokens,
            report=report,
            source=source,
            domains=used_domains,
            lengths=[len(prompt) for prompt in ids],
            texts=used_texts,
            **attributes,
        )

    @property
    def target(self) -> str:
        """The target's name."""
        return self.models.target.model

    def require(self, name: str, drafts: int = 0, tokens: int = 0) -> None:
        """Refuse to measure with no prompt, with too few draft models or too few new tokens.

        Args:
            name: of the reproduction that needs them, for the error.
        """
        if len(self.models.drafts) < drafts:
            needed = "two draft models: give --draft twice, smallest first"
            if drafts == 1:
                needed = "a draft model: name one with --draft"
            raise HierspecError(f"{name} needs {needed}")
        if not self.prompts:
            raise HierspecError(f"{name} needs prompts: give --prompts a file with one or more")
        if self.max_new_tokens < tokens:
            raise HierspecError(
                f"{name} needs at least {tokens} new tokens, not {self.max_new_tokens}: raise "
                "--max-new-tokens"
            )

    def measure(
        self, methods: Sequence[Method], temperature: float, stage: str = "measuring"
    ) -> list[list[Run] | Unavailable]:
        """Run the methods in turns on every prompt, or read their runs from the record.

        Returns:
            each method's runs, one per prompt; or the reason why it cannot run.

        Raises:
            HierspecError: the record has other methods for this stage.
        """
        key = f"{stage}: runs at temperature {temperature:g}"
        names = [method.name for method in methods]
        by_method = self.once(key, lambda: self._run(methods, temperature, stage))
        if list(by_method) != names:
            raise HierspecError(f"the record has other methods under {key!r}: measure anew")
        return [
            Unavailable(runs)
            if isinstance(runs, str)
            else schema.validate(list[Run], runs, f"the record's {key}")
            for runs in by_method.values()
        ]

    def _run(
        self, methods: Sequence[Method], temperature: float, stage: str
    ) -> dict[str, list[dict[str, Any]] | str]:
        """Return each method's runs by its name, ready for JSON; or why it cannot run."""
        request = RunRequest(self.max_new_tokens, temperature, self.seed)
        by_method: list[list[dict[str, Any]] | str] = [[] for _ in methods]
        total = max(1, len(methods) * len(self.prompts))
        for count, (_, index, run) in enumerate(run_interleaved(methods, self.prompts, request), 1):
            self.report(stage, min(1.0, count / total))
            if isinstance(run, Unavailable):
                by_method[index] = str(run)
            elif isinstance(runs := by_method[index], list):
                runs.append(run.to_dict())
        return dict(zip((method.name for method in methods), by_method, strict=True))

    def once(self, key: str, observe: Callable[[], Any]) -> Any:
        """Return what the record has under ``key``; if it has nothing, observe and record it.

        Args:
            observe: returns something ready for JSON.
        """
        if key not in self.record:
            self.record[key] = observe()
        return self.record[key]

    def dataset(self, names: Collection[str], default: str) -> str:
        """Return which of a paper's data sets the prompts are of, by their file's name.

        Args:
            names: the paper's data sets.
            default: the answer where the file's name fits none of them.
        """
        name = str(self.source.get("file", "")).lower()
        fitting = (data for part, data in _FILES.items() if part in name and data in names)
        return next(fitting, default)

    def to_dict(self) -> dict[str, Any]:
        """Return how a result was measured, for its file."""
        return {
            "target": self.target,
            "dtype": self.models.target.dtype,
            "drafts": list(self.models.drafts),
            "prompts": {**self.source, "count": len(self.prompts)},
            "max_new_tokens": self.max_new_tokens,
            "seed": self.seed,
        }


def _token_ids(models: BenchModels, texts: Sequence[str]) -> list[list[int]]:
    """Return the texts as token ids.

    Raises:
        HierspecError: no tokenizer, or no text holds a token.
    """
    if models.tokenizer is None:
        raise HierspecError(
            f"{models.target.model} has no tokenizer beside it, and prompts are texts: save one "
            "into its folder"
        )
    ids = [list(models.tokenizer(text, verbose=False)["input_ids"]) for text in texts]
    if not any(ids):
        raise HierspecError("the prompts hold no token: give others with --prompts")
    return ids
