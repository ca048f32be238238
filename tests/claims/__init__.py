"""The figures that README and other pages quote, recomputed from the result files.

A claim is a piece of a page with ``{}`` where figures stand, and a function that gives them as they
must be printed: from a file, by enumeration or by a formula (:mod:`.computed`). To quote a figure,
write it on the page and add a line here, in the module that names the page. A figure without a
claim fails the tests, as does any digit changed on a page; what is no measurement at all stands in
:mod:`.constants`.
"""

from .base import ROOT, Claim, flat
from .computed import COMPUTED
from .constants import CONSTANTS, SETTINGS, figures
from .ground import GROUND
from .guide import GUIDE
from .measured import MEASURED, MEASURED_PAGE
from .papers import PAPERS
from .predictions import PREDICTIONS
from .readme import README, README_PAGE
from .reproducible import REPRODUCIBLE
from .serving import SERVING
from .several_drafts import SEVERAL_DRAFTS
from .trained import TRAINED

CLAIMS = (
    README
    + MEASURED
    + GROUND
    + PREDICTIONS
    + SEVERAL_DRAFTS
    + SERVING
    + REPRODUCIBLE
    + TRAINED
    + GUIDE
    + PAPERS
    + COMPUTED
)

__all__ = [
    "CLAIMS",
    "CONSTANTS",
    "MEASURED_PAGE",
    "README_PAGE",
    "ROOT",
    "SETTINGS",
    "Claim",
    "figures",
    "flat",
]
