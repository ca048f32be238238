"""A library leaves its user's process alone: what belongs to all of it is afterwards as it was."""

from __future__ import annotations

import gc
import locale
import logging
import os
import random
import signal
import sys
import threading
import warnings
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from huggingface_hub.utils import are_progress_bars_disabled
from tabular_cases import pair, several
from tiny_models import tiny_model

import hierspec
from hierspec import Hierarchy
from hierspec.exact.certificate import certify_tree
from hierspec.lm.load import quiet_transformers

TASKS = Path("/proc/self/task")
PROMPTS = [[5, 9, 7], [11, 4, 4, 30, 8, 2, 2, 9, 17, 33]]


def process_state():
    """Everything that a library could change for others, by name."""
    tiny = torch.tensor(1e-310, dtype=torch.float64)
    backends = torch.backends
    in_a_new_thread = []
    thread = threading.Thread(target=lambda: in_a_new_thread.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    return {
        "threads": (torch.get_num_threads(), torch.get_num_interop_threads(), *in_a_new_thread),
        "gradients": (torch.is_grad_enabled(), torch.is_inference_mode_enabled()),
        "defaults": (torch.get_default_dtype(), torch.get_default_device()),
        "jit": (
            torch._C._get_graph_executor_optimize(),
            torch._C._jit_set_profiling_executor(torch._C._jit_set_profiling_executor(True)),
        ),
        "algorithms": (
            torch.are_deterministic_algorithms_enabled(),
            torch.get_float32_matmul_precision(),
            backends.mkldnn.is_available() and backends.mkldnn.flags,
            backends.cuda.matmul.allow_tf32,
            backends.quantized.engine,
            float(tiny * 0.5) != 0.0,  # subnormal numbers are not flushed
        ),
        "torch's functions": tuple(
            map(id, (torch.rand, torch.rand_like, torch.multinomial, torch.nn.functional.linear))
        ),
        "random numbers": (
            torch.get_rng_state().numpy().tobytes(),
            random.getstate(),
            repr(np.random.get_state()),
        ),
        "numpy": (np.geterr(), np.get_printoptions()),
        "environment": dict(os.environ),
        "warnings": list(warnings.filters),
        "logging": (
            logging.root.level,
            list(logging.root.handlers),
            logging.root.manager.disable,
            logging.getLogger("hierspec").level,
            list(logging.getLogger("hierspec").handlers),
        ),
        "transformers": (
            transformers.utils.logging.get_verbosity(),
            logging.getLogger("transformers").level,
            transformers.utils.logging.is_progress_bar_enabled(),
            are_progress_bars_disabled(),
        ),
        "signals": {number: signal.getsignal(number) for number in signal.valid_signals()},
        "interpreter": (
            sys.getrecursionlimit(),
            sys.getswitchinterval(),
            sys.excepthook,
            threading.excepthook,
            sys.stdout,
            sys.stderr,
            list(sys.path),
            sys.gettrace(),
            sys.getprofile(),
            gc.isenabled(),
            gc.get_threshold(),
        ),
        "system": (os.getcwd(), locale.setlocale(locale.LC_ALL), os.getpriority(0, 0)),
        "matplotlib": "matplotlib" in sys.modules and dict(sys.modules["matplotlib"].rcParams),
    }


def load(family, **level):
    level = level or {"method": "draft_model", "model": family["draft"]}
    levels = [
        {"method": "suffix", "num_speculative_tokens": 2},
        {**level, "num_speculative_tokens": 3},
    ]
    target = {"model": family["target"], "dtype": "float32"}
    return Hierarchy.from_config({"target": target, "levels": levels, "verify": "block"})


def generate(hierarchy):
    hierarchy.generate(PROMPTS[0], max_new_tokens=12)
    hierarchy.generate_batch(PROMPTS, max_new_tokens=12, temperature=0.8, top_p=0.9, seed=1)
    next(hierarchy.stream(PROMPTS[1], max_new_tokens=12))  # and abandoned


def in_transformers(model):
    for greedy in (True, False):
        model.generate(
            torch.tensor([PROMPTS[0]]),
            custom_generate=hierspec.custom_generate,
            drafts=["ngram"],
            max_new_tokens=8,
            do_sample=not greedy,
            seed=3,
        )


def fail_to_load(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(hierspec.HierspecError):
        Hierarchy.from_config({"target": {"model": str(tmp_path), "backend": "hf"}, "levels": []})


@pytest.fixture
def uses(tiny_family, tmp_path):
    quantized = {"method": "quantized"}
    return {
        "load": partial(load, tiny_family),
        "load a copy": partial(load, tiny_family, **quantized),
        "generate": partial(generate, load(tiny_family)),
        "generate with a copy": partial(generate, load(tiny_family, **quantized)),
        "in transformers": partial(in_transformers, tiny_model("llama", seed=1)),
        "fail to load": partial(fail_to_load, tmp_path),
        "certify": lambda: certify_tree(several(*pair(3, 1, 27), "traversal", 2, 1), 3),
    }


@pytest.mark.parametrize(
    "use",
    [
        "load",
        "load a copy",
        "generate",
        "generate with a copy",
        "in transformers",
        "fail to load",
        "certify",
    ],
)
def test_everything_is_as_it_was(uses, use):
    transformers.utils.logging.set_verbosity_info()  # not what it would be set to
    before = process_state()
    try:
        uses[use]()
        after = process_state()
        assert [name for name in before if before[name] != after[name]] == []
    finally:
        transformers.utils.logging.set_verbosity_warning()


@pytest.mark.skipif(not TASKS.is_dir(), reason="the system does not list a process's threads")
def test_worker_threads_of_other_work_live_on(tiny_family):
    """Other libraries may share torch's OpenMP runtime, or have one of their own."""
    hierarchy, threads = load(tiny_family), torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        torch.randn(512, 512) @ torch.randn(512, 512)
        before = {task.name for task in TASKS.iterdir()}
        generate(hierarchy)
        load(tiny_family)
        assert before <= {task.name for task in TASKS.iterdir()}
    finally:
        torch.set_num_threads(threads)


def test_silences_that_overlap_leave_nothing_behind():
    """Two threads that load at once; the first to begin is the first to end."""
    before = list(warnings.filters), logging.getLogger("transformers").level
    first_is_in, may_end = threading.Event(), threading.Event()

    def first():
        with quiet_transformers():
            first_is_in.set()
            may_end.wait(10)

    def second():
        with quiet_transformers():
            pass

    workers = [threading.Thread(target=work) for work in (first, second)]
    workers[0].start()
    first_is_in.wait(10)
    workers[1].start()
    may_end.set()
    for worker in workers:
        worker.join()
    assert (list(warnings.filters), logging.getLogger("transformers").level) == before
