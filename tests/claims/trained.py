"""docs/smollm2.md and docs/heads.md: drafters that are trained."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from .base import ROOT, Claim, data, short
from .benches import EVERY, method
from .reproducible import kernels_beside

ZOO = ROOT / "src" / "hierspec" / "zoo" / "data"
SMOLLM2, HEADS = "docs/smollm2.md", "docs/heads.md"


def _eagle3() -> dict[str, Any]:
    return data("trained-eagle3")


def _exit_heads() -> dict[str, Any]:
    return data("trained-heads")


def _counted(of: Callable[[], dict[str, Any]]) -> Callable[[], list[int]]:
    return lambda: [of()["parameters"]]


def _by_step(step: int) -> list[str]:
    found = _eagle3()["figures"]["held out"]
    return [short(found[key][step], 3) for key in ("acceptance", "agreement")]


def _by_exit(layer: int) -> list[str]:
    found = _exit_heads()["after"][str(layer)]
    return [short(found[key], 3) for key in ("acceptance", "agreement")]


def _by_domain(domain: str) -> list[str]:
    found = _exit_heads()["domains"][domain]
    layers = (found[str(layer)] for layer in _exit_heads()["exits"])
    return [short(one[key], 2) for one in layers for key in ("acceptance", "agreement")]


def _tokens_per_call() -> list[str]:
    found = _eagle3()["figures"]["held out"]
    return [f"{found[key]:.2f}" for key in ("tokens_per_call", "greedy_tokens_per_call")]


def _drafts_by_domain(domain: str) -> list[str]:
    """Of the EAGLE-3 drafter: steps 1 and 3, and tokens a call."""
    found = _eagle3()["figures"]["by domain"][domain]
    steps = [short(found[key][i], 2) for i in (0, 2) for key in ("acceptance", "agreement")]
    calls = [f"{found[key]:.2f}" for key in ("tokens_per_call", "greedy_tokens_per_call")]
    return [*steps, *calls]


def _coverage() -> list[str]:
    """The mass of the heads' tokens in code and chat."""
    domains = _exit_heads()["domains"]
    return [short(domains[domain]["5"]["coverage"]) for domain in ("code", "chat")]


def _sibling() -> dict[str, Any]:
    return json.loads((ZOO / "smollm2-sibling" / "sibling.json").read_text())


def _siblings_drafts(domain: str) -> list[str]:
    """Of the sibling: acceptance, same choice, and tokens a call."""
    found = _sibling()["figures"][domain]
    calls = [f"{found[key]:.2f}" for key in ("tokens_per_call", "greedy_tokens_per_call")]
    return [*(short(found[key], 2) for key in ("acceptance", "agreement")), *calls]


def _worth(size: str) -> list[str]:
    """Of a size of sibling: acceptance, a call's time in target calls, best draft, gain."""
    found = _sibling()["sizes"][size]
    share = [short(found["acceptance"], 3), short(found["cost"], 3)]
    return [*share, str(found["draft"]), f"{found['speedup']:.2f}"]


def _alone(drafter: str) -> list[str]:
    """Of a drafter alone in the main bench: gain and tokens a call, by temperature."""
    found: list[str] = []
    for temperature, file in EVERY.items():
        summed = method(file, temperature, f"alone-{drafter}").final_summary
        assert summed.speedup is not None
        found += [summed.speedup.format(), f"{summed.mean_acceptance_length:.2f}"]
    return found


def _a_siblings_call() -> list[str]:
    """Milliseconds of one row in the kernels and in torch."""
    one = data("kernels-sibling")["milliseconds"]["1"]
    return [f"{one[path]['median']:.2f}" for path in ("kernels, own weights", "target")]


def _before_and_after(result: dict[str, Any], layer: str) -> list[str]:
    """A row of heads: acceptance, nats and tokens a call, before and after training."""
    held_out = [result["held_out"][when][layer] for when in ("before", "after")]
    calls = result["tokens_per_target_call"][f"exit {layer}, temperature 0"]
    return [
        f"{result['parameters'] / len(result['held_out']['after']) / 1e6:.2f}",
        layer,
        *(f"{one['acceptance']:.3f}" for one in held_out),
        *(f"{one['kl']:.2f}" for one in held_out),
        *(f"{calls[when]:.2f}" for when in ("before", "after")),
    ]


