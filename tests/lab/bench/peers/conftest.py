"""A target and its drafts where the other engines run, and what the target writes."""

import pytest
from peer_cases import GREEDY, PROMPT

from hierspec.config.schema import TargetConfig
from hierspec_lab.bench.methods.ours import BenchModels, HierarchyMethod


@pytest.fixture(scope="session")
def models(tiny_family):
    """The same as for other benches, on the CPU: there the other engines run."""
    target = TargetConfig(model=tiny_family["target"], dtype="float32", device="cpu")
    return BenchModels(target, (tiny_family["small"], tiny_family["draft"]))


@pytest.fixture(scope="session")
def plain(models):
    return HierarchyMethod("plain", models).run(PROMPT, GREEDY).token_ids
