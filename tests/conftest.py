"""Shared set-up: one thread (tiny tensors, shared machines), no hub, models built once."""

import contextlib
import gc
import hashlib
import os
import re
import signal
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
if not any(Path("/dev").glob("nvidia*")):
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when Triton is imported, by anybody

import pytest

# This checkout's entry points, also for the processes that tests start: those that are installed
# may be of another checkout, or older. Before any import of the package, which looks for them.
CHECKOUT = Path(__file__).resolve().parents[1]
ENTRY_POINTS = CHECKOUT / ".pytest_cache" / "entry_points"
NAMED_MODELS = CHECKOUT / "tests" / "named_models"  # zoo:tiny, an installed package's model
if "PYTEST_XDIST_WORKER" not in os.environ:
    declared = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]["entry-points"]
    declared["hierspec.models"] |= {
        "tiny": "tiny_zoo:TINY",
        "tiny-draft": "tiny_zoo:DRAFT",
        "tiny-ngram": "tiny_zoo:NGRAM",
    }
    file = ENTRY_POINTS / "hierspec_checkout-0.dist-info" / "entry_points.txt"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(
        "".join(
            "\n".join([f"[{group}]", *(f"{name} = {value}" for name, value in entries.items()), ""])
            for group, entries in declared.items()
        )
    )
    inherited = filter(None, [os.environ.get("PYTHONPATH")])
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ENTRY_POINTS), str(NAMED_MODELS), *inherited])
    script = NAMED_MODELS / "tiny_zoo.py"
    version = f"{hashlib.sha256(script.read_bytes()).hexdigest()[:12]}-{sys.version_info.minor}"
    models = CHECKOUT / ".pytest_cache" / f"tiny_zoo-{version}"
    os.environ["HIERSPEC_TINY_ZOO"] = str(models)
    if not models.is_dir():
        paths = [str(CHECKOUT / "src"), str(CHECKOUT / "tests"), os.environ["PYTHONPATH"]]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        with TemporaryDirectory(dir=models.parent, ignore_cleanup_errors=True) as folder:
            written = Path(folder) / "models"
            subprocess.run([sys.executable, script, written], env=env, check=True)
            with contextlib.suppress(OSError):  # another run was faster
                written.rename(models)
sys.path[:0] = [str(ENTRY_POINTS), str(NAMED_MODELS)]

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # What a shell runs in the background ignores Ctrl-C, and so would every process of a test.
    signal.signal(signal.SIGINT, signal.default_int_handler)

if "PYTEST_XDIST_WORKER" in os.environ:  # one of several workers side by side
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # for the processes that tests start


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """No garbage is looked for among imports: that would take a third of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish():
    """One thread; and what is loaded by now stays: it need not be collected again and again."""
    import torch  # here, as what hands tests to several workers needs none

    torch.set_num_threads(1)  # a second one waits longer for the first than it works
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call():
    """What names something of a package that is not installed, as the laboratory, is skipped."""
    try:
        return (yield)
    except Exception as error:
        missing = re.search(r"'[\w.-]+' is in (\w+), which is not installed", str(error))
        if missing is None or find_spec(missing[1]) is not None:  # a test may hide it
            raise
        pytest.skip(missing[0])


@pytest.fixture(scope="session")
def tiny_family(tmp_path_factory):
    """Paths of a tiny Llama target and two drafts that share most of its weights.

    Random models of different seeds agree about as often as dice; drafts made by perturbing the
    target's weights agree often enough for every branch of a round to be taken.
    """
    from tiny_models import add_noise, tiny_model

    folder, paths = tmp_path_factory.mktemp("tiny"), {}
    for name, noise in (("target", 0.0), ("draft", 0.05), ("small", 0.12)):
        paths[name] = str(folder / name)
        add_noise(tiny_model("llama", seed=1, layers=3), noise).save_pretrained(paths[name])
    return paths


@pytest.fixture
def cache(monkeypatch, tmp_path):
    """A folder of the test's own for what is kept between runs."""
    monkeypatch.setenv("HIERSPEC_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def matplotlib():
    pytest.importorskip("matplotlib", reason="the extra `plot` is not installed")


@pytest.fixture
def global_generator_untouched():
    import torch

    before = torch.random.get_rng_state()
    yield
    assert torch.equal(before, torch.random.get_rng_state()), "the global generator was used"
