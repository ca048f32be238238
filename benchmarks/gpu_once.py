"""One run on a GPU that decides: does every path work, and how far from the memory's speed is it?

Stages run one after the other, each in a process of its own with a time limit, so that one that
crashes or hangs takes no other along. Each writes ``gpu-STAGE.json`` after every measurement; the
last, ``summary``, reads these and says what they decide. Under 590 s in all.

    python benchmarks/gpu_once.py -o build/gpu
    python benchmarks/gpu_once.py -o build/gpu --only env micro
    python benchmarks/gpu_once.py -o build/gpu --device cpu --size tiny      # a dry run

=======  ====================================================================================
env      versions, attention back-ends, and how fast 4 GB are read: the floor
tests    the tests marked ``gpu``
micro    calls of 1 to 32 rows and drafts of eight on Llama's shapes of 1 and 8 B with random
         weights, beside transformers with a static cache
family   ``zoo:large`` of 4 B, plain, planned, one draft, three levels, early exits, and
         transformers' ways, on eight prompts
=======  ====================================================================================
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import re
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
KIND, SCHEMA_VERSION = "hierspec-gpu", 1
SECONDS = {"env": 30, "tests": 150, "micro": 100, "family": 240, "summary": 20}  # limits
TOTAL_SECONDS = 570
CONTEXTS, ROWS, DRAFT = (300, 2000), (1, 4, 8, 16, 32), 8
TINY = "tiny"
EPS = 0.2


@dataclass
class Stage:
    """A stage at work: its options, its deadline, and its file, written after every measurement."""

    name: str
    options: argparse.Namespace
    deadline: float
    runs: list[dict[str, Any]] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)
    finished: bool = False

    @property
    def cuda(self) -> bool:
        return self.options.device.startswith("cuda")

    @property
    def tiny(self) -> bool:
        return self.options.size == TINY

    def left(self) -> float:
        """Return the seconds until this stage must have ended."""
        return self.deadline - time.monotonic()

    def add(self, **run: Any) -> None:
        self.runs.append(run)
        self.write()
        print(json.dumps(run), flush=True)

    def attempt(self, what: str, measure: Callable[[], dict[str, Any]]) -> dict[str, Any] | None:
        """Add what ``measure`` returns, or its error, with which the stage goes on."""
        try:
            found = measure()
        except Exception as error:
            self.add(
                what=what, error=f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"
            )
            return None
        self.add(what=what, **found)
        return found

    def write(self) -> None:
        from hierspec.utils.machine import environment

        if not hasattr(self, "_environment"):
            self._environment = environment()
            self._environment["commit"] = self.options.commit or self._environment["commit"]
        write(
            self.options.output / f"gpu-{self.name}.json",
            {
                "schema_version": SCHEMA_VERSION,
                "kind": KIND,
                "stage": self.name,
                "finished": self.finished,
                "environment": self._environment,
                "settings": {"device": self.options.device, "size": self.options.size}
                | self.settings,
                "runs": self.runs,
            },
        )


def write(path: Path, data: dict[str, Any]) -> None:
    """Write a document whole or not at all."""
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(data, indent=1) + "\n")
    os.replace(temporary, path)


def milliseconds(stage: Stage, work: Callable[[], object], repeats: int, warm_up: int) -> float:
    """Return the median wall time of some work in ms, the device waited for."""
    import torch

    wait = torch.cuda.synchronize if stage.cuda else lambda: None
    times = []
    for turn in range(warm_up + repeats):
        wait()
        began = time.perf_counter()
        work()
        wait()
        if turn >= warm_up:
            times.append(1e3 * (time.perf_counter() - began))
    return statistics.median(times)


# --- env


def env(stage: Stage) -> None:
    import torch
    import transformers

    versions: dict[str, Any] = {
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
    for name in ("triton", "pydantic", "torchao"):
        with contextlib.suppress(ImportError):
            versions[name] = __import__(name).__version__
    stage.add(what="versions", **versions)
    if stage.cuda:
        cuda = torch.backends.cuda
        stage.attempt(
            "device",
            lambda: {
                "name": torch.cuda.get_device_name(),
                "free_bytes": torch.cuda.mem_get_info()[0],
                "cuda": torch.version.cuda,
                "cudnn": torch.backends.cudnn.version(),
                "attention": {
                    "flash": cuda.flash_sdp_enabled(),
                    "efficient": cuda.mem_efficient_sdp_enabled(),
                    "cudnn": cuda.cudnn_sdp_enabled(),
                    "math": cuda.math_sdp_enabled(),
                },
            },
        )
    size = 1 << (18 if stage.tiny else 31)  # 4 GB: far above any cache

    def read() -> dict[str, Any]:
        numbers = torch.ones(size, dtype=torch.bfloat16, device=stage.options.device)
        ms = milliseconds(stage, numbers.sum, 10, 3)
        return {"bytes": numbers.nbytes, "ms": ms, "bytes_per_second": 1e3 * numbers.nbytes / ms}

    stage.attempt("reading", read)


# --- tests


def tests(stage: Stage) -> None:
    """Run the tests marked ``gpu``, of the files that have any."""
    marked = sorted(
        path
        for path in (ROOT / "tests").rglob("test_*.py")
        if "mark.gpu" in path.read_text(encoding="utf-8")
    )
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider"]
    command += [*map(str, marked), "-rfEs", "--tb=short", "--durations=10"]
    began = time.monotonic()
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    lines = []
    assert process.stdout is not None
    for line in process.stdout:
        print(line, end="", flush=True)
        lines.append(line)
    output = "".join(lines)
    counts = dict.fromkeys(("passed", "failed", "skipped", "errors"), 0)
    for number, word in re.findall(
        r"(\d+) (passed|failed|skipped|error)s?\b", lines[-1] if lines else ""
    ):
        counts[f"{word}s" if word == "error" else word] += int(number)
    stage.add(
        what="pytest",
        status=process.wait(),
        seconds=time.monotonic() - began,
        without_graphs=output.count("running without a CUDA graph"),
        failures=[line.strip()[:300] for line in lines if re.match(r"(FAILED|ERROR) ", line)],
        **counts,
    )


# --- micro


class RandomWeights:
    """A weight source of a Llama's shape whose tensors are random numbers made on the device."""

    tokenizer_path = None

    def __init__(self, name: str, config: Any, device: str) -> None:
        self.name, self.config, self.device = name, config, device
        width, inner, vocab = config.hidden_size, config.intermediate_size, config.vocab_size
        heads = config.num_attention_heads * config.head_dim
        keys = config.num_key_value_heads * config.head_dim
        layer = {
            "input_layernorm": (width,),
            "post_attention_layernorm": (width,),
            "self_attn.q_proj": (heads, width),
            "self_attn.k_proj": (keys, width),
            "self_attn.v_proj": (keys, width),
            "self_attn.o_proj": (width, heads),
            "mlp.gate_proj": (inner, width),
            "mlp.up_proj": (inner, width),
            "mlp.down_proj": (width, inner),
        }
        self.shapes = {"model.embed_tokens.weight": (vocab, width), "model.norm.weight": (width,)}
        if not config.tie_word_embeddings:
            self.shapes["lm_head.weight"] = (vocab, width)
        for i in range(config.num_hidden_layers):
            self.shapes |= {
                f"model.layers.{i}.{part}.weight": shape for part, shape in layer.items()
            }

    def names(self) -> list[str]:
        return sorted(self.shapes)

    def tensor(self, name: str) -> Any:
        import torch

        shape = self.shapes[name]
        if len(shape) == 1:
            return torch.ones(shape, device=self.device, dtype=torch.bfloat16)
        return torch.randn(shape, device=self.device, dtype=torch.bfloat16).mul_(0.02)

    @property
    def read_bytes(self) -> int:
        """Bytes of weights that a token reads: all but the embedding, unless it is the head."""
        tied = "lm_head.weight" not in self.shapes
        return 2 * sum(
            math.prod(shape)
            for name, shape in self.shapes.items()
            if tied or name != "model.embed_tokens.weight"
        )


