"""Fixtures of the bench tests: models loaded once for all of them, and no time for the roofline."""

import profiling_cases
import pytest

from hierspec import TargetConfig
from hierspec_lab.bench.methods.ours import BenchModels


@pytest.fixture(scope="module", autouse=True)
def _small_buffer():
    """Memory is read for the roofline; how fast is of no interest here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hierspec_lab.bench.roofline._BUFFER_BYTES", 1 << 16)
        patch.setattr("hierspec_lab.bench.roofline._MIN_SECONDS", 0.0)
        yield


@pytest.fixture(scope="session")
def models(tiny_family):
    """A tiny target and its two drafts."""
    target = TargetConfig(model=tiny_family["target"], dtype="float32")
    return BenchModels(target, (tiny_family["small"], tiny_family["draft"]))


@pytest.fixture(scope="session")
def saved_models(tmp_path_factory):
    """Folders of a target and a draft model, tiny and with a tokenizer."""
    folder = tmp_path_factory.mktemp("models")
    draft = profiling_cases.save_model(folder / "draft", 0.03)
    return profiling_cases.save_model(folder / "target"), draft
