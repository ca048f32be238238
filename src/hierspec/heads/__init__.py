"""Exit heads: what stands between a layer of a frozen model and its next-token law [P1 §4.1].

A model that was not trained to be left early drafts badly at its exits. Heads trained to match its
final law mend that, and leave the model, its cache and its output as they are.
"""

from .files import FILE, HeadsFile, HeadsWarning, attach, read

__all__ = ["FILE", "HeadsFile", "HeadsWarning", "attach", "read"]
