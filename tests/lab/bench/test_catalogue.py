"""Methods by name and by group."""

import json
from dataclasses import replace

import pytest
from tiny_benches import bench, methods_of

from hierspec import HierspecError, TargetConfig, cli
from hierspec.presets.registry import PRESETS
from hierspec_lab.bench.methods import grids
from hierspec_lab.bench.methods.catalogue import catalogue, select
from hierspec_lab.bench.methods.ours import BenchModels


def test_the_list_names_every_preset(capsys):
    assert cli.run(["bench", "--list", "--json"]) == 0
    listed = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert set(PRESETS) - {"autoregressive"} <= set(listed)
    assert listed["hispec"]["group"] == "paper"
    assert cli.run(["bench", "--list"]) == 0
    assert "dynamic-windows" in capsys.readouterr().out


@pytest.mark.parametrize("columns", [60, 100])
def test_the_list_is_as_wide_as_it_is_told(columns, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", str(columns))
    assert cli.run(["bench", "--list"]) == 0
    out = capsys.readouterr().out
    assert columns - 20 < max(map(len, out.splitlines())) <= columns
    assert all(f"{name[:12]}" in out for name in catalogue())
    assert "\n\n" not in out


def test_two_files_of_one_name_are_refused(tmp_path):
    files = [tmp_path / folder / "x.json" for folder in "ab"]
    for file in files:
        file.parent.mkdir()
        file.write_text(json.dumps({"target": "zoo:tiny", "levels": []}))
    with pytest.raises(HierspecError, match=r"two files are called x\.json: rename one"):
        select([str(file) for file in files], catalogue())


def test_groups_and_names_select():
    known = catalogue()

    def names(*words):
        return {one.name for one in select(words, known)}

    assert names("planned") == {"plain", "planned"}  # a name and a group: the name
    papers = {name for name, one in known.items() if one.group == "paper"}
    assert names("papers", "prompt-lookup") == {"plain", "prompt-lookup"} | papers
    assert names("all") == set(known)
    with pytest.raises(ValueError, match=r"speculative.*groups: all"):
        names("speculativ")


def test_each_drafter_alone_without_a_model_of_its_own(tiny_family, tmp_path):
    target = TargetConfig(model=tiny_family["target"], dtype="float32")
    models = BenchModels(target, ("suffix", "quantized"))
    entries = select(["alone"], catalogue(models.drafts))[1:]
    trial = [replace(one, candidates=first_of(one.candidates)) for one in entries]
    done = methods_of(bench(models, trial).run())
    assert list(done) == ["plain", "alone-suffix", "alone-quantized"]
    for record in done.values():
        assert record.skipped is None
        assert all(run.same_as_plain for run in record.runs)
    assert done["alone-quantized"].configuration["levels"][0]["method"] == "quantized"
    assert grids.chains("hierarchy", models)[0].configuration["levels"][1]["method"] == "quantized"


def first_of(candidates):
    return lambda *given: candidates(*given)[:1]
