"""A ``GenerationConfig`` of transformers, honoured or refused field by field.

Temperature and truncation become :class:`SamplingParams`; other fields that change scores
(``min_new_tokens``, ``no_repeat_ngram_size``, ``bad_words_ids``, …) become the processors that
``generate`` itself would make of them, so that they mean the same here. Fields left ``None`` have
the defaults of ``generate`` (``top_k=50`` when sampling). Fields about *how* to compute (caches,
compilation) do not change the text, and are ignored.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import torch

from hierspec.errors import HierspecError
from hierspec.lm.base import LanguageModel
from hierspec.lm.encoder_decoder import SplitPrompt
from hierspec.sampling.parameters import SamplingParams

# field → whether a value is refused, and the message
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
# Fields that SamplingParams has, too, with the defaults of ``generate``
_NATIVE = {"temperature": 1.0, "top_k": 50, "top_p": 1.0, "min_p": None, "repetition_penalty": 1.0}
_NEUTRAL = {**_NATIVE, "top_k": 0}  # the values with which they change nothing


def refuse(config: Any) -> None:
    """Refuse fields that define no next-token distribution, and those that set up drafting."""
    for name, (is_refused, message) in _REFUSED.items():
        if is_refused(getattr(config, name, None)):
            raise HierspecError(message)
    for name in _DRAFTING:
        if getattr(config, name, None):
            raise HierspecError(
                f"{name} makes generate draft, which is the hierarchy's task: leave it unset, "
                "and give drafts=['prompt-lookup'], or ['exit:4'] for the first four layers"
            )


def refuse_outputs(config: Any) -> None:
    """Refuse fields by which ``generate`` returns tensors of every step."""
    for name in _NOT_COLLECTED:
        if getattr(config, name, False):
            raise HierspecError(
                f"hierspec does not collect {name}: leave it off (of a hierspec.Hierarchy, "
                "generate(..., logprobs=k) gives the k likeliest tokens at every position)"
            )


def convert_config(
    config: Any,
    prompts: Sequence[SplitPrompt],
    lengths: Sequence[int | None],
    model: LanguageModel,
    eos_token_ids: frozenset[int],
) -> dict[str, Any]:
    """Return the fields of :class:`.call.CallOptions` that a configuration sets for a target.

    Args:
        lengths: ``max_new_tokens`` of each prompt, where the configuration sets no length.
    """
    if not hasattr(config, "do_sample") or not hasattr(config, "max_new_tokens"):
        raise HierspecError(
            "generation_config must be a GenerationConfig of transformers, not "
            f"{type(config).__name__}"
        )
    refuse(config)
    refuse_outputs(config)
    start = getattr(config, "decoder_start_token_id", None)
    if start is not None and any(p.source and p.tokens != [start] for p in prompts):
        raise HierspecError(
            f"texts begin with the model's own decoder_start_token_id, not {start}: leave it unset"
        )
    eos = config.eos_token_id
    eos_ids = sorted(eos_token_ids) if eos is None else [eos] if isinstance(eos, int) else list(eos)
    stop = config.stop_strings
    options: dict[str, Any] = {
        "sampling": [
            _sampling_params(config, prompt, length, model, eos_ids)
            for prompt, length in zip(prompts, lengths, strict=True)
        ],
        "eos_token_id": eos,
        "stop": (stop,) if isinstance(stop, str) else tuple(stop or ()),
    }
    if (config.num_return_sequences or 1) != 1:
        options["num_return_sequences"] = config.num_return_sequences
    if config.max_new_tokens is not None:
        options["max_new_tokens"] = config.max_new_tokens
    elif config.max_length is not None:
        lengths = [_tokens_left(config.max_length, len(prompt.tokens)) for prompt in prompts]
        options["max_new_tokens"] = lengths
    return options


def _tokens_left(max_length: int, prompt_len: int) -> int:
    if max_length <= prompt_len:
        raise HierspecError(
            f"the prompt has {prompt_len} tokens and generation_config.max_length is {max_length}: "
            "raise it, or set max_new_tokens"
        )
    return max_length - prompt_len


def _sampling_params(
    config: Any,
    prompt: SplitPrompt,
    length: int | None,
    target: LanguageModel,
    eos_token_ids: Sequence[int],
) -> SamplingParams:
    greedy = not config.do_sample
    native = {name: getattr(config, name, None) for name in _NATIVE}
    native = {name: _NATIVE[name] if value is None else value for name, value in native.items()}
    if not _processors(config, _NEUTRAL, prompt, length, target, eos_token_ids):
        if greedy:
            return SamplingParams(repetition_penalty=native["repetition_penalty"])
        return SamplingParams.make(**native)
    # generate applies native and other processors in an order of its own, so all come from it.
    processors = _processors(config, native, prompt, length, target, eos_token_ids)
    return SamplingParams(temperature=0.0 if greedy else 1.0, logits_processors=tuple(processors))


def _processors(
    config: Any,
    changes: Mapping[str, Any],
    prompt: SplitPrompt,
    length: int | None,
    target: LanguageModel,
    eos_token_ids: Sequence[int],
) -> list[Any]:
    from transformers import GenerationMixin

    config = copy.deepcopy(config)
    for name, value in changes.items():
        setattr(config, name, value)
    config._eos_token_tensor = None
    if eos_token_ids:
        config._eos_token_tensor = torch.tensor(eos_token_ids, device=target.device)
    if config.max_new_tokens is not None or config.max_length is None:
        length = config.max_new_tokens or length
        config.max_length = target.max_length if length is None else len(prompt.tokens) + length
    text = SimpleNamespace(vocab_size=target.vocab_size)
    # A stand-in with the only attributes that the method reads of a model. Callers pass no
    # processors, so what it returns is generate's own list.
    model = SimpleNamespace(
        config=SimpleNamespace(
            is_encoder_decoder=bool(prompt.source), get_text_config=lambda: text
        ),
        _merge_criteria_processor_list=lambda own, _: own,
    )
    mixin: Any = GenerationMixin
    return list(
        mixin._get_logits_processor(
            model,
            generation_config=config,
            input_ids_seq_length=len(prompt.tokens),
            encoder_input_ids=torch.tensor(
                [list(prompt.source or prompt.tokens)], device=target.device
            ),
            device=str(target.device),
        )
    )
