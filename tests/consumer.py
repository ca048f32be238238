"""What users' programs write, for a strict type checker and the installed package.

``make dist`` checks it, and never runs it: public names are used as documented, and what comes back
has a type.
"""

from __future__ import annotations

from collections.abc import Iterator

import hierspec
from hierspec import Hierarchy, HierarchyConfig, HierspecError, SamplingParams, TargetConfig


def continued(prompt: str) -> tuple[str, list[int], float]:
    """One prompt, several, and a stream."""
    fast: Hierarchy = Hierarchy.from_preset("hierarchy")
    result: hierspec.GenerationResult = fast.generate(prompt, max_new_tokens=8, seed=1)
    many: list[hierspec.GenerationResult] = fast.generate_batch([prompt, prompt])
    events: Iterator[hierspec.TokenEvent] = fast.stream(prompt, temperature=0.8)
    words = "".join(event.text for event in events)
    return words + result.text, list(many[0].token_ids), result.tokens_per_second


def configured() -> Hierarchy:
    """A hierarchy file from Python."""
    config = HierarchyConfig.from_dict(
        {"target": {"model": "zoo:large"}, "levels": [{"method": "prompt_lookup"}]}
    )
    target: TargetConfig = config.target
    assert target.model == "zoo:large"
    return Hierarchy.from_config(config)


def sampled() -> SamplingParams:
    return SamplingParams(temperature=0.7, top_p=0.9)


def refused(name: str) -> str:
    try:
        hierspec.preset(name)
    except HierspecError as error:
        return str(error)
    return ""


VERSION: str = hierspec.__version__
