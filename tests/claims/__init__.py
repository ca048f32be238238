"""The figures that README and other pages quote, recomputed from the result files.

A claim is a piece of a page with ``{}`` where figures stand, and a function that gives them as they
must be printed: from a file (:mod:`.measured`, :mod:`.guide`, :mod:`.papers`), by enumeration or by
a formula (:mod:`.computed`). To quote a figure, write it on the page and add a line here. A figure
without a claim fails the tests, as does any digit changed on a page; what is no measurement at all
stands in :mod:`.constants`.
"""

from .base import ROOT, Claim, flat
from .computed import COMPUTED
from .constants import CONSTANTS, SETTINGS, figures
from .guide import GUIDE
from .measured import MEASURED, PAGE, README, README_PAGE
from .papers import PAPERS

CLAIMS = README + PAGE + GUIDE + PAPERS + COMPUTED

__all__ = [
    "CLAIMS",
    "CONSTANTS",
    "MEASURED",
    "README_PAGE",
    "ROOT",
    "SETTINGS",
    "Claim",
    "figures",
    "flat",
]
