"""``hierspec certify``: the exact distribution of a tabular hierarchy's output, as a check."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Annotated

import typer

from hierspec.errors import HierspecError, errors_in
from hierspec.utils import plugins

from .options import AsJson


def certify(
    case: Annotated[
        Path | None,
        typer.Argument(
            help="CASE.json: models as tables of probabilities, and levels; examples are in "
            "examples/certify."
        ),
    ] = None,
    adapter: Annotated[
        str | None,
        typer.Option(
            help="Instead of a case, check a verifier: FILE.py:FUNCTION, called as verify(tokens, "
            "q, p) with the distributions of drafter and target; or a published one by its name; "
            "or all, for a table of the published ones."
        ),
    ] = None,
    as_json: AsJson = False,
    law: Annotated[
        bool, typer.Option("--law", help="Print the whole distribution as well.")
    ] = False,
    allow_inconclusive: Annotated[
        bool,
        typer.Option(
            "--allow-inconclusive",
            help="Exit with status 0 also if no loss was found but losslessness is not proved.",
        ),
    ] = False,
) -> int:
    """Compute the exact distribution of a hierarchy's output, and compare it with the target's.

    Exit status 0 when both are proved to be the same, by enumerating one round from every state
    that a generation can be in; 1 when they differ (total variation distance above 1e-9), when
    the states are too many, or when the horizon is too short.
    """
    if (case is None) == (adapter is None):
        raise HierspecError("give either CASE.json or --adapter")
    if adapter is not None:
        examine = plugins.load_entry_point("hierspec.certify_options", "adapter")
        if examine is None:
            raise HierspecError("--adapter is an option of a package that is not installed")
        return examine(adapter, as_json)
    assert case is not None
    from hierspec.exact import certificate as exact
    from hierspec.exact.foreign_random import ForeignRandomness

    from .rendering import notes, warnings_as_notes
    from .rendering.certificate import show

    content = exact.load_case(case)
    with errors_in(case), warnings_as_notes(notes()), ForeignRandomness() as foreign:
        certificate = exact.certify(content)
        if sources := foreign.sources():  # a rule of the user's own
            raise HierspecError(
                f"a rule draws random numbers from {sources}, which cannot be enumerated: return "
                "probabilities from acceptance(batch), and hierspec draws"
            )
    passed = certificate.passed(allow_inconclusive)
    with contextlib.suppress(BrokenPipeError):  # | head must not turn a failed check into success
        if as_json:
            print(json.dumps(certificate.to_dict(law=law)))
        else:
            show(certificate, passed, with_law=law)
    return 0 if passed else 1
