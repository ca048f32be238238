"""Chains of a profile's models, written as hierarchies."""

from __future__ import annotations

from profiling_cases import PROMPTS, SMALL

from hierspec import HierarchyConfig, TargetConfig
from hierspec.bench.methods.planned import chain_of
from hierspec.planner.concatenations import concatenations
from hierspec.planner.estimates import Chain
from hierspec.planner.latency import latency
from hierspec.planner.search import plan
from hierspec.profiling.candidates import parse
from hierspec.profiling.measure import measure
from hierspec.profiling.profile import from_dict


def test_several_drafts_are_planned_right_below_the_target(family, loaded):
    """As a tree under a rule that takes one, and nowhere else."""
    names = ["exit:1", f"{family['draft']},num_drafts=3", "exit:1,num_drafts=2", "exit:2"]
    target = TargetConfig(model=family["target"])
    data = measure(target, [parse(name) for name in names], PROMPTS, [0.0], SMALL, loaded=loaded)
    profile = from_dict(data)
    found = profile.estimates(0.0)
    several = {i for i, model in enumerate(profile.models) if "num_drafts" in str(model.level)}
    assert found.multi_drafters == several
    assert len(several) == 2
    for i in several:
        assert found.can_draft(i, found.target)
        assert not any(found.can_draft(i, k) or found.can_draft(k, i) for k in range(found.target))
        chain = Chain((i, found.target), (2,))
        assert latency(found, chain).ms_per_token > 0
        config = HierarchyConfig.from_dict(profile.hierarchy(chain))
        assert config.verify == "traversal"
        assert config.levels[0].num_drafts > 1
        written = {"levels": config.to_dict()["levels"], "verify": config.verify}
        assert chain_of(profile, written) == (chain, "block")
        assert HierarchyConfig.from_dict(profile.hierarchy(chain, "tokenwise")).verify == "rrs"
    used = {i for _, chain in concatenations(found, range(found.target)) for i in chain.models}
    assert not used & several
    best = plan(found).best.chain
    HierarchyConfig.from_dict(profile.hierarchy(best))