def _moved_by() -> list[str]:
    """Per cent by which tokens a call at temperature 1 changed: least and most."""
    moved = [
        100 * (calls["after"] / calls["before"] - 1)
        for result in data("heads")["results"]
        for name, calls in result["tokens_per_target_call"].items()
        if name.endswith("temperature 1")
    ]
    return [f"{abs(min(moved)):.0f}", f"{max(moved):.0f}"]


TRAINED = [
    kernels_beside(SMOLLM2),
    Claim(SMOLLM2, "network ([how it works](eagle3.md)) of {:,} parameters", _counted(_eagle3)),
    Claim(SMOLLM2, "trained on {:,} tokens of answers", lambda: [_eagle3()["tokens"]]),
    *(Claim(SMOLLM2, f"| {i + 1} | {{}} | {{}} |", lambda i=i: _by_step(i)) for i in range(5)),
    Claim(
        SMOLLM2,
        "That is {} tokens a call of the target at temperature 1 and {} greedily",
        _tokens_per_call,
    ),
    *(
        Claim(
            SMOLLM2,
            f"| {domain} |" + " {} / {} |" * 3,
            lambda domain=domain: _drafts_by_domain(domain),
        )
        for domain in ("chat", "code", "math", "own", "passage")
    ),
    Claim(SMOLLM2, "layers 5, 10, 15 and 20, {:,} parameters in all", _counted(_exit_heads)),
    Claim(
        SMOLLM2,
        "trained on {:,} tokens of answers. On {:,} held-out tokens:",
        lambda: [_exit_heads()["texts"][key] for key in ("tokens", "held_out_tokens")],
    ),
    *(
        Claim(SMOLLM2, f"| {layer} | {{}} | {{}} |", lambda layer=layer: _by_exit(layer))
        for layer in (5, 10, 15, 20)
    ),
    *(
        Claim(SMOLLM2, f"| {domain} |" + " {} / {} |" * 4, lambda domain=domain: _by_domain(domain))
        for domain in ("chat", "code", "math", "own")
    ),
    Claim(SMOLLM2, "and hold {} of code and {} of chat", _coverage),
    *(
        Claim(
            SMOLLM2,
            f"| {title} |" + " {} | {} |" * 2,
            lambda drafter=drafter: _alone(drafter),
        )
        for title, drafter in (
            ("sibling", "smollm2-sibling"),
            ("suffix look-up", "suffix"),
            ("EAGLE-3", "smollm2-eagle3"),
        )
    ),
    Claim(SMOLLM2, "{:,} parameters. It sees a token", _counted(_sibling)),
    Claim(SMOLLM2, "a call takes {} ms, and {} in torch", _a_siblings_call),
    Claim(
        SMOLLM2, "distribution over {:,} tokens of prompts", lambda: [_sibling()["texts"]["tokens"]]
    ),
    *(
        Claim(
            SMOLLM2,
            f"| {domain} | {{}} / {{}} | {{}} / {{}} |",
            lambda domain=domain: _siblings_drafts(domain),
        )
        for domain in ("all", "chat", "code", "math", "own", "passage")
    ),
    *(
        Claim(
            SMOLLM2,
            f"| {size.replace('x', ' × ')} | {{}} | {{}} | {{}} | {{}}× |",
            lambda size=size: _worth(size),
        )
        for size in _sibling()["sizes"]
    ),
    *(
        Claim(
            HEADS,
            f"| `{result['model']}`, {result['kind']} ({{}} M) | {{}} | {{}} → {{}} | {{}} → {{}} "
            "| {} → {} |",
            lambda result=result, layer=layer: _before_and_after(result, layer),
        )
        for result in data("heads")["results"]
        for layer in result["held_out"]["after"]
    ),
    Claim(HEADS, "(they move by −{} % to +{} %)", _moved_by),
]
