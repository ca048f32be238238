"""Language models as the engine sees them: contexts in, scores out; each manages its own cache.

``load.load`` gives a :class:`~.backend.Backend`, by ``hf`` (any transformers decoder) or ``lean``
(Llama-shaped models, faster); ``trunk.Trunk(backend).view()`` makes it a
:class:`~.base.LanguageModel`, and ``Trunk(backend, exits).view(layer)`` an early exit of it.
``exit_heads`` makes other drafters of the same weights, and ``tabular`` has models for proofs.
"""
