"""Published verifiers as adapters (:mod:`hierspec_lab.verifiers.adapters`), to be enumerated.

If a package is installed, its own function is called. The others are written anew from their
publications, for one draft; :data:`VERIFIERS` names the sources.

Below, r_i = p_i(x_i)/q_i(x_i), R_k = r_1⋯r_k and w_k = R_k / max(1, R_1, …, R_k), which is
min(1, w_{k−1} r_k) [MATH §1].
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .adapters import Published


def transformers_step(tokens: torch.Tensor, q: torch.Tensor, p: torch.Tensor) -> Sequence[int]:
    """Return the round of the installed transformers' assisted step."""
    return _transformers_round(tokens, q, p, None)


def transformers_ensemble(tokens: torch.Tensor, q: torch.Tensor, p: torch.Tensor) -> Sequence[int]:
    """Return that round with the option ``assistant_ensemble_weight`` at one half."""
    return _transformers_round(tokens, q, p, 0.5)


def _transformers_round(
    tokens: torch.Tensor, q: torch.Tensor, p: torch.Tensor, weight: float | None
) -> list[int]:
    from transformers.generation import utils

    step = utils._speculative_sampling  # pyright: ignore[reportPrivateUsage]
    options = {} if weight is None else {"assistant_ensemble_weight": weight}
    valid, _ = step(tokens[None], q.log()[None], len(tokens), p.log()[None], **options)
    return valid[0].tolist()


def vllm_rejection(tokens: torch.Tensor, q: torch.Tensor, p: torch.Tensor) -> Sequence[int]:
    """Return the round of vLLM's rejection sampler, with a draw in place of its race.

    It takes argmax_x (p − q)₊(x) / e(x), with one row of exponential numbers e for all positions of
    a round. The enumeration follows uniforms that are compared with constants, not with each other,
    so it cannot follow a race.
    """
    n = len(tokens)
    uniforms = torch.rand(n)
    out: list[int] = []
    for i, token in enumerate(tokens.tolist()):
        if not (q[i, token] > 0 and bool(p[i, token] / q[i, token] >= uniforms[i])):
            # vLLM races at all positions, but uses only this one's winner; which position that is
            # depends on the uniforms alone, so a draw here has the same law.
            return [*out, _draw((p[i] - q[i]).clamp(min=0.0))]
        out.append(token)
    return [*out, _draw(p[n])]


def vllm_without_draft_probs(
    tokens: torch.Tensor, q: torch.Tensor, p: torch.Tensor
) -> Sequence[int]:
    """Return vLLM's round for drafts without probabilities, as of n-grams: q is one-hot."""
    return vllm_rejection(tokens, torch.nn.functional.one_hot(tokens, p.shape[1]).double(), p)


def vllm_grammar(tokens: torch.Tensor, q: torch.Tensor, p: torch.Tensor) -> Sequence[int]:
    """Return vLLM's round where a grammar forbids tokens, those that ``p`` gives probability 0.

    The draft ends before the first forbidden token, and what follows is drawn from the target
    itself, not from the residual.
    """
    forbidden = (p[torch.arange(len(tokens)), tokens] == 0).tolist()
    n = [*forbidden, True].index(True)
    return vllm_rejection(tokens[:n], q[:n], p[: n + 1])


def vllm_cpu_temperature(tokens: torch.Tensor, q: torch.Tensor, p: torch.Tensor) -> Sequence[int]:
    """Return vLLM's round on a CPU, with a temperature of .5 in memory that was never written.

    What the checked rows are divided by is expanded into a copy that is dropped; the row after the
    last token is divided by the request's own temperature, here 1.
    """
    checked = p[:-1] ** 2  # the softmax of twice the logits
    return vllm_rejection(tokens, q, torch.cat([checked / checked.sum(-1, keepdim=True), p[-1:]]))


def sglang_cpu(tokens: torch.Tensor, q: torch.Tensor, p: torch.Tensor) -> Sequence[int]:
    """Return SGLang's round on a CPU: the target's likeliest tokens, at every temperature."""
    return _until_unlike(p.argmax(-1).tolist(), tokens.tolist())


