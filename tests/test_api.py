"""Generation on tiny real models: exact to the token, whatever the hierarchy, alone or in a batch.

float64, so that equality means equality.
"""

import math
import re
import threading
from pathlib import Path

import pytest
import torch
from acceptance_cases import with_acceptance_head
from eagle3_cases import save_drafter
from loading import hierarchy_of

from hierspec import Hierarchy, HierarchyConfig, SamplingParams, TargetConfig, preset
from hierspec.config.vocabulary import VocabularyWarning
from hierspec.engine.trace import ListTracer
from hierspec.presets.registry import PRESETS
from hierspec.utils.testing import FAMILIES, save_tiny

PROMPTS = [
    [5, 9, 7],
    [11, 4, 4, 30, 8],
    [60],
    list(range(3, 40)),
    [7, 7, 7, 7],
    [80, 3],
    [2, 9],
    [42],
]


def plain_greedy(path, prompts, tokens, dtype=torch.float64):
    """The reference: argmax over transformers' own forward, whole context each time."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(path, dtype=dtype)
    out = []
    for prompt in prompts:
        ids = list(prompt)
        with torch.no_grad():
            for _ in range(tokens):
                ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
        out.append(tuple(ids[len(prompt) :]))
    return out


def built(tiny_family, name, **changes):
    target = TargetConfig(model=tiny_family["target"], dtype="float64")
    if name in PRESETS:
        drafts = [tiny_family["small"], tiny_family["draft"]]
        if name == "eagle3":
            drafts = [eagle3_drafter(tiny_family["target"])]
        if name == "specdec++":
            folder = Path(tiny_family["target"]).with_name("predicting")
            small = tiny_family["small"]
            drafts = [str(folder) if folder.is_dir() else with_acceptance_head(small, folder)]
        config = preset(name, target, drafts)
    else:
        config = HierarchyConfig.from_dict({"target": vars_of(target), **CONFIGS[name], **changes})
        config = fill(config, tiny_family)
    return hierarchy_of(config)


def eagle3_drafter(target):
    """The folder of a random one, beside the target."""
    from transformers import AutoConfig

    folder = Path(target).with_name("eagle3")
    return folder if folder.is_dir() else save_drafter(folder, AutoConfig.from_pretrained(target))


def vars_of(target):
    return {"model": target.model, "dtype": target.dtype}


def fill(config, tiny_family):
    """Replace the models called small and draft by their paths."""
    text = __import__("json").dumps(config.to_dict())
    for name in ("small", "draft"):
        text = text.replace(f'"{name}"', __import__("json").dumps(tiny_family[name]))
    return HierarchyConfig.load(text)


def draft(model, tokens, **more):
    return {"method": "draft_model", "model": model, "num_speculative_tokens": tokens, **more}


EXIT1 = {"method": "early_exit", "exit_layer": 1, "num_speculative_tokens": 2}
LOOK = {"method": "prompt_lookup", "num_speculative_tokens": 3}
ENTROPY = {"window": {"kind": "entropy"}}
CONFIGS = {
    "four levels, mixed": {
        "levels": [
            {**EXIT1, "window": {"kind": "confidence", "floor": 0.3}},
            draft("small", 3, verify="leading", top_m=2),
            draft("draft", 6, verify="tokenwise", **ENTROPY),
        ],
        "verify": "block",
    },
    "six levels": {
        "levels": [
            LOOK,
            EXIT1 | {"verify": "block"},
            EXIT1 | {"exit_layer": 2, "num_speculative_tokens": 3, "verify": "tokenwise"},
            draft("small", 4, verify="block"),
            draft("draft", 6, verify="block"),
        ],
    },
    "naive": {"levels": [draft("small", 2), draft("draft", 4, verify="block")], "verify": "naive"},
    "no bonus": {
        "levels": [EXIT1, EXIT1 | {"exit_layer": 2, "verify": "block", "bonus": False}],
        "verify": "tokenwise",
    },
    "tails": {
        "levels": [
            {
                "method": "concatenate",
                "repeat": 2,
                "parts": [[draft("small", 2), draft("draft", 2, verify="block")], LOOK, EXIT1],
            }
        ],
    },
}
EVERYTHING = [*PRESETS, *CONFIGS]


@pytest.fixture(scope="module")
def greedy_40(tiny_family):
    """What the target alone writes after the first three prompts."""
    return plain_greedy(tiny_family["target"], PROMPTS[:3], 40)


@pytest.mark.parametrize("name", EVERYTHING)
def test_greedy_equals_plain_greedy_alone_and_in_a_ragged_batch(tiny_family, greedy_40, name):
    hierarchy = built(tiny_family, name)
    for prompt, tokens in zip(PROMPTS[:3], greedy_40, strict=True):
        result = hierarchy.generate(prompt, max_new_tokens=40, ignore_eos=True)
        assert result.token_ids == tokens
    batch = hierarchy.generate_batch(PROMPTS[:3], max_new_tokens=40, ignore_eos=True)
    assert [r.token_ids for r in batch] == greedy_40


@pytest.mark.parametrize("family", FAMILIES)
def test_every_tried_family_is_greedy_exact(family, tmp_path):
    target = save_tiny(family, tmp_path / "target", seed=1)
    other = save_tiny(family, tmp_path / "other", seed=2, layers=2)
    # torch's product over experts knows no float64.
    dtype = "float32" if family in ("mixtral", "deepseek_v3") else "float64"
    config = {
        "target": {"model": str(target), "dtype": dtype},
        "levels": [EXIT1, draft(str(other), 3, verify="block")],
    }
    hierarchy = Hierarchy.from_config(config)
    expected = plain_greedy(target, PROMPTS[:4], 24, getattr(torch, dtype))
    batch = hierarchy.generate_batch(PROMPTS[:4], max_new_tokens=24, ignore_eos=True)
    assert [r.token_ids for r in batch] == expected


@pytest.mark.parametrize("name", ["hierarchy", "hispec", "dynamic-windows", "naive", "tails"])
def test_a_sequence_samples_the_same_whoever_shares_its_batch(tiny_family, name):
    hierarchy = built(tiny_family, name)
    options = {"max_new_tokens": 20, "temperature": 1.0, "seed": 5, "ignore_eos": True}
    together = hierarchy.generate_batch(PROMPTS, **options)
    again = hierarchy.generate_batch(PROMPTS, **options)
    fewer = hierarchy.generate_batch(PROMPTS[:3], **options)
    assert [r.token_ids for r in together] == [r.token_ids for r in again]
    assert [r.token_ids for r in together[:3]] == [r.token_ids for r in fewer]
    other = hierarchy.generate_batch(PROMPTS, **{**options, "seed": 6})
    assert [r.token_ids for r in together] != [r.token_ids for r in other]


def test_eight_sequences_meet_at_the_target(tiny_family):
    hierarchy = built(tiny_family, "hierarchy")
    calls = []
    model = hierarchy.root.model
    score = type(model).score

    def counted(self, queries):
        if self is model:
            calls.append(len(queries))
        return score(self, queries)

    type(model).score = counted
    try:
        alone = []
        for prompt in PROMPTS:
            calls.clear()
            hierarchy.generate(prompt, max_new_tokens=60, ignore_eos=True)
            alone.append(len(calls))
        calls.clear()
        hierarchy.generate_batch(PROMPTS, max_new_tokens=60, ignore_eos=True)
    finally:
        type(model).score = score
    assert len(calls) <= 1.3 * max(alone)


@pytest.mark.parametrize("wanted", [1, 2, 3, 7, 23])
@pytest.mark.parametrize("name", ["hierarchy", "naive", "tails"])
def test_never_over_by_a_draft(tiny_family, wanted, name):
    result = built(tiny_family, name).generate(PROMPTS[0], max_new_tokens=wanted, ignore_eos=True)
    assert result.num_tokens == wanted
    assert result.finish_reason == "length"


def test_the_context_length_is_reached_and_not_passed(tiny_family):
    hierarchy = built(tiny_family, "hierarchy")
    longest = hierarchy.root.model.max_length
    prompt = [3 + i % 60 for i in range(longest - 9)]
    result = hierarchy.generate(prompt, max_new_tokens=50, ignore_eos=True)
    assert result.num_tokens == 9
    assert result.finish_reason == "length"


def test_any_of_several_end_tokens_stops_inside_a_draft(tiny_family):
    hierarchy = built(tiny_family, "hierarchy")
    whole = hierarchy.generate(PROMPTS[1], max_new_tokens=40, ignore_eos=True).token_ids
    for end in {whole[4], whole[17]}:
        cut = whole[: whole.index(end) + 1]
        result = hierarchy.generate(PROMPTS[1], max_new_tokens=40, eos_token_id=[95, end])
        assert result.token_ids == cut
        assert result.finish_reason == "stop"


@pytest.mark.parametrize("edits", [{}, {"top_k": 5, "repetition_penalty": 1.3}], ids=str)
@pytest.mark.parametrize("name", ["hierarchy", "naive", "no bonus", "tails"])
def test_logprobs_are_the_raw_targets(tiny_family, name, edits):
    """Also of tokens that a rule draws after its check, one call of the target each."""
    from transformers import AutoModelForCausalLM

    hierarchy, tracer = built(tiny_family, name), ListTracer()
    options = {"max_new_tokens": 30, "temperature": 0.7, "seed": 2, "ignore_eos": True, **edits}
    results = hierarchy.generate_batch(PROMPTS[:3], logprobs=True, tracer=tracer, **options)
    silent = hierarchy.generate_batch(PROMPTS[:3], **options)
    assert [r.token_ids for r in silent] == [r.token_ids for r in results]
    assert any(event["kind"] == "row" for event in tracer.events) == (name == "naive")
    model = AutoModelForCausalLM.from_pretrained(tiny_family["target"], dtype=torch.float64)
    for prompt, result in zip(PROMPTS, results, strict=False):
        ids = torch.tensor([[*prompt, *result.token_ids]])
        with torch.no_grad():
            rows = model(ids).logits[0].log_softmax(-1)
        for i, (token, value) in enumerate(zip(result.token_ids, result.logprobs, strict=True)):
            expected = float(rows[len(prompt) - 1 + i, token])
            # transformers keeps rotary angles in float32, also in a float64 model
            assert math.isclose(value, expected, abs_tol=1e-5)


def test_events_tell_who_wrote_what_and_add_up(tiny_family):
    hierarchy = built(tiny_family, "hierarchy")
    events = list(hierarchy.stream(PROMPTS[0], max_new_tokens=30, ignore_eos=True))
    assert [event.index for event in events] == list(range(30))
    assert [event.finish_reason for event in events[:-1]] == [None] * 29
    assert events[-1].finish_reason == "length"
    names = {tiny_family[name] for name in ("target", "draft", "small")}
    assert {event.level for event in events} == names


def test_counters_add_up(tiny_family):
    result = built(tiny_family, "hierarchy").generate(
        PROMPTS[0], max_new_tokens=61, ignore_eos=True
    )
    out = result.to_dict()
    small, middle = out["levels"]
    assert out["schema_version"] == 1
    # Every round but the prefill: kept tokens of the level below, and one more.
    assert middle["num_accepted_tokens"] + out["target_calls"] == pytest.approx(60, abs=11)
    assert out["mean_acceptance_length"] == pytest.approx(
        1 + middle["num_accepted_tokens"] / out["target_calls"]
    )
    assert out["target"]["calls"] == out["target_calls"]
    assert 0 < middle["acceptance_rate"] <= 1
    assert sum(small["num_accepted_tokens_per_pos"]) == small["num_accepted_tokens"]
    assert middle["num_draft_tokens"] >= middle["num_accepted_tokens"]


def test_an_abandoned_stream_frees_its_caches_and_is_cancelled(tiny_family):
    hierarchy = built(tiny_family, "hierarchy")
    generation = hierarchy.start([PROMPTS[0]], max_new_tokens=30, ignore_eos=True)
    events = iter(generation)
    some = [next(events) for _ in range(5)]
    events.close()
    (result,) = generation.results()
    assert result.finish_reason == "cancelled"
    assert result.token_ids == tuple(event.token_id for event in some)
    assert not generation.streams[0].sequence.slots


def test_threads_share_a_hierarchy(tiny_family):
    hierarchy = built(tiny_family, "hierarchy")
    options = {"max_new_tokens": 25, "temperature": 1.0, "seed": 3, "ignore_eos": True}
    expected = [hierarchy.generate(prompt, **options).token_ids for prompt in PROMPTS[:4]]
    got = [None] * 4

    def work(i):
        got[i] = hierarchy.generate(PROMPTS[i], **options).token_ids

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == expected


@pytest.mark.parametrize(
    ("prompt", "options", "says"),
    [
        ([], {}, "prompt is empty"),
        ([96], {}, "outside the target's vocabulary"),
        ([-1], {}, "outside the target's vocabulary"),
        ([3] * 512, {}, "context holds 512"),
        ("text", {}, "no tokenizer"),
        ([3], {"temperature": -1}, "temperature"),
        ([3], {"max_new_tokens": 0}, "max_new_tokens"),
        ([3], {"stop": "x"}, "stop strings need a tokenizer"),
        ([3], {"temprature": 1}, "did you mean 'temperature'"),
        ([3], {"max_new_token": 1}, "did you mean 'max_new_tokens'"),
        (None, {}, "a text or a list of token ids"),
        (5, {}, "a text or a list of token ids"),
        ([[3, 4]], {}, "not a token id"),
        ([5.7], {}, "not a token id"),
        (["5"], {}, "not a token id"),
        ([True], {}, "not a token id"),
        (torch.tensor([[3, 4]]), {}, "one row of token ids"),
        (torch.tensor([0.5]), {}, "not a token id"),
        ([3], {"max_new_tokens": True}, "max_new_tokens"),
        ([3], {"seed": "a"}, "seed must be an integer"),
        ([3], {"seed": 1.5}, "seed must be an integer"),
        ([3], {"seed": -1}, "below 2"),
        ([3], {"seed": 2**64}, "below 2"),
        ([3], {"stop": 5}, "stop must be a text"),
        ([3], {"eos_token_id": "2"}, "not a token id"),
        ([3], {"eos_token_id": -1}, "at least 0"),
        ([3], {"sampling": 5}, "sampling must be"),
        ([3], {"sampling": {"heat": 1}}, "unknown key 'heat'"),
        ([3], {"sampling": {}, "top_k": 1}, "not both"),
        ([3], {"logit_bias": 5}, "logit_bias must map"),
        ([3], {"logits_processors": 3}, "must be a list"),
        ([3], {"logits_processors": [lambda ids, row: None]}, "returned None"),
        ([3], {"logits_processors": [lambda ids, row: row * math.nan]}, "became NaN through"),
    ],
    ids=lambda value: re.sub(r" at 0x\w+", "", str(value)),
)
def test_mistakes_are_one_clear_line(plain_one, prompt, options, says):
    with pytest.raises(ValueError, match=says) as caught:
        plain_one.generate(prompt, **options)
    assert "\n" not in str(caught.value)


@pytest.fixture(scope="module")
def plain_one(tiny_family):
    return built(tiny_family, "autoregressive")


def test_arguments_come_in_many_forms(plain_one):
    expected = plain_one.generate([5, 9], max_new_tokens=4, seed=1)
    for prompt in ((5, 9), torch.tensor([5, 9]), torch.tensor([5, 9]).numpy()):
        result = plain_one.generate(
            prompt, max_new_tokens=4, seed=1, stop=None, sampling={"temperature": 0}
        )
        assert result.token_ids == expected.token_ids
    rows = plain_one.generate_batch(torch.tensor([[5, 9], [5, 9]]), max_new_tokens=4)
    assert [row.token_ids for row in rows] == [expected.token_ids] * 2
    with pytest.raises(ValueError, match=r"write \[prompt\]"):
        plain_one.generate_batch("abc")
    by_path = Hierarchy.from_preset("autoregressive", target=plain_one.config.target.model)
    assert by_path.config.target.dtype == "auto"
    with pytest.raises(ValueError, match="did you mean 'target'"):
        Hierarchy.from_preset("autoregressive", targt="x")


def test_a_presets_name_is_a_configuration():
    assert Hierarchy.from_config("autoregressive").config == preset("autoregressive")


def test_each_prompt_may_have_parameters_of_its_own(plain_one):
    banned = [SamplingParams.make(logit_bias={token: -math.inf}) for token in range(2)]
    each = plain_one.generate_batch([[5], [5]], sampling=banned, max_new_tokens=30, ignore_eos=True)
    alone = [plain_one.generate([5], sampling=one, max_new_tokens=30, ignore_eos=True)
             for one in banned]  # fmt: skip
    assert [r.token_ids for r in each] == [r.token_ids for r in alone]
    with pytest.raises(ValueError, match="2 entries for 1 prompts"):
        plain_one.start([[5]], sampling=banned)


def test_a_generation_runs_once(plain_one):
    generation = plain_one.start([[5]], max_new_tokens=3)
    assert len(list(generation)) == 3
    with pytest.raises(ValueError, match="runs once"):
        list(generation)
    assert generation.results()[0].num_tokens == 3


def test_what_a_stop_cuts_off_is_no_gain(tiny_family):
    hierarchy = built(tiny_family, "hierarchy")
    whole = hierarchy.generate(PROMPTS[1], max_new_tokens=40, ignore_eos=True)
    for end in whole.token_ids[3:9]:
        result = hierarchy.generate(PROMPTS[1], max_new_tokens=40, eos_token_id=end)
        gained = (result.num_tokens - 1) / result.target_calls if result.target_calls else 0.0
        assert result.mean_acceptance_length == gained
    both = hierarchy.generate_batch(PROMPTS[:2], max_new_tokens=9)
    assert [r.to_dict()["batch_size"] for r in both] == [2, 2]
    assert both[0].target == both[1].target


def test_lossy_rules_are_refused_where_they_would_show(tiny_family):
    target = {"model": tiny_family["target"], "dtype": "float64"}
    config = {"target": target, "levels": [draft(tiny_family["draft"], 3)], "verify": "leading"}
    hierarchy = Hierarchy.from_config(config)
    hierarchy.generate(PROMPTS[0], max_new_tokens=4)  # greedy: exact
    with pytest.raises(ValueError, match="changes the distribution of the output"):
        hierarchy.generate(PROMPTS[0], max_new_tokens=4, temperature=1.0)
    lossy = Hierarchy.from_config({**config, "allow_lossy": True})
    lossy.generate(PROMPTS[0], max_new_tokens=4, temperature=1.0)


def test_nan_scores_are_reported_by_model(tiny_family, tmp_path):
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(tiny_family["target"])
    with torch.no_grad():
        model.lm_head.weight[3] = float("nan")
    model.save_pretrained(tmp_path / "broken")
    hierarchy = Hierarchy.from_config({"target": {"model": str(tmp_path / "broken")}})
    for temperature in (0.0, 1.0):
        with pytest.raises(ValueError, match="NaN scores"):
            hierarchy.generate(PROMPTS[0], max_new_tokens=4, temperature=temperature)
    with pytest.raises(ValueError, match="NaN or infinite scores: its weights are damaged"):
        Hierarchy.from_config({"target": {"model": str(tmp_path / "broken"), "backend": "hf"}})


def test_padded_embeddings_of_one_family_work(tiny_family, tmp_path):
    """A draft with more embedding rows than the target: its extra ids get probability 0."""
    from transformers import AutoModelForCausalLM

    for size in (96 + 32, 80):
        model = AutoModelForCausalLM.from_pretrained(tiny_family["draft"], dtype=torch.float64)
        model.resize_token_embeddings(size, mean_resizing=False)
        model.save_pretrained(tmp_path / str(size))
        config = {
            "target": {"model": tiny_family["target"], "dtype": "float64"},
            "levels": [draft(str(tmp_path / str(size)), 4)],
        }
        hierarchy = Hierarchy.from_config(config)
        greedy = hierarchy.generate(PROMPTS[1], max_new_tokens=30, ignore_eos=True)
        (expected,) = plain_greedy(tiny_family["target"], PROMPTS[1:2], 30)
        assert greedy.token_ids == expected
        hot = hierarchy.generate(
            PROMPTS[1], max_new_tokens=60, temperature=1.5, seed=1, ignore_eos=True
        )
        assert max(hot.token_ids) < 96


def test_sizes_that_padding_hardly_explains_are_noted(tiny_family, tmp_path):
    other = save_tiny("llama", tmp_path / "other", vocab_size=400)
    config = {"target": {"model": tiny_family["target"]}, "levels": [draft(str(other), 4)]}
    with pytest.warns(VocabularyWarning, match="scores 400 tokens"):
        Hierarchy.from_config(config)


def test_a_table_over_another_vocabulary_is_refused(tiny_family):
    table = {"method": "ngram_table", "num_speculative_tokens": 2}
    with pytest.raises(ValueError, match=r"has 4096 tokens and .* has 96"):
        Hierarchy.from_config({"target": {"model": tiny_family["target"]}, "levels": [table]})


def test_sequences_join_and_leave_between_rounds(tiny_family):
    from hierspec.core.rng import PhiloxRng
    from hierspec.engine.runtime import Runtime
    from hierspec.engine.sequences import LiveSequence
    from hierspec.sampling.parameters import SamplingParams

    root = built(tiny_family, "hierarchy").root
    runtime = Runtime(root, root.model.vocab_size)
    live = []

    def round_of_all():
        for sequence, verdict in zip(live, runtime.round(live), strict=True):
            sequence.tokens.extend(verdict.emitted.tokens)

    joined = []
    for i, prompt in enumerate(PROMPTS[:3]):
        sequence = LiveSequence(i, root, list(prompt), SamplingParams(), PhiloxRng(0, i), 12)
        live.append(sequence)
        joined.append(sequence)
        for _ in range(2):
            round_of_all()
    live.pop(0).close()
    round_of_all()
    expected = plain_greedy(tiny_family["target"], PROMPTS[:3], 80)
    for prompt, sequence, plain in zip(PROMPTS, joined, expected, strict=False):
        new = tuple(sequence.tokens[len(prompt) :])
        assert len(new) >= 3
        assert new == plain[: len(new)]
