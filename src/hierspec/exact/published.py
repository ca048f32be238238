"""Published verifiers as adapters (:mod:`hierspec.exact.adapters`), to be enumerated.

Where a package is at hand its own function is called. What is written down here anew is written
from its publication, for one draft, in our words; names of sources are in the table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from .adapters import LENGTHS, SEEDS, Adapter, examine


@dataclass(frozen=True, slots=True)
class Published:
    """A verifier that somebody published.

    Attributes:
        source: where.
        own_code: whether its own function is called, or what it publishes was written anew.
    """

    name: str
    source: str
    own_code: bool
    verify: Adapter


def transformers_step(tokens: torch.Tensor, q: torch.Tensor, p: torch.Tensor) -> Sequence[int]:
    """The assisted step of the installed transformers."""
    return _transformers(tokens, q, p, None)


def transformers_ensemble(tokens: torch.Tensor, q: torch.Tensor, p: torch.Tensor) -> Sequence[int]:
    """The same with its option ``assistant_ensemble_weight`` at one half."""
    return _transformers(tokens, q, p, 0.5)


def _transformers(
    tokens: torch.Tensor, q: torch.Tensor, p: torch.Tensor, weight: float | None
) -> list[int]:
    from transformers.generation import utils

    step = utils._speculative_sampling  # pyright: ignore[reportPrivateUsage]
    more = {} if weight is None else {"assistant_ensemble_weight": weight}
    valid, _ = step(tokens[None], q.log()[None], len(tokens), p.log()[None], **more)
    return valid[0].tolist()


def vllm_rejection(tokens: torch.Tensor, q: torch.Tensor, p: torch.Tensor) -> Sequence[int]:
    """vLLM's rejection sampler: uniforms and recovered tokens of all places are drawn beforehand.

    It draws recovered tokens by a race of exponential numbers, which is a draw from the residual.
    """
    n = len(tokens)
    uniforms = torch.rand(n)
    recovered = torch.multinomial((p[:n] - q).clamp(min=0.0), 1)[:, 0]
    out: list[int] = []
    for i, token in enumerate(tokens.tolist()):
        if not (q[i, token] > 0 and bool(p[i, token] / q[i, token] >= uniforms[i])):
            return [*out, int(recovered[i])]
        out.append(token)
    return [*out, int(torch.multinomial(p[n:], 1))]


def vllm_without_draft_probs(
    tokens: torch.Tensor, q: torch.Tensor, p: torch.Tensor
) -> Sequence[int]:
    """The same for drafts that come without probabilities, as those of n-grams: q is one-hot."""
    return vllm_rejection(tokens, torch.nn.functional.one_hot(tokens, p.shape[1]).double(), p)


def gpt_fast(tokens: torch.Tensor, q: torch.Tensor, p: torch.Tensor) -> Sequence[int]:
    """gpt-fast's step: the first rejected place of all, then a draw from its residual."""
    n = len(tokens)
    at = torch.arange(n)
    kept = torch.minimum(torch.ones(n, dtype=p.dtype), p[at, tokens] / q[at, tokens])
    rejected = (torch.rand_like(kept) > kept).nonzero()
    if not len(rejected):
        return [*tokens.tolist(), int(torch.multinomial(p[n:], 1))]
    first = int(rejected[0])
    residual = (p[first] - q[first]).clamp(min=0.0)
    return [*tokens[:first].tolist(), int(torch.multinomial(residual[None], 1))]


def sample_and_compare(tokens: torch.Tensor, q: torch.Tensor, p: torch.Tensor) -> Sequence[int]:
    """Draw the target's own tokens, keep the draft while it equals them."""
    own = torch.multinomial(p, 1)[:, 0].tolist()
    out: list[int] = []
    for token, drafted in zip(own, [*tokens.tolist(), -1], strict=True):
        out.append(token)
        if token != drafted:
            break
    return out


def typical_acceptance(tokens: torch.Tensor, q: torch.Tensor, p: torch.Tensor) -> Sequence[int]:
    """Medusa's: keep a token of probability above min(ε, δ exp(−H)), ε = .09, δ = √ε."""
    least = torch.minimum(torch.tensor(0.09), 0.3 * (p * p.log()).sum(-1).exp())
    out: list[int] = []
    for i, token in enumerate(tokens.tolist()):
        if p[i, token] <= least[i]:
            break
        out.append(token)
    return [*out, int(torch.multinomial(p[len(out) :][:1], 1))]


def block_of_hierspec(tokens: torch.Tensor, q: torch.Tensor, p: torch.Tensor) -> Sequence[int]:
    """Block verification, for comparison."""
    return _by_rule("block", tokens, q, p)


def released_branch(tokens: torch.Tensor, q: torch.Tensor, p: torch.Tensor) -> Sequence[int]:
    """Branch resampling as its authors printed and released it: the last test is not capped."""
    return _by_rule("uncapped", tokens, q, p)


def _by_rule(name: str, tokens: torch.Tensor, q: torch.Tensor, p: torch.Tensor) -> list[int]:
    from hierspec.core.rules import Batch, scan
    from hierspec.verifiers import registry

    rule, n = registry.get(name), len(tokens)
    batch = Batch(p[None], q[None], tokens[None], torch.tensor([n]))
    accepted = rule.acceptance(batch)
    tau = scan(rule.order, accepted.h, torch.rand(1, n))
    row = rule.correction(batch, accepted, tau)
    return [*tokens[: int(tau)].tolist(), int(torch.multinomial(row, 1))]


PUBLISHED = {
    one.name: one
    for one in (
        Published("transformers", "transformers, assisted generation", True, transformers_step),
        Published(
            "transformers-ensemble",
            "the same, `assistant_ensemble_weight=0.5` (documented as a bias)",
            True,
            transformers_ensemble,
        ),
        Published("vllm", "vLLM, rejection sampler", False, vllm_rejection),
        Published(
            "vllm-no-draft-probs",
            "the same, drafts without probabilities",
            False,
            vllm_without_draft_probs,
        ),
        Published("gpt-fast", "gpt-fast, speculative step", False, gpt_fast),
        Published(
            "sample-and-compare", "drawing the target's own tokens", False, sample_and_compare
        ),
        Published("block", "Sun et al. 2024, block verification", False, block_of_hierspec),
        Published(
            "branch-released",
            "P4, branch resampling as printed and released",
            False,
            released_branch,
        ),
        Published(
            "typical-acceptance",
            "Medusa (Cai et al. 2024), typical acceptance",
            False,
            typical_acceptance,
        ),
    )
}


def table(lengths: Sequence[int] = LENGTHS, seeds: int = SEEDS) -> str:
    """All of them, as the table of ``docs/published-verifiers.md``."""
    heads = ["verifier", "what", "lossless", *(f"distance, n = {n}" for n in lengths)]
    lines = [" | ".join(heads), " | ".join("---" for _ in heads)]
    for one in PUBLISHED.values():
        found = examine(one.verify, lengths, seeds)
        far = ["< 1e-9" if tv < 1e-9 else f"{tv:.4f}" for tv in found.tv.values()]
        name = f"`{one.name}`" + (" (its own code)" if one.own_code else "")
        lines.append(" | ".join([name, one.source, "yes" if found.lossless else "**no**", *far]))
    return "\n".join(f"| {line} |" for line in lines)
