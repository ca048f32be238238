"""Transformers models through our loop: against the models' own forward, family by family."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import transformers as tf

from hierspec.core.context import Context
from hierspec.lm.base import Query
from hierspec.lm.hf.decoder import HFBackend
from hierspec.lm.trunk.trunk import Trunk

V, LAYERS = 61, 4
_SIZES = {
    "vocab_size": V,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 96,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_MHA = {k: v for k, v in _SIZES.items() if k != "num_key_value_heads"}


def config(family: str) -> tf.PretrainedConfig:
    match family:
        case "llama":
            return tf.LlamaConfig(**_SIZES)
        case "qwen3":
            return tf.Qwen3Config(**_SIZES, head_dim=8)
        case "gemma2":
            return tf.Gemma2Config(
                **_SIZES, head_dim=8, sliding_window=8, final_logit_softcapping=1.0
            )
        case "gemma3":
            return tf.Gemma3TextConfig(**_SIZES, head_dim=8, sliding_window=8)
        case "mistral":
            return tf.MistralConfig(**_SIZES, sliding_window=8)
        case "gpt2":
            return tf.GPT2Config(
                vocab_size=V, n_embd=32, n_layer=LAYERS, n_head=4, n_positions=96, eos_token_id=2
            )
        case "opt":
            return tf.OPTConfig(
                vocab_size=V,
                hidden_size=32,
                ffn_dim=48,
                num_hidden_layers=LAYERS,
                num_attention_heads=4,
                max_position_embeddings=96,
                word_embed_proj_dim=16,
            )
        case "granite":
            return tf.GraniteConfig(
                **_SIZES, embedding_multiplier=2.0, logits_scaling=3.0, residual_multiplier=0.5
            )
        case "cohere":
            return tf.CohereConfig(**_SIZES)
        case "mixtral":
            return tf.MixtralConfig(**_SIZES, num_local_experts=4)
        case "gpt_neox":
            return tf.GPTNeoXConfig(**_MHA)
    raise KeyError(family)


FAMILIES = ("llama", "qwen3", "gemma2", "gemma3", "mistral", "gpt2", "opt")
ALSO = ("granite", "cohere", "mixtral", "gpt_neox")


def make(family: str, dtype: torch.dtype = torch.float32) -> tf.PreTrainedModel:
    """A tiny model whose weights are large enough for its scores to differ visibly."""
    torch.manual_seed(0)
    model = tf.AutoModelForCausalLM.from_config(config(family)).eval()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.data.mul_(4)
        else:
            parameter.data.add_(torch.randn_like(parameter) * 0.1)
    return model.to(dtype)


def own(model: tf.PreTrainedModel, ids: list[int]) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=torch.tensor([ids]), use_cache=False).logits[0]


def tokens(n: int, seed: int) -> list[int]:
    return torch.randint(V, (n,), generator=torch.Generator().manual_seed(seed)).tolist()


@pytest.mark.parametrize("family", FAMILIES + ALSO)
def test_one_shot_is_the_models_own_forward_bit_for_bit(family):
    model = make(family)
    view = Trunk(HFBackend(model)).view()
    ids = tokens(24, 1)
    got = view.score([Query(view.open(), Context(ids), 1)])
    assert got.dtype == torch.float32
    assert torch.equal(got, own(model, ids))


# Eager attention (Gemma2's) takes its softmax in float32 whatever the model's dtype.
_FLOAT64 = {"gemma2": 2e-6}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("family", FAMILIES + ALSO)
def test_token_by_token_and_ragged_batches_agree_with_one_shot(family, dtype):
    if family == "mixtral" and dtype == torch.float64:
        pytest.skip("the library's experts have no float64 kernel")
    model = make(family, dtype)
    view = Trunk(HFBackend(model), [2]).view()
    first, second, third = tokens(24, 2), tokens(17, 3), tokens(9, 4)
    wanted = [own(model, ids) for ids in (first, second, third)]
    scale = max(1.0, max(w.abs().max().item() for w in wanted))
    tolerance = scale * (2e-6 if dtype == torch.float32 else _FLOAT64.get(family, 1e-12))

    slot = view.open()
    rows = [view.score([Query(slot, Context(first[:n]), n)]) for n in range(1, 25)]
    assert rows[0].dtype == dtype
    assert (torch.cat(rows) - wanted[0]).abs().max() < tolerance

    slots = [view.open() for _ in range(3)]
    view.score([Query(slots[0], Context(first[:5]), 5), Query(slots[1], Context(second[:12]), 3)])
    got = view.score(
        [
            Query(slots[0], Context(first[:5], tuple(first[5:])), 4),
            Query(slots[1], Context(second), 13),
            Query(slots[2], Context(third), 1),
        ]
    )
    want = torch.cat([wanted[0][3:], wanted[1][12:], wanted[2]])
    assert (got - want).abs().max() < tolerance


@pytest.mark.parametrize("family", FAMILIES)
def test_an_exit_is_the_first_layers_with_norm_and_head(family):
    model = make(family)
    backend = HFBackend(model)
    view = Trunk(backend, [2]).view(2)
    ids = tokens(20, 5)
    got = view.score([Query(view.open(), Context(ids), 1)])
    decoder = model.get_decoder()
    name = "h" if hasattr(decoder, "h") else "layers"
    setattr(decoder, name, getattr(decoder, name)[:2])
    decoder.config.num_hidden_layers = 2
    assert torch.equal(got, own(model, ids))


def test_rows_of_a_batch_do_not_leak_into_the_model():
    """Packed attention is ours only while our loop runs."""
    model = make("llama")
    before = model.config._attn_implementation
    view = Trunk(HFBackend(model)).view()
    ids = tokens(12, 6)
    expected = own(model, ids)
    view.score([Query(view.open(), Context(ids), 1), Query(view.open(), Context(ids[:5]), 1)])
    assert model.config._attn_implementation == before
    assert torch.equal(own(model, ids), expected)


def test_models_without_an_attention_interface_run_one_sequence_after_the_other():
    model = make("llama")
    backend = HFBackend(model)
    backend.can_pack = False
    view = Trunk(backend).view()
    first, second = tokens(12, 7), tokens(5, 8)
    got = view.score(
        [Query(view.open(), Context(first), 1), Query(view.open(), Context(second), 1)]
    )
    want = torch.cat([own(model, first), own(model, second)])
    assert (got - want).abs().max() < 2e-6 * max(1.0, want.abs().max().item())


def test_threads_may_share_a_model():
    view = Trunk(HFBackend(make("llama"))).view()
    ids = [tokens(12, seed) for seed in range(4)]
    alone = [view.score([Query(view.open(), Context(i), 1)]) for i in ids]

    def run(mine: int) -> float:
        worst = 0.0
        for _ in range(8):
            queries = [Query(view.open(), Context(ids[j]), 1) for j in range(4)]
            got = view.score(queries[mine : mine + 1] if mine % 2 else queries)
            want = alone[mine] if mine % 2 else torch.cat(alone)
            worst = max(worst, (got - want).abs().max().item())
        return worst

    with ThreadPoolExecutor(4) as pool:
        assert max(pool.map(run, range(4))) < 1e-5


def test_padded_vocabularies_score_their_padding():
    model = make("llama")
    model.resize_token_embeddings(64)
    assert Trunk(HFBackend(model)).view().vocab_size == 64


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (
            lambda: tf.MambaForCausalLM(
                tf.MambaConfig(vocab_size=V, hidden_size=32, num_hidden_layers=1)
            ),
            "Mamba.*recurrent state",
        ),
        (
            lambda: tf.BartForConditionalGeneration(
                tf.BartConfig(
                    vocab_size=V,
                    d_model=16,
                    encoder_layers=1,
                    decoder_layers=1,
                    encoder_attention_heads=2,
                    decoder_attention_heads=2,
                    max_position_embeddings=32,
                )
            ),
            "Bart.*encoder-decoder.*choose a decoder-only",
        ),
        (
            lambda: tf.MptForCausalLM(
                tf.MptConfig(vocab_size=V, d_model=32, n_layers=2, n_heads=4)
            ),
            "mpt.*not supported yet",
        ),
        (lambda: tf.LlamaModel(config("llama")), "LlamaModel.*AutoModelForCausalLM"),
    ],
)
def test_what_cannot_be_driven_is_refused_by_name(build, words):
    with pytest.raises(ValueError, match=words):
        HFBackend(build())
