"""Chains of a profile's models as hierarchies: written as they are priced, and they run."""

from __future__ import annotations

from profiling_cases import PROMPTS, SMALL, EveryPair, V

from hierspec import Hierarchy, HierarchyConfig, TargetConfig
from hierspec.config.build import build
from hierspec.exact.cases import JumpingController
from hierspec.lm.native import library
from hierspec.planner.estimates import Chain
from hierspec.planner.latency import latency
from hierspec.planner.online.controller import OnlineController
from hierspec.planner.search import ALL_VARIATIONS, plan
from hierspec.profiling.candidates import load, parse
from hierspec.profiling.measure import measure
from hierspec.profiling.profile import from_dict


def chains(profile):
    """A chain of every shape, by model names."""
    at = {model.name: i for i, model in enumerate(profile.models)}
    last = len(at) - 1
    models = sorted(i for name, i in at.items() if name.startswith(("exit", "/")) and i < last
                    and "window" not in name)  # fmt: skip
    low, mid, high = models[:3]
    return {
        "plain": Chain((last,)),
        "single": Chain((low, last), (3,)),
        "lookup": Chain((at["prompt-lookup"], last), (3,)),
        "chain": Chain((low, mid, last), (2, 3)),
        "four": Chain((low, mid, high, last), (1, 2, 3)),
        "dropped": Chain((low, mid, last), (2, 3), dropped_bonus=(mid,)),
        "tail": Chain((low, mid, last), (2, 3), tail=2),
        "tails": Chain((low, mid, high, last), (2, 3, 4), tail=1),
        "interleaved": Chain((low, mid, last), (2, 2), order="interleaved"),
        "horizontal": Chain((low, mid, last), (2, 3), order="horizontal"),
        "window": Chain(
            (next(i for name, i in at.items() if name.endswith("entropy")), last), (3,)
        ),
    }


def test_every_shape_is_a_hierarchy_that_runs(whole, loaded):
    profile = from_dict(whole)
    prompt, texts = [72, 69, 76, 76, 79, 220, 72, 69], {}
    for name, chain in chains(profile).items():
        config = HierarchyConfig.from_dict(profile.hierarchy(chain))
        assert HierarchyConfig.from_dict(config.to_dict()) == config
        hierarchy = Hierarchy(build(config, loaded))
        result = hierarchy.generate(prompt, max_new_tokens=12, ignore_eos=True)
        texts[name] = result.token_ids
        budgets = [level.num_speculative_tokens for level in flat(config.levels)]
        if name in ("single", "lookup", "chain", "four", "dropped", "window"):
            assert budgets == list(chain.budgets)
    assert all(ids == texts["plain"] for ids in texts.values())
    assert len(texts["plain"]) == 12


def test_control_varies_drafts_that_others_continue(whole, loaded):
    profile, prompt = from_dict(whole), [72, 69, 76, 76, 79, 220, 72, 69]
    options = {"max_new_tokens": 24, "ignore_eos": True}
    built = build(HierarchyConfig.from_dict(profile.hierarchy(chains(profile)["plain"])), loaded)
    plain = Hierarchy(built).generate(prompt, **options)
    for name in ("tail", "horizontal"):
        chain = chains(profile)[name]
        built = build(HierarchyConfig.from_dict(profile.hierarchy(chain)), loaded)
        online = OnlineController(built.root, profile.estimates(), chain)
        for controller in (online, JumpingController(built.root, online.budgets)):
            result = Hierarchy(built, controller=controller).generate(prompt, **options)
            assert result.token_ids == plain.token_ids
        assert any(" + " in plan for plan in result.control["rounds"])


def flat(levels):
    return [level for level in levels if hasattr(level, "num_speculative_tokens")]


