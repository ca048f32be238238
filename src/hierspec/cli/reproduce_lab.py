"""From the options of ``hierspec reproduce`` to the models and prompts it measures with."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..checks import temperature as check_temperature
from ..config import TargetConfig
from ..presets import shipped_drafts
from ..threads import use as use_threads

if TYPE_CHECKING:
    from ..bench.ours import Models
    from ..reproduce.lab import Lab, Report

TARGET = "zoo:large?eps=0.2"
NUM_PROMPTS, MAX_NEW_TOKENS, TEMPERATURES = 8, 64, (0.0, 1.0)
LONGEST = 512  # tokens of a prompt: its end counts, and reading it should not be what is measured


@dataclass(frozen=True, slots=True, kw_only=True)
class LabOptions:
    """The command line's; ``None`` where it says nothing."""

    target: str | None = None
    drafts: tuple[str, ...] | None = None
    prompts: Path | None = None
    num_prompts: int | None = None
    max_new_tokens: int | None = None
    temperatures: tuple[float, ...] | None = None
    dtype: str | None = None
    device: str | None = None
    threads: int | None = None
    seed: int | None = None

    def given(self) -> list[str]:
        """The options that were given, as they are written."""
        written = {"drafts": "draft", "temperatures": "temperature"}
        return [
            f"--{written.get(field.name, field.name).replace('_', '-')}"
            for field in dataclasses.fields(self)
            if getattr(self, field.name) is not None
        ]


def make_lab(options: LabOptions, report: Report) -> Lab:
    """Read the prompts and load the target; drafts are loaded when they are needed.

    Raises:
        ValueError: an option cannot be used, with the fix.
    """
    texts, source = _texts(options)
    temperatures = TEMPERATURES if options.temperatures is None else options.temperatures
    for value in temperatures:
        check_temperature(value, "--temperature")
    use_threads(options.threads)
    from ..bench.ours import Models
    from ..reproduce.lab import Lab

    target = TargetConfig(
        model=options.target or TARGET,
        dtype=options.dtype or "auto",
        device=options.device or "auto",
    )
    drafts = options.drafts
    if drafts is None:
        drafts = shipped_drafts(target.model)
    models = Models(target, drafts)
    report(f"loading {target.model}", 0.0)
    tokens = options.max_new_tokens or MAX_NEW_TOKENS
    room = min(LONGEST, _context(models) - tokens)
    if room < 1:
        raise ValueError(
            f"--max-new-tokens {tokens} leaves no room for a prompt: a model's context ends at "
            f"{room + tokens} tokens"
        )
    prompts, longest = _ids(models, texts, room)
    if longest > room:
        source["truncated_to"] = room
    return Lab(
        models,
        prompts,
        max_new_tokens=tokens,
        temperatures=tuple(dict.fromkeys(value + 0.0 for value in temperatures)),
        seed=options.seed or 0,
        report=report,
        source=source,
    )


def _texts(options: LabOptions) -> tuple[list[str], dict[str, Any]]:
    """The first prompts, and where they are from."""
    count = options.num_prompts or NUM_PROMPTS
    if options.prompts is None:
        from ..profiling.texts import builtin

        return list(builtin(options.target or TARGET))[:count], {"file": "built in"}
    from ..prompts import read_prompt_file

    file = read_prompt_file(options.prompts)
    return list(file.prompts[:count]), {"file": file.name, "sha256": file.sha256}


def _context(models: Models) -> int:
    """The longest text, in tokens, that every model can take."""
    from ..presets import target_config

    longest = int(models.plain.root.model.max_length)
    for draft in models.drafts:
        longest = min(longest, getattr(target_config(draft), "max_position_embeddings", longest))
    return longest


def _ids(models: Models, texts: Sequence[str], room: int) -> tuple[list[list[int]], int]:
    """The last ``room`` tokens of each text, and the length of the longest one."""
    if models.tokenizer is None:
        raise ValueError(
            f"{models.target.model} has no tokenizer beside it, and prompts are texts: save one "
            "into its folder"
        )
    found = [list(models.tokenizer(text, verbose=False)["input_ids"]) for text in texts]
    found = [ids for ids in found if ids]
    if not found:
        raise ValueError("the prompts hold no token: give others with --prompts")
    return [ids[-room:] for ids in found], max(map(len, found))
