"""Everything that a device could break, on a pretended accelerator and on CUDA.

The pretended one holds its tensors in ordinary memory, calls them ``cuda``, and refuses what a real
one refuses: operands of two devices, and NumPy. It finds tensors made in the wrong place on any
machine; kernels, speed and memory it says nothing about. CUDA itself is marked ``gpu``.
"""

from __future__ import annotations

import time
import warnings
from collections import defaultdict
from types import SimpleNamespace

import pytest
import tape
import torch
from installed import LAB, needs_lab
from joint_law import chi_square, joint_law, sample
from loading import LOADED, hierarchy_of
from stacks import PROMPTS, built, model, stacks
from torch.overrides import TorchFunctionMode
from transformers import GenerationConfig

from hierspec import Hierarchy, SamplingParams
from hierspec.config.checkpoints import Loaded
from hierspec.core.context import Context
from hierspec.core.distributions import (
    DenseDistributions,
    MixedDistributions,
    OneHotDistributions,
    concatenate,
    draw,
)
from hierspec.core.proposals import Proposal
from hierspec.core.rng import PhiloxRng
from hierspec.engine.responder import Responder
from hierspec.lm.base import Query
from hierspec.lm.lean import fused
from hierspec.lm.trunk.trunk import Trunk
from hierspec.profiling import costs
from hierspec.sampling.sampler import Sampler
from hierspec.sampling.scores import ScoreRows, distributions
from hierspec.utils.graphs import RUNS_BEFORE_REPLAY, Graphs
from hierspec.verifiers.registry import get, names
from hierspec.verifiers.verify import verify

CUDA = torch.device("cuda")
FIRST_GPU = torch.device("cuda", 0)  # what its tensors say
_ELSEWHERE = {"to", "cpu", "cuda"}  # moves between devices
_HERE = {"numpy", "__array__"}  # only where the processor can read
# What a real device is waited for.
_WAITS = {"tolist", "item", "__float__", "__int__", "__bool__", "cpu", "nonzero", "__contains__"}


