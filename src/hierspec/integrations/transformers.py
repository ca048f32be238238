"""For users of transformers: ``model.generate(..., custom_generate=hierspec.custom_generate)``.

transformers prepares the inputs, processors and stopping criteria and hands over to us for the
loop; the model's own weights are the target, through its own layers.
"""

from __future__ import annotations

import json
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from hierspec.api import Hierarchy
from hierspec.config.build import Built, build
from hierspec.config.checkpoints import Loaded, load_tokenizer
from hierspec.config.levels import DraftModelConfig, NgramTableConfig, flat
from hierspec.config.schema import HierarchyConfig
from hierspec.engine.streamers import streamed
from hierspec.errors import HierspecError
from hierspec.sampling.parameters import SamplingParams
from hierspec.sampling.processors import check_processors, for_row

# A hierarchy is built once per model and configuration, and dies with the model.
_BUILT: weakref.WeakKeyDictionary[Any, dict[str, Hierarchy]] = weakref.WeakKeyDictionary()
_REFUSED = ("output_scores", "output_logits", "output_attentions", "output_hidden_states")


def custom_generate(
    model: Any,
    input_ids: torch.Tensor,
    logits_processor: Any,
    stopping_criteria: Any,
    generation_config: Any,
    hierarchy: Hierarchy | Mapping[str, Any] | Sequence[Mapping[str, Any]] | str | None = None,
    token_streamer: Any = None,
    seed: int | None = None,
    stop_strings: str | Sequence[str] | None = None,
    **model_kwargs: Any,
) -> Any:
    """The decoding loop of ``model.generate``, speculative, with the same output law.

    transformers drops ``tokenizer=`` on the way to custom loops, so ``stop_strings`` are read with
    the tokenizer saved beside the model.

    Args:
        model: the target.
        input_ids: [B, L], left-padded where ``attention_mask`` says so; already repeated for
            ``num_return_sequences``.
        hierarchy: the ``levels`` of a hierarchy file (smallest first), the whole file's mapping
            without ``target``, either as JSON text, or a ready :class:`~hierspec.Hierarchy` over
            the same weights.
        token_streamer: a transformers streamer. (``streamer=`` itself is not passed on to custom
            loops by transformers.)
        seed: of the randomness; default: drawn from torch's global generator, as
            ``torch.manual_seed`` users expect of ``generate``.
        stop_strings: texts that end a row; as ``generate`` does, the tokens stay in.

    Returns:
        token ids [B, L + new], right-padded, as ``generate`` does; or its output object with
        ``return_dict_in_generate``.

    Raises:
        ValueError: beam search, processors that remember earlier calls, and other modes that are
            not a next-token law, named.
    """
    _refuse(generation_config, model_kwargs)
    check_processors(logits_processor)
    engine = _engine(model, hierarchy)
    criteria = [stopping_criteria, *_stop_criteria(model, stop_strings)]
    greedy = not generation_config.do_sample
    if seed is None:
        seed = 0 if greedy else int(torch.randint(2**31, (1,)))
    padding = _padding(input_ids, model_kwargs.get("attention_mask"))
    rows = [row[pad:].tolist() for row, pad in zip(input_ids, padding, strict=True)]
    params = [
        SamplingParams(
            temperature=0.0 if greedy else 1.0,
            logits_processors=for_row(logits_processor, i, len(rows), input_ids[i, :pad]),
        )
        for i, pad in enumerate(padding)
    ]
    generation = engine.start(
        rows,
        # The criteria of transformers hold the length limit; this one only sizes the last drafts.
        max_new_tokens=max(generation_config.max_length - input_ids.shape[1], 1),
        sampling=params,
        seed=seed,
        ignore_eos=True,
        until=_criteria(criteria, rows, input_ids),
    )
    events = iter(generation)
    if token_streamer is not None:
        events = streamed(events, token_streamer, rows[0])
    for _ in events:
        pass
    out = _padded(input_ids, [r.token_ids for r in generation.results()], generation_config)
    if generation_config.return_dict_in_generate:
        from transformers.generation.utils import GenerateDecoderOnlyOutput

        return GenerateDecoderOnlyOutput(sequences=out)  # type: ignore[arg-type]
    return out


def _refuse(config: Any, model_kwargs: Mapping[str, Any]) -> None:
    if (config.num_beams or 1) > 1:
        raise HierspecError("hierspec does not do beam search: set num_beams=1")
    if (getattr(config, "penalty_alpha", None) or 0) > 0:
        raise HierspecError("hierspec does not do contrastive search: leave penalty_alpha unset")
    if getattr(config, "dola_layers", None) is not None:
        raise HierspecError("hierspec does not contrast layers: leave dola_layers unset")
    for name in _REFUSED:
        if config.return_dict_in_generate and getattr(config, name, False):
            raise HierspecError(f"hierspec does not collect {name}: leave it off")
    if model_kwargs.get("inputs_embeds") is not None:
        raise HierspecError("hierspec works on token ids: give input_ids, not inputs_embeds")
    cache = model_kwargs.get("past_key_values")
    if cache is not None and cache.get_seq_length() > 0:
        raise HierspecError("hierspec keeps its own cache: leave past_key_values out")


