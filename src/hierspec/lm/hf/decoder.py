"""Any transformers decoder, through its own layer modules and our loop over them.

The model's own forward runs all layers with one cache length; segments need a range of layers
with lengths of their own. So the loop, the cache, the masks, the positions and the final head are
ours, and the layers, norms and embeddings are the library's. These are found by structure
(``_parts``) and, since structure can deceive, checked once against the model's own forward.

A loaded model is never written to: where a layer must run in another way than its owner has set it
up, a stand-in with the same weights runs (:mod:`hierspec.lm.hf.attention`).
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from hierspec.errors import HierspecError
from hierspec.lm.backend import LayerParts, Linear, PositionSwitch, Span
from hierspec.lm.cudnn import without_cudnn

from .alibi import alibi_of
from .attention import (
    PackedAttention,
    attention_paths,
    can_run_trees,
    in_eval_mode,
    mask_names,
    with_own_buffers,
    with_tree_masks,
    without_parts,
)
from .cache import SpansCache, Storage, StorageBackend
from .support import (
    layer_kinds,
    longest_context,
    name_model_in_errors,
    validate_scores,
    validate_supported,
)


class _Placement:
    """Notices that a model's owner has moved it, or changed its type, by its embedding."""

    def __init__(self, name: str, embedding: nn.Module) -> None:
        self._name, self._embedding = name, embedding
        self._before = self._now()

    def _now(self) -> tuple[torch.device, torch.dtype]:
        weight: Any = self._embedding.weight
        return weight.device, weight.dtype

    def changed(self) -> bool:
        return self._now() != self._before

    def check(self) -> None:
        if self.changed():
            raise HierspecError(
                f"{self._name} has been moved to another device or type since the Hierarchy was "
                "made: make it again"
            )