def llamas(tiny: bool) -> dict[str, Any]:
    from transformers import LlamaConfig

    if tiny:
        sizes = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
        return {
            TINY: LlamaConfig(
                vocab_size=512, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
                max_position_embeddings=4096, tie_word_embeddings=False, **sizes,
            )
        }  # fmt: skip
    shared = {
        "vocab_size": 128256, "max_position_embeddings": 8192, "rope_theta": 5e5,
        "num_attention_heads": 32, "num_key_value_heads": 8,
    }  # fmt: skip
    return {
        "8B": LlamaConfig(
            hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, head_dim=128,
            tie_word_embeddings=False, **shared,
        ),
        "1B": LlamaConfig(
            hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, head_dim=64,
            tie_word_embeddings=True, **shared,
        ),
    }  # fmt: skip


def micro(stage: Stage) -> None:
    shapes = llamas(stage.tiny)
    sources = {
        name: RandomWeights(name, config, stage.options.device) for name, config in shapes.items()
    }
    for name, source in sources.items():
        with contextlib.suppress(Exception):  # its error is in the file
            calls_of_ours(stage, name, source)
        free(stage)
    for compiled in (False, True) if stage.cuda else (False,):
        for name, source in sources.items():
            if compiled and stage.left() < 35:
                stage.add(what="transformers", model=name, error="no time left to compile it")
                continue
            stage.attempt(
                "transformers", lambda s=source, c=compiled: step_of_transformers(stage, s, c)
            )
            free(stage)


