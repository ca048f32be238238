"""What is assumed of models until it is measured, so that there is a plan from the first seconds.

Priors stand in an ordinary profile, in the places of measurements that are still missing, and are
never kept in its file.
"""

from __future__ import annotations

from collections.abc import Sequence

from hierspec.config.levels import LevelConfig
from hierspec.config.schema import HierarchyConfig, TargetConfig
from hierspec.config.target import model_config
from hierspec.zoo import registry

from .candidates import Candidate, possible_pairs
from .profile import KIND, SCHEMA_VERSION, Profile
from .schema import (
    AtTemperature,
    MeasuredContext,
    MeasuredCost,
    MeasuredModel,
    MeasuredPair,
    MeasuredSettings,
    Survival,
    TimeSummary,
)
from .settings import ProfileSettings

_WEIGHTS_PER_MS = 1e7  # that are read in 16 bits, at 20 GB/s; plans depend on ratios alone
ROWS = 12  # further tokens of a check that cost about as much as a call on one
CALLS, AGREEMENT, CHECKS = "calls", "acceptance", "checks"  # what may rest on priors


def profile(
    target: TargetConfig,
    candidates: Sequence[Candidate],
    temperature: float,
    settings: ProfileSettings,
) -> Profile:
    """Return what is assumed before any model is loaded, with calls priced by the models' sizes.

    Raises:
        HierspecError: a model's configuration cannot be read.
    """
    priced = [(_call_ms(target.model, one.level), one) for one in candidates]
    priced.sort(key=lambda entry: entry[0])
    ordered, call_ms = [one for _, one in priced], [ms for ms, _ in priced]
    call_ms.append(_call_ms(target.model))
    described = [
        *((one.name, one.level_dict(target), one.owner(target)) for one in ordered),
        (target.model, None, target.model),
    ]
    return Profile(
        kind=KIND,
        schema_version=SCHEMA_VERSION,
        hardware={},
        target=HierarchyConfig(target=target).to_dict()["target"],
        settings=MeasuredSettings(max_speculative_tokens=settings.max_speculative_tokens),
        temperatures={
            repr(temperature): complete(
                ordered,
                call_ms,
                possible_pairs(ordered, call_ms, settings.min_ratio),
                temperature,
                settings.max_speculative_tokens,
                missing=(CALLS,),
            )
        },
        models=[
            MeasuredModel(name=name, level=level, owner=owner, weights=None, call_ms=ms)
            for ms, (name, level, owner) in zip(call_ms, described, strict=True)
        ],
        memory={},
    )


def complete(
    candidates: Sequence[Candidate],
    call_ms: Sequence[float],
    pairs: Sequence[tuple[int, int]],
    temperature: float,
    max_tokens: int,
    *,
    followed: Sequence[MeasuredPair] = (),
    missing: Sequence[str] = (),
) -> AtTemperature:
    """Return a temperature's measurements, with priors in the places of those that are missing.

    Args:
        candidates: cheapest first, without the target.
        call_ms: [K+1] milliseconds of single calls, the target's last.
        max_tokens: the length of the longest draft.
        missing: what else has not been.
    """
    known = {(pair.drafter, pair.verifier) for pair in followed}
    guessed = [pair for pair in pairs if pair not in known]

    def survival(i: int, k: int) -> MeasuredPair:
        rate = candidates[i].level.prior_acceptance[temperature > 0]
        curve = [rate**m for m in range(max_tokens + 1)]
        return MeasuredPair(
            drafter=i,
            verifier=k,
            drafts=0,
            survival=Survival(block=curve, tokenwise=curve),
            classes=[],
            tokens_per_call=sum(curve),
            standard_error=0.0,
            lengths=[],
            kept=[],
        )

    def check(i: int | None, k: int, *lengths: int) -> MeasuredCost:
        ms = {n: call_ms[k] * (1 + n / ROWS) for n in lengths}
        times = {
            n: TimeSummary(mean=mean, median=mean, low=mean, high=mean, count=1)
            for n, mean in ms.items()
        }
        return MeasuredCost(drafter=i, verifier=k, draft={}, check=times)

    return AtTemperature(
        pairs=[*followed, *(survival(i, k) for i, k in guessed)],
        costs=[
            *(check(None, k, 0) for k, ms in enumerate(call_ms) if ms),  # look-ups have no call
            *(check(i, k, 1, max_tokens) for i, k in pairs),
        ],
        context=MeasuredContext(tokens=1, long=1, slopes=[]),
        token_ms=0.0,
        priors=[*missing, *([AGREEMENT] if guessed else []), CHECKS],
    )


def _call_ms(target: str, level: LevelConfig | None = None) -> float:
    """Return the milliseconds in which a model's weights are read; the target's without a level."""
    cost = 3 if level is None else level.capabilities.cost
    if cost == 0:
        return 0.0
    own = level.files if level and cost == 2 else None
    config = model_config(own or target).get_text_config(decoder=True)
    layers = getattr(level, "exit_layer", 1) if cost == 1 else config.num_hidden_layers
    width, bits = config.hidden_size, getattr(level, "bits", None)
    ms = (12 * layers * width**2 + config.vocab_size * width) / _WEIGHTS_PER_MS
    return ms * bits / (registry.bits_in_file(target) or 16) if bits else ms
