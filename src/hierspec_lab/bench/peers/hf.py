"""transformers' own decoding: plain, with a draft model, with an early exit, with prompt lookup.

Two needs of ``generate`` (found in 5.23, see ``docs/peers.md``): an explicit attention mask, or it
hides prompt tokens that have the padding's id; and the draft length, its schedule and the
confidence threshold in the *drafting* model's generation config.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hierspec.config.schema import TargetConfig
from hierspec.lm.load import quiet_transformers
from hierspec.methods.draft_model import DraftModelConfig
from hierspec.methods.early_exit import EarlyExitConfig
from hierspec_lab.bench.methods.base import RunRequest, Unavailable
from hierspec_lab.bench.methods.entry import MethodEntry
from hierspec_lab.planning.export import ENGINES

from .base import (
    LEVIATHAN,
    PROMPT_LOOKUP,
    Peer,
    Stopwatch,
    draft_models,
    seeded,
)
from .checkpoints import exported, reset_generation

if TYPE_CHECKING:
    from hierspec_lab.bench.methods.base import Method
    from hierspec_lab.bench.methods.ours import BenchModels

# How long drafts may be, by how many exits there are. Every exit is tried with every length: with
# more exits there are fewer lengths, so that a method has twelve configurations, like others.
DRAFT_LENGTHS = {
    1: (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16),
    2: (2, 3, 4, 6, 8, 12),
    3: (2, 3, 4, 6),
}
LOOKUPS = tuple(itertools.product((3, 5, 8, 12), (2, 3, 4)))  # tokens copied, longest match
# Draft length at the start, schedule, confidence below which a draft ends (0: never); as many for
# each draft model as our own single draft has lengths. The first is transformers' own default.
DYNAMIC = (
    (20, "constant", 0.4),
    (5, "heuristic_transient", 0.0),
    (20, "constant", 0.2),
    (20, "heuristic_transient", 0.4),
    (8, "constant", 0.4),
    (10, "heuristic_transient", 0.2),
    (20, "constant", 0.6),
    (8, "constant", 0.2),
    (12, "constant", 0.3),
    (5, "heuristic_transient", 0.4),
    (20, "constant", 0.1),
    (10, "heuristic_transient", 0.0),
)
# Families whose forward runs num_hidden_layers. In others an early exit would silently be the whole
# model.
MODEL_TYPES_WITH_EXITS = (
    "llama",
    "mistral",
    "qwen2",
    "qwen3",
    "gemma2",
    "gemma3_text",
    "phi3",
    "olmo2",
)


class TransformersMethod(Peer):
    """``generate`` with a configuration as ``hierspec plan --to transformers`` writes it.

    Its keys: ``generate`` (arguments), ``assistant_generation_config`` (of the draft model),
    ``target_generation_config``.
    """

    package = "transformers"

    def decode(
        self, prompt: list[int], request: RunRequest, watch: Stopwatch
    ) -> tuple[Sequence[int], int]:
        import torch

        with quiet_transformers():
            model, arguments = self._prepared()
            if request.eos_token_ids:
                arguments["eos_token_id"] = sorted(request.eos_token_ids)
            if request.temperature:
                arguments |= {"temperature": request.temperature, "top_k": 0, "top_p": 1.0}
            ids = torch.tensor([prompt], device=model.device)
            counter = ForwardCounter(watch)
            with seeded(model.device, request.seed):
                watch.begin()
                out = model.generate(
                    input_ids=ids,
                    attention_mask=torch.ones_like(ids),
                    max_new_tokens=request.max_new_tokens,
                    do_sample=bool(request.temperature),
                    streamer=counter,
                    **arguments,
                )
                # An encoder-decoder's text begins with its start token alone.
                start = 1 if model.config.is_encoder_decoder else ids.shape[1]
                token_ids = out[0, start:].tolist()
                watch.end()
        return token_ids, counter.writes - (0 if self.speculative else 1)

    @property
    def speculative(self) -> bool:
        """Whether it drafts; the prompt's forward then verifies a draft, and counts as a call."""
        return bool(self.configuration["generate"])

    def _prepared(self) -> tuple[Any, dict[str, Any]]:
        """Return the target and the arguments of ``generate``, with fresh generation configs."""
        checkpoints, arguments = exported(self.models), dict(self.configuration["generate"])
        model = checkpoints.hf(self.models.target.model)
        reset_generation(model, **self.configuration.get("target_generation_config", {}))
        if "assistant_model" in arguments:
            arguments["assistant_model"] = drafter = checkpoints.hf(arguments["assistant_model"])
            reset_generation(drafter, **self.configuration["assistant_generation_config"])
        return model, arguments


