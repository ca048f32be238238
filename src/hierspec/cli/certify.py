"""``hierspec certify``: the exact distribution of a tabular hierarchy's output, as a check."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hierspec.errors import HierspecError, errors_in
from hierspec.utils import plugins

from .options import AsJson

if TYPE_CHECKING:
    from hierspec.exact.certificate import Certificate


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
    engine_runs: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="How often the engine itself may run the case, to be compared with the target.",
            show_default="5000 for a rule of yours, 0 for those of hierspec",
        ),
    ] = None,
) -> int:
    """Compute the exact distribution of a hierarchy's output, and compare it with the target's.

    Exit status 0 when both are proved to be the same, by enumerating one round from every state
    that a generation can be in; 1 when they differ (total variation distance above 1e-9), when
    the states are too many, or when the horizon is too short. A rule of yours is also run in
    the engine itself.
    """
    if (case is None) == (adapter is None):
        raise HierspecError("give either CASE.json or --adapter")
    if adapter is not None:
        examine = plugins.load_entry_point("hierspec.certify_options", "adapter")
        if examine is None:
            raise HierspecError("--adapter is an option of a package that is not installed")
        if law or engine_runs is not None or allow_inconclusive:
            raise HierspecError(
                "--law, --engine-runs and --allow-inconclusive go with a CASE.json, not with "
                "--adapter"
            )
        return examine(adapter, as_json)
    assert case is not None
    from hierspec.exact import certificate as exact
    from hierspec.exact.foreign_random import ForeignRandomness

    from .rendering import notes, progress, warnings_as_notes

    content = exact.load_case(case)
    bar = progress(notes(), "certifying")
    with errors_in(case), warnings_as_notes(notes()), bar as report, ForeignRandomness() as foreign:
        certificate = exact.certify(content, engine_runs, report)
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


def show(certificate: Certificate, passed: bool, with_law: bool) -> None:
    """Print what was enumerated, and what it proves."""
    print(f"total variation distance  {certificate.tv:.3g} over {certificate.horizon} tokens")
    print(f"conclusive                {'yes' if certificate.conclusive else 'no'}")
    print(f"accepted in first check   {certificate.expected_accepted:.6g}")
    print(f"tokens per target call    {certificate.expected_tokens_per_target_call:.6g}")
    print(f"paths enumerated          {certificate.paths}")
    print(f"states compared           {certificate.states}{'' if certificate.complete else ' +'}")
    print(f"worst round               {certificate.worst_round_tv:.3g}")
    if (engine := certificate.engine) is None:
        print("runs of the engine        none: --engine-runs asks for them")
    elif not engine.runs:
        print("runs of the engine        none: its rule draws by the noise of a position")
    else:
        more = "" if engine.complete else " +"
        print(f"runs of the engine        {engine.runs}, from {engine.states} states{more}")
        print(f"worst round there         {engine.tv:.3g}")
    if with_law:
        for tokens, probability in sorted(certificate.law.items()):
            print(f"  {','.join(map(str, tokens))}  {probability:.12g}")
    print(_conclusion(certificate, passed))


def _conclusion(certificate: Certificate, passed: bool) -> str:
    from hierspec.exact.certificate import TOLERANCE, rounding_note

    engine = certificate.engine
    if certificate.tv > TOLERANCE or certificate.lossy_round:
        place = _describe_round(certificate.lossy_round)
        note = rounding_note(max(certificate.tv, certificate.worst_round_tv))
        return f"LOSSY: the output does not have the target's distribution{note}{place}"
    if certificate.lossy and engine is not None:
        place = _describe_round(engine.lossy_round)
        return f"LOSSY: the engine's rounds are not those that were enumerated{place}"
    if passed and certificate.complete and engine is not None and not engine.complete:
        return "lossless as enumerated; no loss in the engine's runs, which were not all"
    if passed and certificate.complete:
        return "lossless: the output has the target's distribution"
    if passed:
        return "no loss found, but not proved to be lossless"
    if certificate.worst_round_tv > TOLERANCE:
        return (
            "inconclusive: a round is lossy in a state, and no text was found that leads to it; "
            "lower the budgets, or use windows without a memory"
        )
    if not certificate.complete:
        return (
            f"inconclusive: there are more than the {certificate.states} states compared, and one "
            "of the others may be lossy; lower the orders or the budgets, use windows without a "
            "memory, or --allow-inconclusive"
        )
    return (
        f"inconclusive: a horizon of {certificate.horizon} may hide a lossy rule; use at "
        f"least {certificate.longest_proposal + 2}, or --allow-inconclusive"
    )


def _describe_round(record: dict[str, Any] | None) -> str:
    """Describe the first lossy round in a line; empty if there is none."""
    if record is None:
        return ""
    parts = [f"after the text {record['after']}" if record["after"] else "at the start of the text"]
    if record["tokens_wanted"] is not None:
        parts.append(f"with {record['tokens_wanted']} tokens wanted")
    if record["state"]:
        parts.append(record["state"])
    return f"\nfirst lossy round         {'; '.join(parts)} (distance {record['tv']:.3g})"
