"""Whether a seed gives one text, whatever is served beside it; if not, why.

A request with a seed keeps the hierarchy as configured, and its random numbers are its own
(:mod:`hierspec.server.prepare`). What is left are scores: they must not depend on how many tokens
are scored together. In the compiled kernels (:mod:`hierspec.lm.native`) they do not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from hierspec.api import Hierarchy
from hierspec.core.nodes import walk_levels
from hierspec.errors import HierspecWarning
from hierspec.lm.backend import HasBackend, backend_of
from hierspec.lm.native.backend import why_rows_differ


class SameSeedWarning(HierspecWarning, UserWarning):
    """The text of a seed may depend on the requests that are served beside it."""


def obstacles(hierarchies: Mapping[str, Hierarchy]) -> list[str]:
    """Return why the text of a seed may depend on other requests, a line for each reason.

    The target's scores matter to every text, a draft's to sampled ones only, and not under rules by
    which a seed decides alone.
    """
    lines: dict[str, None] = {}
    for hierarchy in hierarchies.values():
        root = hierarchy.root
        if (reason := _why_scores_differ(root.model)) is not None:
            lines[f"{root.name} {reason}"] = None
        elif not root.rule.draft_independent:
            lines |= dict.fromkeys(_draft_obstacles(root.below))
    return [
        f"the text of a seed may depend on the requests served beside it: {line}" for line in lines
    ]


def _draft_obstacles(below: Any) -> Iterator[str]:
    for level in walk_levels(below) if below is not None else ():
        if (reason := _why_scores_differ(level.model)) is not None:
            yield f"the draft {level.name} {reason}"


def _why_scores_differ(model: Any) -> str | None:
    """Return why a model's scores may depend on other rows or other texts.

    A model, or the form of its target that it runs, may say so itself (``rows_differ``). What has
    no layers (tables, look-ups) computes each row by itself.
    """
    if (reason := getattr(model, "rows_differ", None)) is not None:
        return reason
    backend = model.backend if isinstance(model, HasBackend) else backend_of(model)
    return None if backend is None else why_rows_differ(backend)
