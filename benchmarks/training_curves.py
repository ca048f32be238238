"""What ten times the text would give a trained drafter: a power law through its training's curve.

``1 - acceptance = a + b tokens^-c`` is fitted to the batches of a training, a ≥ 0, by tokens seen.
Acceptance (1 - TV) is that among the tokens a drafter scores, of which the larger model's mass is
``known``, so that held-out acceptance is ``known`` times as much. A report that was measured on
held-out texts on the way (``measured``, of an EAGLE-3 network) is fitted there, together with the
trainings that it went on from (``started_from``): by ``acceptance`` of first tokens, or by
``greedy_tokens_per_call``, of whose drafted tokens the share kept is fitted from the first 150,000
tokens on, before which drafts of several tokens are hardly trained.
``--first-pass`` takes the batches of the first pass over the texts alone: a drafter that learns
them by heart shows later what it knows of these texts, not what more text would give. Intervals are
bootstrap quantiles over the points; they know nothing of learning rates and losses, which a longer
training changes later, so ``from_first_half`` is the same of the first half of the points.

    python benchmarks/training_curves.py --add NAME REPORT.json KEY [--first-pass]
    python benchmarks/training_curves.py    # fit the points that the result file holds, and draw
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import common
import numpy as np
from scipy.optimize import least_squares

from hierspec_lab.plotting import figures
from hierspec_lab.training.texts import HELD_OUT

NAME = "training-curves"
PICTURE = common.ROOT / "docs" / "pictures" / f"{NAME}.svg"
TIMES, SAMPLES = 10, 1000  # the larger budget, in budgets; of the bootstrap
UNIT = 1e5  # tokens, so that b is 1 - a - acceptance there
DRAFTS_FROM = 150_000  # tokens after which yields of drafts are fitted
MIN_POINTS = 5  # that three numbers are fitted to
CALLS = ("tokens_per_call", "greedy_tokens_per_call")


def kept(figures: dict[str, Any], key: str) -> tuple[float, float]:
    """Return what is kept of drafted tokens by held-out figures, and what could be at most."""
    if key in CALLS:  # of a draft with as many tokens as there are steps
        return (figures[key] - 1) / len(figures["acceptance"]), 1.0
    return float(np.ravel(figures["acceptance"])[0]), figures.get("coverage") or figures["known"]


def measured_points(measured: Sequence[dict[str, Any]], key: str) -> list[list[float]]:
    """Return [tokens seen, share lost of what could be kept] of held-out figures."""
    found = []
    for line in measured:
        share, most = kept(line, key)
        if key not in CALLS or line["tokens"] >= DRAFTS_FROM:
            found.append([line["tokens"], 1 - share / most])
    return found


def measured_lines(report: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what was measured on the way, by tokens seen since the first training."""
    measured = report.get("measured", ())
    lines = [line | line.get("figures", {}).get(HELD_OUT, {}) for line in measured]
    if (start := report.get("started_from")) is None:
        return lines
    earlier = measured_lines(json.loads((common.RESULTS / start["file"]).read_text()))
    seen = start["tokens_seen"]
    return earlier + [line | {"tokens": line["tokens"] + seen} for line in lines]


def points(report: dict[str, Any], key: str, first_pass: bool) -> list[list[float]]:
    """Return [tokens seen, total variation] of the lines of a training's report."""
    settings, found, seen, began = report["settings"], list[list[float]](), 0.0, 0.0
    for line in report["curve"]:
        if "rows" in settings:
            seen = line["step"] * settings["rows"] * settings["width"]
        elif settings.get("epochs") and not settings.get("minutes"):
            seen = line["step"] / report["steps"] * settings["epochs"] * report["tokens"]
        else:
            seen += line["tokens_per_s"] * (line["seconds"] - began)
        if not first_pass or seen <= report["texts"]["tokens"]:
            found.append([round(seen), line[key]])
        began = line["seconds"]
    return found


def fit(curve: np.ndarray) -> np.ndarray:
    """Return a, b and c."""
    tokens, distances = np.log(curve[:, 0] / UNIT), curve[:, 1]

    def residuals(law: np.ndarray) -> np.ndarray:
        return law[0] + law[1] * np.exp(-law[2] * tokens) - distances

    return least_squares(residuals, (0.1, 0.5, 0.2), bounds=((0, 0, 0), (1, 2, 1))).x


