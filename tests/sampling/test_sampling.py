"""Laws equal transformers' own processors in sequence, row by row, whatever the batching."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    NoRepeatNGramLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from hierspec.core.context import Context
from hierspec.core.distributions import DenseDistributions, OneHotDistributions
from hierspec.core.rng import PhiloxRng
from hierspec.drafters.multi_draft import first_tokens
from hierspec.sampling.parameters import SamplingParams
from hierspec.sampling.penalties import History
from hierspec.sampling.processors import RowProcessor
from hierspec.sampling.sampler import (
    NoDistributionError,
    _apply_mask,
    _best,
    _nucleus,
    _nucleus_by_bins,
)
from hierspec.sampling.scores import (
    ScoreRows,
    compute_signals,
    distributions,
    logprobs,
)
from hierspec.utils.graphs import NoHostReads

V = 60
PROMPT = [3, 14, 15, 9, 2, 6, 5, 3]
OUTPUT = [5, 8, 9, 7, 9]
DRAFT = (3, 2, 3, 8, 4)


def job(params: SamplingParams, draft=DRAFT, committed=None, **kwargs) -> ScoreRows:
    committed = PROMPT + OUTPUT if committed is None else committed
    kwargs = {"prompt_length": len(PROMPT), "vocab_size": V} | kwargs
    return ScoreRows(params, Context(committed, draft), len(committed), len(draft) + 1, **kwargs)


def scores(rows: int, seed: int = 0, dtype=torch.float32, width: int = V) -> torch.Tensor:
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(seed)).to(dtype) * 3


def reference(score_rows: ScoreRows, logits: torch.Tensor) -> torch.Tensor:
    """One row at a time with transformers' classes and plain loops → [R, V].

    Processors are not asked after a token that is forbidden.
    """
    params, rows, is_read = score_rows.params, [], True
    for j in range(score_rows.num_rows):
        history = score_rows.context.tokens()[: score_rows.start + j]
        ids = torch.tensor([history])
        row = logits[j : j + 1, : score_rows.vocab_size].clone()
        for token, bias in params.logit_bias:
            row[0, token] += bias
        if params.repetition_penalty != 1.0:
            row = RepetitionPenaltyLogitsProcessor(params.repetition_penalty)(ids, row)
        output = history[score_rows.prompt_length :]
        for token in (t for t in set(output) if t < row.shape[1]):
            row[0, token] -= params.frequency_penalty * output.count(token)
            row[0, token] -= params.presence_penalty
        for processor in params.logits_processors if is_read else ():
            row = processor(ids, row)
        drafted = score_rows.context.pending[j : j + 1]
        is_read = is_read and all(i < row.shape[1] and row[0, i] > -math.inf for i in drafted)
        if params.greedy:
            rows.append(torch.nn.functional.one_hot(row.argmax(-1), score_rows.vocab_size).to(row))
            continue
        warpers = LogitsProcessorList()
        warpers.append(TemperatureLogitsWarper(score_rows.temperature or params.temperature))
        if params.top_k is not None:
            warpers.append(TopKLogitsWarper(params.top_k))
        if params.top_p is not None:
            warpers.append(TopPLogitsWarper(params.top_p))
        if params.min_p is not None:
            warpers.append(MinPLogitsWarper(params.min_p))
        rows.append(warpers(ids, row).softmax(-1))
    return torch.cat(rows)


def num_read(rows, expected):
    """Count the rows that may be read: processors are not asked after tokens they forbid."""
    drafted = rows.context.tokens()[rows.start :] if rows.params.logits_processors else ()
    forbidden = [row for row, token in enumerate(drafted) if expected[row, token] == 0.0]
    return min(forbidden, default=rows.num_rows - 1) + 1


HISTORY_OPTIONS = [
    {},
    {"repetition_penalty": 1.3},
    {"repetition_penalty": 0.8},
    {"frequency_penalty": 0.7, "presence_penalty": -0.4},
    {"logit_bias": {7: 2.5, 11: -math.inf}},
    {"logits_processors": [NoRepeatNGramLogitsProcessor(2)]},
    {
        "repetition_penalty": 1.2,
        "frequency_penalty": 0.5,
        "logit_bias": {4: 3.0},
        "logits_processors": [NoRepeatNGramLogitsProcessor(1)],
    },
]
LAW_OPTIONS = [
    {"temperature": 0.0},
    {"temperature": 1.0},
    {"temperature": 0.7},
    {"temperature": 1.3, "top_k": 5},
    {"temperature": 0.9, "top_p": 0.8},
    {"temperature": 1.0, "min_p": 0.1},
    {"temperature": 1.6, "top_k": 40, "top_p": 0.95, "min_p": 0.05},
]


@pytest.mark.parametrize("before", HISTORY_OPTIONS, ids=lambda o: "+".join(o) or "plain")
@pytest.mark.parametrize("after", LAW_OPTIONS, ids=str)
def test_every_row_equals_transformers(before, after):
    score_rows = job(SamplingParams.make(**before, **after))
    logits = scores(score_rows.num_rows, dtype=torch.float64)
    kept = logits.clone()
    (got,) = distributions([score_rows], logits)
    expected = reference(score_rows, logits)
    read = num_read(score_rows, expected)
    torch.testing.assert_close(got.dense(V)[:read], expected[:read], rtol=1e-10, atol=1e-12)
    assert torch.equal(logits, kept), "raw scores are needed for logprobs"


@pytest.mark.parametrize("width", [32, 33, 300, 4000])
@pytest.mark.parametrize("flat", [0.05, 1.0, 4.0])
def test_top_p_beyond_the_first_candidates(width, flat):
    one = job(SamplingParams(temperature=1.0, top_p=0.97), vocab_size=width)
    logits = scores(one.num_rows, width=width, dtype=torch.float64) / 3 * flat
    (got,) = distributions([one], logits)
    torch.testing.assert_close(got.dense(width), reference(one, logits), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("top_p", [0.2, 0.3, 0.55, 0.68])
@pytest.mark.parametrize("top_k", [None, 2, 7])
def test_ties_at_the_edge_as_in_transformers(top_p, top_k):
    one = job(SamplingParams(temperature=1.0, top_p=top_p, top_k=top_k), vocab_size=8)
    logits = torch.tensor([0.4, 0.1, 0.1, 0.1, 0.1, 0.1, 0.05, 0.05], dtype=torch.float64).log()
    logits = torch.stack([logits.roll(i) for i in range(one.num_rows)])
    (got,) = distributions([one], logits)
    torch.testing.assert_close(got.dense(8), reference(one, logits), rtol=1e-9, atol=1e-12)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_batching_changes_nothing(data):
    """Jobs of any kinds packed together get the laws they get alone, bit for bit."""
    pool = [
        SamplingParams.make(**before, **after)
        for before in HISTORY_OPTIONS
        for after in (LAW_OPTIONS[0], LAW_OPTIONS[2], LAW_OPTIONS[6])
    ]
    chosen = data.draw(st.lists(st.sampled_from(pool), min_size=1, max_size=5))
    jobs = [
        job(
            params,
            draft=DRAFT[: data.draw(st.integers(0, 5))],
            temperature=data.draw(st.sampled_from([None, 0.5])),
            vocab_size=data.draw(st.sampled_from([V, V - 7])),
        )
        for params in chosen
    ]
    logits = scores(sum(one.num_rows for one in jobs), seed=data.draw(st.integers(0, 99)))
    row = 0
    for one, got in zip(jobs, distributions(jobs, logits), strict=True):
        part = logits[row : row + one.num_rows]
        (alone,) = distributions([one], part)
        row += one.num_rows
        assert type(got) is type(alone)
        assert len(got) == one.num_rows
        torch.testing.assert_close(got.dense(V), alone.dense(V), rtol=1e-6, atol=1e-9)
        expected = torch.nn.functional.pad(reference(one, part), (0, V - one.vocab_size))
        read = num_read(one, expected)
        torch.testing.assert_close(
            got.dense(V)[:read].double(), expected[:read].double(), rtol=1e-5, atol=1e-7
        )


def test_a_kept_history_gives_the_same_laws_as_counting_afresh():
    params = SamplingParams(
        temperature=0.8, repetition_penalty=1.3, frequency_penalty=0.3, presence_penalty=0.2
    )
    history, committed = History(len(PROMPT)), list(PROMPT)
    for step, token in enumerate([*OUTPUT, 3, 3, 1, 59]):
        committed.append(token)
        logits = scores(4, seed=step)
        kept = job(params, DRAFT[:3], committed, history=history)
        fresh = job(params, DRAFT[:3], committed)
        assert torch.equal(
            distributions([kept], logits)[0].dense(V), distributions([fresh], logits)[0].dense(V)
        )
    assert history.num_counted == len(committed)


def test_history_may_start_inside_the_committed_text():
    """Rows inside the prompt (echoed log-probabilities) see no token after them."""
    params = SamplingParams(temperature=1.0, repetition_penalty=1.5, frequency_penalty=1.0)
    history = History(len(PROMPT))
    distributions([job(params, history=history)], scores(len(DRAFT) + 1))
    context = Context(PROMPT + OUTPUT, DRAFT)
    one = ScoreRows(params, context, 4, len(context) - 3, len(PROMPT), V, history=history)
    logits = scores(one.num_rows, dtype=torch.float64)
    torch.testing.assert_close(distributions([one], logits)[0].dense(V), reference(one, logits))


def test_greedy_takes_the_lowest_of_equals_and_ignores_the_level_temperature():
    logits = torch.zeros(2, V)
    logits[1, [9, 4]] = 1.0
    (got,) = distributions([job(SamplingParams(), draft=(1,), temperature=0.9)], logits)
    assert isinstance(got, OneHotDistributions)
    assert got.ids == (0, 4)


def test_level_temperature_and_dtypes():
    logits = scores(6)
    hot = distributions([job(SamplingParams(temperature=0.5), temperature=2.0)], logits)[0]
    assert isinstance(hot, DenseDistributions)
    torch.testing.assert_close(hot.probs, (logits / 2).softmax(-1))
    assert hot.probs.dtype == torch.float32
    assert distributions([job(SamplingParams(temperature=1.0))], logits.double())[
        0
    ].probs.dtype is (torch.float64)
    assert distributions([job(SamplingParams(temperature=1.0))], logits.bfloat16())[
        0
    ].probs.dtype is (torch.float32)


def test_padded_vocabularies():
    params = SamplingParams(
        temperature=1.0, repetition_penalty=1.3, frequency_penalty=0.5, logit_bias=((59, 1.0),)
    )
    wide = scores(6, width=V + 4)
    wide[:, V:] = 100.0
    row = distributions([job(params)], wide)[0]
    assert row.probs.shape == (6, V)
    torch.testing.assert_close(row.probs, distributions([job(params)], wide[:, :V])[0].probs)
    narrow = distributions([job(params)], scores(6, width=9))[
        0
    ]  # tokens 14, 15 of the prompt are outside
    assert narrow.probs.shape == (6, 9)
    assert narrow.dense(V).shape == (6, V)


def test_processors_see_the_draft_prefix():
    calls = []

    def forbid_last(ids, row):
        calls.append(ids.tolist()[0])
        return row.index_fill(1, ids[0, -1:], -math.inf)

    one = job(SamplingParams.make(logits_processors=[forbid_last]))
    logits = torch.zeros(6, V)
    logits[:, DRAFT[0]] = 1.0
    (got,) = distributions([one], logits)
    assert calls == [PROMPT + OUTPUT + list(DRAFT[:j]) for j in range(6)]
    assert got.ids == (3, 0, 3, 0, 3, 3)


@pytest.mark.parametrize(
    ("draft", "ends", "asked"),
    [
        ((3, 8, 4), [], [(), (3,)]),  # 8 is forbidden
        ((3, V, 4), [], [(), (3,)]),  # of another model's vocabulary
        ((3, 2, 4), [2], [(), (3,)]),  # an end, which the prompt may hold
        ((3, 2, 4), [OUTPUT[-1]], []),  # drafted on after an end
    ],
)
def test_processors_are_not_asked_about_texts_that_nobody_reads(draft, ends, asked):
    calls = []

    def forbid_8(ids, row):
        calls.append(tuple(ids[0, len(PROMPT + OUTPUT) :].tolist()))
        return row.index_fill(1, torch.tensor([8]), -math.inf)

    one = job(SamplingParams.make(logits_processors=[forbid_8]), draft, end_ids=frozenset(ends))
    distributions([one], scores(len(draft) + 1))
    assert calls == asked


def test_processors_are_asked_on_after_a_row_of_which_a_model_knows_no_allowed_token():
    """There any allowed token is kept, so the rows after it are read."""

    def forbid_4(ids, row):
        return row.index_fill(1, torch.tensor([4]), -math.inf)

    params = SamplingParams.make(logits_processors=[forbid_4])
    logits = torch.full((3, V), -math.inf)
    logits[:, 4] = 0.0
    (got,) = distributions([job(params, draft=(0, 7), partial=True)], logits)
    assert got.ids == (0, 0, 0)


@pytest.mark.parametrize("pads", [0, 2])
def test_a_level_has_its_temperature_in_place_of_a_warpers(pads):
    warper = RowProcessor(TemperatureLogitsWarper(0.5), torch.zeros(1, pads, dtype=torch.long))
    processors = [warper if pads else warper.processor]
    params = SamplingParams.make(temperature=1.0, logits_processors=processors)
    logits = scores(6, dtype=torch.float64)
    for temperature, used in ((None, 0.5), (2.0, 2.0)):
        (got,) = distributions([job(params, temperature=temperature)], logits)
        torch.testing.assert_close(got.dense(V), (logits / used).softmax(-1))


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_unusable_scores_are_named(temperature):
    params = SamplingParams(temperature=temperature)
    one = job(params, draft=(1, 2), model="llama")
    bad = scores(3)
    bad[1, 7] = math.nan
    with pytest.raises(ValueError, match="llama produced NaN scores; try --dtype float32"):
        distributions([one], bad)
    bad = scores(3)
    bad[2] = -math.inf
    with pytest.raises(ValueError, match="every token is forbidden"):
        distributions([one], bad)


TRUNCATIONS = [
    {"top_p": 0.9},
    {"top_p": 1e-6},
    {"top_k": 5},
    {"min_p": 0.1},
    {"min_p": 1.0},
    {"top_k": 40, "top_p": 0.95, "min_p": 0.05},
]
NO_LAWS = {
    "a NaN": ({7: math.nan}, "llama produced NaN scores"),
    "all NaN": (dict.fromkeys(range(V), math.nan), "llama produced NaN scores"),
    "an infinity": ({7: math.inf}, "llama produced infinite scores"),
    "all forbidden": (dict.fromkeys(range(V), -math.inf), "every token is forbidden"),
}


def spoilt(values: dict[int, float], dtype=torch.float32) -> torch.Tensor:
    """Three rows of scores, the middle one with ``values`` in their columns."""
    bad = scores(3, dtype=dtype)
    for column, value in values.items():
        bad[1, column] = value
    return bad


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("after", TRUNCATIONS, ids=str)
@pytest.mark.parametrize("kind", NO_LAWS)
def test_truncation_names_unusable_scores_too(kind, after, dtype):
    """One bad row between two good ones, whichever way its law is asked for."""
    values, message = NO_LAWS[kind]
    params = SamplingParams(temperature=0.8, **after)
    bad = spoilt(values, dtype)
    with pytest.raises(ValueError, match=message):
        distributions([job(params, draft=(1, 2), model="llama")], bad)
    alone = [job(params, draft=(), model=name) for name in ("good", "llama", "good")]
    with pytest.raises(ValueError, match=message):
        distributions(alone, bad)
    sampler = alone[0].sampler()
    with pytest.raises(NoDistributionError):
        sampler.pick(bad, [0.5] * 3)
    picked = sampler.pick_on_device(bad, torch.full((3,), 0.5, dtype=torch.float64))
    assert picked.ok.tolist() == [True, False, True]
    (good,) = distributions([job(params, draft=(1,))], bad[::2])
    assert torch.equal(picked.probs[::2], good.dense(V))


@pytest.mark.parametrize("kind", NO_LAWS)
@pytest.mark.parametrize("width", [V, 4000])
def test_both_ways_to_a_nucleus_leave_no_law_a_nan(kind, width):
    bad = torch.nn.functional.pad(spoilt(NO_LAWS[kind][0]), (0, width - V), value=-math.inf)
    probs = bad.softmax(-1)
    kept = [nucleus(probs, 0.9) for nucleus in (_nucleus, _nucleus_by_bins)]
    assert torch.equal(kept[0][::2], kept[1][::2])
    for mask in kept:
        assert _apply_mask(probs, mask).isnan().all(-1).tolist() == [False, True, False]


ROWS = {
    "all different": lambda: scores(40, dtype=torch.float64).softmax(-1),
    "dyadic, tied at the edge": lambda: torch.tensor([0.25, 0.125] * 2 + [1 / 64] * 16).repeat(
        3, 1
    ),
    "few values": lambda: (
        torch.randint(1, 4, (40, 300)).double().sqrt().log().softmax(-1)
    ),  # irrational, so that no sum rounds to top_p
    "one token": lambda: torch.eye(5)[:2],
    "all alike": lambda: torch.full((2, 512), 1 / 512),
    "peaked": lambda: (40.0 * scores(9, dtype=torch.float64)).softmax(-1),
    "large": lambda: torch.randn(2, 40_000, generator=torch.Generator().manual_seed(3)).softmax(-1),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ROWS)
def test_a_nucleus_found_by_its_digits_is_the_sorted_one(name, dtype):
    torch.manual_seed(5)
    probs = ROWS[name]().to(dtype)
    for top_p in (1e-6, 0.25, 0.5, 0.9, 0.984375, 0.999, 1.0 - 1e-9):
        with NoHostReads():
            mask = _nucleus_by_bins(probs, top_p)
        # Where rounding leaves a sum below top_p even tokens of no mass are kept.
        assert torch.equal(mask * probs, _nucleus(probs, top_p) * probs), top_p


@pytest.mark.parametrize("k", [1, 7, 40])
@pytest.mark.parametrize("width", [40 * 4 * 64, 20_011])
def test_the_best_of_a_long_row_are_found_in_a_part_of_it(k, width):
    rows = torch.randn(5, width, generator=torch.Generator().manual_seed(k))
    rows[1] = rows[1].round()
    rows[2] = 1.0
    rows[3, : width - 3] = -math.inf
    rows[4] = torch.arange(width)
    assert torch.equal(_best(rows, k), rows.topk(k)[0])


def test_drafts_without_replacement_refuse_what_is_no_law():
    """Accelerators look at scores here only; a list of no drafts must not come of it."""
    row = DenseDistributions(torch.full((1, V), math.nan))
    for distinct in (True, False):
        with pytest.raises(ValueError, match="not finite"):
            first_tokens([row], 2, distinct, [PhiloxRng(0)])


def test_scores_too_large_for_a_temperature_are_named_with_truncation():
    hot = scores(6) * 1e35
    for after in TRUNCATIONS:
        with pytest.raises(ValueError, match="too large for this temperature"):
            distributions([job(SamplingParams(temperature=2e-5, **after))], hot)


def test_forbidden_tokens_get_no_mass():
    logits = scores(6)
    logits[:, ::2] = -math.inf
    probs = distributions([job(SamplingParams(temperature=0.7, top_p=0.9, min_p=0.01))], logits)[
        0
    ].probs
    assert not probs[:, ::2].any()
    torch.testing.assert_close(probs.sum(-1), torch.ones(6))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": -1}, "temperature must be a finite number of at least 0"),
        ({"temperature": math.nan}, "temperature must be a finite number"),
        ({"temperature": math.inf}, "temperature must be a finite number"),
        ({"temperature": "hot"}, "temperature must be a finite number .*, got 'hot'"),
        ({"top_k": -2}, "top_k"),
        ({"top_k": 1.5}, "top_k"),
        ({"top_p": 0.0}, "top_p must be a number in"),
        ({"top_p": 1.1}, "top_p must be a number in"),
        ({"top_p": math.nan}, "top_p must be a number"),
        ({"min_p": -0.1}, "min_p must be a number in"),
        ({"min_p": 1.1}, "min_p must be a number in"),
        ({"repetition_penalty": 0}, "repetition_penalty must be a finite number above 0"),
        ({"repetition_penalty": -2.0}, "repetition_penalty must be a finite number above 0"),
        ({"frequency_penalty": math.inf}, "frequency_penalty must be a finite number"),
        ({"presence_penalty": math.nan}, "presence_penalty must be a finite number"),
        ({"logit_bias": ((-1, 2.0),)}, "not a token id"),
        ({"logit_bias": ((1, math.nan),)}, "logit_bias of token 1"),
        ({"logits_processors": ("x",)}, "not callable"),
    ],
)
def test_mistakes_are_one_clear_line(options, message):
    with pytest.raises(ValueError, match=message) as error:
        SamplingParams(**options)
    assert "\n" not in str(error.value)


def test_parameters_spelled_off_are_off():
    assert SamplingParams(top_k=0) == SamplingParams(top_k=-1) == SamplingParams()
    assert SamplingParams().greedy
    assert SamplingParams(temperature=1e-6) == SamplingParams()
    assert not SamplingParams(temperature=1e-5).greedy
    assert not SamplingParams(temperature=1.0, top_p=0.9).edits_scores
    assert SamplingParams(presence_penalty=0.1).edits_scores
    assert SamplingParams(top_k=np.int64(3)) == SamplingParams(top_k=3)
    assert type(SamplingParams(top_k=np.int64(3)).top_k) is int  # as the kernels' structures need
    assert hash(SamplingParams.make(logit_bias={1: 2.0})) is not None


def test_signals_and_logprobs():
    law = torch.tensor([[0.5, 0.25, 0.25, 0.0], [1.0, 0.0, 0.0, 0.0]], dtype=torch.float64)
    raw = law.log() + 3.0
    assert compute_signals(raw, [], "entropy") == pytest.approx([1.5 * math.log(2), 0.0], abs=1e-12)
    assert compute_signals(raw, [1, 1], "confidence") == pytest.approx([0.25, 0.0])
    assert compute_signals(raw, [0, 9], "confidence") == pytest.approx([0.5, 0.0])
    assert logprobs(raw, [2, 0]) == pytest.approx([math.log(0.25), 0.0])
    assert logprobs(raw[:1], [3]) == [-math.inf]
    assert logprobs(raw[:1], [7]) == [-math.inf]
    assert compute_signals(raw[:0], [], "entropy") == [] == logprobs(raw[:0], [])
    big = scores(5, width=500)
    exact = torch.distributions.Categorical(logits=big.double()).entropy().tolist()
    assert compute_signals(big, [], "entropy") == pytest.approx(exact, abs=1e-5)