class Far(torch.Tensor):
    """A tensor that passes for one on an accelerator."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]


class Pretend(TorchFunctionMode):
    """Within it, ``cuda`` is a device like any other, whose tensors do not mix with the CPU's.

    ``waits``: the calls for which the processor would have waited, by name.
    """

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[str] = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if isinstance(func, torch._ops.OpOverload):  # replayed: it was checked when it was recorded
            return func(*args, **kwargs)
        name = getattr(func, "__name__", "")
        if name == "__get__" and func.__self__ is torch.Tensor.device:
            return FIRST_GPU if isinstance(args[0], Far) else func(*args)
        if name == "__get__" and func.__self__ is torch.Tensor.is_cuda:
            return isinstance(args[0], Far)
        if name == "__get__" and func.__self__ is torch.Tensor.is_cpu:
            return not isinstance(args[0], Far)
        tensors = [t for t in _flat((args, kwargs)) if isinstance(t, torch.Tensor)]
        far = any(isinstance(t, Far) for t in tensors)
        if (far and name in _WAITS) or self._sends_at_once(name, args, kwargs, far):
            self.waits.append(name)
        if name in _ELSEWHERE:
            return self._moved(name, args, kwargs)
        if far and name in _HERE:
            raise TypeError("can't convert a cuda tensor to numpy")
        if name == "_has_compatible_shallow_copy_type":  # what nn.Module.to asks
            return isinstance(args[0], Far) == isinstance(args[1], Far)
        if far and not all(isinstance(t, Far) or t.dim() == 0 for t in tensors):
            self._check_mixed(name, args)
        if kwargs.get("device") is not None:  # made there, or here
            far = torch.device(kwargs["device"]).type == "cuda"
            kwargs["device"] = "cpu" if far else kwargs["device"]
        return _placed(func(*args, **kwargs), far)

    @staticmethod
    def _sends_at_once(name, args, kwargs, far):
        """Whether memory that is not pinned is read, for which a processor waits too."""
        if kwargs.get("non_blocking"):
            return False
        if name in ("__getitem__", "__setitem__"):
            index = args[1] if isinstance(args[1], tuple) else (args[1],)
            return far and any(
                isinstance(i, list) or (isinstance(i, torch.Tensor) and not isinstance(i, Far))
                for i in index
            )
        if name in ("tensor", "as_tensor", "new_tensor"):
            there = torch.device(kwargs.get("device") or "cpu").type == "cuda"
            return there or name == "new_tensor"
        if name == "copy_":
            return isinstance(args[0], Far) != isinstance(args[1], Far)
        return False

    def _moved(self, name, args, kwargs):
        tensor, *rest = args
        goal = {"cpu": "cpu", "cuda": "cuda"}.get(name)
        far = isinstance(tensor, Far) if goal is None else goal == "cuda"
        kept = []
        for one in rest if name == "to" else []:
            if isinstance(one, torch.Tensor):
                far = isinstance(one, Far)
                kept.append(one.dtype)
            elif isinstance(one, torch.device | str):
                far = torch.device(one).type == "cuda"
            else:
                kept.append(one)
        if name == "to" and kwargs.get("device") is not None:
            far = torch.device(kwargs.pop("device")).type == "cuda"
        kept = [one for one in kept if isinstance(one, torch.dtype)]
        if (far is not isinstance(tensor, Far)) and not kwargs.get("non_blocking"):
            self.waits += ["to"] * (name != "cpu")  # counted already
        plain = tensor.as_subclass(torch.Tensor)
        return _placed(plain.to(*kept, **kwargs) if kept or kwargs else plain, far)

    @staticmethod
    def _check_mixed(name, args):
        target = args[0] if args else None
        if name == "copy_":
            return
        indexed = name == "__setitem__" and isinstance(args[1], torch.Tensor | list | tuple)
        if indexed:
            indexed = any(isinstance(t, torch.Tensor | list) for t in _flat((args[1],), deep=False))
        if name == "__setitem__" and not indexed:
            return  # a slice is copied into, from wherever
        if name == "__getitem__" and isinstance(target, Far):
            return  # indices may lie on the CPU
        raise RuntimeError(f"expected all tensors on one device: {name}")


def _flat(values, deep=True):
    for value in values.values() if isinstance(values, dict) else values:
        if isinstance(value, list | tuple | dict) and deep:
            yield from _flat(value)
        elif isinstance(value, tuple):
            yield from _flat(value, deep)
        else:
            yield value


def _placed(result, far):
    if isinstance(result, torch.Tensor):
        return result.as_subclass(Far if far else torch.Tensor)
    if isinstance(result, tuple) and hasattr(result, "_fields"):
        return type(result)(_placed(one, far) for one in result)
    if isinstance(result, tuple) and type(result) is not torch.Size and type(result) is not tuple:
        return type(result)([_placed(one, far) for one in result])
    if type(result) in (tuple, list):
        return type(result)(_placed(one, far) for one in result)
    return result


_PRETENDED = Loaded()  # apart from what a real one holds


@pytest.fixture
def pretend(monkeypatch):
    monkeypatch.setitem(LOADED, "cuda", _PRETENDED)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    tape.install(monkeypatch)
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    with Pretend() as mode, warnings.catch_warnings():
        warnings.filterwarnings("error", message="running without a CUDA graph")
        yield mode
    torch.__future__.set_overwrite_module_params_on_conversion(False)


@pytest.fixture
def pretended(pretend):
    return "cuda"


no_cuda = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs an accelerator: torch sees no CUDA device"
)
REAL = pytest.param("cuda", marks=[pytest.mark.gpu, no_cuda])


@pytest.fixture(params=["pretended", REAL])
def device(request):
    if request.param == "pretended":
        return request.getfixturevalue("pretended")
    return request.param


INT8 = {"method": "quantized", "num_speculative_tokens": 4}
INT4 = {**INT8, "bits": 4}
EXIT = {"method": "early_exit", "exit_layer": 1, "num_speculative_tokens": 2}
COPIES = {
    "a copy": {"levels": [INT8]},
    "a copy in four bits": {"levels": [INT4]},
    "a copy above an exit": {"levels": [EXIT, {**INT8, "verify": "block"}]},
    "several drafts of a copy": {"levels": [{**INT8, "num_drafts": 3}], "verify": "traversal"},
    "several drafts of an exit": {
        "levels": [{**EXIT, "num_speculative_tokens": 3, "num_drafts": 3}],
        "verify": "block-rrs",
    },
    "two copies": {"levels": [INT4, {**INT8, "num_speculative_tokens": 6, "verify": "block"}]},
}
NAMES = [*stacks({"draft": "", "small": ""}), *COPIES]
FEW = ["three levels", "early exits", "one after another", "several drafts"]
BACKENDS = [("lean", name) for name in NAMES] + [("hf", name) for name in FEW]


def stack(family, name):
    return COPIES[name] if name in COPIES else stacks(family)[name]


def tokens_of(hierarchy, prompts=PROMPTS, **options):
    options = {"max_new_tokens": 8, "ignore_eos": True, **options}
    return [result.token_ids for result in hierarchy.generate_batch(prompts, **options)]


# --- greedy, token for token

WRITTEN: dict[tuple[str, str], list[tuple[int, ...]]] = {}  # by plain decoding


@pytest.mark.parametrize(("backend", "name"), BACKENDS)
def test_greedy_equals_plain_greedy_alone_and_in_a_ragged_batch(tiny_family, device, name, backend):
    if (device, backend) not in WRITTEN:
        plain = built(tiny_family, {"levels": []}, device, backend=backend)
        assert plain.root.model.device.type == device
        WRITTEN[device, backend] = [tokens_of(plain, [prompt])[0] for prompt in PROMPTS]
    expected = WRITTEN[device, backend]
    hierarchy = built(tiny_family, stack(tiny_family, name), device, backend=backend)
    assert tokens_of(hierarchy) == expected
    assert tokens_of(hierarchy, PROMPTS[1:2]) == expected[1:2]


@pytest.mark.parametrize("graphs", [True, False])
def test_text_that_is_read_behind_other_text(tiny_family, device, graphs, monkeypatch):
    """Tokens after the first ones see a mask, which is made where the model is."""
    monkeypatch.setattr(Trunk, "chunk", 8)
    prompt = [5 + (7 * i) % 80 for i in range(40)]
    own = {"model": tiny_family["target"], "dtype": "float32", "cuda_graphs": graphs}
    config = {"levels": [model(tiny_family["draft"], 4)]}
    found = tokens_of(hierarchy_of({"target": {**own, "device": device}, **config}), [prompt])
    here = hierarchy_of({"target": {**own, "device": "cpu"}, **config})
    assert found == tokens_of(here, [prompt])


# --- sampling


@pytest.mark.parametrize("name", [*FEW, "windows", *COPIES])
def test_a_seed_says_everything(tiny_family, device, name):
    hierarchy = built(tiny_family, stack(tiny_family, name), device)
    first = tokens_of(hierarchy, temperature=1.0, seed=4)
    assert tokens_of(hierarchy, temperature=1.0, seed=4) == first
    assert tokens_of(hierarchy, temperature=1.0, seed=5) != first
    assert all(len(ids) == 8 for ids in first)


FILTERS = SamplingParams(
    temperature=0.8,
    top_k=40,
    top_p=0.9,
    min_p=0.001,
    repetition_penalty=1.1,
    frequency_penalty=0.2,
    logit_bias=((3, 1.0),),
)


def test_laws_stay_where_their_scores_are(tiny_family, device):
    plain = built(tiny_family, {"levels": []}, device)
    target = plain.root.model
    context = Context(PROMPTS[1])
    scores = target.score([Query(target.open(), context, 4)])
    rows = len(PROMPTS[1]) - 4 + 1
    for params in (SamplingParams(temperature=1.0), FILTERS):
        job = ScoreRows(params, context, 4, rows, prompt_length=3, vocab_size=96)
        (law,) = distributions([job], scores)
        assert isinstance(law, DenseDistributions)
        assert (scores.device.type, law.probs.device.type) == (device, device)
        assert torch.allclose(law.probs.sum(-1).cpu(), torch.ones(rows), atol=1e-5)
        assert len(draw(law.probs, [0.5] * rows)) == rows


@pytest.mark.parametrize("top_p", [None, 0.9])
def test_a_large_vocabulary_is_searched_where_it_is(device, top_p):
    sampler = Sampler(40_000, 1.0, top_p=top_p)
    scores = 4.0 * torch.randn(6, 40_000, generator=torch.Generator().manual_seed(2))
    uniforms = [0.0, 0.1, 0.5, 0.9, 0.999, 1.0 - 2**-53]
    expected, _ = sampler.pick(scores.double(), uniforms)
    there = torch.tensor(uniforms, dtype=torch.float64, device=device)
    picked = sampler.pick_on_device(scores.double().to(device), there)
    assert picked.tokens.device.type == device
    assert picked.tokens.tolist() == expected
    assert all(picked.ok.tolist())


def test_every_filter_and_penalty_with_logprobs(tiny_family, device):
    hierarchy = built(tiny_family, stacks(tiny_family)["three levels"], device)
    result = hierarchy.generate(
        PROMPTS[1], sampling=FILTERS, max_new_tokens=20, ignore_eos=True, logprobs=True, seed=2
    )
    assert len(result.token_ids) == len(result.logprobs) == 20
    assert all(value <= 0.0 for value in result.logprobs)


@pytest.mark.gpu
@no_cuda
@pytest.mark.parametrize("name", ["three levels", "one after another", "several drafts"])
def test_samples_have_the_targets_law(tiny_family, name):
    """χ² over two tokens; a sound hierarchy fails one seed in ten thousand, the seed is fixed."""
    params = SamplingParams(temperature=1.0, top_k=4)
    plain = built(tiny_family, {"levels": []}, "cuda")
    law = joint_law(plain, PROMPTS[0], params, 2)
    hierarchy = built(tiny_family, stack(tiny_family, name), "cuda")
    result = chi_square(sample(hierarchy, PROMPTS[0], params, 2, 1024), law)
    assert result.degrees > 5
    assert 10**result.log10_p > 1e-4, result


# --- tables on the CPU beside models elsewhere

TABLE = {"method": "ngram_table", "num_speculative_tokens": 2}
MIXED = {
    "table below a draft": [TABLE, model("zoo:small", 4, verify="block")],
    "table, then a draft": [
        {"method": "concatenate", "parts": [[TABLE], [model("zoo:small", 2)]]},
    ],
    "a draft, then a table": [
        {"method": "concatenate", "parts": [[model("zoo:small", 2)], [TABLE]]},
    ],
    "both below a level": [
        {"method": "concatenate", "parts": [[TABLE], [model("zoo:small", 2)]]},
        {"method": "early_exit", "exit_layer": 2, "num_speculative_tokens": 5, "verify": "leading"},
    ],
}


@pytest.mark.parametrize("name", MIXED)
def test_tables_mix_with_models(device, name):
    target = {"model": "zoo:mid", "dtype": "float32", "device": device}
    config = {"target": target, "levels": MIXED[name]}
    hierarchy = hierarchy_of(config)
    plain = hierarchy_of({"target": target, "levels": []})
    prompt = ["def main(argv):\n", "import os\n"]
    assert tokens_of(hierarchy, prompt) == tokens_of(plain, prompt)
    first = tokens_of(hierarchy, prompt, temperature=1.0, seed=1)
    assert tokens_of(hierarchy, prompt, temperature=1.0, seed=1) == first


def test_rows_of_two_devices_are_kept_apart(pretended):
    near = DenseDistributions(torch.tensor([[0.25, 0.75]]))
    far = DenseDistributions(torch.tensor([[0.5, 0.5]], device=CUDA))
    both = concatenate([near, far])
    assert isinstance(both, MixedDistributions)
    assert isinstance(concatenate([far, far]), DenseDistributions)
    assert [both.prob(0, 1), both.prob(1, 1)] == [0.75, 0.5]
    draft = Proposal((1, 0), both, (0, 0), (0, 0), (0.0, 0.0))
    p = DenseDistributions(torch.tensor([[0.25, 0.75], [0.5, 0.5], [1.0, 0.0]], device=CUDA))
    assert verify(get("block"), draft, p, PhiloxRng(0)).num_accepted == 2  # p = q: all are kept


def test_one_hot_laws_with_scores_elsewhere(pretended):
    scores = torch.tensor([[0.0, 1.0, 2.0], [2.0, 1.0, 0.0]], device=CUDA)
    q = DenseDistributions(torch.tensor([[0.2, 0.7, 0.1]], device=CUDA))
    draft = Proposal((1,), q, (0,), (0,), (0.0,))
    verdict = verify(
        get("leading", top_m=2), draft, OneHotDistributions((2, 0)), PhiloxRng(0), scores
    )
    assert verdict.emitted.tokens == (1, 0)


def test_the_pretended_device_refuses_what_a_real_one_refuses(pretended):
    far, near = torch.ones(2, 3, device=CUDA), torch.ones(2, 3)
    assert (far.device.type, near.device.type, (far + 1).device.type) == ("cuda", "cpu", "cuda")
    for mixed in (
        lambda: far + near,
        lambda: torch.cat([near, far]),
        lambda: far.gather(1, torch.zeros(2, 1, dtype=torch.long)),
        lambda: near[torch.zeros(1, dtype=torch.long, device=CUDA)],
    ):
        with pytest.raises(RuntimeError, match="one device"):
            mixed()
    with pytest.raises(TypeError, match="numpy"):
        far.numpy()
    assert (far + near.to(far)).tolist() == [[2.0] * 3] * 2
    assert far.cpu().numpy().sum() == 6


# --- what the processor waits for


def waits_of(hierarchy, pretend, monkeypatch, **options):
    """Return how often the processor waited for an answer, by kind of request."""
    waits: dict[str, set[int]] = defaultdict(set)
    answer = Responder.answer

    def counted(self, tasks):
        before = len(pretend.waits)
        out = answer(self, tasks)
        waits[type(tasks[0].request).__name__].add(len(pretend.waits) - before)
        return out

    monkeypatch.setattr(Responder, "answer", counted)
    tokens_of(hierarchy, seed=3, **options)
    return waits


# Variants of the rules that have options; every other rule is tried as it is.
OPTIONS = {"leading": [{}, {"top_m": 3}], "lenient": [{}, {"lenience": 2.0}]}
RULES = [
    pytest.param(name, options, id=" ".join([name, *map(str, options.values())]))
    for name in names()
    for options in OPTIONS.get(name, [{}])
]
BELOW = [
    rule for rule in RULES if rule.values[0] != "naive" and not get(rule.values[0]).multi_draft
]
SAMPLING = {"greedy": {}, "sampled": {"temperature": 1.0, "top_p": 0.9, "top_k": 50}}
SCORES_READ = {
    "entropy": {"window": {"kind": "entropy"}},
    "confidence": {"window": {"kind": "confidence", "floor": 0.3}},
}


@pytest.mark.filterwarnings("ignore::hierspec.config.nodes.StrictLenienceWarning")
@pytest.mark.parametrize("sampling", SAMPLING)
@pytest.mark.parametrize(("rule", "options"), RULES)
def test_a_check_by_any_rule_is_one_wait(
    tiny_family, pretend, monkeypatch, rule, options, sampling
):
    """And so is a draft, also of several drafts at once."""
    several = get(rule).multi_draft
    draft = model(tiny_family["draft"], 3, **({"num_drafts": 3} if several else {}))
    config = {"levels": [draft], "verify": rule, "allow_lossy": True, **options}
    hierarchy = built(tiny_family, config, "cuda")
    waits = waits_of(hierarchy, pretend, monkeypatch, **SAMPLING[sampling])
    assert (waits["Propose"], waits["Check"]) == ({1}, {1})


@pytest.mark.parametrize(("window", "sampling"), [("entropy", "sampled"), ("confidence", "greedy")])
@pytest.mark.parametrize(("rule", "options"), BELOW)
def test_a_check_below_is_one_wait_whatever_its_window_reads(
    tiny_family, pretend, monkeypatch, rule, options, window, sampling
):
    middle = model(tiny_family["draft"], 5, verify=rule, **options, **SCORES_READ[window])
    config = {"levels": [model(tiny_family["small"], 2), middle], "allow_lossy": True}
    hierarchy = built(tiny_family, config, "cuda")
    waits = waits_of(hierarchy, pretend, monkeypatch, logprobs=2, **SAMPLING[sampling])
    assert waits == {"Propose": {1}, "Check": {1}}


STACKS = ["early exits", *["leading, of a greedy level"] * LAB, *COPIES]


@pytest.mark.parametrize("sampling", SAMPLING)
@pytest.mark.parametrize("name", STACKS)
def test_a_draft_and_a_check_are_one_wait_each(tiny_family, pretend, monkeypatch, name, sampling):
    hierarchy = built(tiny_family, stack(tiny_family, name), "cuda")
    waits = waits_of(hierarchy, pretend, monkeypatch, **SAMPLING[sampling])
    assert waits == {"Propose": {1}, "Check": {1}}
    assert hierarchy.root.model.graphs.num_recorded > 0


@needs_lab
@pytest.mark.parametrize("sampling", SAMPLING)
def test_an_adaptive_exit_waits_for_each_exit_that_another_may_follow(
    tiny_family, pretend, monkeypatch, sampling
):
    """Two a token of the draft at most: is the first of two exits sure, and which token is it."""
    hierarchy = built(tiny_family, stack(tiny_family, "adaptive exit"), "cuda")
    waits = waits_of(hierarchy, pretend, monkeypatch, **SAMPLING[sampling])
    assert waits["Check"] == {1}
    assert max(waits["Propose"]) == 2 * 4


@pytest.mark.parametrize(
    "fields",
    [
        {"min_new_tokens": 6, "eos_token_id": list(range(40, 96))},
        {"suppress_tokens": list(range(3, 60)), "begin_suppress_tokens": [70, 71]},
        {"forced_eos_token_id": 5, "exponential_decay_length_penalty": (2, 1.5)},
        {"bad_words_ids": [[9, 7], [30]], "encoder_repetition_penalty": 1.5},
        {"repetition_penalty": 1.3, "encoder_no_repeat_ngram_size": 1},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_a_generation_config_means_the_same_there(tiny_family, device, fields):
    config = GenerationConfig(**{"max_new_tokens": 8, "eos_token_id": 2, **fields})
    texts = [
        built(tiny_family, stacks(tiny_family)["two levels"], where)
        .generate([5, 9, 7], generation_config=config)
        .token_ids
        for where in ("cpu", device)
    ]
    assert texts[0] == texts[1]


def test_graphs_can_be_switched_off(tiny_family, pretended):
    config = stacks(tiny_family)["two levels"]
    target = {"model": tiny_family["target"], "dtype": "float32", "cuda_graphs": False}
    plain = Hierarchy.from_config({**config, "target": {**target, "device": "cuda"}})
    assert plain.root.model.graphs is None
    assert plain.root.below.model.graphs is None
    assert tokens_of(plain) == tokens_of(built(tiny_family, config, "cuda"))


@pytest.mark.parametrize("enabled", [True, False])
@pytest.mark.parametrize("backend", ["lean", "hf"])
def test_attention_is_not_cudnns_and_the_process_keeps_its_choice(
    tiny_family, pretended, monkeypatch, backend, enabled
):
    attention, seen = torch.nn.functional.scaled_dot_product_attention, set[bool]()

    def watched(*args, **kwargs):
        seen.add(torch.backends.cuda.cudnn_sdp_enabled())
        return attention(*args, **kwargs)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", watched)
    before = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(enabled)
    try:
        hierarchy = built(tiny_family, {"levels": []}, "cuda", backend=backend)
        seen.clear()  # of loading, where transformers' own forward may be tried
        hierarchy.generate([5, 9], max_new_tokens=5, ignore_eos=True)
        assert torch.backends.cuda.cudnn_sdp_enabled() is enabled
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)
    assert seen == {False}


def test_a_price_waits_once_for_each_call(tiny_family, pretend, monkeypatch):
    """Whatever the length of a draft: its steps are not waited for one by one."""
    waited, clock, answer = [], costs._Clock(), Responder.answer
    monkeypatch.setattr(torch.cuda, "synchronize", waited.append)

    def timed(self, tasks):
        before = len(waited) + len(pretend.waits)
        out = answer(self, tasks)
        clock.on_answer(tasks, out, time.perf_counter(), 0.0)
        assert len(waited) + len(pretend.waits) - before == 2  # for the answer, and its end
        return out

    monkeypatch.setattr(Responder, "answer", timed)
    hierarchy = built(tiny_family, {"levels": [model(tiny_family["draft"], 6)]}, "cuda")
    tokens_of(hierarchy, PROMPTS[:1], max_new_tokens=16)
    assert len(waited) == len(clock.calls) > 4
    assert 6 in {tokens for check, tokens, _ in clock.calls if not check}


@pytest.mark.parametrize("name", ["cuda", "cuda:1"])
def test_any_gpu_of_a_machine_is_one(pretended, monkeypatch, name):
    device, asked = torch.device(name), []
    monkeypatch.setattr(torch.cuda, "synchronize", asked.append)
    costs._synchronise(SimpleNamespace(device=device))
    assert asked == [device]
    monkeypatch.setattr("hierspec.lm.lean.fused._triton_is_installed", lambda: True)
    assert fused.has_triton(device)
    graphs, out = Graphs(device), torch.zeros(1)
    for _ in range(RUNS_BEFORE_REPLAY):
        graphs.get("a shape", lambda: (None, lambda: out.add_(1.0))).run()
    assert graphs.num_recorded == 1


def test_the_roofline_waits_once_for_several_reads(pretend, monkeypatch):
    roofline = pytest.importorskip("hierspec_lab.bench.roofline")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1 << 20, 1 << 20))
    monkeypatch.setattr(roofline, "_MIN_SECONDS", 0.0)
    assert len(roofline._bandwidth_samples(CUDA)) == 4  # the first is not counted
    assert pretend.waits == ["item"] * 5


# --- half precision


@pytest.mark.parametrize("name", FEW)
def test_bfloat16_runs(tiny_family, device, name):
    """Greedy text may part from plain greedy text at a tie that rounding makes or breaks."""
    hierarchy = built(tiny_family, stack(tiny_family, name), device, dtype="bfloat16")
    for temperature in (0.0, 1.0):
        found = tokens_of(hierarchy, temperature=temperature)
        assert all(len(ids) == 8 and max(ids) < 96 for ids in found)


@pytest.mark.gpu
@no_cuda
def test_a_billion_parameters_load_and_write():
    config = {
        "target": {
            "model": "zoo:large?eps=0.2&widen=4&deepen=4",
            "dtype": "bfloat16",
            "device": "cuda",
        },
        "levels": [
            model("zoo:small", 3),
            {
                "method": "early_exit",
                "exit_layer": 16,
                "num_speculative_tokens": 8,
                "verify": "block",
            },
        ],
        "verify": "block",
    }
    result = Hierarchy.from_config(config).generate("import os\n", max_new_tokens=32)
    assert result.num_tokens > 0
    assert result.mean_acceptance_length > 1.5  # drafts of its own family are kept
