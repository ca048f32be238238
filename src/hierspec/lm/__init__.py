"""Language models as the engine sees them: contexts in, scores out; caches are their own affair.

``load`` gives a :class:`Backend`; ``Trunk(backend).view()`` makes it a :class:`LanguageModel`.
"""

from hierspec.lm.backend import Backend, Span
from hierspec.lm.base import Context, LanguageModel, Query, Slot
from hierspec.lm.load import load
from hierspec.lm.tabular import TabularModel
from hierspec.lm.trunk import ExitModel, Trunk

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
