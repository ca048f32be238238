"""Chains of a profile in a method's configuration."""

from hierspec.planner.estimates import Chain
from hierspec.profiling.profile import from_dict
from hierspec_lab.bench.methods.planned import chain_of


def profile_of(*levels):
    names = [*(level["model"] for level in levels), "target"]
    data = {
        "kind": "hierspec-profile", "schema_version": 1, "hardware": {},
        "target": {"model": "target"}, "memory": {}, "settings": {"max_speculative_tokens": 9},
        "temperatures": {"0.0": {
            "pairs": [], "costs": [], "context": {"tokens": 1, "long": 1, "slopes": []},
            "token_ms": 0.0,
        }},
        "models": [
            {"name": n, "level": level, "owner": n, "weights": None, "call_ms": 1.0}
            for n, level in zip(names, [*levels, None], strict=True)
        ],
    }  # fmt: skip
    return from_dict(data)


def test_a_chain_that_the_profile_knows():
    levels = [{"method": "draft_model", "model": name} for name in ("s", "m")]
    profile = profile_of(*levels)

    def asked(*budgets, verify="block", top="block", **more):
        given = [
            {**level, "num_speculative_tokens": n} for level, n in zip(levels, budgets, strict=True)
        ]
        given[1:] = [{**level, "verify": verify, **more} for level in given[1:]]
        return chain_of(profile, {"levels": given, "verify": top})

    chain, rule = asked(2, 8)
    assert (chain.models, chain.budgets, rule) == ((0, 1, 2), (2, 8), "block")
    assert asked(2, 8, bonus=False)[0].dropped_bonus == (1,)
    assert asked(2, 8, verify="tokenwise") is None
    assert asked(2, 8, verify="tokenwise", top="tokenwise")[1] == "tokenwise"
    assert chain_of(profile, {"levels": []})[0].plain
    other = [{"method": "draft_model", "model": "x", "num_speculative_tokens": 2}]
    assert chain_of(profile, {"levels": other}) is None
    assert chain_of(profile, {"generate": {}}) is None


def test_a_look_up_appended_to_what_is_handed_up():
    levels = [{"method": "draft_model", "model": name} for name in ("s", "m", "l")]
    profile = profile_of(*levels)
    small, mid, large = ({**level, "num_speculative_tokens": 2} for level in levels)
    verifying = {**mid, "verify": "block"}

    def asked(chain, end, repeat=1):
        whole = {"method": "concatenate", "parts": [chain, end], "repeat": repeat}
        found = chain_of(profile, {"levels": [whole], "verify": "block"})
        return found and found[0]

    target = 3
    assert asked([mid], [small]) == Chain((0, 1, target), (2, 2), order="horizontal")
    assert asked([small, verifying], [small]) == Chain((0, 1, target), (2, 2), tail=2)
    others = [([small], [mid]), ([small, verifying], [large]), ([mid], [small, verifying])]
    assert not any(asked(*parts) for parts in others)
    assert asked([mid], [small], repeat=2) is None


def test_several_drafts_by_the_rule_for_one():
    level = {"method": "draft_model", "model": "s", "num_drafts": 3}
    written = {"levels": [{**level, "num_speculative_tokens": 2}], "verify": "traversal"}
    chain, rule = chain_of(profile_of(level), written)
    assert (chain.models, chain.budgets, rule) == ((0, 1), (2,), "block")
