"""Language models as the engine sees them: contexts in, scores out; caches are their own affair.

``load`` gives a :class:`Backend`, by ``hf`` (any transformers decoder) or ``lean`` (Llama-shaped
models, faster); ``Trunk(backend).view()`` makes it a :class:`LanguageModel`, and
``Trunk(backend, exits).view(layer)`` an early exit of it. ``adaptive_exit``, ``layer_skip`` and
``exit_heads`` make other drafters of the same weights, and ``tabular`` has models for proofs.
"""

from hierspec.core.context import Context
from hierspec.lm.trunk.trunk import ExitModel, Trunk

from .backend import Backend, Span
from .base import LanguageModel, Query, Slot
from .load import load
from .tabular import TabularModel

__all__ = [
    "Backend",
    "Context",
    "ExitModel",
    "LanguageModel",
    "Query",
    "Slot",
    "Span",
    "TabularModel",
    "Trunk",
    "load",
]
