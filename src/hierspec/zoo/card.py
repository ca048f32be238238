"""The model card, written from ``metrics.json`` so that it cannot disagree with it."""

from __future__ import annotations

from typing import Any


def table(head: list[str], rows: list[list[Any]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def matrix(names: list[str], values: list[list[float]]) -> str:
    """A symmetric matrix as a table; the lower half says it all."""
    rows = [
        [f"**{name}**", *(f"{values[i][j]:.3f}" if j <= i else "" for j in range(len(names)))]
        for i, name in enumerate(names)
    ]
    return table(["", *names], rows)


def model_card(metrics: dict[str, Any]) -> str:
    """The whole card as Markdown."""
    corpus, training, tokenizer = (metrics[k] for k in ("corpus", "training", "tokenizer"))
    models, result = metrics["models"], metrics["evaluation"]
    parts = [
        "# The hierspec zoo",
        "Small Llama-shaped language models of Python source code, for trying, testing and "
        "measuring speculative decoding where no other model is at hand. Written by "
        "`hierspec zoo train`; this page is made from `metrics.json`. They imitate the look of "
        "Python. They are too small to program.",
        "## Data",
        f"Sources of the standard library of Python {corpus['python_version']} "
        f"(licence {corpus['licence']}): {corpus['train_files']} files to train on, "
        f"{corpus['held_out_files']} held out by a hash of their names "
        f"({corpus['held_out_tokens']:,} tokens); functions with docstrings once more on their "
        f"own; library files {corpus['library_copies']} times for one of tests. "
        f"sha256 of the text: `{corpus['sha256'][:16]}…`. Tokenizer: byte-level BPE, "
        f"{tokenizer['vocab_size']} tokens, {tokenizer['characters_per_token']:.2f} characters "
        "per token on held-out text.",
        "The n-gram table, the tokenizer and the models saw the same training files.",
        "## Models",
        table(
            ["model", "layers", "hidden", "parameters", "megabytes"],
            [
                [n, m["layers"], m["hidden"], f"{m['parameters']:,}", f"{m['bytes'] / 1e6:.1f}"]
                for n, m in models.items()
            ],
        ),
        "The trunk learns the text at its last layer and at one random early exit per step (after "
        "layers 1, 2, 4; same norm and head). mid and small are distilled from the trunk on "
        "training text and on text that the trunk wrote, first by KL divergence, then by total "
        "variation. `zoo:large` is no trained model: it is the trunk widened and deepened at load "
        "time, **a synthetic cost with a real distribution**; say so, with eps, wherever it is "
        "used.",
        table(
            ["run", "steps", "tokens", "wall seconds"],
            [[n, r["steps"], f"{r['tokens']:,}", r["seconds"]] for n, r in training.items()],
        ),
        f"Hardware: {metrics['hardware']}. Seed {metrics['seed']}. {metrics.get('notes', '')}",
        "## Held-out loss",
        table(
            ["model", "nats per token"],
            [[n, f"{v:.3f}"] for n, v in result["held_out_loss"].items()],
        ),
        "## Acceptance",
        "1 − TV of next-token laws on held-out text, mean over positions; at temperature 0 the "
        f"share of equal argmaxes. {metrics['windows']}. `trunk@2` is the trunk's exit after two "
        "layers.",
    ]
    for temperature, values in result["acceptance"].items():
        parts += [f"### Temperature {temperature}", matrix(result["names"], values)]
    parts += [
        "### trunk and large",
        table(
            ["eps", "α at T = 1", "α at T = 0.6", "equal argmaxes", "held-out loss of large"],
            [
                [eps, *(f"{v[t]:.3f}" for t in ("1", "0.6", "0")), f"{v['held_out_loss']:.3f}"]
                for eps, v in result["large"].items()
            ],
        ),
        "(bfloat16; at eps = 0 what remains is rounding.)",
        f"## Sample\nThe trunk at temperature {metrics['sample']['temperature']}:",
        f"```python\n{metrics['sample']['text']}\n```",
    ]
    return "\n\n".join(part.strip() for part in parts) + "\n"
