"""The engine's own rounds, enumerated and compared with the target.

The interpreter puts probabilities where the engine draws numbers. Here the engine itself runs, once
for every box of uniforms (:mod:`.splitting`), each round alone and in a batch with two others: so a
rule is found out that is lossless where it is enumerated, and does something else there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice, product
from typing import Any

from hierspec.core.nodes import Verify, walk
from hierspec.core.proposals import States, Verdict
from hierspec.engine.runtime import Runtime
from hierspec.engine.sequences import LiveSequence
from hierspec.errors import FAILURES, HierspecError
from hierspec.sampling.parameters import SamplingParams
from hierspec.utils import plugins
from hierspec.verifiers.acceptance import is_checked

from .interpreter import UNLIMITED, Outcome
from .output import Rounds
from .proof import is_enumerable
from .recording import is_running, windows
from .round_law import Continuation, by_length, drop_states
from .splitting import SplittingRng, outcomes

# The other two of a batch: where in [0, 1) their uniforms lie, and how many tokens they want. The
# first one's draft is rejected where it can be, the second one's is shorter and accepted.
_OTHERS = ((0.95, UNLIMITED), (0.02, 2))
_MAX_SILENCE = 2.0  # seconds


@dataclass
class EngineComparison:
    """What the engine's own rounds were like, compared until one was lossy.

    Attributes:
        tv: the largest total variation distance of one, continued by the target, from the target.
        runs: of the engine; 0 where its draws cannot be enumerated.
        states: number of states from which a round was compared.
        complete: whether there are no other states.
        lossy_round: in the form of ``Certificate.lossy_round``.
    """

    tv: float = 0.0
    runs: int = 0
    states: int = 0
    complete: bool = False
    lossy_round: dict[str, Any] | None = None


def users_rules(root: Verify) -> list[str]:
    """Return the names of rules that are a user's own."""
    rules = [node.rule for node in walk(root) if isinstance(node, Verify)]
    return [repr(rule.name) for rule in rules if is_checked(rule)]


def compare_with_engine(
    rounds: Rounds,
    states: States,
    max_runs: int,
    tolerance: float,
    report: Callable[[str, float], None],
) -> EngineComparison:
    """Compare a round of the engine after every text, plan and limit; short ones first.

    Args:
        rounds: of tables; ``states`` are the first ones of the windows, from which all rounds go.
        max_runs: of the engine.
        tolerance: a total variation distance above it makes a round lossy.
        report: is told of the runs after two seconds, in words, and the share of them made.

    Raises:
        HierspecError: a user's rule fails in the engine; the message names it.
    """
    found, root, began = EngineComparison(), rounds.root, time.monotonic()
    if root.rule.draft_independent:  # it draws by noise, which is no list of uniforms
        return found
    runtime, target = Runtime(root, rounds.vocab_size), Continuation(root.model)
    limits = (*range(1, rounds.sufficient_limit + 1), UNLIMITED)
    contexts = target.contexts(rounds.max_order)
    for limit, context, plan in product(limits, contexts, rounds.interpreters):
        for others in ((), _OTHERS):
            program = partial(_round, runtime, plan, context, limit, states, others)
            ends: list[Outcome] = []
            try:
                for rng, end in islice(outcomes(program), max_runs - found.runs):
                    ends.append(Outcome(rng.probability, end))
                    found.runs += 1
                    if time.monotonic() - began > _MAX_SILENCE:
                        report(f"of at most {max_runs} runs of the engine", found.runs / max_runs)
            except FAILURES as error:
                if not (names := " or ".join(users_rules(root))):
                    raise
                said = ": ".join(filter(None, (plugins.place_of(error), plugins.describe(error))))
                raise HierspecError(f"rule {names} fails in the engine: {said}") from None
            if sum(end.probability for end in ends) < 1.0 - tolerance:
                return found
            laws = drop_states(by_length(ends, rounds.vocab_size))
            found.tv = max(found.tv, tv := target.distance(laws, context, limit))
            if not tv <= tolerance:
                found.lossy_round = {
                    "tv": tv,
                    "after": ",".join(map(str, context)),
                    "tokens_wanted": None if limit == UNLIMITED else limit,
                    "state": "in a batch with others" if others else "alone",
                }
                return found
        found.states += 1
    known = (is_enumerable(w) and not is_running(w) for w in windows(root).values())
    found.complete = all(known)
    return found


def _round(
    runtime: Runtime,
    plan: Verify,
    context: tuple[int, ...],
    limit: int,
    states: States,
    others: Sequence[tuple[float, int]],
    rng: Any,
) -> tuple[Verdict, States]:
    """Run a round, with others after the same text, and return what the interpreter does."""
    batch = [(rng, limit), *((SplittingRng(share=share), wanted) for share, wanted in others)]
    params = SamplingParams(temperature=1.0)
    sequence, *beside = [
        LiveSequence(i, plan, [*context], params, own, wanted, states=states)
        for i, (own, wanted) in enumerate(batch)
    ]
    return run_round(runtime, sequence, beside), sequence.states


def run_round(
    runtime: Runtime, sequence: LiveSequence, others: Sequence[LiveSequence] = ()
) -> Verdict:
    """Run one round of a sequence, in a batch with half of the others before and half after it."""
    half = len(others) // 2
    batch = [*others[:half], sequence, *others[half:]]
    try:
        return runtime.round(batch)[half]
    finally:
        for member in batch:
            member.close()