def _engine(model: Any, hierarchy: Any) -> Hierarchy:
    if isinstance(hierarchy, Hierarchy):
        return hierarchy
    data = _levels(hierarchy)
    data["target"] = {"model": model.config.name_or_path or "target"}
    try:
        key = json.dumps(data, sort_keys=True)
    except TypeError as error:
        raise HierspecError(f"hierarchy holds what no hierarchy file can: {error}") from None
    built = _BUILT.setdefault(model, {})
    if key not in built:
        built[key] = Hierarchy(_on(model, HierarchyConfig.from_dict(data)))
    return built[key]


def _levels(hierarchy: Any) -> dict[str, Any]:
    """What stands below the target, in a hierarchy file's form."""
    if hierarchy is None:
        raise HierspecError("say which levels draft: generate(..., hierarchy=[{...}, ...])")
    if isinstance(hierarchy, str):
        try:
            hierarchy = json.loads(hierarchy)
        except json.JSONDecodeError:
            raise HierspecError(
                f"hierarchy {hierarchy[:40]!r} is not JSON: give the levels, as a list or as "
                "JSON text (those of a preset: hierspec.preset(...).to_dict()['levels'])"
            ) from None
    if isinstance(hierarchy, Mapping):
        if "target" in hierarchy:
            raise HierspecError(
                "hierarchy: the target is the model that generates; leave 'target' out"
            )
        return dict(hierarchy)
    if not isinstance(hierarchy, list | tuple):
        raise HierspecError(
            f"hierarchy must be a list of levels, smallest first, not {type(hierarchy).__name__}"
        )
    return {"levels": hierarchy}


def _on(model: Any, config: HierarchyConfig) -> Built:
    from hierspec.lm.hf.decoder import HFBackend

    shared = not flat(config.levels, (DraftModelConfig, NgramTableConfig))
    loaded, backend = Loaded(), HFBackend(model)
    backend.model = None  # its parts are enough, and a model held by its own entry would never go
    loaded.put(config.target, backend, None if shared else _tokenizer(model))
    return build(config, loaded)


def _tokenizer(model: Any) -> Any:
    """The one saved beside the model; ``None`` where there is none."""
    path = model.config.name_or_path
    return load_tokenizer(path) if path else None


def _stop_criteria(model: Any, stop_strings: str | Sequence[str] | None) -> list[Any]:
    if stop_strings is None:
        return []
    from transformers import StopStringCriteria

    tokenizer = _tokenizer(model)
    if tokenizer is None:
        raise HierspecError(
            "no tokenizer lies beside the model to read stop_strings with: give "
            "stopping_criteria=[StopStringCriteria(tokenizer, stop_strings)] instead"
        )
    texts = [stop_strings] if isinstance(stop_strings, str) else list(stop_strings)
    return [StopStringCriteria(tokenizer, texts)]


def _padding(input_ids: torch.Tensor, mask: torch.Tensor | None) -> list[int]:
    """How many pads stand before each row's text. transformers drops a mask of ones."""
    if mask is None:
        return [0] * input_ids.shape[0]
    pads = (mask == 0).sum(-1).tolist()
    for row, pad in zip(mask, pads, strict=True):
        if bool((row[:pad] != 0).any()):
            raise HierspecError("pad on the left: set tokenizer.padding_side = 'left'")
    return pads


def _criteria(
    criteria: Sequence[Any], rows: Sequence[Sequence[int]], input_ids: torch.Tensor
) -> Any:
    """The stopping criteria of transformers as a function of one row's tokens so far.

    They count padding as length, as ``generate`` does, so that ``max_length`` means the same.
    """
    width = input_ids.shape[1]

    def stop(sequence: int, tokens: Sequence[int]) -> bool:
        padded = [*input_ids[sequence, : width - len(rows[sequence])].tolist(), *tokens]
        ids = torch.tensor([padded], device=input_ids.device)
        return any(bool(torch.as_tensor(one(ids, None)).all()) for one in criteria)

    return stop


def _padded(input_ids: torch.Tensor, new: Sequence[Sequence[int]], config: Any) -> torch.Tensor:
    longest = max(len(tokens) for tokens in new)
    pad = config._pad_token_tensor if config._pad_token_tensor is not None else 0
    tail = input_ids.new_full((len(new), longest), int(pad))
    for row, tokens in zip(tail, new, strict=True):
        row[: len(tokens)] = input_ids.new_tensor(list(tokens))
    return torch.cat([input_ids, tail], dim=-1)
