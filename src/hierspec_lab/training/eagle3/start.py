"""The network before training: weights taken from the target, and its draft vocabulary.

The head starts as the target's own rows and the layer as the target's last one, since both do
similar work: a randomly initialised network needs many more texts to become as good.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import torch

from hierspec.errors import HierspecError
from hierspec.lm.eagle3.config import Eagle3Config, default_layers
from hierspec.lm.weights import HEAD, WeightSource
from hierspec_lab.training.store import FeatureStore
from hierspec_lab.training.texts import TrainingText

from .network import Eagle3Network
from .settings import Eagle3Settings

_NOISE = 0.02  # standard deviation of weights that have no counterpart in the target
_SAMPLE = 8192  # tokens whose features decide the scale


def config_for(target: Any, settings: Eagle3Settings) -> Eagle3Config:
    """Return the sizes of a network for a target with this transformers config.

    Raises:
        HierspecError: the target is not Llama-shaped, or has too few layers.
    """
    depth = target.num_hidden_layers
    layers = settings.feature_layers or default_layers(depth)
    if layers[0] < 1 or layers[-1] > depth:
        raise HierspecError(f"feature layers must lie between 1 and {depth}, got {layers}")
    heads = target.num_attention_heads
    return Eagle3Config(
        hidden_size=target.hidden_size,
        target_hidden_size=target.hidden_size,
        intermediate_size=settings.intermediate or target.intermediate_size,
        num_attention_heads=heads,
        num_key_value_heads=getattr(target, "num_key_value_heads", None) or heads,
        head_dim=getattr(target, "head_dim", None) or target.hidden_size // heads,
        vocab_size=target.vocab_size,
        draft_vocab_size=min(settings.draft_vocab, target.vocab_size),
        max_position_embeddings=target.max_position_embeddings,
        rms_norm_eps=target.rms_norm_eps,
        rope_theta=target.rope_parameters.get("rope_theta", 10000.0),  # for readers of older files
        rope_parameters=dict(target.rope_parameters),
        eagle_aux_hidden_state_layer_ids=tuple(layers),
    )


def most_frequent_ids(texts: Iterable[TrainingText], count: int, vocab_size: int) -> torch.Tensor:
    """Return the most frequent ids, [count] ascending; among equally frequent ones the lowest.

    Tokens to be predicted count double.
    """
    counts: Counter[int] = Counter()
    for text in texts:
        counts.update(text.ids)
        for low, high in text.predicted:
            counts.update(text.ids[low:high])
    order = sorted(range(vocab_size), key=lambda token: (-counts[token], token))
    return torch.tensor(sorted(order[:count]), dtype=torch.int64)


def feature_scale(store: FeatureStore) -> torch.Tensor:
    """Return 1 / root mean square of each feature [3 d]: a few dimensions are far larger.

    It is folded into ``fc`` when a network is written.
    """
    total, rows = torch.zeros(()), 0
    for number in store.numbers():
        features = store.features(number, 0, len(store.texts[number].ids))[:, :-1].flatten(1)
        total, rows = total + features.square().sum(0), rows + len(features)
        if rows >= _SAMPLE:
            break
    return (total / max(rows, 1)).clamp(min=1e-12).rsqrt()


def initial_network(
    config: Eagle3Config, source: WeightSource, ids: torch.Tensor, scale: torch.Tensor, seed: int
) -> Eagle3Network:
    """Build an untrained network that drafts ``ids``, for features multiplied by ``scale``."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = Eagle3Network(config)
        for parameter in network.parameters():
            if parameter.dim() == 2:
                torch.nn.init.normal_(parameter, std=_NOISE)
    network.set_vocabulary(ids)
    d = config.hidden_size
    last_layer = f"model.layers.{source.config.num_hidden_layers - 1}."
    layer, mlp = network.midlayer, network.midlayer.mlp

    def get(name: str) -> torch.Tensor:
        return source.tensor(name).float()

    with torch.no_grad():
        network.lm_head.weight.copy_(get(HEAD)[ids])
        network.norm.weight.copy_(get("model.norm.weight"))
        network.fc.weight[:, -d:] += torch.diag(1 / scale[-d:])
        for part in "qkv":
            weight = getattr(layer.self_attn, f"{part}_proj").weight
            weight[:, d:] = get(f"{last_layer}self_attn.{part}_proj.weight")
        layer.self_attn.o_proj.weight.copy_(get(last_layer + "self_attn.o_proj.weight"))
        layer.hidden_norm.weight.copy_(get(last_layer + "input_layernorm.weight"))
        norm = layer.post_attention_layernorm
        norm.weight.copy_(get(last_layer + "post_attention_layernorm.weight"))
        if mlp.up_proj.weight.shape == (source.config.intermediate_size, d):
            for part in ("gate_proj", "up_proj", "down_proj"):
                getattr(mlp, part).weight.copy_(get(f"{last_layer}mlp.{part}.weight"))
    return network
