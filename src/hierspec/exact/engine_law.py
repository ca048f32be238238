"""The engine's own output law: the runtime itself, run for every box of uniforms it tells apart.

:mod:`hierspec.exact.interpreter` puts probabilities where the runtime draws numbers; what the
runtime does with them (shortcuts, padding, recorded calls, drafts made in chunks), and how it reads
scores, it cannot see. Here the runtime runs as it does for a user, on an rng that splits
(:mod:`hierspec.exact.splitting`), so that whatever lies between a score and a token is in the law.
It costs a run for each box, so models are tiny and texts short; for larger ones, the interpreter
proves what rules, windows and trees do.
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
from hierspec.sampling.parameters import SamplingParams

from .splitting import outcome_law

Text = tuple[int, ...]


def generation_law(start: Callable[[], Generation], sequence: int = 0) -> dict[Text, float]:
    """Return the law of the tokens of one sequence of a generation, of the first by default.

    Args:
        start: makes the generation, the same one each time (:meth:`hierspec.Hierarchy.start` with
            a seed, which the other sequences draw their numbers from).
    """

    def program(rng: Any) -> Text:
        generation = start()
        stream = generation.streams[sequence]
        stream.sequence.rng = rng
        for _ in generation:
            pass
        return tuple(stream.emitted)

    return outcome_law(program)


class Neighbour(NamedTuple):
    """Another sequence of the batch, with ordinary random numbers."""

    tokens: Sequence[int]
    params: SamplingParams
    wanted: int = 4


def engine_law(
    root: Verify,
    prompt: Sequence[int],
    horizon: int,
    params: SamplingParams | None = None,
    neighbours: Sequence[Neighbour] = (),
    *,
    states: States | None = None,
    cut_at_horizon: bool = True,
) -> dict[Text, float]:
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
    half = len(neighbours) // 2

    def round_after(text: Text, states: Any, wanted: int) -> dict[tuple[Text, Any], float]:
        def program(rng: Any) -> tuple[Text, Any]:
            mine = LiveSequence(
                0, root, [*prompt, *text], params, rng, wanted, len(prompt), states=states
            )
            others = [
                LiveSequence(i, root, [*other.tokens], other.params, PhiloxRng(1, i), other.wanted)
                for i, other in enumerate(neighbours, start=1)
            ]
            batch = [*others[:half], mine, *others[half:]]
            try:
                verdict = runtime.round(batch)[half]
            finally:
                for sequence in batch:
                    sequence.close()
            return verdict.emitted.tokens, mine.states

        return outcome_law(program)

    out: dict[Text, float] = {}
    ended: list[dict[tuple[Text, Any], float]] = [{} for _ in range(horizon)]
    ended[0][(), states or initial_states(root)] = 1.0
    for length in range(horizon):
        for (text, states), mass in ended[length].items():
            wanted = horizon - length if cut_at_horizon else horizon
            for (more, after), chance in round_after(text, states, wanted).items():
                if not more:
                    raise HierspecError("a round of the target emitted nothing")
                now = (*text, *more)
                target: dict[Any, float] = ended[len(now)] if len(now) < horizon else out
                key: Any = (now, after) if len(now) < horizon else now[:horizon]
                target[key] = target.get(key, 0.0) + mass * chance
    return out
