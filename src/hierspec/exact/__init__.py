"""Exact output laws by enumeration, in two ways that check each other.

:class:`ExactInterpreter` follows every random branch of a hierarchy, in float64. It drives the very
coroutines that the runtime drives (:func:`hierarchy.propose`, :func:`hierarchy.verified`), over
tabular models, and adds up probabilities where the runtime throws dice. What comes out is the
output's law itself, not an estimate. It covers every rule, window and tree that the engine can
run: acceptance, correction, reported laws, follow-ups, what windows remember, what a controller
decides. A law of the first H tokens shows a loss; that there is none is proved by one round from
every state that a generation can be in (:mod:`hierspec.exact.proof`). Certificates are made so.

How the engine gets there is no part of that: which road it takes to a decision (the shortcut, a
padded batch, a recorded call, integers where greedy), how it drafts (step by step, ahead, in
chunks, several at once, by look-up) and draws, how scores become laws, who shares the batch.
:mod:`hierspec.exact.engine` enumerates that: the runtime itself, run on dice that split. It is
the test of every road (``tests/test_engine_law.py``), on tables small enough to end.

Three things keep the interpreter's four-level stacks within seconds. Models of order o look at the
last o tokens, so a child's outcomes are memoised by (node, last tokens, limit, window states). A
coroutine cannot be cloned, so it is replayed from its recorded answers; but two coroutines that
stand at the same line with equal local variables have the same future, so their probabilities are
added and one of them goes on. And all drafts that await a check at one time are checked as one
batch.
"""

from .interpreter import ExactInterpreter, Outcome
from .output import Rounds, joined, model_law, output_law, rounds_of
from .proof import Proof, prove
from .reached import LossyRound, reached
from .round_law import Continuation
from .states import UNLIMITED, longest, reach
from .tables import Rows, TableDistributions

__all__ = [
    "UNLIMITED",
    "Continuation",
    "ExactInterpreter",
    "LossyRound",
    "Outcome",
    "Proof",
    "Rounds",
    "Rows",
    "TableDistributions",
    "joined",
    "longest",
    "model_law",
    "output_law",
    "prove",
    "reach",
    "reached",
    "rounds_of",
]
