"""Verification at a large vocabulary: distributions, draws and rules on made-up scores.

Forwards stand at their roofline, one pass over the weights at the memory bandwidth measured here,
so shares are upper bounds. Writes ``results/verification.json``.

    python benchmarks/verification.py
"""

from __future__ import annotations

import argparse
import dataclasses

import common


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vocab", type=int, default=151_936)
    parser.add_argument("--lengths", type=int, nargs="+", default=[4, 8, 10, 15])
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()

    import torch

    from hierspec.utils.machine import load_average
    from hierspec_lab.bench.roofline import bandwidth
    from hierspec_lab.papers.p4.cost import RULES, SIZES, roofline_ms, shares, timing

    torch.set_num_threads(options.threads)
    speed = bandwidth(torch.device("cpu"))
    rooflines = {name: roofline_ms(count, speed) for name, count in SIZES.items()}
    draft_ms, target_ms = rooflines["0.5B"], rooflines["7B"]
    environment = common.environment()
    print(
        f"{speed / 1e9:.1f} GB/s: {draft_ms:.0f} ms a draft step, {target_ms:.0f} ms a target call"
    )
    print(
        "dtype     batch  n  laws ms  drafting ms  rule       verify ms  share %  sampling %  kept"
    )
    rows = []
    for dtype in (torch.float32, torch.bfloat16):
        for batch in options.batches:
            for n in options.lengths:
                costs = timing(options.vocab, n, batch, dtype, options.rounds)
                row = {"dtype": str(dtype).removeprefix("torch."), "batch": batch, "length": n}
                figures = dataclasses.asdict(costs)
                row |= {"laws": figures.pop("distributions"), **figures}
                row["shares"] = {r: shares(costs, r, n, draft_ms, target_ms) for r in RULES}
                rows.append(row)
                for rule in RULES:
                    share = row["shares"][rule]
                    print(
                        f"{row['dtype']:<9} {batch:>5} {n:>2}  {costs.distributions:>7.2f}  "
                        f"{costs.drafting:>11.2f}  {rule:<9}  {costs.verification[rule]:>9.3f}  "
                        f"{100 * share['verification']:>7.3f}  {100 * share['sampling']:>10.2f}  "
                        f"{costs.kept[rule]:>4.1f}",
                        flush=True,
                    )
    common.write(
        "verification",
        {
            "what": "milliseconds of a round outside forward passes, made-up scores; those at the "
            "roofline of memory bandwidth (bfloat16 weights read once a call), not run",
            "environment": environment | {"load_average_after": load_average()},
            "settings": {
                "vocab": options.vocab,
                "rounds": options.rounds,
                "bytes_per_second": speed,
                "parameters": SIZES,
                "floor_ms": rooflines,
            },
            "largest_verification_share": max(
                share["verification"] for row in rows for share in row["shares"].values()
            ),
            "rows": rows,
        },
    )


if __name__ == "__main__":
    main()
