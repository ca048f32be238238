"""Exact output laws by enumeration, in two ways that check each other.

:class:`ExactInterpreter` follows every random branch of a hierarchy, in float64. It drives the
coroutines that the runtime drives (:mod:`hierspec.core.round`), over tabular models, and adds up
probabilities where the runtime draws numbers. The result is the output law itself, not an
estimate. It covers every rule, window and tree that the engine can run: acceptance, residuals,
reported distributions, follow-ups, window states, controllers. The law of the first H tokens can
show a loss; certificates prove that there is none by comparing one round from every state that a
generation can be in (:mod:`hierspec.exact.proof`).

It does not cover how the engine computes: on which device it decides, how it drafts and draws, how
scores become distributions, which sequences share the batch. That is enumerated for small tables by
running the runtime itself on an rng that splits (:mod:`hierspec.exact.splitting`): in the tests for
our own rules, and for a user's when it is certified (:mod:`hierspec.exact.engine_rounds`).

Four things keep four-level stacks within seconds. Models of order o look at the last o tokens, so
the outcomes of a node are memoised by (node, last tokens, limit, window states). A coroutine cannot
be cloned, so it is replayed from its recorded answers; but two coroutines at the same line with
equal local variables have the same future, so their probabilities are added and only one goes on.
All drafts that wait for verification at one time are verified as one batch. And window states that
no window's answers tell apart share a round (:mod:`hierspec.exact.shared_rounds`).
"""