def free(stage: Stage) -> None:
    import gc

    import torch

    gc.collect()
    if stage.cuda:
        torch.cuda.empty_cache()


def calls_of_ours(stage: Stage, name: str, source: RandomWeights) -> None:
    """Time calls of rows and drafts, at each length of text."""
    import torch

    from hierspec.lm.lean.decoder import LeanBackend
    from hierspec.sampling.sampler import Sampler

    backend = LeanBackend(source, torch.bfloat16, stage.options.device)
    vocab, repeats = source.config.vocab_size, 3 if stage.tiny else 15
    samplers = {
        "greedy": Sampler(vocab, 0.0),
        "temperature 1": Sampler(vocab, 1.0),
        "temperature 1, top-p 0.9": Sampler(vocab, 1.0, top_p=0.9),
    }

    def time_it(work: Callable[[], object]) -> float:
        return milliseconds(stage, work, repeats, 5)

    for length in CONTEXTS[:1] if stage.tiny else CONTEXTS:
        where = {"model": name, "context": length, "read_bytes": source.read_bytes}
        text = Text(backend, length)
        stage.add(what="prefill", **where, ms=milliseconds(stage, text.read_prompt, 1, 0))
        works: list[tuple[str, dict[str, Any], Callable[[], object], int]] = [
            ("rows", {"rows": n}, partial(text.check, n), 1) for n in ROWS
        ]
        works += [
            ("draft", {"sampler": label}, partial(text.draft, sampler), DRAFT)
            for label, sampler in samplers.items()
        ]
        for what, how, work, tokens in works:
            stage.attempt(what, partial(_timed, where | how, time_it, work, tokens))
        stage.add(what="shapes recorded", **where, number=text.trunk.graphs.num_recorded)


def _timed(
    record: dict[str, Any], time_it: Callable[..., float], work: Callable[[], object], tokens: int
) -> dict[str, Any]:
    ms = time_it(work)
    return record | ({"ms": ms} if tokens == 1 else {"ms": ms, "ms_per_token": ms / tokens})