def gpt_fast(tokens: torch.Tensor, q: torch.Tensor, p: torch.Tensor) -> Sequence[int]:
    """Return the round of gpt-fast's step: tokens before the first rejected one, then a draw."""
    n = len(tokens)
    i = torch.arange(n)
    keep_probs = torch.minimum(torch.ones(n, dtype=p.dtype), p[i, tokens] / q[i, tokens])
    rejected = (torch.rand_like(keep_probs) > keep_probs).nonzero()
    if not len(rejected):
        return [*tokens.tolist(), _draw(p[n])]
    first = int(rejected[0])
    return [*tokens[:first].tolist(), _draw((p[first] - q[first]).clamp(min=0.0))]


def sequential_standard(tokens: torch.Tensor, q: torch.Tensor, p: torch.Tensor) -> Sequence[int]:
    """Return the round of sequential-speculative-decoding's standard step, which is tokenwise."""
    out: list[int] = []
    for i, token in enumerate(tokens.tolist()):
        if not torch.rand(1) < p[i, token] / q[i, token]:
            return [*out, _draw((p[i] - q[i]).clamp(min=0.0))]
        out.append(token)
    return [*out, _draw(p[-1])]


def sequential_capped(tokens: torch.Tensor, q: torch.Tensor, p: torch.Tensor) -> Sequence[int]:
    """Return the round of sequential-speculative-decoding's capped step.

    Where block verification tests k tokens with w_k and the rows at k + 1, it uses w_{k−1} and the
    rows at k, and the recovered token mixes the two positions. Tokens with q = 0 are in no sum.
    """
    n, w = len(tokens), [torch.tensor(1.0, dtype=p.dtype)]
    for i, token in enumerate(tokens.tolist()):
        w.append((w[-1] * p[i, token] / q[i, token]).clamp(max=1.0))

    def excess_ratio(k: int) -> torch.Tensor:
        """Return r* − 1 [V], with which it tests k tokens, and draws the token after them."""
        i = (k - 1) % n  # for k = 0 its code has the index −1, the last position
        ratio = torch.where(q[i] > 0, p[i] / q[i], 0.0)
        return w[max(k - 1, 0)] * ratio - 1.0

    h = w[n - 1] if n > 1 else w[1]  # with one token, its index −1 is the right one
    for k in range(n, 0, -1):
        if k < n:
            ratio = excess_ratio(k)
            # 0/0 where p = q: NaN, and the test fails
            h = (q[k - 1] * ratio.clamp(min=0.0)).sum() / (q[k - 1] * -ratio.clamp(max=0.0)).sum()
        if torch.rand(1) < h:
            break
    else:
        k = 0
    row = p[n] if k == n else q[k] * excess_ratio(k).clamp(min=0.0)
    return [*tokens[:k].tolist(), _draw(row)]


def sample_and_compare(tokens: torch.Tensor, q: torch.Tensor, p: torch.Tensor) -> Sequence[int]:
    """Return tokens drawn from the target, up to the first that differs from the draft's."""
    return _until_unlike(torch.multinomial(p, 1)[:, 0].tolist(), tokens.tolist())


def _until_unlike(target_tokens: list[int], drafted: list[int]) -> list[int]:
    """Return the target's tokens up to the first that differs from the draft's."""
    out: list[int] = []
    for token, other in zip(target_tokens, [*drafted, -1], strict=True):
        out.append(token)
        if token != other:
            break
    return out


def typical_acceptance(tokens: torch.Tensor, q: torch.Tensor, p: torch.Tensor) -> Sequence[int]:
    """Return Medusa's round: tokens of probability above min(ε, δ exp(−H)), ε = .09, δ = √ε."""
    thresholds = torch.minimum(torch.tensor(0.09), 0.3 * (-torch.special.entr(p).sum(-1)).exp())
    out: list[int] = []
    for i, token in enumerate(tokens.tolist()):
        if p[i, token] <= thresholds[i]:
            break
        out.append(token)
    return [*out, _draw(p[len(out)])]


