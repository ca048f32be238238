"""Verifiers of other projects, tested by enumeration: any function that verifies one draft.

An *adapter* is a function ``verify(tokens, q, p) → emitted tokens`` around such code. It gets the n
drafted tokens [n] int64, the distributions they were drawn from [n, V] and the target's [n + 1, V],
both float64, and returns the tokens of its round: the accepted ones and those that follow them. It
draws random numbers with ``torch.rand``, ``rand_like`` and ``multinomial``, which are replaced by
every possible result (:mod:`hierspec.exact.splitting`).

Of a verifier whose random numbers cannot be followed nothing is said: it is refused where it draws
from another generator, or from none, and where two runs in one box of numbers, which must end alike
if every comparison was seen, do not.

This gives the law of a round over all drafts. Continued by the target it must be the target's own
law; the total variation distance measures how much it differs.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import torch

from hierspec.core.distributions import draw
from hierspec.errors import HierspecError
from hierspec.exact.certificate import rounding_note
from hierspec.exact.foreign_random import ForeignRandomness
from hierspec.exact.splitting import SplittingRng, outcomes, run
from hierspec.lm.tabular import TabularModel
from hierspec.utils import plugins
from hierspec.utils.schema import nearest_key, short_repr

Adapter = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], Sequence[int]]

GROUP = "hierspec.published_verifiers"  # of entry points, each a sequence of :class:`Published`
TOLERANCE = 1e-9
VOCABULARY = 3  # with two tokens, a residual cannot be wrong
LENGTHS = (1, 2, 3)
SEEDS = 4  # pairs of models for each draft length
FORBIDDING_SEEDS = 2  # more of them, whose target forbids tokens, as a grammar does
_NEAR_EDGES = (0.02, 0.97)  # where in a box a run is repeated: just inside its lower, its upper end
_MIN_REPEATED = 1e-9  # in a smaller box, rounding may move a number over an edge
_REPETITIONS = 8  # of a run at the same numbers, to see whether it is a function of them


@dataclass(frozen=True, slots=True)
class VerifierFinding:
    """What enumeration showed of a verifier.

    Attributes:
        tv: by draft length: the largest total variation distance of a round.
        tokens: by draft length: expected tokens per round, averaged over the models whose target
            forbids none.
    """

    tv: dict[int, float]
    tokens: dict[int, float]

    @property
    def lossless(self) -> bool:
        return max(self.tv.values()) <= TOLERANCE


def examine(
    adapter: Adapter,
    lengths: Sequence[int] = LENGTHS,
    seeds: int = SEEDS,
    *,
    forbidding_seeds: int = FORBIDDING_SEEDS,
    deterministic: bool = False,
) -> VerifierFinding:
    """Enumerate a verifier over random pairs of models of three tokens.

    Args:
        forbidding_seeds: further pairs, whose target gives about a third of the tokens probability
            0, as under a grammar, and whose drafter does not.
        deterministic: it is known to draw nothing; without that, what is not seen to draw is
            refused.

    Raises:
        HierspecError: it returns something other than 1 to n + 1 token ids, or its random numbers
            cannot be followed.
    """
    tv, tokens = dict.fromkeys(lengths, 0.0), dict.fromkeys(lengths, 0.0)
    num_drawn = 0
    uniform = torch.full((min(lengths) + 1, VOCABULARY), 1 / VOCABULARY, dtype=torch.float64)
    with replace_torch_random(SplittingRng()):  # what a first call imports may ask for randomness
        adapter(torch.zeros(min(lengths), dtype=torch.int64), uniform[1:], uniform.clone())
    with ForeignRandomness() as foreign:
        for n in lengths:
            for seed in range(seeds + forbidding_seeds):
                generator = torch.Generator().manual_seed(seed)
                kind = "random" if seed < seeds else "zeros"
                q = TabularModel.random(VOCABULARY, 1, generator)
                p = TabularModel.random(VOCABULARY, 1, generator, kind)
                try:
                    law, drawn = _round_law(adapter, p, q, n)
                except _TwoAnswersError as error:
                    sources = foreign.sources()
                    if error.repeatable and not sources:
                        raise _refusal(
                            adapter,
                            "compares a random number in a way that is not seen",
                            "compare what torch.rand gives, or its .item(), with other numbers, "
                            "and compute nothing else of it",
                        ) from None
                    unseen = "somewhere unseen, or from a state that it keeps between calls"
                    reason = f"draws random numbers from {sources or unseen}"
                    raise _refusal(adapter, reason) from None
                num_drawn += drawn
                tv[n] = max(tv[n], distance(law, p, n + 1))
                if seed < seeds:
                    tokens[n] += sum(prob * len(text) for text, prob in law.items()) / seeds
        if sources := foreign.sources():
            raise _refusal(adapter, f"draws random numbers from {sources}")
    if not num_drawn and not deterministic:
        raise _refusal(adapter, "draws no random numbers that are seen")
    return VerifierFinding(tv, tokens)


@dataclass(frozen=True, slots=True)
class Published:
    """A published verifier.

    Attributes:
        source: where it was published, and what had to be replaced so that it can be enumerated.
        own_code: whether the package's own function is called; otherwise it was written anew.
        deterministic: whether it draws no random numbers.
    """

    name: str
    source: str
    own_code: bool
    verify: Adapter
    deterministic: bool = False

    def examine(self, lengths: Sequence[int] = LENGTHS, seeds: int = SEEDS) -> VerifierFinding:
        """Enumerate it: see :func:`examine`."""
        return examine(self.verify, lengths, seeds, deterministic=self.deterministic)


def published() -> dict[str, Published]:
    """Return the published verifiers that installed packages offer, by name."""
    entries = plugins.entry_point_names(GROUP)
    offered = (one for name in entries for one in plugins.load_entry_point(GROUP, name))
    return {verifier.name: verifier for verifier in offered}


def table(lengths: Sequence[int] = LENGTHS, seeds: int = SEEDS) -> str:
    """Return the table of all published verifiers in ``docs/published-verifiers.md``.

    Raises:
        HierspecError: no package offers any.
    """
    verifiers = published()
    if not verifiers:
        raise HierspecError("no package with published verifiers is installed")
    header = ["verifier", "what", "lossless", *(f"distance, n = {n}" for n in lengths)]
    rows = [header, ["---" for _ in header]]
    for verifier in verifiers.values():
        rows.append(table_row(verifier, verifier.examine(lengths, seeds)))
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def table_row(verifier: Published, finding: VerifierFinding) -> list[str]:
    """Return the cells of a verifier's row in the table."""
    name = f"`{verifier.name}`" + (" (its own code)" if verifier.own_code else "")
    distances = ["< 1e-9" if tv < 1e-9 else f"{tv:.4f}" for tv in finding.tv.values()]
    return [name, verifier.source, "yes" if finding.lossless else "**no**", *distances]


