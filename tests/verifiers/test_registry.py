"""Rules by name: their options, what each declares, and in which hierarchies each may stand."""

from __future__ import annotations

import dataclasses

import pytest
from tabular_cases import chain, models

import hierspec
from hierspec.core.nodes import Concatenate, Draft
from hierspec.core.windows import EntropyWindow, FixedWindow
from hierspec.errors import HierspecError
from hierspec.verifiers.registry import get, names
from hierspec.verifiers.soundness import validate


def test_unknown_names_list_those_there_are():
    listed = "block, block-rrs, branch, .*match, .*rrs, .*traversal"
    with pytest.raises(ValueError, match=listed):
        get("blockwise")
    with pytest.raises(ValueError, match="no option"):
        get("block", top_m=2)


def test_branch_is_block():
    assert get("branch") is get("block")


def test_every_rule_declares_itself():
    for name in names():
        rule = get(name)
        assert rule.exact_when
        assert not rule.exact or rule.exact_as_draft
        assert rule.order in ("forward", "backward")
        hash(rule)


def test_a_name_belongs_to_one_rule():
    from hierspec.verifiers import registry
    from hierspec.verifiers.tokenwise import Tokenwise

    class Other(Tokenwise):
        name = "tokenwise"

    class Nameless(Tokenwise):
        name = ""

    with pytest.raises(HierspecError, match="a verifier called 'tokenwise' already"):
        registry.register(Other())
    with pytest.raises(HierspecError, match='name = "'):
        registry.register(Nameless())
    builtin = registry.get("tokenwise")
    assert registry.register(type(builtin)()) is registry.get("tokenwise")
    registry.register(builtin)


def test_a_lossy_rule_of_ones_own_is_not_called_exact_always():
    class Generous(type(get("tokenwise"))):
        name, exact, exact_as_draft = "generous", False, False

    with pytest.raises(HierspecError, match=r"'generous' .* of the output; use"):
        validate(chain(models("random", 2), [Generous()], [2]))


def test_soundness():
    tables = models("random", 3)

    def refused(root, match, **kind):
        with pytest.raises(ValueError, match=match):
            validate(root, **kind)

    uncapped = chain(tables, ["block", "uncapped"], [2, 2])
    refused(uncapped, "use 'tokenwise' or 'block'")
    refused(chain(tables, ["uncapped", "block"], [2, 2]), "level 1")
    validate(uncapped, allow_lossy=True)
    leading = chain(tables[:2], ["leading"], [2])
    refused(leading, "greedy decoding")
    validate(leading, greedy=True)
    validate(leading, allow_lossy=True)
    two = chain(tables[:2], [get("leading", top_m=2)], [2])
    refused(two, "leading", greedy=True)
    window = chain(tables[:2], ["naive"], [2], [EntropyWindow()])
    refused(window, "depends on the tokens drafted")
    refused(window, "depends on the tokens drafted", allow_lossy=True)
    validate(window, greedy=True)
    refused(chain(tables, ["leading", "naive"], [2, 2]), "reported distributions depend")
    validate(chain(models("random", 4), ["leading", "block", "naive"], [2, 2, 2]))
    below = Concatenate(1, "both", (Draft(0, "part", tables[0], 2),))
    refused(chain(tables[:1], ["naive"], [], below=below), "concatenated")
    cut = chain(tables, ["block", "naive"], [2, 2])
    validate(cut)
    loose = dataclasses.replace(cut, below=dataclasses.replace(cut.below, exact_length=False))
    refused(loose, "exact_length")
    middle = chain(tables, ["naive", "block"], [2, 2], [FixedWindow(), EntropyWindow()])
    refused(middle, "carry no signal")

    class CopiesARun:
        has_distributions = False

    refused(chain([CopiesARun(), tables[0]], ["naive"], [2]), "no distribution at contexts other")
    refused(Draft(0, "alone", tables[0], 2), "target")


def test_what_a_rule_or_a_drafter_of_ones_own_lacks_is_named():
    class Bare(hierspec.Verifier):
        name = "bare"

    with pytest.raises(HierspecError, match=r"'bare' has no method acceptance\(batch\)"):
        Bare().acceptance(None)
    with pytest.raises(HierspecError, match=r"'bare' has no method choose\(drafts, p\)"):
        Bare().choose([], [])
    with pytest.raises(HierspecError, match=r"LookUp has no method propose\(context"):
        hierspec.LookUp().propose(None, 1, 0)
    with pytest.raises(HierspecError, match=r"NextTokenModel has no method probabilities\(tokens"):
        hierspec.NextTokenModel().probabilities([])


def test_a_rule_that_no_engine_could_group_is_refused_when_it_is_registered():
    @dataclasses.dataclass
    class Unfrozen(hierspec.Verifier):
        name = "unfrozen"
        lenience: float = 1.0

    with pytest.raises(HierspecError, match=r"Unfrozen is not hashable: @dataclass\(frozen=True\)"):
        hierspec.register(Unfrozen)
