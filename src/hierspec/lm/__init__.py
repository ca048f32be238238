"""Language models as the engine sees them: contexts in, scores out; caches are their own affair.

``load`` gives a :class:`Backend`; ``Trunk(backend).view()`` makes it a :class:`LanguageModel`.
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