def round_law(
    adapter: Adapter, p: TabularModel, q: TabularModel, n: int
) -> dict[tuple[int, ...], float]:
    """Return the law of a round's tokens, over all drafts of n tokens from an empty text."""
    return _round_law(adapter, p, q, n)[0]


class _TwoAnswersError(Exception):
    """Two runs of a verifier in one box of random numbers ended differently.

    Attributes:
        repeatable: whether runs at the same numbers ended alike.
    """

    def __init__(self, repeatable: bool) -> None:
        super().__init__()
        self.repeatable = repeatable


def _refusal(adapter: Adapter, reason: str, fix: str = "") -> HierspecError:
    """Return the error about a verifier that cannot be enumerated."""
    fix = fix or (
        "draw with torch.rand, torch.rand_like or torch.multinomial, called by these names, which "
        "the enumeration answers with every possible result"
    )
    name = getattr(adapter, "__name__", "the verifier")
    return HierspecError(f"{name} cannot be judged by enumeration: it {reason}; {fix}")


def _round_law(
    adapter: Adapter, p: TabularModel, q: TabularModel, n: int
) -> tuple[dict[tuple[int, ...], float], int]:
    """Return the law of a round, and how many random numbers were drawn on all ways through it."""
    law: dict[tuple[int, ...], float] = {}
    num_drawn = 0
    for draft in product(range(p.vocab_size), repeat=n):
        q_rows = torch.stack([q.distribution(draft[:i]) for i in range(n)])
        p_rows = torch.stack([p.distribution(draft[:i]) for i in range(n + 1)])
        draft_prob = float(q_rows[torch.arange(n), torch.tensor(draft)].prod())
        if draft_prob == 0.0:
            continue

        def program(
            rng: Any,
            draft: tuple[int, ...] = draft,
            q_rows: torch.Tensor = q_rows,
            p_rows: torch.Tensor = p_rows,
        ) -> tuple[int, ...]:
            with replace_torch_random(rng):
                emitted = adapter(torch.tensor(draft), q_rows.clone(), p_rows.clone())
            return _token_ids(emitted, n, p.vocab_size)

        for index, (rng, text) in enumerate(outcomes(program)):
            num_drawn += rng.num_taken
            law[text] = law.get(text, 0.0) + draft_prob * rng.probability
            if rng.probability > _MIN_REPEATED:
                _check_repeats(program, rng.box, text, _NEAR_EDGES[index % 2])
    return law, num_drawn


def _check_repeats(
    program: Callable[[Any], tuple[int, ...]],
    box: Sequence[tuple[float, float]],
    text: tuple[int, ...],
    share: float,
) -> None:
    """Repeat a run elsewhere in its box of random numbers: it must end with the same tokens.

    Raises:
        _TwoAnswersError: it does not.
    """
    moved = run(program, SplittingRng(box, share))
    if moved == text:
        return
    for _ in range(_REPETITIONS):
        again = run(program, SplittingRng(box)), run(program, SplittingRng(box, share))
        if again != (text, moved):
            raise _TwoAnswersError(repeatable=False)
    raise _TwoAnswersError(repeatable=True)


