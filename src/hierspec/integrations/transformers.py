"""For users of transformers: ``model.generate(..., custom_generate=hierspec.custom_generate)``.

transformers prepares the inputs, processors and stopping criteria and hands over to us for the
loop; the model is the target: on a CPU its weights in the compiled kernels, where they run it, else
its own layers.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import threading
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch.nn.utils.rnn import pad_sequence

from hierspec.api import Hierarchy
from hierspec.config import arguments
from hierspec.config import generation_config as generation_configs
from hierspec.config.build import Built, build
from hierspec.config.chains import find_levels
from hierspec.config.checkpoints import Loaded, load_tokenizer_of
from hierspec.config.drafts import levels
from hierspec.config.in_memory import ModelInMemory
from hierspec.config.levels import LevelConfig
from hierspec.config.schema import HierarchyConfig, TargetConfig
from hierspec.engine.streamers import tee_to_streamer, validate_single_sequence
from hierspec.errors import HierspecError
from hierspec.lm.adapters import plain_model
from hierspec.lm.backend import backend_of
from hierspec.lm.hf.support import is_encoder_decoder, validate_supported
from hierspec.lm.loaded import Taken, have_same_weights, take
from hierspec.presets import defaults
from hierspec.presets.registry import AUTO, PRESETS, preset, validate_num_drafts
from hierspec.sampling.parameters import SamplingParams
from hierspec.sampling.processors import row_processors, validate_processors

log = logging.getLogger(__name__)

_STEPPED_ASIDE: weakref.WeakSet[Any] = weakref.WeakSet()  # models of which it was said
# A hierarchy is built once per model and configuration (``None``: the default), and freed with the
# model. A list, since options of registered methods need no hash.
_BUILT: weakref.WeakKeyDictionary[Any, list[tuple[HierarchyConfig | None, Taken, Hierarchy]]] = (
    weakref.WeakKeyDictionary()
)
_BUILDING = threading.Lock()

# transformers' generate keeps the first two from custom loops: they come from direct calls alone.
_REFUSED = {
    "assistant_model": "assistant_model is transformers' own way to draft: leave it out, and give "
    "it as drafts=[assistant_model]",
    "streamer": "give the streamer as token_streamer=",
    "inputs_embeds": "hierspec works on token ids: give input_ids, not inputs_embeds",
}
# Arguments of a model's forward that do not change the text, or are looked at
_FORWARD = {
    *("attention_mask", "cache", "cache_position", "labels", "logits_to_keep", "past_key_values"),
    *("position_ids", "synced_gpus", "use_cache"),
}


def custom_generate(
    model: Any,
    input_ids: torch.Tensor,
    logits_processor: Any,
    stopping_criteria: Any,
    generation_config: Any,
    hierarchy: Hierarchy | Mapping[str, Any] | Sequence[Mapping[str, Any]] | str | None = None,
    drafts: Any = None,
    token_streamer: Any = None,
    seed: int | None = None,
    stop_strings: str | Sequence[str] | None = None,
    **model_kwargs: Any,
) -> Any:
    """Run the decoding loop of ``model.generate`` speculatively, with the same output distribution.

    transformers drops ``tokenizer=``, ``streamer=`` and ``assistant_model=`` on the way to custom
    loops, and nothing of them reaches this function: ``stop_strings`` are read with the tokenizer
    saved beside the model, a streamer is given as ``token_streamer``, a model as one of ``drafts``.

    Args:
        model: the target.
        input_ids: [B, L], left-padded where ``attention_mask`` says so; already repeated for
            ``num_return_sequences``.
        hierarchy: the ``levels`` of a hierarchy file (smallest first; a loaded model may stand for
            the name of one), the whole file's mapping without ``target``, either as JSON text, the
            name of a preset, or a ready :class:`~hierspec.Hierarchy` over the same weights.
        drafts: draft models of a preset, smallest first, loaded or by name; or, without
            ``hierarchy``, what drafts as :class:`~hierspec.Hierarchy` takes it. With neither, the
            best that needs no model of yours; or, where a model's own layers run on a CPU, nothing:
            transformers' own loop goes on then, since drafts might cost more there than they save.
        token_streamer: a transformers streamer, which gets the prompt and then each token.
        seed: of the randomness; default: drawn from torch's global generator, as
            ``torch.manual_seed`` users expect of ``generate``.
        stop_strings: texts that end a row; as ``generate`` does, the tokens stay in.

    Returns:
        token ids [B, L + new], right-padded, as ``generate`` does; or its output object with
        ``return_dict_in_generate``.

    Raises:
        HierspecError: beam search, ``assistant_model``, processors that remember earlier calls, and
            other modes that are not a next-token distribution; the message names them.
    """
    validate_supported(model)
    if is_encoder_decoder(model.config):
        raise HierspecError(
            f"{type(model).__name__} is an encoder-decoder model, whose prompt generate does not "
            "pass on: use hierspec.Hierarchy(model, tokenizer, drafts=[...]).generate"
        )
    _validate_request(generation_config, model_kwargs)
    validate_processors(logits_processor)
    criteria = [*stopping_criteria, *_stop_criteria(model, stop_strings)]
    taken = Taken(None) if isinstance(hierarchy, Hierarchy) else take(model)
    is_default = hierarchy is None and drafts is None
    if is_default and taken.backend is None and model.device.type == "cpu":
        from transformers import StoppingCriteriaList

        return _own_loop(
            model,
            input_ids,
            reason=taken.reason,
            token_streamer=token_streamer,
            seed=seed,
            logits_processor=logits_processor,
            stopping_criteria=StoppingCriteriaList(criteria),
            generation_config=generation_config,
            **model_kwargs,
        )
    with _BUILDING:
        runner = _hierarchy(model, taken, hierarchy, drafts)
    greedy = not generation_config.do_sample
    if seed is None:
        seed = 0 if greedy else int(torch.randint(2**31, (1,)))
    padding = _padding(input_ids, model_kwargs.get("attention_mask"))
    _validate_forward(model_kwargs, padding, input_ids.shape[1])
    rows = [row[pad:].tolist() for row, pad in zip(input_ids, padding, strict=True)]
    params = [
        SamplingParams(
            temperature=0.0 if greedy else 1.0,
            logits_processors=row_processors(logits_processor, i, len(rows), input_ids[i, :pad]),
        )
        for i, pad in enumerate(padding)
    ]
    limit = max(generation_config.max_length - input_ids.shape[1], 1)
    stopped_by = _StoppedBy(criteria, rows, input_ids)
    generation = runner.start(
        rows,
        max_new_tokens=limit,
        sampling=params,
        seed=seed,
        ignore_eos=True,
        stop_token_ids=stopped_by.end_ids(runner.root.model.vocab_size),
        until=stopped_by,
    )
    events = iter(generation)
    if token_streamer is not None:
        validate_single_sequence(len(rows))
        events = tee_to_streamer(events, token_streamer, rows[0])
    for _ in events:
        pass
    results = generation.results()
    if any(r.finish_reason == "length" and r.num_tokens < limit for r in results):
        log.warning(
            "a text ended where the model's context does, before max_length (%s)",
            generation_config.max_length,
        )
    new = [result.token_ids[: stopped_by.num_new_tokens] for result in results]
    out = _padded(input_ids, new, generation_config)
    if generation_config.return_dict_in_generate:
        from transformers.generation.utils import GenerateDecoderOnlyOutput

        return GenerateDecoderOnlyOutput(sequences=cast("torch.LongTensor", out))
    return out


def _validate_request(config: Any, model_kwargs: Mapping[str, Any]) -> None:
    generation_configs.refuse(config)
    if config.return_dict_in_generate:
        generation_configs.refuse_outputs(config)
    for name, fix in _REFUSED.items():
        if model_kwargs.get(name) is not None:
            raise HierspecError(fix)
    for name in ("cache", "past_key_values"):  # newer and older versions of transformers
        cache = model_kwargs.get(name)
        if cache is not None and cache.get_seq_length() > 0:
            raise HierspecError(f"hierspec keeps its own cache: leave {name} out")


def _validate_forward(model_kwargs: Mapping[str, Any], padding: list[int], width: int) -> None:
    """Refuse arguments of the model's forward by which it would compute something else."""
    for name, value in model_kwargs.items():
        if value is not None and name not in _FORWARD:
            raise HierspecError(f"hierspec gives the model token ids alone: leave {name} out")
    positions = model_kwargs.get("position_ids")
    if positions is not None:
        given = positions[..., -width:]
        expected = torch.arange(width, device=given.device) - given.new_tensor(padding)[:, None]
        if bool(((given != expected) & (expected >= 0)).any()):
            raise HierspecError(
                "hierspec counts positions from a row's first token: leave position_ids out"
            )


