"""``hierspec bench serve`` on a terminal: rates, and times from the clients' side."""

from __future__ import annotations

from typing import Any

from hierspec.bench.load.summary import METRICS
from hierspec.utils import terminal
from hierspec.utils.terminal import borderless


def show(result: dict[str, Any]) -> None:
    """Print rates and times, as clients see them."""
    rates = borderless(("",), ("",))
    for label, value in (
        ("answered", f"{result['completed']} of {result['num_prompts']}"),
        ("seconds", f"{result['duration']:.2f}"),
        ("requests/s", f"{result['request_throughput']:.2f}"),
        ("output tokens/s", f"{result['output_throughput']:.2f}"),
        ("peak concurrency", str(result["max_concurrent_requests"])),
    ):
        rates.add_row(label, value)
    if "request_goodput" in result:
        rates.add_row("good requests/s", f"{result['request_goodput']:.2f}")
    if "spec_decode_acceptance_length" in result:
        rates.add_row("acceptance", f"{result['spec_decode_acceptance_rate']:.1f} %")
        rates.add_row("tokens a target call", f"{result['spec_decode_acceptance_length']:.2f}")
    times = borderless(("milliseconds",), ("mean", "median", "p99"))
    for name, label in METRICS.items():
        cells = (f"{result[f'{kind}_{name}_ms']:.2f}" for kind in ("mean", "median", "p99"))
        times.add_row(f"{label} ({name})", *cells)
    console = terminal.console()
    console.print(rates)
    console.print(times)