class HFBackend(StorageBackend):
    """A transformers causal language model as a :class:`~hierspec.lm.backend.Backend`.

    Args:
        model: the loaded model. It is left as it is, and its owner may run it meanwhile; in
            training mode it is run as if in eval mode, a little more slowly.
        name: for messages; defaults to the model's own.

    Raises:
        HierspecError: the model is recurrent, encoder-decoder, or of a shape that is not supported.
    """

    def __init__(self, model: Any, name: str | None = None) -> None:
        validate_supported(model)
        self.model: Any = model  # for callers; we run its parts
        config = model.config.get_text_config(decoder=True)
        self.config = config
        self.name: str = name or model.config.name_or_path or config.model_type
        parts = _parts(model)
        self.embedding, self.modules = parts["embedding"], parts["layers"]
        self.norm, self.lm_head = parts["norm"], parts["head"]
        self.rotary, self.position_embedding = parts["rotary"], parts["positions"]
        self.is_rotary_dynamic = _is_dynamic(self.rotary)
        if self.is_rotary_dynamic:
            self.rotary = with_own_buffers(self.rotary)
        self.project_in, self.project_out = parts["project_in"], parts["project_out"]
        self.embedding_norm = parts["embedding_norm"]
        self.num_layers = len(self.modules)
        self.hidden_size = config.hidden_size
        self.vocab_size = self.lm_head.weight.shape[0]
        self.max_length = longest_context(config)
        self.position_switch = _position_switch(self.name, config)
        self.device = self.embedding.weight.device
        self.dtype = self.weight_dtype = self.embedding.weight.dtype
        self.watch = _Placement(self.name, self.embedding)
        self.kinds = layer_kinds(config, self.num_layers)
        self.window = getattr(config, "sliding_window", None)
        self.attention_name = config._attn_implementation or "eager"
        if self.attention_name not in ("sdpa", "eager"):
            raise HierspecError(
                f"{self.name} uses the attention {self.attention_name!r}, which takes no masks of "
                "our own; load it with attn_implementation='sdpa' or 'eager'"
            )
        self.logit_scale = getattr(config, "logit_scale", None)  # Cohere
        self.logit_divisor = getattr(config, "logits_scaling", None)  # Granite
        self.logit_cap = getattr(config, "final_logit_softcapping", None)
        self.embedding_multiplier = getattr(config, "embedding_multiplier", None)
        self.is_rotary_by_kind = self.rotary is not None and (
            "layer_type" in inspect.signature(self.rotary.forward).parameters
        )
        arguments = inspect.signature(self.modules[0].forward).parameters
        self.takes_rotary = "position_embeddings" in arguments
        self.takes_alibi = "alibi" in arguments
        self.alibi = alibi_of(model, config) if self.takes_alibi else None
        self.mask_names = [mask_names(layer) for layer in self.modules]
        self.trees = all(map(can_run_trees, self.modules))
        # GPT-NeoX and Falcon swallow any other name; past_key_values is cache since 5.24.
        names = [name for name in ("layer_past", "cache") if name in arguments]
        self.cache_argument = names[0] if names else "past_key_values"
        self.attention_paths = [attention_paths(layer) for layer in self.modules]
        self.can_pack = bool(getattr(model, "_supports_attention_backend", False))
        self.can_pack = self.can_pack and all(self.attention_paths)
        with name_model_in_errors(self):
            self._validate_against(model, parts["rotary"])

    @property
    def num_bytes(self) -> int:
        """Bytes of the model's weights."""
        return sum(parameter.nbytes for parameter in self.model.parameters())

    def new_cache(self, capacity: int) -> Storage:
        return Storage(self.num_layers, capacity)

    def embed(self, ids: torch.Tensor, spans: Sequence[Span]) -> torch.Tensor:
        h = self.embedding(ids)
        if self.embedding_multiplier is not None:
            h = h * self.embedding_multiplier
        if self.project_in is not None:
            h = self.project_in(h)
        if self.position_embedding is not None:
            # Not through forward: OPT's takes a mask, only to add an offset to the positions.
            positions = self._positions(spans) + getattr(self.position_embedding, "offset", 0)
            h = h + nn.functional.embedding(positions, self.position_embedding.weight)
        if self.embedding_norm is not None:
            h = self.embedding_norm(h)
        return h

    def layers(self, h: torch.Tensor, lo: int, hi: int, spans: Sequence[Span]) -> torch.Tensor:
        return self.run_parts(h, [LayerParts(i, True, True) for i in range(lo, hi)], spans)

    @without_cudnn
    def run_parts(
        self, h: torch.Tensor, parts: Sequence[LayerParts], spans: Sequence[Span]
    ) -> torch.Tensor:
        if len(spans) == 1 or self.can_pack:
            return self._run(h, parts, spans)
        split = zip(h.split([span.n for span in spans]), spans, strict=True)
        return torch.cat([self._run(rows, parts, [span]) for rows, span in split])

    def _run(
        self, h: torch.Tensor, parts: Sequence[LayerParts], spans: Sequence[Span]
    ) -> torch.Tensor:
        positions = self._positions(spans)[None]
        h = h[None]
        kinds = {self.kinds[part.layer] for part in parts}
        rotary = self._rotary(h, spans, kinds)
        masks = {kind: [self._mask(span, kind) for span in spans] for kind in kinds}
        cache, packed = SpansCache(spans), None
        if len(spans) > 1:
            packed = PackedAttention(self.attention_name, cache, masks, self.kinds)
        for i, attention, mlp in parts:
            kind, layer = self.kinds[i], self.modules[i]
            if layer.training:
                layer = in_eval_mode(layer)
            if not (attention and mlp):
                layer = without_parts(layer, self.attention_paths[i], attention, mlp)
            if self.mask_names[i] and spans[0].branches is not None:
                layer = with_tree_masks(layer, self.mask_names[i], spans[0])
            if packed is not None and attention:
                layer = packed.layer(layer, self.attention_paths[i])
            extra: dict[str, Any] = {self.cache_argument: cache}
            if self.takes_rotary:
                extra["position_embeddings"] = rotary[kind]
            if self.takes_alibi:
                extra["alibi"] = None if self.alibi is None else self.alibi.biases(h, spans[0])
            out = layer(
                h,
                attention_mask=masks[kind][0] if packed is None else None,
                position_ids=positions,
                use_cache=True,
                **extra,
            )
            h = out[0] if isinstance(out, tuple) else out
        return h[0]

    def head(self, h: torch.Tensor, unembed: Linear | None = None) -> torch.Tensor:
        if self.norm is not None:
            h = self.norm(h)
        if self.project_out is not None:
            h = self.project_out(h)
        logits = (unembed or self.lm_head)(h)
        if self.logit_scale is not None:
            logits = logits * self.logit_scale
        if self.logit_divisor is not None:
            logits = logits / self.logit_divisor
        if self.logit_cap is not None:
            logits = torch.tanh(logits / self.logit_cap) * self.logit_cap
        return logits if logits.dtype == torch.float64 else logits.float()

    def unembedding(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        bias = getattr(self.lm_head, "bias", None)
        return self.lm_head.weight.detach()[ids], None if bias is None else bias.detach()[ids]

    def _positions(self, spans: Sequence[Span]) -> torch.Tensor:
        parts = [
            torch.arange(s.start, s.start + s.n, device=self.device)
            if s.branches is None
            else torch.tensor(s.positions, device=self.device)
            for s in spans
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _rotary(self, h: torch.Tensor, spans: Sequence[Span], kinds: set[str]) -> dict[str, Any]:
        if self.rotary is None or not self.takes_rotary:
            return dict.fromkeys(kinds)
        if self.is_rotary_by_kind:
            return {kind: self._rotation(h, spans, kind) for kind in kinds}
        return dict.fromkeys(kinds, self._rotation(h, spans))

    def _rotation(self, h: torch.Tensor, spans: Sequence[Span], *kind: str) -> Any:
        if not self.is_rotary_dynamic:
            return self.rotary(h, self._positions(spans)[None], *kind)
        # Frequencies depend on a text's length, so each text of the call has its own.
        rotations = [self._rotation_of(h, span, *kind) for span in spans]
        return tuple(torch.cat(parts, dim=1) for parts in zip(*rotations, strict=True))

    def _rotation_of(self, h: torch.Tensor, span: Span, *kind: str) -> Any:
        """Return cosines and sines [1, n, d] of a span whose text's length decides on them.

        Transformers decides by the last position of a call: one more is added where the span has
        none as late, and where it has later ones than it should, those are given apart.
        """
        rotary, positions = with_own_buffers(self.rotary), self._positions([span])
        if self.position_switch is None:
            return rotary(h, positions[None], *kind)
        first_long, late = span.cache.first_long, positions.new_full((1,), self.max_length - 1)
        is_long = [position >= first_long for position in span.positions]
        parts = []
        if any(is_long):
            rotated = rotary(h, torch.cat((positions, late))[None], *kind)
            parts.append([x[:, :-1] for x in rotated])
        if not all(is_long):
            short = positions.clamp(max=self.position_switch.length - 1)
            parts.append(rotary(h, short[None], *kind))
        if len(parts) == 1:
            return parts[0]
        where = torch.tensor(is_long, device=self.device)[None, :, None]
        return [torch.where(where, a, b) for a, b in zip(*parts, strict=True)]

    def _mask(self, span: Span, kind: str) -> torch.Tensor | None:
        """Return a mask [1, 1, n, start + n]; None where none is needed, as in transformers."""
        _, start, n, branches = span
        window = self.window if kind == "sliding_attention" else None
        end = start + n
        if self.alibi is not None and self.alibi.in_mask:
            return self.alibi.mask(span, self.dtype, self.device)
        if branches is not None:
            mask = branches.attention_mask(start, n, window).to(self.device)
            return self._as_mask(mask[None, None])
        unlimited = window is None or end <= window
        # One row attends to all; from the start, sdpa's causal flag gives the same bits.
        if unlimited and (n == 1 or (start == 0 and self.attention_name == "sdpa")):
            return None
        rows = torch.arange(start, end, device=self.device)[:, None]
        columns = torch.arange(end, device=self.device)[None, :]
        mask = columns <= rows
        if window is not None:
            mask &= columns > rows - window
        return self._as_mask(mask[None, None])

    def _as_mask(self, mask: torch.Tensor) -> torch.Tensor:
        """Return a bool mask as the model's attention takes it: for "eager", numbers to add."""
        if self.attention_name == "sdpa":
            return mask
        zeros = torch.zeros(mask.shape, dtype=self.dtype, device=self.device)
        return zeros.masked_fill_(~mask, torch.finfo(self.dtype).min)

    def _validate_against(self, model: Any, rotary: Any) -> None:
        """Refuse a model whose own forward gives scores other than our loop's for a few tokens.

        Our loop runs them in two steps, the second beside another sequence, so that an unused cache
        or an ignored mask shows.
        """
        n = min(8, self.max_length)
        ids = (torch.arange(n, device=self.device) * 7 + 3) % self.vocab_size
        first, second = self.new_cache(n), self.new_cache(n)
        if self.position_switch is not None:
            first.first_long = second.first_long = self.position_switch.first_long(n, n)
        steps = ([Span(first, 0, n - 3)], [Span(first, n - 3, 3), Span(second, 0, n)])
        memo = {id(rotary): with_own_buffers(rotary)} if self.is_rotary_dynamic else {}
        with torch.inference_mode():
            forward = in_eval_mode(model, memo)
            theirs = forward(input_ids=ids[None], use_cache=False).logits[0].double()
            rows = []
            for spans in steps:
                packed = torch.cat([ids[s.start : s.start + s.n] for s in spans])
                h = self.layers(self.embed(packed, spans), 0, self.num_layers, spans)
                rows.append(self.head(h).double())
        validate_scores(self, torch.cat(rows), theirs.repeat(2, 1))


def _is_dynamic(rotary: Any) -> bool:
    """Return whether a rotary embedding's frequencies depend on the longest text of a call.

    Transformers then writes them to the module, in the middle of its forward.
    """
    kinds = getattr(rotary, "rope_type", None) or ()
    kinds = kinds.values() if isinstance(kinds, dict) else [kinds]
    return any("dynamic" in kind or kind == "longrope" for kind in kinds)


# Their ``generate`` computes the cache anew where a text passes the length.
_RECOMPUTING = ("phi3", "phimoe", "phi4_multimodal")


def _position_switch(name: str, config: Any) -> PositionSwitch | None:
    rope: dict[str, Any] = getattr(config, "rope_parameters", None) or {}
    kinds = [kind for kind in (rope, *rope.values()) if isinstance(kind, dict)]
    lengths = {
        kind["original_max_position_embeddings"]
        for kind in kinds
        if kind.get("rope_type") == "longrope"
    }
    recomputes = config.model_type in _RECOMPUTING
    if len(lengths) > 1:
        raise HierspecError(
            f"{name}: config.json gives several values of original_max_position_embeddings, "
            f"{', '.join(map(str, sorted(lengths)))}: they must be the same"
        )
    switches = [PositionSwitch(n, recomputes) for n in lengths if n < longest_context(config)]
    return switches[0] if switches else None


def _parts(model: Any) -> dict[str, Any]:
    decoder = model.get_decoder()

    def first_module(*names: str) -> Any:
        modules = (getattr(decoder, name, None) for name in names)
        return next((module for module in modules if module is not None), None)

    parts = {
        "embedding": model.get_input_embeddings(),
        "layers": first_module("layers", "h", "blocks"),
        "head": model.get_output_embeddings(),
        "norm": first_module("norm", "ln_f", "final_layer_norm", "final_layernorm"),
        "rotary": first_module("rotary_emb"),
        "positions": first_module("wpe", "embed_positions"),
        "embedding_norm": first_module("word_embeddings_layernorm"),
        "project_in": first_module("project_in"),
        "project_out": first_module("project_out"),
    }
    for part in ("embedding", "layers", "head"):
        if parts[part] is None:
            raise HierspecError(
                f"{type(model).__name__} cannot be driven layer by layer: found no {part}; this "
                "architecture is not supported yet"
            )
    return parts