def _token_ids(emitted: Any, n: int, vocab_size: int) -> tuple[int, ...]:
    """Return what a verifier emitted as token ids.

    Raises:
        HierspecError: it is something other than 1 to n + 1 of them.
    """
    try:
        text = tuple(int(token) for token in emitted)
    except (TypeError, ValueError):
        text = ()
    if not 0 < len(text) <= n + 1 or not all(0 <= token < vocab_size for token in text):
        found = short_repr(text or emitted)
        raise HierspecError(
            f"a verifier returns 1 to {n + 1} token ids for a draft of {n}, not {found}"
        )
    return text


def distance(law: dict[tuple[int, ...], float], target: TabularModel, length: int) -> float:
    """Return the total variation between a round continued by the target, and the target alone."""
    total = 0.0
    for text in product(range(target.vocab_size), repeat=length):
        token_probs = [float(target.distribution(text[:i])[text[i]]) for i in range(length)]
        round_prob, target_prob = 0.0, 1.0  # target_prob: of the tokens after the first i
        for i in range(length, 0, -1):
            round_prob += law.get(text[:i], 0.0) * target_prob
            target_prob *= token_probs[i - 1]
        total += abs(round_prob - target_prob)
    return total / 2.0


@contextlib.contextmanager
def replace_torch_random(rng: SplittingRng) -> Iterator[None]:
    """Let torch's random functions draw from ``rng`` inside the ``with`` block."""

    def rand(*sizes: Any, size: Any = None, **_: Any) -> torch.Tensor:
        shape = sizes if size is None else size
        if len(sizes) == 1 and not isinstance(sizes[0], int):
            (shape,) = sizes
        shape = torch.Size(shape)
        numbers = rng.take(shape.numel()).tolist()
        return torch.tensor([float(u) for u in numbers], dtype=torch.float64).reshape(shape)

    def rand_like(input: torch.Tensor, **_: Any) -> torch.Tensor:
        return rand(input.shape)

    def multinomial(input: torch.Tensor, num_samples: int = 1, *_: Any, **__: Any) -> torch.Tensor:
        if num_samples != 1:
            raise HierspecError("torch.multinomial: only num_samples=1 is supported in an adapter")
        rows = input.double().reshape(-1, input.shape[-1])
        tokens = draw(rows, rng.take(len(rows)))
        return torch.tensor(tokens).reshape(*input.shape[:-1], 1)

    substitutes = {"rand": rand, "rand_like": rand_like, "multinomial": multinomial}
    originals = {name: getattr(torch, name) for name in substitutes}
    try:
        for name, function in substitutes.items():
            setattr(torch, name, function)
        yield
    finally:
        for name, function in originals.items():
            setattr(torch, name, function)


def load_adapter(location: str) -> Adapter:
    """Import a function from ``FILE.py:NAME``.

    Raises:
        HierspecError: it does not exist; the message names the nearest published verifier.
    """
    file, _, name = location.rpartition(":")
    if not name or not file:  # FILE.py and FILE.py: lack the function
        file, name = location.removesuffix(":"), ""
    path = Path(file)
    if path.suffix != ".py":
        near = nearest_key(location, published())
        hint = f"did you mean {near!r}? Give" if near else "give"
        raise HierspecError(
            f"no adapter {location!r}; {hint} FILE.py:FUNCTION, or one of those that --adapter all "
            "shows"
        )
    if not path.is_file():
        of_name = f" with the adapter {name!r}" if name else ""
        raise HierspecError(f"no file {file!r}{of_name}")
    if not name:
        raise HierspecError(f"which function of {file}? Give {file}:FUNCTION")
    adapter: Adapter | None = getattr(plugins.load_file(path), name, None)
    if not callable(adapter):
        raise HierspecError(f"{path} has no function {name!r}")
    return adapter


def _for_json(found: VerifierFinding) -> dict[str, Any]:
    return {"lossless": found.lossless, "tv": found.tv, "tokens": found.tokens}


def certify(name: str, as_json: bool) -> int:
    """Run ``hierspec certify --adapter NAME``: enumerate a verifier, or all published ones."""
    if name == "all":
        if as_json:
            findings = {one.name: one.examine() for one in published().values()}
            print(json.dumps({key: _for_json(found) for key, found in findings.items()}))
        else:
            print(table())
        return 0
    known = published().get(name)
    result = known.examine() if known else examine(load_adapter(name))
    if as_json:
        print(json.dumps(_for_json(result)))
    else:
        for n, tv in result.tv.items():
            print(f"drafts of {n}: distance {tv:.3g}, {result.tokens[n]:.4f} tokens a round")
        lossy = (
            f"NOT lossless: its text is not the target's{rounding_note(max(result.tv.values()))}"
        )
        print("lossless" if result.lossless else lossy)
    return 0 if result.lossless else 1
