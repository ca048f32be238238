"""T5 and its relatives: transformers' encoder, and its decoder's modules with our own attention.

T5 (Raffel et al., 2020), Flan-T5, T5 v1.1, mT5 and umT5 share one decoder block: self-attention
with a learned bias for each distance between two positions and no other positions, attention to the
encoded source, and a feed-forward part, each behind a norm and added to its input. Projections,
norms and feed-forward parts are the model's own modules, so quantized ones and adapters run as in
transformers; the attention between them is ours, over a cache that rewinds. Whether it equals the
model's own forward is checked once, when the model is loaded.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

from hierspec.errors import HierspecError
from hierspec.lm.backend import Linear, Span
from hierspec.lm.cudnn import without_cudnn
from hierspec.lm.hf.attention import in_eval_mode
from hierspec.lm.hf.cache import Storage, StorageBackend
from hierspec.lm.hf.support import (
    longest_context,
    name_model_in_errors,
    validate_scores,
    validate_supported,
)

from .trunk import EncoderDecoderTrunk


class EncodedSource:
    """An encoded source: its keys and values, [1, H, S, d_head], for each of the decoder's layers.

    It is never written to, so that all caches with that source share it.
    """

    __slots__ = ("__weakref__", "keys_and_values")

    def __init__(self) -> None:
        self.keys_and_values: list[tuple[torch.Tensor, torch.Tensor]] = []


class SourceStorage(Storage):
    """One sequence's cache: the text's keys and values, and the source they were computed with."""

    __slots__ = ("encoded", "source")

    def __init__(self, num_layers: int, capacity: int) -> None:
        super().__init__(num_layers, capacity)
        self.source: tuple[int, ...] = ()
        self.encoded: EncodedSource | None = None

    def copy_to(self, destination: Storage, length: int) -> None:
        super().copy_to(destination, length)
        assert isinstance(destination, SourceStorage)
        destination.source, destination.encoded = self.source, self.encoded


class T5Backend(StorageBackend):
    """A transformers model of the T5 family as an :class:`~.trunk.EncoderDecoderBackend`.

    Args:
        model: the loaded model. It is left as it is, and its owner may run it meanwhile; in
            training mode it is run as if in eval mode, a little more slowly.
        name: for messages; defaults to the model's own.

    Raises:
        HierspecError: the model is of another shape, or lacks a start token.
    """

    trees = True

    def __init__(self, model: Any, name: str | None = None) -> None:
        validate_supported(model)
        self.model: Any = model
        self.config = config = model.config
        self.name: str = name or config.name_or_path or config.model_type
        self.encoder, decoder = model.get_encoder(), model.get_decoder()
        self.embedding, self.blocks = decoder.embed_tokens, decoder.block
        self.norm, self.lm_head = decoder.final_layer_norm, model.get_output_embeddings()
        self.num_layers = len(self.blocks)
        self.hidden_size = config.d_model
        self.vocab_size = self.lm_head.weight.shape[0]
        self.max_length = longest_context(config)
        self.device = self.embedding.weight.device
        self.dtype = self.weight_dtype = self.embedding.weight.dtype
        self.decoder_start = _start_token(model, self.name)
        self.distance_buckets = _DistanceBuckets(
            config.relative_attention_num_buckets,
            config.relative_attention_max_distance,
            self.device,
        )
        self.scale = 1.0
        self._validate_against(model)

    def new_trunk(self, exits: Sequence[int]) -> EncoderDecoderTrunk:
        return EncoderDecoderTrunk(self, exits)

    def new_cache(self, capacity: int) -> SourceStorage:
        return SourceStorage(self.num_layers, capacity)

    def encode(self, sources: Sequence[Sequence[int]]) -> list[EncodedSource]:
        """Encode sources in one call, padded on the right to one length."""
        sizes, vocab_size = [len(source) for source in sources], self.embedding.weight.shape[0]
        ids = torch.zeros(len(sources), max(sizes), dtype=torch.long, device="cpu")
        mask = torch.zeros_like(ids)
        for row, source in enumerate(sources):
            # As for the text: a draft model may have no row for the last ids.
            known = [i if i < vocab_size else 0 for i in source]
            ids[row, : len(source)] = torch.tensor(known, device="cpu")
            mask[row, : len(source)] = 1
        encoder = in_eval_mode(self.encoder) if self.encoder.training else self.encoder
        out = encoder(input_ids=ids.to(self.device), attention_mask=mask.to(self.device))
        packed = torch.cat([h[:n] for h, n in zip(out.last_hidden_state, sizes, strict=True)])
        encoded = [EncodedSource() for _ in sources]
        for block in self.blocks:
            attention = block.layer[1].EncDecAttention
            keys = _split_heads(attention.k(packed), attention).split(sizes, dim=2)
            values = _split_heads(attention.v(packed), attention).split(sizes, dim=2)
            for source, k, v in zip(encoded, keys, values, strict=True):
                source.keys_and_values.append((k.contiguous(), v.contiguous()))
        return encoded

    def embed(self, ids: torch.Tensor, spans: Sequence[Span]) -> torch.Tensor:
        return self.embedding(ids)

    @without_cudnn
    def layers(self, h: torch.Tensor, lo: int, hi: int, spans: Sequence[Span]) -> torch.Tensor:
        sizes = [span.n for span in spans]
        biases: list[torch.Tensor] | None = None
        for i in range(lo, hi):
            self_layer, cross_layer, feed_forward = self.blocks[i].layer
            attention, cross = self_layer.SelfAttention, cross_layer.EncDecAttention
            # umT5 has a bias in every block, the others use the first block's in all of them.
            has_bias = attention.has_relative_attention_bias
            if has_bias or biases is None:
                biased = attention if has_bias else self.blocks[0].layer[0].SelfAttention
                biases = [self._bias(biased, span) for span in spans]
            x = self_layer.layer_norm(h)
            queries = _split_heads(attention.q(x), attention).split(sizes, dim=2)
            keys = _split_heads(attention.k(x), attention).split(sizes, dim=2)
            values = _split_heads(attention.v(x), attention).split(sizes, dim=2)
            parts = [
                _attend(q, *span.cache.write(i, span.start, k, v), bias)
                for span, q, k, v, bias in zip(spans, queries, keys, values, biases, strict=True)
            ]
            h = _clamp(h + attention.o(torch.cat(parts)))
            queries = _split_heads(cross.q(cross_layer.layer_norm(h)), cross).split(sizes, dim=2)
            parts = [
                _attend(q, *span.cache.encoded.keys_and_values[i])
                for span, q in zip(spans, queries, strict=True)
            ]
            h = _clamp(h + cross.o(torch.cat(parts)))
            h = _clamp((in_eval_mode(feed_forward) if feed_forward.training else feed_forward)(h))
        return h

    def head(self, h: torch.Tensor, unembed: Linear | None = None) -> torch.Tensor:
        logits = (unembed or self.lm_head)(self.norm(h) * self.scale)
        return logits if logits.dtype == torch.float64 else logits.float()

    def unembedding(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        return self.lm_head.weight.detach()[ids], None

    def _bias(self, attention: Any, span: Span) -> torch.Tensor:
        """Return the bias of a span's attention scores, [1, H, n, start + n]: −∞ for tokens that a
        row does not attend to."""
        _, start, n, branches = span
        end = start + n
        stored = range(end) if branches is None else branches.positions(0, end)
        positions = torch.tensor(stored, device=self.device)
        distance = positions[start:, None] - positions
        hidden = distance < 0
        if branches is not None:
            hidden = ~branches.attention_mask(start, n).to(self.device)
        buckets = self.distance_buckets.up_to(end)[distance.clamp(min=0)]
        bias = attention.relative_attention_bias(buckets).permute(2, 0, 1)
        return bias.masked_fill(hidden, -math.inf)[None]

    def _validate_against(self, model: Any) -> None:
        """Set the head's scale, and refuse a model whose own forward gives other scores for a few
        tokens, after two sources.

        Some of the family scale the input of the head and some do not, by rules that differ between
        classes: the scale that agrees with the model's own forward is used.
        """
        size = self.vocab_size
        ids = (torch.arange(8, device=self.device) * 7 + 3) % size
        sources = [[(5 * i + 2) % size for i in range(n)] for n in (6, 3)]
        caches = [self.new_cache(8), self.new_cache(8)]
        steps = ([Span(caches[0], 0, 5)], [Span(caches[0], 5, 3), Span(caches[1], 0, 8)])
        with name_model_in_errors(self), torch.inference_mode():
            logits = [
                in_eval_mode(model)(
                    input_ids=torch.tensor([source], device=self.device),
                    decoder_input_ids=ids[None],
                    use_cache=False,
                ).logits[0]
                for source in sources
            ]
            for cache, encoded in zip(caches, self.encode(sources), strict=True):
                cache.encoded = encoded
            rows = []
            for spans in steps:
                packed = torch.cat([ids[s.start : s.start + s.n] for s in spans])
                h = self.layers(self.embed(packed, spans), 0, self.num_layers, spans)
                rows.append(h.to(self.dtype))
            h, theirs = torch.cat(rows), torch.cat(logits).double()
            differences = {}
            for scale in (1.0, self.hidden_size**-0.5):
                self.scale = scale
                differences[scale] = (self.head(h).double() - theirs).abs().max().item()
            self.scale = min(differences, key=differences.__getitem__)
            ours = self.head(h).double()
        validate_scores(self, ours, theirs)


class _DistanceBuckets:
    """The bucket of each distance in the text, which has one learned bias: finer for near tokens.

    Half of the buckets hold one distance each; the others grow in proportion to the distance, up to
    ``max_distance``, and the last one holds all beyond [Raffel et al. 2020, §2.1].
    """

    def __init__(self, num_buckets: int, max_distance: int, device: torch.device) -> None:
        self.num_buckets, self.max_distance, self.device = num_buckets, max_distance, device
        self.table = self._table(1024)

    def up_to(self, length: int) -> torch.Tensor:
        """Return the buckets of distances 0 … length - 1, and more."""
        if length > len(self.table):
            self.table = self._table(2 * length)
        return self.table

    def _table(self, count: int) -> torch.Tensor:
        distance = torch.arange(count, device="cpu")
        exact = self.num_buckets // 2
        # In float32, as in transformers: a bucket must not begin one distance later.
        far = torch.log(distance.clamp(min=1).float() / exact) / math.log(self.max_distance / exact)
        far = (exact + (far * (self.num_buckets - exact)).long()).clamp(max=self.num_buckets - 1)
        return torch.where(distance < exact, distance, far).to(self.device)


def _split_heads(x: torch.Tensor, attention: Any) -> torch.Tensor:
    """Split [N, H · d] into heads, [1, H, N, d]."""
    return x.unflatten(-1, (-1, attention.key_value_proj_dim)).transpose(0, 1)[None]


def _attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """Return what q [1, H, n, d] attends to in k, v [1, H, m, d]: [n, H · d]. T5 does not scale."""
    out = scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=1.0)
    return out[0].transpose(0, 1).flatten(1)


def _clamp(h: torch.Tensor) -> torch.Tensor:
    """Keep sums finite in float16, as transformers' blocks do."""
    if h.dtype != torch.float16:
        return h
    limit = torch.finfo(h.dtype).max
    return h.clamp(-limit, limit)


def _start_token(model: Any, name: str) -> int:
    """Return the token that a model's decoder begins with, as ``generate`` finds it."""
    for config in (getattr(model, "generation_config", None), model.config):
        for key in ("decoder_start_token_id", "bos_token_id"):
            token = getattr(config, key, None)
            if isinstance(token, int):
                return token
    raise HierspecError(
        f"{name} names no token that its decoder begins with: set decoder_start_token_id in its "
        "generation configuration"
    )
