"""A ``GenerationConfig`` of transformers, honoured or refused field by field.

What it says of temperature and truncation becomes :class:`SamplingParams`; whatever else edits
scores (``min_new_tokens``, ``no_repeat_ngram_size``, ``bad_words_ids``, …) becomes the processors
that ``generate`` itself would make of it, so that it means the same here. Fields left ``None`` have
the defaults of ``generate`` (``top_k=50`` when sampling). Fields about *how* to compute (caches,
compilation) say nothing about what is generated; they are ours to decide, and ignored.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch

from hierspec.errors import HierspecError
from hierspec.lm.encoder_decoder import SplitPrompt
from hierspec.sampling.parameters import SamplingParams
from hierspec.sampling.processors import check_processors

# field → whether it asks for what cannot be done, and what to do instead
_REFUSED: dict[str, tuple[Callable[[Any], bool], str]] = {
    "num_beams": (lambda n: (n or 1) > 1, "hierspec does not do beam search: set num_beams=1"),
    "num_beam_groups": (
        lambda n: (n or 1) > 1,
        "hierspec does not do beam search: leave num_beam_groups unset",
    ),
    "constraints": (bool, "hierspec does not do constrained beam search: leave constraints unset"),
    "force_words_ids": (
        bool,
        "hierspec does not do constrained beam search: leave force_words_ids unset",
    ),
    "penalty_alpha": (
        lambda alpha: (alpha or 0) > 0,
        "hierspec does not do contrastive search: leave penalty_alpha unset",
    ),
    "dola_layers": (
        lambda layers: layers is not None,
        "hierspec does not contrast layers: leave dola_layers unset",
    ),
    "guidance_scale": (
        lambda scale: scale not in (None, 1),
        "hierspec does not guide by a second prompt: leave guidance_scale unset",
    ),
    "token_healing": (bool, "hierspec does not heal tokens: leave token_healing unset"),
}
_DRAFTING = ("prompt_lookup_num_tokens", "assistant_early_exit", "use_mtp")
_NOT_COLLECTED = ("output_scores", "output_logits", "output_attentions", "output_hidden_states")
# What SamplingParams says as well, and as ``generate`` means it: field → the value that is none.
_NATIVE = {"temperature": 1.0, "top_k": 50, "top_p": 1.0, "min_p": None, "repetition_penalty": 1.0}
_NONE = {**_NATIVE, "top_k": 0}


def refuse(config: Any) -> None:
    """Refuse, by name, what is not a next-token distribution, or what the hierarchy does itself.

    Raises:
        HierspecError: with what to leave out.
    """
    for name, (asked, why) in _REFUSED.items():
        if asked(getattr(config, name, None)):
            raise HierspecError(why)
    for name in _DRAFTING:
        if getattr(config, name, None):
            raise HierspecError(
                f"{name} asks generate to draft, which the hierarchy does: leave it unset (a level "
                "of method prompt_lookup, or early_exit, does the same)"
            )


def refuse_outputs(config: Any) -> None:
    """Refuse, by name, to collect tensors of every step.

    Raises:
        HierspecError: with what to leave out.
    """
    for name in _NOT_COLLECTED:
        if getattr(config, name, False):
            raise HierspecError(
                f"hierspec does not collect {name}: leave it off (of a hierspec.Hierarchy, "
                "generate(..., logprobs=k) gives the k likeliest tokens of every place)"
            )


@dataclass(frozen=True, slots=True)
class Asked:
    """What a configuration asks for.

    Attributes:
        max_new_tokens: for each prompt; ``None`` where it says nothing of length.
        sampling: for each prompt.
        eos_token_ids: that end a text; ``None``: the model's own.
        stop: texts that end one.
        max_time: seconds that a generation may take; checked after every token.
    """

    max_new_tokens: list[int] | None
    sampling: list[SamplingParams]
    eos_token_ids: Any
    stop: tuple[str, ...]
    num_return_sequences: int
    max_time: float | None


def read(
    config: Any, prompts: Sequence[SplitPrompt], vocab_size: int, eos_token_ids: frozenset[int]
) -> Asked:
    """Read what a configuration asks for these prompts.

    Args:
        prompts: how the texts begin; lengths and processors count what the target continues.
        eos_token_ids: of the model, for a configuration without any.

    Raises:
        HierspecError: what cannot be done, by name.
    """
    if not hasattr(config, "do_sample") or not hasattr(config, "max_new_tokens"):
        raise HierspecError(
            "generation_config must be a GenerationConfig of transformers, not "
            f"{type(config).__name__}"
        )
    refuse(config)
    refuse_outputs(config)
    eos = config.eos_token_id
    ends = sorted(eos_token_ids) if eos is None else [eos] if isinstance(eos, int) else list(eos)
    lengths = None
    if config.max_new_tokens is not None:
        lengths = [config.max_new_tokens] * len(prompts)
    elif config.max_length is not None:
        lengths = [_left(config.max_length, len(prompt.tokens)) for prompt in prompts]
    stop = config.stop_strings
    return Asked(
        max_new_tokens=lengths,
        sampling=[_sampling(config, prompt, vocab_size, ends) for prompt in prompts],
        eos_token_ids=eos,
        stop=(stop,) if isinstance(stop, str) else tuple(stop or ()),
        num_return_sequences=config.num_return_sequences or 1,
        max_time=config.max_time,
    )


def _left(max_length: int, prompt: int) -> int:
    if max_length <= prompt:
        raise HierspecError(
            f"the prompt has {prompt} tokens and generation_config.max_length is {max_length}: "
            "raise it, or set max_new_tokens"
        )
    return max_length - prompt


def _sampling(
    config: Any, prompt: SplitPrompt, vocab_size: int, eos_token_ids: Sequence[int]
) -> SamplingParams:
    greedy = not config.do_sample
    own = {name: getattr(config, name, None) for name in _NATIVE}
    own = {name: _NATIVE[name] if value is None else value for name, value in own.items()}
    others = copy.deepcopy(config)
    for name, none in _NONE.items():
        setattr(others, name, none)
    if not _processors(others, prompt, vocab_size, eos_token_ids):
        if greedy:
            return SamplingParams(repetition_penalty=own["repetition_penalty"])
        return SamplingParams.make(**own)
    # Some of them stand before or after the others in generate's own order, so all come from it.
    whole = copy.deepcopy(config)
    for name, value in own.items():
        setattr(whole, name, value)
    processors = _processors(whole, prompt, vocab_size, eos_token_ids)
    check_processors(processors)
    return SamplingParams(temperature=0.0 if greedy else 1.0, logits_processors=tuple(processors))


def _processors(
    config: Any, prompt: SplitPrompt, vocab_size: int, eos_token_ids: Sequence[int]
) -> list[Any]:
    """Return the logits processors that ``generate`` makes of a configuration."""
    from transformers import GenerationMixin

    config._eos_token_tensor = torch.tensor(eos_token_ids) if eos_token_ids else None
    if config.max_length is None:
        config.max_length = len(prompt.tokens) + (config.max_new_tokens or 0)
    text = SimpleNamespace(vocab_size=vocab_size)
    # All that it asks of a model. Its own list comes first, and there is no other to merge.
    model = SimpleNamespace(
        config=SimpleNamespace(
            is_encoder_decoder=bool(prompt.source), get_text_config=lambda: text
        ),
        _merge_criteria_processor_list=lambda own, _: own,
    )
    mixin: Any = GenerationMixin
    build = mixin._get_logits_processor
    return list(
        build(
            model,
            generation_config=config,
            input_ids_seq_length=len(prompt.tokens),
            encoder_input_ids=torch.tensor([list(prompt.source or prompt.tokens)]),
            device="cpu",
        )
    )
