"""What all figures share: names short enough to stand beside each other."""

from hierspec_lab.plotting import figures


def test_long_names_keep_what_tells_them_apart():
    names = ["org/Llama-1B-Instruct", "org/Llama-70B-Instruct", "ngram"]
    assert figures.distinct(names) == ["Llama-1B", "Llama-70B", "ngram"]
    assert figures.distinct(["a/x", "b/x"]) == ["a/x", "b/x"]
    assert figures.chained(["tiny", "big"], (4,), 60) == "tiny 4 → big"
    long = figures.chained(["a-very-long-name-1B", "a-very-long-name-9B"], (4,), 24)
    assert len(long) <= 24
    assert "1B 4 →" in long
    assert long.endswith("9B")
