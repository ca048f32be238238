"""Names of models: this package's, and those that installed packages offer, as ``zoo:tiny`` is."""

from importlib.metadata import EntryPoint

import pytest

from hierspec.errors import HierspecError, HierspecWarning
from hierspec.presets.registry import preset
from hierspec.profiling import texts
from hierspec.utils import plugins
from hierspec.zoo import fingerprint, registry


def test_a_packages_model_is_found_by_its_name():
    assert {"zoo:smollm2", "zoo:tiny"} <= {*registry.entries()}
    assert registry.resolve("zoo:tiny").name == "zoo:tiny"
    assert registry.family("zoo:tiny") == "tiny"
    assert texts.builtin("zoo:tiny") == registry.entries()["zoo:tiny"].texts
    assert fingerprint.compute("zoo:tiny") != fingerprint.compute("zoo:tiny-draft")


def test_default_drafts_are_for_their_own_family():
    with pytest.raises(HierspecError, match="'speculative' needs a draft model"):
        preset("speculative", "zoo:tiny")
    assert preset("speculative", "zoo:tiny", ["zoo:tiny-draft"]).levels[0].model == "zoo:tiny-draft"


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("zoo:tiny?eps=1", "zoo:tiny has no options, but .* drop '.eps=1'"),
        ("zoo:tinny", "there are: zoo:smollm2, .*; did you mean zoo:tiny?"),
        ("zoo:smollm2-heads", "zoo:smollm2-heads is not a model, but heads for early exits"),
    ],
)
def test_what_is_no_model_says_so(name, says):
    with pytest.raises(HierspecError, match=says):
        registry.validate(name)


@pytest.fixture
def offered(monkeypatch):
    """Packages that are missing, or cannot be imported, offer models."""
    declared = plugins._declared(registry.GROUP)
    offers = {"gone": "no_such_package:MODEL", "broken": "tiny_zoo:NO_SUCH_ENTRY"}
    declared |= {name: EntryPoint(name, value, registry.GROUP) for name, value in offers.items()}
    monkeypatch.setattr(plugins, "_declared", lambda group: declared)
    plugins.entry_point_names.cache_clear()
    yield
    for name in offers:
        del declared[name]
    plugins.entry_point_names.cache_clear()


def test_a_package_that_is_missing_or_broken_is_named(offered):
    with pytest.raises(HierspecError, match="'gone' is in no_such_package, which is not installed"):
        registry.validate("zoo:gone")
    assert registry.family("zoo:gone") == ""
    with pytest.raises(HierspecError, match=r"zoo:broken: .*NO_SUCH_ENTRY"):
        registry.validate("zoo:broken")
    with pytest.warns(HierspecWarning, match="zoo:broken is left out"):
        names = registry.entries()
    assert "zoo:tiny" in names
    assert not {"zoo:gone", "zoo:broken"} & {*names}
