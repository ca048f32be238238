"""Levels whose vocabularies differ in width, under processors made for the target's.

In families such as 151,936 and 152,064 a draft scores fewer ids than its target, or more. A
processor's masks are as wide as the target's vocabulary at every level.
"""

from __future__ import annotations

import math
from collections import Counter
from itertools import cycle, product

import pytest
import torch
from engine_law import engine_law
from fakes.tables import Resized
from installed import LAB
from joint_law import chi_square
from loading import hierarchy_of
from tabular_cases import chain
from transformers import AutoModelForCausalLM, LogitsProcessorList
from transformers.generation.logits_process import (
    EncoderRepetitionPenaltyLogitsProcessor,
    ExponentialDecayLengthPenalty,
    LogitsProcessor,
    NoBadWordsLogitsProcessor,
    PrefixConstrainedLogitsProcessor,
    SequenceBiasLogitsProcessor,
)

from hierspec.core.context import Context
from hierspec.core.nodes import Draft, Verify
from hierspec.core.rng import PhiloxRng
from hierspec.engine.runtime import Runtime
from hierspec.engine.sequences import LiveSequence
from hierspec.lm.tabular import TabularModel
from hierspec.sampling.parameters import SamplingParams
from hierspec.sampling.scores import ScoreRows, distributions
from hierspec.verifiers.registry import get, names

V, NARROW, WIDE = 6, 4, 8
PROMPT = [3, 5]


class Grammar(LogitsProcessor):
    """A mask as wide as the target's vocabulary; after 1 it allows ids that only the target has."""

    def __init__(self, width: int = V, known: int = NARROW) -> None:
        self.allowed = torch.ones(2, width, dtype=torch.bool)
        self.allowed[0, 2] = False
        self.allowed[1, :known] = False

    def __call__(self, input_ids, scores):
        allowed = self.allowed[(input_ids[:, -1] == 1).long()]
        return scores.masked_fill(~allowed, -math.inf)


def after(_, ids):
    """For ``prefix_allowed_tokens_fn``: never the last token again; after 2 the last ids."""
    last = int(ids[-1])
    return [4, 5] if last == 2 else [i for i in range(V) if i != last]


PROCESSORS = {
    "bad words": [NoBadWordsLogitsProcessor([[5], [1, 2], [4, 0]])],
    "sequence bias": [SequenceBiasLogitsProcessor([[[4], 1.0], [[2, 3], -2.0], [[5, 1], 1.5]])],
    "prefix": [PrefixConstrainedLogitsProcessor(after, 1)],
    "encoder": [EncoderRepetitionPenaltyLogitsProcessor(1.7, torch.tensor([PROMPT]))],
    "grammar": [Grammar()],
    "several": [
        SequenceBiasLogitsProcessor([[[4], 1.0], [[0], -1.0]]),
        EncoderRepetitionPenaltyLogitsProcessor(0.6, torch.tensor([PROMPT])),
        Grammar(),
    ],
}
BANS = {"every id of the narrow model": tuple((i, -math.inf) for i in range(NARROW))}


def params(processors, **options) -> SamplingParams:
    return SamplingParams.make(logits_processors=processors, **options)


def job(request: SamplingParams, context=PROMPT, draft=()) -> ScoreRows:
    context = Context(list(context), tuple(draft))
    return ScoreRows(request, context, len(context.committed), len(draft) + 1, len(PROMPT), V)