def extrapolated(curve: np.ndarray, known: float, end: float) -> dict[str, Any]:
    """Fit a curve; return its law, and acceptance at ``end`` tokens and at ten times as many."""
    rng, count = np.random.default_rng(0), len(curve)
    law = fit(curve)
    drawn = np.array([fit(curve[rng.integers(count, size=count)]) for _ in range(SAMPLES)])

    def acceptance(laws: np.ndarray, tokens: Any) -> np.ndarray:
        a, b, c = laws.T
        return known * (1 - a - b * (tokens / UNIT) ** -c)

    def at(tokens: float) -> list[float]:
        low, high = np.percentile(acceptance(drawn, tokens), [2.5, 97.5])
        return [round(float(x), 4) for x in (acceptance(law, tokens), low, high)]

    residuals = known * (1 - curve[:, 1]) - acceptance(law, curve[:, 0])
    return {
        "law": dict(zip("abc", map(float, law), strict=True)),
        "rms_residual": float(np.sqrt((residuals**2).mean())),
        "acceptance": at(end),
        "acceptance_at_tenfold": at(TIMES * end),
    }


def draw(curves: dict[str, Any]) -> None:
    with figures.style():
        figure = figures.new_figure(8.4, 3.4)
        axes = figure.add_axes((0.08, 0.16, 0.52, 0.8))
        for number, (name, curve) in enumerate(curves.items()):
            tokens, distances = np.array(curve["points"]).T
            axes.plot(tokens, curve["known"] * (1 - distances), color=f"C{number}", lw=0.5)
            law, end = curve["fit"]["law"], tokens[-1]
            xs = np.geomspace(tokens[0], TIMES * end, 12)
            ys = curve["known"] * (1 - law["a"] - law["b"] * (xs / UNIT) ** -law["c"])
            axes.plot(xs, ys, color=f"C{number}", label=name, lw=1)
            middle, low, high = curve["fit"]["acceptance_at_tenfold"]
            axes.errorbar(
                TIMES * end, middle, [[middle - low], [high - middle]], color=f"C{number}"
            )
        axes.set(xscale="log", xlabel="tokens seen", ylabel="drafted tokens kept")
        axes.set_xticks([1e4, 1e5, 1e6, 1e7], ["10 k", "100 k", "1 M", "10 M"])
        axes.minorticks_off()
        axes.legend(frameon=False, fontsize=9, loc="center left", bbox_to_anchor=(1, 0.5))
        figures.save(figure, PICTURE)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--add", nargs=3, metavar=("NAME", "REPORT", "KEY"))
    parser.add_argument("--first-pass", action="store_true")
    args = parser.parse_args()
    path = common.RESULTS / f"{NAME}.json"
    curves = json.loads(path.read_text())["curves"] if path.exists() else {}
    if args.add:
        name, file, key = args.add
        report = json.loads(Path(file).read_text())
        # Of an exit's head, ``tv@10``; of a sibling, ``tv`` (that shipped: ``2x192_tv``).
        if measured := measured_lines(report):
            held_out, found = measured[-1], measured_points(measured, key)
        else:
            held_out = report["after"][key[3:]] if "after" in report else report["figures"]["all"]
            found = points(report, key, args.first_pass)
        share, most = kept(held_out, key)
        curves[name] = {
            "known": most,
            "held_out": share,
            "training_tokens": report.get("tokens") or report["texts"]["tokens"],
            "first_pass": args.first_pass,
            "points": found,
        }
    for curve in curves.values():
        found = np.array(curve["points"])
        for kind, count in (("fit", len(found)), ("from_first_half", len(found) // 2)):
            if count < MIN_POINTS:
                curve.pop(kind, None)
                continue
            curve[kind] = extrapolated(found[:count], curve["known"], found[-1, 0])
            print(kind, json.dumps(curve[kind]))
    common.write(NAME, {"environment": common.environment(), "curves": curves})
    draw(curves)


if __name__ == "__main__":
    main()