def test_shapes_are_written_as_they_are_priced(whole):
    profile = from_dict(whole)
    shapes = {name: profile.hierarchy(chain) for name, chain in chains(profile).items()}
    assert shapes["plain"]["levels"] == []
    assert [level.get("bonus") for level in shapes["dropped"]["levels"]] == [None, False]
    (tail,) = shapes["tail"]["levels"]
    chain, (end,) = tail["parts"]
    assert [level["num_speculative_tokens"] for level in (*chain, end)] == [2, 3, 2]
    assert chain[1]["verify"] == shapes["tail"]["verify"] == "block"
    (inter,) = shapes["interleaved"]["levels"]
    sizes = [[level["num_speculative_tokens"] for level in part] for part in inter["parts"]]
    assert (inter["repeat"], sizes) == (2, [[2], [1]])
    (row,) = shapes["horizontal"]["levels"]
    assert [part[0]["num_speculative_tokens"] for part in row["parts"]] == [3, 2]
    first = profile.models[chains(profile)["horizontal"].models[1]].level
    assert row["parts"][0][0] == {**first, "num_speculative_tokens": 3}


def test_a_plan_of_every_shape_of_a_profile_runs(whole, loaded):
    profile = from_dict(whole)
    for temperature in profile.measured_at:
        answer = plan(profile.estimates(temperature), variations=ALL_VARIATIONS)
        config = HierarchyConfig.from_dict(profile.hierarchy(answer.best.chain))
        hierarchy = Hierarchy(build(config, loaded))
        options = {"temperature": temperature, "seed": 1, "ignore_eos": True}
        assert hierarchy.generate([72, 69], max_new_tokens=5, **options).num_tokens == 5


def test_several_drafts_are_planned_right_below_the_target(family, loaded):
    """As a tree under a rule that takes one, and nowhere else."""
    names = ["exit:1", f"{family['draft']},num_drafts=3", "exit:1,num_drafts=2", "exit:2"]
    target = TargetConfig(model=family["target"])
    candidates = [parse(name) for name in names]
    data = measure(target, candidates, PROMPTS, [0.0], SMALL, loaded=loaded, stages=EveryPair)
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
    best = plan(found).best.chain
    HierarchyConfig.from_dict(profile.hierarchy(best))


def test_a_plan_with_the_targets_int8_copy(family, loaded):
    """What it drafts, verifies and weighs."""
    target = TargetConfig(model=family["target"], dtype="float32")
    candidates = [parse("prompt-lookup"), parse("quantized")]
    data = measure(target, candidates, PROMPTS, [0.0], SMALL, loaded=loaded, stages=EveryPair)
    profile = from_dict(data)
    number = next(i for i, m in enumerate(profile.models) if m.name == "quantized")
    copy, trunk = profile.models[number].owner, data["memory"][family["target"]]
    assert copy != family["target"]
    layers, head = 3 * 9216, -(-V // 16) * 16 * 32  # weights; the output matrix by 16 rows
    # A byte a weight; in the kernels 16 bits more for 32 weights.
    weighs = (layers + head) * 17 // 16 if library.load() else trunk // 4
    assert data["memory"][copy] == weighs
    (pair,) = [p for p in data["temperatures"]["0.0"]["pairs"]
               if (p["drafter"], p["verifier"]) == (number, 2)]  # fmt: skip
    assert pair["equal_argmax"] > 0.5
    estimates = profile.estimates()
    assert estimates.bytes([number, 2]) == trunk + weighs
    if library.load():  # of 4 bits, and a step and a lowest value in 16 bits for 32 weights
        fewer = load(target, [parse("quantized:4")], loaded)
        assert fewer.memory[fewer.members[0].owner] == layers * 5 // 8 + head * 17 // 16
    chain = Chain((number, 2), (2,))
    assert latency(estimates, chain).ms_per_token > 0
    drafting = HierarchyConfig.from_dict(profile.hierarchy(chain))
    texts = [Hierarchy(build(config, loaded)).generate([5, 9, 7], max_new_tokens=8, ignore_eos=True)
             for config in (drafting, HierarchyConfig(target=target))]  # fmt: skip
    assert texts[0].token_ids == texts[1].token_ids