class Text:
    """A text in a recording trunk that is continued differently each time."""

    def __init__(self, backend: Any, length: int) -> None:
        from hierspec.lm.base import Slot
        from hierspec.lm.trunk.cuda_graphs import CudaGraphTrunk

        self.trunk, self.slot, self._fresh = CudaGraphTrunk(backend), Slot(), count()
        self.tokens = [5 + (7 * i) % 400 for i in range(length)]

    def _query(self, context: Any, start: int) -> Any:
        from hierspec.lm.base import Query

        return Query(self.slot, context, start)

    def _new(self, n: int) -> tuple[int, ...]:
        return tuple(5 + next(self._fresh) % 400 for _ in range(n))

    def read_prompt(self) -> None:
        from hierspec.core.context import Context

        self.trunk.score([self._query(Context(self.tokens, ()), len(self.tokens))], 0)

    def check(self, rows: int) -> None:
        """Read so many tokens at once, and score the one after each."""
        from hierspec.core.context import Context

        context = Context([*self.tokens, *self._new(1)], self._new(rows - 1))
        self.trunk.score([self._query(context, len(self.tokens) + 1)], 0)

    def draft(self, sampler: Any) -> None:
        from hierspec.core.context import Context

        context = Context(self.tokens, self._new(1))
        query = self._query(context, len(context))
        self.trunk.draft([query], [DRAFT], DRAFT, sampler, [[0.5] * DRAFT], 0)


def step_of_transformers(stage: Stage, source: RandomWeights, compiled: bool) -> dict[str, Any]:
    """Time a step with a static cache after the first context."""
    import torch

    model = build_on_device(source, stage.options.device)
    decoder = StaticDecoder(model, CONTEXTS[0] + 64, compiled)
    vocab = source.config.vocab_size
    decoder.read([5 + (7 * i) % min(400, vocab) for i in range(CONTEXTS[0])])
    token = torch.full((1, 1), 7, device=stage.options.device)
    ms = milliseconds(stage, lambda: decoder.step(token, CONTEXTS[0]), 3 if stage.tiny else 15, 5)
    return {
        "model": source.name, "context": CONTEXTS[0], "compiled": compiled, "ms": ms,
        "read_bytes": source.read_bytes,
    }  # fmt: skip


def build_on_device(source: Any, device: str) -> Any:
    import torch

    from hierspec.lm.weights import build_hf_model

    return build_hf_model(source, torch.bfloat16, device)


class StaticDecoder:
    """transformers' model with a cache of fixed size, its step compiled with CUDA graphs or not."""

    def __init__(self, model: Any, length: int, compiled: bool) -> None:
        import torch
        from transformers import StaticCache

        self.model, self.compiled = model, compiled
        self.cache = StaticCache(config=model.config, max_cache_len=length)
        forward = model.forward
        if compiled:
            forward = torch.compile(forward, mode="reduce-overhead", fullgraph=False)
        self._forward = forward

    def read(self, ids: Sequence[int]) -> Any:
        """Read a prompt, eagerly, and return the scores after it, [1, V]."""
        import torch

        self.cache.reset()
        tokens = torch.tensor([list(ids)], device=self.model.device)
        places = torch.arange(tokens.shape[1], device=self.model.device)
        with torch.no_grad():
            out = self.model(
                tokens, past_key_values=self.cache, position_ids=places[None], logits_to_keep=1
            )
        return out.logits[:, -1]

    def step(self, token: Any, place: int) -> Any:
        """Read one token [1, 1] at a place, and return the scores after it, [1, V]."""
        import torch

        places = torch.full((1, 1), place, device=self.model.device)
        if self.compiled:
            torch.compiler.cudagraph_mark_step_begin()
        with torch.no_grad():
            return self._forward(token, past_key_values=self.cache, position_ids=places).logits[
                :, -1
            ]


# --- family


def family(stage: Stage) -> None:
    from gpu import target

    from hierspec.bench.methods.ours import BenchModels
    from hierspec.config.schema import TargetConfig

    tiny = stage.tiny
    name = target(stage.options.size, EPS)
    drafts = ("zoo:small", "zoo:mid") if tiny else ("zoo:small", "zoo:mid", "zoo:trunk")
    config = TargetConfig(model=name, dtype="bfloat16", device=stage.options.device)
    models = BenchModels(config, drafts)
    prompts, tuning, tokens = prompts_of(models, tiny)
    stage.settings |= {
        "target": name, "drafts": drafts, "tokens": tokens, "num_prompts": len(prompts), "eps": EPS,
    }  # fmt: skip
    began = time.monotonic()
    models.load_drafts()
    stage.add(what="loaded", layers=models.num_layers, seconds=time.monotonic() - began)
    peers_share = 0.0 if tiny else 60.0  # seconds for what is compiled, last
    until = stage.deadline - peers_share
    for number, temperature in enumerate((0.0, 1.0)):
        share = (until - time.monotonic()) / (2 - number)
        compare(stage, models, prompts, tuning, tokens, temperature, time.monotonic() + share)
    free(stage)
    static(stage, models, prompts, tokens)


