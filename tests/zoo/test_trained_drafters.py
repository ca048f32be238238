"""Drafters trained for the released model: their page says what the reports hold that are kept."""

import json
import lzma
import re
from pathlib import Path

from safetensors.torch import load_file

from hierspec.zoo import registry, sibling, trained

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks"
PAGE = (ROOT / "docs" / "smollm2.md").read_text(encoding="utf-8")
_, EAGLE3, HEADS, SIBLING = PAGE.split("\n## ")


def rows(part: str) -> list[list[str]]:
    return [re.findall(r"[.\d]+", line) for line in part.splitlines() if re.match(r"\| \d", line)]


def rounded(value: float) -> str:
    return f"{value:.3f}".removeprefix("0")


def test_the_network_drafts_as_the_page_says():
    report = json.loads((BENCHMARKS / "results" / "trained-eagle3.json").read_text())
    found = report["figures"]["held out"]
    pairs = zip(found["acceptance"], found["agreement"], strict=True)
    assert rows(EAGLE3) == [[str(i), rounded(a), rounded(b)] for i, (a, b) in enumerate(pairs, 1)]
    for number in (report["parameters"], report["tokens"], report["settings"]["draft_vocab"]):
        assert f"{number:,}" in EAGLE3
    assert f"{found['tokens_per_call']:.2f} tokens a call" in EAGLE3
    assert f"{found['greedy_tokens_per_call']:.2f} greedily" in EAGLE3


def test_the_heads_draft_as_the_page_says():
    report = json.loads((BENCHMARKS / "results" / "trained-heads.json").read_text())
    after = report["after"]
    assert rows(HEADS) == [
        [str(layer), rounded(one["acceptance"]), rounded(one["agreement"])]
        for layer in report["exits"]
        for one in [after[str(layer)]]
    ]
    texts = report["texts"]
    for number in (report["parameters"], texts["tokens"], texts["held_out_tokens"]):
        assert f"{number:,}" in HEADS


def test_the_sibling_is_as_the_page_says():
    folder = trained.locate("zoo:smollm2-sibling")
    report = sibling.read_description(folder)
    tensors = load_file(folder / "model.safetensors")
    ids = tensors.pop(sibling.VOCABULARY)
    assert len(ids) == report["settings"]["vocabulary"] == 8192
    assert sum(one.numel() for one in tensors.values()) == report["parameters"]
    assert f"{report['parameters']:,}" in SIBLING
    layers, width = report["size"].split("x")
    config = registry.resolve("zoo:smollm2-sibling").config
    assert (config.num_hidden_layers, config.hidden_size) == (int(layers), int(width)) == (2, 192)
    assert "two layers of width 192" in SIBLING
    assert report["size"] == max(report["sizes"], key=lambda n: report["sizes"][n]["speedup"])
    answers = lzma.decompress((BENCHMARKS / "data/smollm2-sibling-answers.jsonl.xz").read_bytes())
    assert f"{len(answers.splitlines()):,} conversations" in SIBLING
