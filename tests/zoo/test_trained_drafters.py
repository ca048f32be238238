"""The drafter that ships for the released model is what its page and its report say."""

from pathlib import Path

from safetensors.torch import load_file

from hierspec.zoo import registry, sibling, trained

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "smollm2.md").read_text(encoding="utf-8")
SIBLING = PAGE.split("\n## ")[3]


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
    assert f"{report['texts']['tokens']:,}" in SIBLING
