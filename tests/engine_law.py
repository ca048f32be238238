"""The engine's own output law: the runtime itself, run once for every box of uniforms.

A box holds the uniforms that make all of its comparisons come out the same.

:mod:`hierspec.exact.interpreter` puts probabilities where the runtime draws numbers; what the
runtime does with them (shortcuts, padding, recorded calls, drafts made in chunks), and how it reads
scores, it cannot see. Here the runtime runs as it does for a user, on an rng that splits
(:mod:`hierspec.exact.splitting`), so the law includes everything between a score and a
token.
It costs a run for each box, so models are tiny and texts short; for larger ones, the interpreter
proves that rules, windows and trees are lossless.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from hierspec.core.nodes import Verify, initial_states
from hierspec.core.proposals import States
from hierspec.core.rng import PhiloxRng
from hierspec.engine.generation import Generation
from hierspec.engine.runtime import Runtime
from hierspec.engine.sequences import LiveSequence
from hierspec.errors import HierspecError
from hierspec.exact.engine_rounds import run_round
from hierspec.exact.splitting import outcomes
from hierspec.sampling.parameters import SamplingParams

TokenIds = tuple[int, ...]


def outcome_law(program: Callable[[Any], Any]) -> dict[Any, float]:
    """Return the law of a program's outcome, over all uniforms that it may draw.

    Args:
        program: called with an rng once for each box of uniforms; each call must begin anew.
    """
    law: dict[Any, float] = {}
    for rng, outcome in outcomes(program):
        law[outcome] = law.get(outcome, 0.0) + rng.probability
    return law


def generation_law(start: Callable[[], Generation], sequence: int = 0) -> dict[TokenIds, float]:
    """Return the output law of one sequence of a generation.

    Args:
        start: starts the generation, the same one each time (:meth:`hierspec.Hierarchy.start` with
            a seed, which the other sequences draw their random numbers from).
    """

    def program(rng: Any) -> TokenIds:
        generation = start()
        request = generation.requests[sequence]
        request.rng = rng
        for _ in generation:
            pass
        return tuple(request.token_ids)

    return outcome_law(program)


class Neighbour(NamedTuple):
    """Another sequence of the batch, with ordinary random numbers."""

    tokens: Sequence[int]
    params: SamplingParams
    num_tokens: int = 4


def engine_law(
    root: Verify,
    prompt: Sequence[int],
    horizon: int,
    params: SamplingParams | None = None,
    neighbours: Sequence[Neighbour] = (),
    *,
    states: States | None = None,
    cut_at_horizon: bool = True,
) -> dict[TokenIds, float]:
    """Return the law of the first ``horizon`` tokens after ``prompt``, by rounds of the runtime.

    Rounds that begin after one text in one state of the windows are run as one, so it costs far
    less than :func:`generation_law`. A round must depend on nothing else: no n-gram pool.

    Args:
        root: with models that the runtime can score; tables are small enough to finish.
        neighbours: run in the same calls, half of them before the sequence and half after it.
        states: of the windows at the start; ``None``: those of a new text.
        cut_at_horizon: limit rounds to the tokens still wanted, as the end of a generation does.
    """
    params = params or SamplingParams(temperature=1.0)
    runtime = Runtime(root, root.model.vocab_size)

    def round_law(
        text: TokenIds, states: Any, num_remaining: int
    ) -> dict[tuple[TokenIds, Any], float]:
        def program(rng: Any) -> tuple[TokenIds, Any]:
            sequence = LiveSequence(
                0, root, [*prompt, *text], params, rng, num_remaining, len(prompt), states=states
            )
            others = [
                LiveSequence(i, root, [*n.tokens], n.params, PhiloxRng(1, i), n.num_tokens)
                for i, n in enumerate(neighbours, start=1)
            ]
            return run_round(runtime, sequence, others).emitted.tokens, sequence.states

        return outcome_law(program)

    law: dict[TokenIds, float] = {}
    # the probability of every text and window state, by the length of the text
    masses_by_length: list[dict[tuple[TokenIds, Any], float]] = [{} for _ in range(horizon)]
    masses_by_length[0][(), states or initial_states(root)] = 1.0
    for length in range(horizon):
        for (text, states), mass in masses_by_length[length].items():
            num_remaining = horizon - length if cut_at_horizon else horizon
            outcomes = round_law(text, states, num_remaining)
            for (emitted, next_states), probability in outcomes.items():
                if not emitted:
                    raise HierspecError("a round of the target emitted nothing")
                longer = (*text, *emitted)
                is_complete = len(longer) >= horizon
                masses: dict[Any, float] = law if is_complete else masses_by_length[len(longer)]
                key: Any = longer[:horizon] if is_complete else (longer, next_states)
                masses[key] = masses.get(key, 0.0) + mass * probability
    return law
