"""The roofline: the best of samples of memory's bandwidth, spread over the run."""

from __future__ import annotations

import pytest
from tiny_benches import shown

from hierspec import TargetConfig
from hierspec_lab.bench import results, roofline
from hierspec_lab.bench.methods.catalogue import catalogue
from hierspec_lab.bench.methods.ours import BenchModels
from hierspec_lab.bench.records import BenchSettings, Roofline
from hierspec_lab.bench.run import Bench


def test_the_roofline_is_the_best_of_samples_spread_over_the_run(tiny_family, monkeypatch):
    speeds = iter([3e9, 5e9, 4e9, 2e9, 1e9])
    monkeypatch.setattr(roofline, "best_bandwidth", lambda device: next(speeds))
    settings = BenchSettings(
        target="tiny", temperatures=(0.0, 1.0), max_new_tokens=2, num_prompts=1
    )
    models = BenchModels(TargetConfig(model=tiny_family["target"], dtype="float32"))
    data = results.make(settings, {"cpu": "here"})
    Bench(models, settings, [catalogue()["plain"]], [[5, 9]], [[4, 44]], data).run()
    found = data.roofline
    assert found.samples == [3e9, 5e9, 4e9, 2e9, 1e9]  # before, and twice per temperature
    assert found.bytes_per_second == 5e9
    assert found.ms_per_token == pytest.approx(1e3 * found.weight_bytes / 5e9)
    assert "the best of 5 samples of memory's bandwidth" in shown(data)
    # Files of before hold one sample, which counts.
    monkeypatch.setattr(roofline, "best_bandwidth", lambda device: 6e9)
    kept = {key: value for key, value in found.to_dict().items() if key != "samples"}
    assert roofline.roofline(models, 1, Roofline(**kept)).samples == [5e9, 6e9]


def test_a_read_is_the_fastest_of_its_tries(monkeypatch):
    monkeypatch.setattr(roofline, "_bandwidth_samples", lambda device: [1.0, 4.0, 2.0])
    assert roofline.best_bandwidth(None) == 4.0  # type: ignore[arg-type]
    assert roofline.bandwidth(None) == 2.0  # type: ignore[arg-type]