# --- laws of a narrow model


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("name", [*PROCESSORS, "bias"])
@pytest.mark.parametrize("width", [NARROW, V, WIDE])
def test_processors_see_the_targets_width(name, width, temperature):
    """The law is that of scores padded with −inf; of a wider model's, that of its first ids."""
    request = params(PROCESSORS.get(name, ()), temperature=temperature, logit_bias={4: 9.0, 0: 1.0})
    raw = torch.randn(4, width, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    kept = raw.clone()
    score_rows = job(request, draft=(0, 3, 5))
    (got,) = distributions([score_rows], raw)
    padded = torch.nn.functional.pad(raw, (0, V - width), value=-math.inf)
    (expected,) = distributions([score_rows], padded)
    assert torch.equal(got.dense(V), expected.dense(V))
    assert torch.equal(raw, kept)
    if width == NARROW:
        assert not got.dense(V)[:, NARROW:].any()


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("options", [{"logits_processors": [Grammar()]}, {"logit_bias": BANS}])
def test_what_only_the_target_can_say_is_drafted_evenly(options, temperature):
    """Nothing that the narrow model scores is left in the second row, something in the others."""
    bias = dict(*BANS.values()) if "logit_bias" in options else {}
    request = SamplingParams.make(temperature=temperature, **{**options, "logit_bias": bias})
    raw = torch.zeros(3, NARROW)
    (got,) = distributions([job(request, draft=(1, 0))], raw)
    assert got.dense(V)[1].tolist() == (
        [0, 0, 0, 0, 1, 0] if temperature == 0.0 else [0] * 4 + [0.5] * 2
    )


def test_what_no_level_can_say_is_still_an_error():
    def nothing(input_ids, scores):
        return torch.full_like(scores, -math.inf)

    for temperature in (0.0, 0.8):
        request = params([nothing], temperature=temperature)
        with pytest.raises(ValueError, match="every token is forbidden"):
            distributions([job(request)], torch.zeros(1, NARROW))


def test_an_end_of_text_past_a_narrow_models_ids():
    """The length penalty adds |score| to the end of text's: −inf there must not become a NaN."""
    decay = ExponentialDecayLengthPenalty((1, 1.5), [5], 1)
    request = params([decay], temperature=1.0)
    (got,) = distributions([job(request, [3, 0, 1, 2])], torch.zeros(1, NARROW))
    assert got.dense(V).tolist() == [[0.25] * 4 + [0.0] * 2]


def test_a_neighbours_processors_change_no_bit_of_a_law():
    """A row without processors stays as narrow as its model is."""
    raw = torch.randn(3, NARROW, generator=torch.Generator().manual_seed(2))
    plain = job(SamplingParams(temperature=0.7))
    grammar = job(params([Grammar()], temperature=0.7))
    together = distributions([plain, grammar, plain], raw)
    for i in (0, 2):
        (alone,) = distributions([plain], raw[i : i + 1])
        assert torch.equal(together[i].probs, alone.probs)
    (alone,) = distributions([grammar], raw[1:2])
    assert torch.equal(together[1].probs, alone.probs)


# --- whole hierarchies of tables: the output has the target's law


def tables(seed: int = 5) -> list[TabularModel]:
    generator = torch.Generator().manual_seed(seed)
    return [TabularModel.random(V, 1, generator) for _ in range(3)]


def two_levels(width: int, rule: str) -> Verify:
    small, _, target = tables()
    return chain([Resized(small, width), target], [rule], [2])


def three_levels(widths: tuple[int, int], rules: tuple[str, str]) -> Verify:
    small, middle, target = tables()
    options = {"leading": {"top_m": 2}, "lenient": {"lenience": 2.0}}
    first, second = get(rules[0], **options.get(rules[0], {})), get(rules[1])
    resized = [Resized(table, width) for table, width in zip((small, middle), widths, strict=True)]
    return chain([*resized, target], [first, second], [2, 2])


def several(width: int, rule: str) -> Verify:
    small, _, target = tables()
    leaf = Draft(0, "level 0", Resized(small, width), 2, num_drafts=2).for_rule(get(rule))
    return chain([target], [rule], [], below=leaf)


def joint_law(target: TabularModel, request: SamplingParams, length: int) -> dict:
    """The target's own law of the next tokens, each row processed by itself."""
    law = {}
    for tokens in product(range(V), repeat=length):
        mass = 1.0
        for i, token in enumerate(tokens):
            context = [*PROMPT, *tokens[:i]]
            row = target.distribution(context).log()[None]
            for processor in request.logits_processors:
                row = processor(torch.tensor([context]), row)
            mass *= float((row / request.temperature).softmax(-1)[0, token])
        law[tokens] = mass
    return law


def outputs(root: Verify, request: SamplingParams, count: int, length: int, seed: int = 0):
    """The first tokens of so many sequences, all in one batch."""
    runtime = Runtime(root, V)
    live = [
        LiveSequence(i, root, [*PROMPT], request, PhiloxRng(seed, i), length) for i in range(count)
    ]
    everyone = list(live)
    while live:
        for sequence, verdict in zip(live, runtime.round(live), strict=True):
            sequence.tokens.extend(verdict.emitted.tokens)
            sequence.num_remaining_tokens = length + len(PROMPT) - len(sequence.tokens)
        live = [sequence for sequence in live if sequence.num_remaining_tokens > 0]
    return [tuple(s.tokens[len(PROMPT) : len(PROMPT) + length]) for s in everyone]


ROOTS = {
    "narrow, tokenwise": two_levels(NARROW, "tokenwise"),
    "narrow, block": two_levels(NARROW, "block"),
    "narrow, match": two_levels(NARROW, "match"),
    "wide, block": two_levels(WIDE, "block"),
    "wide, match": two_levels(WIDE, "match"),
    "narrow twice": three_levels((NARROW, NARROW), ("tokenwise", "block")),
    "narrower in the middle": three_levels((V, NARROW), ("block", "tokenwise")),
    "two drafts": several(NARROW, "rrs"),
    "two distinct drafts": several(NARROW, "rrs-without-replacement"),
    "two drafts by block": several(NARROW, "block-rrs"),
    "two drafts as a trie": several(NARROW, "traversal"),
}
if LAB:
    ROOTS |= {
        "two drafts along one": several(NARROW, "induced-block"),
        "narrow, naive": two_levels(NARROW, "naive"),
        "narrow under leading": three_levels((NARROW, WIDE), ("leading", "block")),
        "leading in the middle": three_levels((WIDE, NARROW), ("leading", "tokenwise")),
        "leniency in the middle": three_levels((WIDE, NARROW), ("lenient", "tokenwise")),
        "narrow under leniency": three_levels((NARROW, WIDE), ("lenient", "block")),
    }


@pytest.mark.parametrize("processors", PROCESSORS)
@pytest.mark.parametrize("name", ROOTS)
def test_greedy_text_is_the_targets(name, processors):
    request = params(PROCESSORS[processors])
    target, context = tables()[2], [*PROMPT]
    for _ in range(12):
        row = target.distribution(context).log()[None]
        for processor in request.logits_processors:
            row = processor(torch.tensor([context]), row)
        context.append(int(row.argmax()))
    assert outputs(ROOTS[name], request, 2, 12) == [tuple(context[len(PROMPT) :])] * 2


@pytest.mark.parametrize(("name", "processors"), [*zip(ROOTS, cycle(["prefix", "several"]))])
def test_sampled_text_has_the_targets_law(name, processors):
    request = params(PROCESSORS[processors], temperature=0.9)
    law = joint_law(tables()[2], request, 2)
    assert sum(law.values()) == pytest.approx(1.0)
    if "match" not in name:
        found = engine_law(ROOTS[name], PROMPT, 2, request)
        assert max(abs(found.get(text, 0.0) - chance) for text, chance in law.items()) < 1e-12
        return
    result = chi_square(Counter(outputs(ROOTS[name], request, 1000, 2)), law)  # a race is sampled
    assert result.degrees >= 7
    assert 10**result.log10_p > 1e-4, result


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_ids_past_the_targets_vocabulary_lead_nobody(temperature):
    """A wider verifier's padding scores best of all, and changes neither texts nor verdicts."""
    drafts = []
    for width in (V, WIDE):
        runtime = Runtime(three_levels((V, width), ("leading", "block")), V)
        live = [
            LiveSequence(
                i, runtime.root, [*PROMPT], SamplingParams(temperature), PhiloxRng(0, i), 9
            )
            for i in range(20)
        ]
        kept = [verdict.emitted.tokens for verdict in runtime.round(live)]
        drafts.append((kept, [_counts(level) for level in runtime.metrics.levels.values()]))
    assert drafts[0] == drafts[1]


def _counts(level) -> tuple[int, ...]:
    return level.calls, level.num_draft_tokens, level.num_accepted_tokens


# --- real models, on the paths that callers take


@pytest.fixture(scope="module")
def padded_less(tiny_family, tmp_path_factory):
    """A draft of the tiny family that scores 80 of the target's 96 ids."""
    folder = tmp_path_factory.mktemp("narrow")
    model = AutoModelForCausalLM.from_pretrained(tiny_family["draft"], dtype=torch.float64)
    model.resize_token_embeddings(80, mean_resizing=False)
    model.save_pretrained(folder)
    return str(folder)


REAL = {
    "bad_words_ids": NoBadWordsLogitsProcessor([[90], [7, 81], [3]]),
    "sequence_bias": SequenceBiasLogitsProcessor([[[85], 4.0], [[5, 95], 3.0], [[4], -2.0]]),
    "prefix_allowed_tokens_fn": PrefixConstrainedLogitsProcessor(
        lambda _, ids: range(80, 96) if int(ids[-1]) % 3 == 0 else range(1, 96), 1
    ),
    "encoder_repetition_penalty": EncoderRepetitionPenaltyLogitsProcessor(
        0.8, torch.tensor([[60, 85, 95]])
    ),
    "grammar": Grammar(96, 80),
}


@pytest.mark.parametrize("verify", ["block", "leading"])
@pytest.mark.parametrize("name", REAL)
def test_transformers_processors_on_a_draft_that_is_padded_less(
    tiny_family, padded_less, name, verify
):
    level = {"method": "draft_model", "model": padded_less, "num_speculative_tokens": 4}
    config = {
        "target": {"model": tiny_family["target"], "dtype": "float64"},
        "levels": [level],
        "verify": verify,
    }
    model = AutoModelForCausalLM.from_pretrained(tiny_family["target"], dtype=torch.float64)
    expected = model.generate(
        torch.tensor([[60, 85, 95]]),
        attention_mask=torch.ones(1, 3, dtype=torch.long),
        logits_processor=LogitsProcessorList([REAL[name]]),
        max_new_tokens=24,
        min_new_tokens=24,
        do_sample=False,
    )
    hierarchy = hierarchy_of(config)
    ban = {2: -math.inf}  # as `min_new_tokens` does to the end of the text
    options = {"max_new_tokens": 24, "logits_processors": [REAL[name]], "logit_bias": ban}
    greedy = hierarchy.generate([60, 85, 95], ignore_eos=True, **options)
    assert greedy.token_ids == tuple(expected[0, 3:].tolist())
    if verify == "block":
        hot = hierarchy.generate([60, 85, 95], temperature=1.5, seed=1, ignore_eos=True, **options)
        assert len(hot.token_ids) == 24


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("top_m", [2, 100])
def test_leading_of_a_verifier_narrower_than_its_draft(
    tiny_family, padded_less, temperature, top_m
):
    def level(model, tokens, **options):
        return {
            "method": "draft_model",
            "model": model,
            "num_speculative_tokens": tokens,
            **options,
        }

    config = {
        "target": {"model": tiny_family["target"], "dtype": "float64"},
        "levels": [
            level(tiny_family["small"], 3),
            level(padded_less, 4, verify="leading", top_m=top_m),
        ],
    }
    plain = hierarchy_of({"target": config["target"]})
    hierarchy = hierarchy_of(config)
    options = {"max_new_tokens": 24, "ignore_eos": True, "temperature": temperature, "seed": 3}
    prompts = [[60, 85, 95], [82] * 5]
    found = hierarchy.generate_batch(prompts, **options)
    if temperature == 0.0:
        expected = plain.generate_batch(prompts, **options)
        assert [r.token_ids for r in found] == [r.token_ids for r in expected]
    assert all(len(result.token_ids) == 24 for result in found)


def test_every_rule_is_tried_here():
    tried = {node.rule.name for root in ROOTS.values() for node in _verifiers(root)}
    assert {get(name).name for name in names() if get(name).exact_as_draft} <= tried


def _verifiers(node):
    while isinstance(node, Verify):
        if node.below is not None:
            yield node
        node = node.below