def _own_loop(
    model: Any,
    input_ids: torch.Tensor,
    *,
    reason: str,
    token_streamer: Any,
    seed: int | None,
    **arguments: Any,
) -> Any:
    if model not in _STEPPED_ASIDE:
        _STEPPED_ASIDE.add(model)
        name = model.config.name_or_path or type(model).__name__
        log.warning(
            "%s runs on its own layers (%s), where drafts may cost more than they save, so "
            "transformers' own loop decodes: give drafts= or hierarchy= to draft all the same",
            *(name, reason),
        )
    if token_streamer is not None:
        validate_single_sequence(len(input_ids))
        token_streamer.put(input_ids.cpu())
    with contextlib.nullcontext() if seed is None else torch.random.fork_rng(devices=[]):
        if seed is not None:
            torch.manual_seed(seed)
        return model._sample(input_ids, streamer=token_streamer, **arguments)


def _hierarchy(model: Any, taken: Taken, hierarchy: Any, drafts: Any) -> Hierarchy:
    if isinstance(hierarchy, Hierarchy):
        if drafts is not None:
            raise HierspecError("a ready Hierarchy has its drafts: leave drafts out")
        _validate_model(model, hierarchy)
        return hierarchy
    is_default = hierarchy is None and drafts is None
    config = None if is_default else _config(model, hierarchy, drafts)
    built = _BUILT.setdefault(model, [])
    built[:] = [
        entry for entry in built if entry[1].backend is taken.backend and not entry[2].outdated
    ]
    for known, _, runner in built:
        if known == config:
            return runner
    runner = Hierarchy(_built_on(model, taken, config or _config(model, None, None)))
    built.append((config, taken, runner))
    return runner