class ForwardCounter:
    """A streamer, which counts forwards: the prompt is put first, then each forward's tokens."""

    def __init__(self, watch: Stopwatch) -> None:
        self.watch, self.writes = watch, -1

    def put(self, value: Any) -> None:
        self.writes += 1
        if self.writes == 1:
            self.watch.token()

    def end(self) -> None:
        """Finish the stream, as transformers expects of a streamer."""


def plain(models: BenchModels, temperature: float) -> list[Method]:
    return [TransformersMethod("transformers", models, {"generate": {}})]


def assisted(models: BenchModels, temperature: float) -> list[Method]:
    return [
        TransformersMethod("transformers-assisted", models, _exported_plan(models, draft, n))
        for draft, n in drafts_and_lengths(models)
    ]


def dynamic(models: BenchModels, temperature: float) -> list[Method]:
    """List every draft model under schedules of ``DYNAMIC``."""
    out: list[Method] = []
    num_listed = Counter[str]()
    for draft, _ in drafts_and_lengths(models):
        n, schedule, threshold = DYNAMIC[num_listed[draft]]
        num_listed[draft] += 1
        configuration = _exported_plan(models, draft, n)
        configuration["assistant_generation_config"] = {
            "num_assistant_tokens": n,
            "num_assistant_tokens_schedule": schedule,
            "assistant_confidence_threshold": threshold,
        }
        out.append(TransformersMethod("transformers-assisted-dynamic", models, configuration))
    return out


def early_exit(models: BenchModels, temperature: float) -> list[Method]:
    """List exits after an eighth, a quarter and a half of the layers, with several lengths."""
    from hierspec.config.target import model_config

    config = model_config(models.target.model)
    depth = config.num_hidden_layers
    if config.model_type not in MODEL_TYPES_WITH_EXITS:
        raise Unavailable(f"transformers has no early exit for {config.model_type} models")
    exits = sorted({max(1, depth // part) for part in (8, 4, 2)} - {depth})
    if not exits:
        raise Unavailable("a target of one layer has no early exit")
    name = "transformers-early-exit"
    return [
        TransformersMethod(name, models, _exported_plan(models, exit_layer, n))
        for exit_layer, n in itertools.product(exits, DRAFT_LENGTHS[len(exits)])
    ]


def prompt_lookup(models: BenchModels, temperature: float) -> list[Method]:
    return [
        TransformersMethod(
            "transformers-prompt-lookup",
            models,
            {"generate": {"prompt_lookup_num_tokens": n, "max_matching_ngram_size": longest}},
        )
        for n, longest in LOOKUPS
    ]


def _exported_plan(models: BenchModels, drafter: str | int, length: int) -> dict[str, Any]:
    """Export a plan to transformers: a draft model by name, or an exit by its layer."""
    if isinstance(drafter, int):
        level = EarlyExitConfig(num_speculative_tokens=length, exit_layer=drafter)
    else:
        level = DraftModelConfig(num_speculative_tokens=length, model=drafter)
    target = TargetConfig(model=models.target.model)
    return ENGINES["transformers"].write(target, level)["configuration"]


def drafts_and_lengths(models: BenchModels) -> list[tuple[str, int]]:
    """List the draft models and lengths that our own single draft is tuned over.

    Raises:
        Unavailable: there is no draft model.
    """
    from hierspec_lab.bench.methods.grids import single

    own = replace(models, drafts=draft_models(models))
    levels = [method.configuration["levels"][0] for method in single("", own, "tokenwise")]
    return [(level["model"], level["num_speculative_tokens"]) for level in levels]


def entries() -> list[MethodEntry]:
    rows = (
        ("transformers", "transformers", "",
         "Hugging Face's generate, one token a forward", plain),
        ("transformers-assisted", "transformers, assisted", LEVIATHAN,
         "assisted generation with a draft model and a constant draft length", assisted),
        ("transformers-assisted-dynamic", "transformers, assisted, dynamic",
         "Mamou et al. 2024, doi:10.48550/arXiv.2405.04304",
         "assisted generation, the draft's length by its confidence or its success", dynamic),
        ("transformers-prompt-lookup", "transformers, prompt lookup", PROMPT_LOOKUP,
         "drafts copied from the context, in transformers", prompt_lookup),
        ("transformers-early-exit", "transformers, early exit",
         "Elhoushi et al. 2024, doi:10.48550/arXiv.2404.16710",
         "the target's lower layers draft (LayerSkip), in transformers", early_exit),
    )  # fmt: skip
    return [
        MethodEntry(name, title, "peer", source, summary, candidates)
        for name, title, source, summary, candidates in rows
    ]