def released_branch(tokens: torch.Tensor, q: torch.Tensor, p: torch.Tensor) -> Sequence[int]:
    """Return the round of branch resampling as its authors printed and released it [P4 §5.2].

    r*_k = R_k / max(1, R_1, …, R_{k−1}) is capped at 1 in the branch divergences D*, so below the
    end a prefix is accepted with D*(p, q) / D*(q, p); the whole draft with min(1, R_n), without a
    cap.
    """
    n = len(tokens)
    i = torch.arange(n)
    ratios = torch.cumprod(p[i, tokens] / q[i, tokens], 0)  # R_1 … R_n
    one = torch.ones(1, dtype=p.dtype)
    peaks = torch.cummax(torch.cat([one, ratios]), 0).values[:n]
    capped = torch.cat([one, (ratios / peaks).clamp(max=1.0)])  # min(1, r*_k), k = 0 … n

    def divergences(k: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the excess of the target over the draft after k tokens, and the reverse."""
        difference = capped[k] * p[k] - q[k]
        return difference.clamp(min=0.0), -difference.clamp(max=0.0)

    if torch.rand(1) < ratios[-1]:
        return [*tokens.tolist(), _draw(p[n])]
    k = n - 1
    while k > 0:
        target, draft = (part.sum() for part in divergences(k))
        if torch.rand(1) < (target / draft if draft else 1.0):
            break
        k -= 1
    row, _ = divergences(k)
    return [*tokens[:k].tolist(), _draw(row if row.any() else p[k])]


def block_of_hierspec(tokens: torch.Tensor, q: torch.Tensor, p: torch.Tensor) -> Sequence[int]:
    """Return the round of our own block verification, for comparison."""
    return by_rule("block", tokens, q, p)


def by_rule(name: str, tokens: torch.Tensor, q: torch.Tensor, p: torch.Tensor) -> list[int]:
    """Return the round of a rule of :mod:`hierspec.verifiers`."""
    from hierspec.core.rules import Batch, scan
    from hierspec.verifiers import registry

    rule, n = registry.get(name), len(tokens)
    batch = Batch(p[None], q[None], tokens[None], torch.tensor([n]))
    accepted = rule.acceptance(batch)
    tau = scan(rule.order, accepted.h, torch.rand(1, n))
    return [*tokens[: int(tau)].tolist(), _draw(rule.correction(batch, accepted, tau)[0])]


def _draw(row: torch.Tensor) -> int:
    """Draw a token from weights [V]."""
    return int(torch.multinomial(row[None], 1))


VERIFIERS = (
    Published("transformers", "transformers, assisted generation", True, transformers_step),
    Published(
        "transformers-ensemble",
        "the same, `assistant_ensemble_weight=0.5` (documented as a bias)",
        True,
        transformers_ensemble,
    ),
    Published(
        "vllm",
        "vLLM, rejection sampler; a draw stands for its race of exponential numbers",
        False,
        vllm_rejection,
    ),
    Published(
        "vllm-no-draft-probs",
        "the same, drafts without probabilities",
        False,
        vllm_without_draft_probs,
    ),
    Published(
        "vllm-grammar",
        "vLLM 0.33, the same where a grammar forbids tokens that were drafted",
        False,
        vllm_grammar,
    ),
    Published(
        "vllm-cpu-temperature",
        "vLLM 0.32 on CPUs, the same with .5 left over where its temperature of 1 belongs",
        False,
        vllm_cpu_temperature,
    ),
    Published(
        "sglang-cpu",
        "SGLang 0.5.23 on CPUs, EAGLE's verification at a temperature of 1",
        False,
        sglang_cpu,
        deterministic=True,
    ),
    Published("gpt-fast", "gpt-fast, speculative step", False, gpt_fast),
    Published(
        "sequential-standard",
        "sequential-speculative-decoding 0.1.1, standard step",
        False,
        sequential_standard,
    ),
    Published("sample-and-compare", "drawing the target's own tokens", False, sample_and_compare),
    Published(
        "block",
        "Sun et al. 2024, block verification: our own rule",
        False,
        block_of_hierspec,
    ),
    Published(
        "branch-released",
        "P4, branch resampling as printed and released",
        False,
        released_branch,
    ),
    Published(
        "sequential-capped",
        "sequential-speculative-decoding 0.1.1, capped step",
        False,
        sequential_capped,
    ),
    Published(
        "typical-acceptance",
        "Medusa (Cai et al. 2024), typical acceptance",
        False,
        typical_acceptance,
    ),
)