def _validate_model(model: Any, hierarchy: Hierarchy) -> None:
    """Refuse a hierarchy over another model, whose text would not be this model's.

    Of a loaded model's weights some numbers are compared; of one that was loaded by its name only
    the shape is known.
    """
    other = hierarchy.config.target.model
    if isinstance(other, ModelInMemory) and not have_same_weights(plain_model(other.model), model):
        raise HierspecError(
            f"hierarchy= was made of another model, {other}, with other weights: make it of this "
            "one, hierspec.Hierarchy(model, drafts=…)"
        )
    if (backend := backend_of(hierarchy.root.model)) is None:
        return
    config = model.config.get_text_config()
    shape = backend.num_layers, backend.hidden_size
    if shape != (config.num_hidden_layers, config.hidden_size):
        raise HierspecError(
            f"hierarchy= was made of another model, {backend.name}, with {shape[0]} layers of "
            f"{shape[1]}: make it of this one, hierspec.Hierarchy(model, drafts=…)"
        )


def _config(model: Any, hierarchy: Any, drafts: Any) -> HierarchyConfig:
    """Return the configuration, with the target by name.

    It is a key in :data:`_BUILT`, which must not keep the model itself alive.
    """
    if isinstance(hierarchy, str) and hierarchy == AUTO:
        raise HierspecError(
            "auto measures before it plans: give hierarchy=hierspec.Hierarchy.auto(model)"
        )
    target, given = model.config.name_or_path or "target", TargetConfig(model=model)
    if hierarchy is None and drafts is None:
        config = defaults.best_unmeasured(given)
    elif isinstance(hierarchy, str) and hierarchy in PRESETS:
        names = arguments.model_names(() if drafts is None else drafts, "drafts")
        validate_num_drafts(hierarchy, len(names))
        config = preset(hierarchy, given, names)
    elif hierarchy is not None and drafts is not None:
        raise HierspecError("levels name their own models: leave drafts out, or hierarchy")
    else:
        data = _read_levels(hierarchy) if drafts is None else {"levels": levels(drafts)}
        return HierarchyConfig.from_dict({**data, "target": {"model": target}})
    return dataclasses.replace(config, target=TargetConfig(model=target))