def prompts_of(models: Any, tiny: bool) -> tuple[list[list[int]], list[list[int]], int]:
    """Return prompts to measure on, others to tune on, and how many tokens to write."""
    from hierspec.bench.prompt_ids import encode
    from hierspec.profiling.texts import CODE

    tokens = 6 if tiny else 96
    ids = encode(models, CODE[: 3 if tiny else 11], tokens)
    return (ids[:2], ids[2:], tokens) if tiny else (ids[:8], ids[8:], tokens)


def choices(models: Any, tiny: bool) -> dict[str, list[Any]]:
    """List the hierarchies of each kind to choose from by a short trial."""
    from hierspec.bench.methods.ours import HierarchyMethod

    depth = models.num_layers
    level = models.level

    def method(name: str, *levels: dict[str, Any]) -> Any:
        return HierarchyMethod(name, models, list(levels), verify="block")

    largest, below = models.drafts[-1], models.drafts[:-1]
    exits = [depth // 8, depth // 4, depth // 2]
    return {
        "one draft": [
            method("one draft", level(draft, n))
            for draft, budgets in ((largest, (4, 8, 14)), (below[-1], (3, 6)))
            for n in (budgets[:1] if tiny else budgets)
        ],
        "three levels": [
            method("three levels", level(low, n), level(largest, m, verify="block"))
            for low, n, m in (
                [(below[-1], 2, 4)]
                if tiny
                else [
                    ("zoo:small", 3, 8),
                    ("zoo:small", 3, 14),
                    ("zoo:mid", 4, 10),
                    ("ngram", 2, 8),
                ]
            )
        ],
        "early exits": [
            method("early exits", level(f"exit:{layer}", n))
            for layer, n in (
                [(exits[1], 2)] if tiny else [(exits[0], 2), (exits[1], 3), (exits[2], 4)]
            )
        ]
        + [
            method(
                "early exits",
                level(f"exit:{exits[0] or 1}", 2),
                level(f"exit:{exits[2]}", 4, verify="block"),
            )
        ],
    }


def compare(
    stage: Stage,
    models: Any,
    prompts: list[list[int]],
    tuning: list[list[int]],
    tokens: int,
    temperature: float,
    until: float,
) -> None:
    """Tune, then run every method on one prompt after the other while there is time."""
    from hierspec.bench.methods import planned
    from hierspec.bench.methods.base import RunRequest
    from hierspec.bench.methods.ours import HierarchyMethod
    from hierspec.bench.turns import run_group, turn_order
    from hierspec.profiling.settings import ProfileSettings

    quick = ProfileSettings(
        max_speculative_tokens=4 if stage.tiny else 15,
        tokens=8 if stage.tiny else 64,
        places=1 if stage.tiny else 6,
        places_per_class=1 if stage.tiny else 16,
        prompts=1 if stage.tiny else 4,
        rounds=1, repeats=1 if stage.tiny else 3, cost_seconds=10, ignore_eos=True,
    )  # fmt: skip
    models.planning = models.planning or planned.Planning(models, tuning, quick)
    methods: dict[str, Any] = {"plain": HierarchyMethod("plain", models)}
    trial = RunRequest(max(2, tokens // 2), temperature, seed=900)
    tune_until = time.monotonic() + 0.3 * (until - time.monotonic())
    for kind, some in choices(models, stage.tiny).items():
        timed: list[tuple[float, Any]] = []
        for one in some:
            if timed and time.monotonic() > tune_until:
                break
            with recorded(stage, f"tuning {kind}", temperature):
                run_group(one, [tuning[0]], trial)  # shapes are recorded
                runs = [run_group(one, [prompt], trial)[0] for prompt in tuning[:2]]
                timed.append((statistics.mean(run.ms_per_token for run in runs), one))
        if timed:
            ms, methods[kind] = min(timed, key=lambda pair: pair[0])
            stage.add(
                what="tuned", kind=kind, temperature=temperature, ms_per_token=ms,
                configuration=methods[kind].configuration, tried=len(timed),
            )  # fmt: skip
    with recorded(stage, "planning", temperature):
        began = time.monotonic()
        (methods["planned"],) = planned.planned(models, temperature)
        stage.add(
            what="planned", temperature=temperature, seconds=time.monotonic() - began,
            configuration=methods["planned"].configuration,
        )  # fmt: skip
    with recorded(stage, "transformers", temperature):
        methods |= of_transformers(models)
    warm = RunRequest(tokens, temperature, seed=901)
    for name in list(methods):
        with recorded(stage, f"warming up {name}", temperature) as worked:
            run_group(methods[name], [tuning[-1]], warm)
        if not worked:
            del methods[name]
    for number, prompt in enumerate(prompts):
        if time.monotonic() > until and number:
            break
        names = list(methods)
        found = {}
        for index in turn_order(len(names), number, 0):
            request = RunRequest(tokens, temperature, seed=number)
            with recorded(stage, names[index], temperature):
                found[names[index]] = run_group(methods[names[index]], [prompt], request)[0]
        for name, run in found.items():
            add_run(stage, name, temperature, number, run, found.get("plain"))


def add_run(stage: Stage, name: str, temperature: float, prompt: int, run: Any, plain: Any) -> None:
    same = None if temperature or plain is None else run.token_ids == plain.token_ids
    stage.add(
        what="run", method=name, temperature=temperature, prompt=prompt,
        num_tokens=run.num_tokens, seconds=run.seconds, ms_per_token=run.ms_per_token,
        decode_ms_per_token=run.decode_ms_per_token, target_calls=run.target_calls,
        mean_acceptance_length=run.mean_acceptance_length, same_as_plain=same,
    )  # fmt: skip


@contextlib.contextmanager
def recorded(stage: Stage, what: str, temperature: float) -> Iterator[list[bool]]:
    """Put an error into the file, and go on; what is yielded is empty then."""
    worked: list[bool] = []
    try:
        yield worked
        worked.append(True)
    except Exception as error:
        text = f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"
        stage.add(what=what, temperature=temperature, error=text)


def of_transformers(models: Any) -> dict[str, Any]:
    """Return transformers' plain and assisted generation, the draft our largest."""
    from hierspec.bench.peers import hf

    (plain,) = hf.plain(models, 0.0)
    length = 5
    assisted = min(
        (
            method
            for method, (draft, n) in zip(
                hf.assisted(models, 0.0), hf.drafts_and_lengths(models), strict=True
            )
            if draft == models.draft_models[-1]
        ),
        key=lambda method: abs(
            method.configuration["assistant_generation_config"]["num_assistant_tokens"] - length
        ),
    )
    return {"transformers": plain, "transformers, assisted": assisted}


def static(stage: Stage, models: Any, prompts: list[list[int]], tokens: int) -> None:
    """Run transformers with a static cache, compiled where there is a GPU, on the same prompts."""
    import torch

    from hierspec.bench.methods.base import Run
    from hierspec.bench.peers.checkpoints import exported

    device = stage.options.device
    name = "transformers, static, compiled" if stage.cuda else "transformers, static"
    wait = torch.cuda.synchronize if stage.cuda else lambda: None
    with recorded(stage, name, 0.0):  # of either temperature
        model = exported(models).hf(models.target.model)
        decoder = StaticDecoder(model, 64 * -(-(max(map(len, prompts)) + tokens) // 64), stage.cuda)

        def run(prompt: list[int], temperature: float, seed: int) -> Run:
            generator = torch.Generator(device).manual_seed(seed)

            def pick(scores: Any) -> Any:
                if not temperature:
                    return scores.argmax(-1, keepdim=True)
                return torch.multinomial(scores.float().softmax(-1), 1, generator=generator)

            wait()
            began = time.perf_counter()
            written = [pick(decoder.read(prompt))]
            wait()
            first = time.perf_counter()
            for place in range(len(prompt), len(prompt) + tokens - 1):
                written.append(pick(decoder.step(written[-1], place).clone()))
            ids = tuple(torch.cat(written, 1)[0].tolist())
            end = time.perf_counter()
            return Run(ids, end - began, end - first, tokens - 1)

        began = time.monotonic()
        run(prompts[-1], 0.0, 0)
        stage.add(what="compiled" if stage.cuda else "static", seconds=time.monotonic() - began)
        run(prompts[-1], 1.0, 0)
        for number, prompt in enumerate(prompts):
            for temperature in (0.0, 1.0):
                if stage.left() > 3:
                    add_run(
                        stage, name, temperature, number, run(prompt, temperature, number), None
                    )


# --- summary


def summary(stage: Stage) -> None:
    """Read the stages' files and print a verdict for each question, ``None`` where open."""
    found = {
        name: read_runs(stage.options.output, name) for name in ("env", "tests", "micro", "family")
    }
    for question, value, limit, at_least in verdicts(found):
        holds = None if value is None else value >= limit if at_least else value <= limit
        stage.add(what=question, value=value, limit=limit, holds=holds)
    print(f"\n{'':<62}{'found':>9}{'wanted':>10}")
    for run in stage.runs:
        value = "-" if run["value"] is None else f"{run['value']:.3g}"
        answer = {None: "open", True: "holds", False: "FAILS"}[run["holds"]]
        print(f"{run['what']:<62}{value:>9}{run['limit']:>10.3g}  {answer}")


def read_runs(folder: Path, stage: str) -> list[dict[str, Any]]:
    path = folder / f"gpu-{stage}.json"
    return json.loads(path.read_text())["runs"] if path.exists() else []


Verdict = tuple[str, float | None, float, bool]  # question, value, limit, whether it is at least


def verdicts(found: dict[str, list[dict[str, Any]]]) -> list[Verdict]:
    ran = next((run for run in found["tests"] if run["what"] == "pytest"), None)
    bad = None if ran is None or not ran["passed"] else ran["failed"] + ran["errors"]
    out: list[Verdict] = [
        ("GPU tests that fail", bad, 0, False),
        (
            "graphs that could not be recorded in them",
            ran and ran["without_graphs"] if bad is not None else None,
            0,
            False,
        ),
    ]
    out += of_micro(found["env"], found["micro"])
    out += of_family(found["family"])
    return out


def of_micro(env: list[dict[str, Any]], runs: list[dict[str, Any]]) -> list[Verdict]:
    speed = next((run["bytes_per_second"] for run in env if "bytes_per_second" in run), None)
    out: list[Verdict] = []
    rows = {
        (run["model"], run["context"], run["rows"]): run
        for run in runs
        if run["what"] == "rows" and "ms" in run
    }
    for model in dict.fromkeys(model for model, _, _ in rows):
        one, many = (rows.get((model, CONTEXTS[0], n)) for n in (1, 16))
        share = one and speed and one["read_bytes"] / (one["ms"] / 1e3) / speed
        out.append((f"{model}, one row: share of the read bandwidth", share or None, 0.7, True))
        out.append(
            (f"{model}: 16 rows over one row", one and many and many["ms"] / one["ms"], 1.15, False)
        )
        peers = [
            run["ms"]
            for run in runs
            if run["what"] == "transformers" and run.get("model") == model and "ms" in run
        ]
        faster = min(peers) / one["ms"] if one and peers else None
        out.append(
            (f"{model}, one row: transformers' fastest static step over ours", faster, 1.0, True)
        )
    return out


def of_family(runs: list[dict[str, Any]]) -> list[Verdict]:
    times: dict[tuple[str, float], dict[int, float]] = {}
    for run in runs:
        if run["what"] == "run":
            times.setdefault((run["method"], run["temperature"]), {})[run["prompt"]] = run[
                "ms_per_token"
            ]

    def over(slow: str, fast: str, temperature: float) -> float | None:
        one, other = times.get((slow, temperature), {}), times.get((fast, temperature), {})
        ratios = [one[prompt] / other[prompt] for prompt in one.keys() & other.keys()]
        return statistics.median(ratios) if ratios else None

    compiled = "transformers, static, compiled"
    out: list[Verdict] = []
    three = [over("one draft", "three levels", t) for t in (0.0, 1.0)]
    for temperature in (0.0, 1.0):
        words = f", temperature {temperature:g}"
        out.append(
            (f"planned over own plain{words}", over("plain", "planned", temperature), 2.0, True)
        )
        out.append(
            (
                f"planned over transformers compiled{words}",
                over(compiled, "planned", temperature),
                1.0,
                True,
            )
        )
    best = max((value for value in three if value is not None), default=None)
    out.append(("three levels over the best single draft, somewhere", best, 1.1, True))
    return out


# --- all of them

STAGES: dict[str, Callable[[Stage], None]] = {
    "env": env, "tests": tests, "micro": micro, "family": family, "summary": summary,
}  # fmt: skip


def run_stage(options: argparse.Namespace) -> int:
    """Run one stage in this process."""
    import warnings

    warnings.filterwarnings(
        "ignore", message="`past_key_values` is deprecated"
    )  # not in older ones
    stage = Stage(options.stage, options, time.monotonic() + options.seconds - 5)
    STAGES[options.stage](stage)
    stage.finished = True
    stage.write()
    return 0


def run_all(options: argparse.Namespace, argv: Sequence[str]) -> int:
    """Run the stages, each in a process of its own; return how many did not end well."""
    options.output.mkdir(parents=True, exist_ok=True)
    end, bad = time.monotonic() + options.total, 0
    log_path = options.output / "gpu.log"
    with log_path.open("w") as log:
        for name in STAGES:
            if options.only and name not in options.only:
                continue
            limit = min(SECONDS[name], end - time.monotonic())
            if limit < 5:
                print(f"{name}: no time left", flush=True)
                bad += 1
                continue
            command = [sys.executable, __file__, *argv, "--stage", name, "--seconds", str(limit)]
            began = time.monotonic()
            log.write(f"== {name}\n")
            log.flush()
            process = subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )
            try:
                status: int | str = process.wait(limit)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                status = "out of time"
            bad += status != 0
            words = "done" if status == 0 else f"ended with {status}"
            print(f"{name}: {words}, {time.monotonic() - began:.0f} s", flush=True)
    text = log_path.read_text(errors="replace")
    print(text.rpartition("== summary\n")[2] if "== summary\n" in text else text[-2000:])
    return min(bad, 1)


def main(argv: Sequence[str] | None = None) -> int:
    """Return 0; 1 where a stage did not end well; 2 where there is no such device."""
    argv = sys.argv[1:] if argv is None else list(argv)
    parser = argparse.ArgumentParser(description="One run on a GPU that decides.")
    add = parser.add_argument
    add("-o", "--output", type=Path, required=True, help="folder of the files")
    add("--only", nargs="+", choices=STAGES, default=[], help="these stages alone")
    add("--device", default="cuda")
    add("--size", default="4B", help=f"of the family's target; {TINY}: everything small, a dry run")
    add("--commit", default="", help="to note where this is no checkout")
    add("--total", type=float, default=TOTAL_SECONDS, help="seconds for all stages")
    add("--stage", choices=STAGES, help=argparse.SUPPRESS)
    add("--seconds", type=float, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.stage:
        return run_stage(options)
    import torch

    if options.device.startswith("cuda") and not torch.cuda.is_available():
        text = "torch sees no CUDA device here; --device cpu --size tiny is a dry run"
        print(f"gpu_once.py: error: {text}", file=sys.stderr)
        return 2
    return run_all(options, argv)


if __name__ == "__main__":
    sys.exit(main())