def _read_levels(hierarchy: Any) -> dict[str, Any]:
    """Return a hierarchy file without its target, from levels, a mapping, or JSON of either."""
    if isinstance(hierarchy, str):
        try:
            hierarchy = json.loads(hierarchy)
        except (ValueError, RecursionError):
            raise HierspecError(
                f"hierarchy {hierarchy[:40]!r} is neither a preset nor JSON: give the levels, as a "
                f"list or as JSON text, or one of {', '.join(PRESETS)}"
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


def _built_on(model: Any, taken: Taken, config: HierarchyConfig) -> Built:
    from hierspec.lm.hf.decoder import HFBackend

    levels = find_levels(config.levels, LevelConfig)
    needs_tokenizer = any(level.capabilities.reads_tokenizer for level in levels)
    loaded, backend, target = Loaded(), taken.backend, config.target
    if backend is None and config.deterministic:
        raise HierspecError(
            f"deterministic decoding needs the compiled kernels, and this model runs on its own "
            f"layers ({taken.reason}): leave deterministic out"
        )
    if config.deterministic:
        target = dataclasses.replace(target, backend="deterministic")
    if backend is None:
        backend = HFBackend(model)
        backend.model = None  # it has taken the layers; and the model is the key of ``_BUILT``
    loaded.add(target, backend, load_tokenizer_of(model) if needs_tokenizer else None)
    built = build(config, loaded)
    drafts = tuple(watch for watch in built.watches if watch is not taken.watch)
    return dataclasses.replace(built, watches=drafts)  # ``take`` has looked at the target


def _stop_criteria(model: Any, stop_strings: str | Sequence[str] | None) -> list[Any]:
    if stop_strings is None:
        return []
    from transformers import StopStringCriteria

    tokenizer = load_tokenizer_of(model)
    if tokenizer is None:
        raise HierspecError(
            "no tokenizer lies beside the model to read stop_strings with: give "
            "stopping_criteria=[StopStringCriteria(tokenizer, stop_strings)] instead"
        )
    texts = [stop_strings] if isinstance(stop_strings, str) else list(stop_strings)
    return [StopStringCriteria(tokenizer, texts)]


def _padding(input_ids: torch.Tensor, mask: torch.Tensor | None) -> list[int]:
    """Count the pads on the left of each row; ``mask`` is [B, L], or ``None`` without padding."""
    if mask is None:
        return [0] * input_ids.shape[0]
    pads = (mask == 0).sum(-1).tolist()
    for row, pad in zip(mask, pads, strict=True):
        if bool((row[:pad] != 0).any()):
            raise HierspecError(
                "pad on the left: set tokenizer.padding_side = 'left' (if a prompt has the pad "
                "token in its text, give attention_mask)"
            )
    return pads


class _StoppedBy:
    """transformers' stopping criteria as a function of a row's number and tokens so far.

    They count padding as length, as ``generate`` does, so that ``max_length`` means the same. If
    none of them is about an end-of-text token, a row goes on until all have been stopped, as there.
    """

    def __init__(
        self, criteria: Sequence[Any], rows: Sequence[Sequence[int]], input_ids: torch.Tensor
    ) -> None:
        self._criteria, self._input_ids = criteria, input_ids
        self._pads = [input_ids.shape[1] - len(row) for row in rows]
        self._apart = any(hasattr(met, "eos_token_id") for met in criteria)
        self._stopped: dict[int, int] = {}  # row → its length where it was stopped

    def __call__(self, row: int, tokens: Sequence[int]) -> bool:
        padded = [*self._input_ids[row, : self._pads[row]].tolist(), *tokens]
        ids = torch.tensor([padded], device=self._input_ids.device)
        if any(bool(torch.as_tensor(met(ids, None)).all()) for met in self._criteria):
            self._stopped.setdefault(row, len(padded))
        if self._apart:
            return row in self._stopped
        return self._all_stopped and len(padded) >= max(self._stopped.values())

    def end_ids(self, vocab_size: int) -> list[int]:
        """Return the ids that end a row by themselves."""
        from transformers import EosTokenCriteria

        ids = [met.eos_token_id for met in self._criteria if isinstance(met, EosTokenCriteria)]
        known = [token for one in ids for token in torch.as_tensor(one).flatten().tolist()]
        return [token for token in known if 0 <= token < vocab_size]

    @property
    def _all_stopped(self) -> bool:
        return len(self._stopped) == len(self._pads)

    @property
    def num_new_tokens(self) -> int | None:
        """The most that a row keeps: fast ones may have more when the last one is stopped."""
        if not self._all_stopped:
            return None
        return max(self._stopped.values()) - self._input_ids.shape[1]


def _padded(input_ids: torch.Tensor, new: Sequence[Sequence[int]], config: Any) -> torch.Tensor:
    pad = config._pad_token_tensor if config._pad_token_tensor is not None else 0
    rows = [input_ids.new_tensor(list(tokens)) for tokens in new]
    tail = pad_sequence(rows, batch_first=True, padding_value=float(pad))
    return torch.cat([input_ids, tail], dim=-1)
