"""``hierspec certify``: the exact distribution of a tabular hierarchy's output, as a check."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hierspec.errors import HierspecError

from .options import AsJson

if TYPE_CHECKING:
    from hierspec.exact.certificate import Certificate


def certify(
    case: Annotated[
        Path | None, typer.Argument(help="CASE.json: tabular models and levels.")
    ] = None,
    adapter: Annotated[
        str | None,
        typer.Option(
            help="Instead of a case, somebody's verifier: FILE.py:FUNCTION, called as "
            "verify(tokens, q, p); a published one by its name; or all, for a table of these."
        ),
    ] = None,
    as_json: AsJson = False,
    law: Annotated[
        bool, typer.Option("--law", help="Print the whole distribution as well.")
    ] = False,
    allow_inconclusive: Annotated[
        bool,
        typer.Option("--allow-inconclusive", help="Accept a case that is undecided."),
    ] = False,
) -> int:
    """Compute the exact distribution of a hierarchy's output by enumeration, and compare it.

    Exit status 0 when the output is proved to have the target's law, by one round from every
    state that a generation can be in; 1 when it has not (total variation distance above 1e-9),
    when the states are too many, or when the horizon is too short.
    """
    if (case is None) == (adapter is None):
        raise HierspecError("give either CASE.json or --adapter")
    if adapter is not None:
        return _examine(adapter, as_json)
    assert case is not None
    from hierspec.exact import certificate as exact

    certificate = exact.certify(exact.load_case(case))
    passed = certificate.passed(allow_inconclusive)
    with contextlib.suppress(BrokenPipeError):  # | head must not turn a failed check into success
        _print(certificate, passed, as_json, law)
    return 0 if passed else 1


def _examine(name: str, as_json: bool) -> int:
    """Enumerate one verifier, or print a table of all published ones."""
    from hierspec.exact.adapters import examine, load_adapter
    from hierspec.exact.published import PUBLISHED, table

    if name == "all":
        print(table())
        return 0
    found = examine(PUBLISHED[name].verify if name in PUBLISHED else load_adapter(name))
    if as_json:
        print(json.dumps({"lossless": found.lossless, "tv": found.tv, "tokens": found.tokens}))
    else:
        for n, tv in found.tv.items():
            print(f"drafts of {n}: distance {tv:.3g}, {found.tokens[n]:.4f} tokens a round")
        print("lossless" if found.lossless else "NOT lossless: its text is not the target's")
    return 0 if found.lossless else 1


def _print(certificate: Certificate, passed: bool, as_json: bool, law: bool) -> None:
    if as_json:
        print(json.dumps(certificate.to_dict(law=law)))
        return
    print(f"total variation distance  {certificate.tv:.3g} over {certificate.horizon} tokens")
    print(f"conclusive                {'yes' if certificate.conclusive else 'no'}")
    print(f"accepted in first check   {certificate.expected_accepted:.6g}")
    print(f"tokens per target call    {certificate.expected_tokens_per_target_call:.6g}")
    print(f"paths enumerated          {certificate.paths}")
    print(f"states compared           {certificate.states}{'' if certificate.complete else ' +'}")
    print(f"worst round               {certificate.worst_round_tv:.3g}")
    if law:
        for tokens, probability in sorted(certificate.law.items()):
            print(f"  {','.join(map(str, tokens))}  {probability:.12g}")
    print(_verdict(certificate, passed))


def _verdict(certificate: Certificate, passed: bool) -> str:
    from hierspec.exact.certificate import TOLERANCE

    if certificate.lossy:
        return "LOSSY: the output does not have the target's law" + _where(certificate.lossy_round)
    if passed and certificate.complete:
        return "lossless: the output has the target's law"
    if passed:
        return "not seen to be lossy, and not proved to be lossless"
    if certificate.worst_round_tv > TOLERANCE:
        return (
            "inconclusive: a round would be lossy from a state that was not found to be reached; "
            "lower the budgets, or take windows without a memory"
        )
    if not certificate.complete:
        return (
            f"inconclusive: there are more than the {certificate.states} states compared, and one "
            "of the others may be lossy; lower the orders or the budgets, take windows without a "
            "memory, or --allow-inconclusive"
        )
    return (
        f"inconclusive: a horizon of {certificate.horizon} may hide a lossy rule; use at "
        f"least {certificate.longest_proposal + 2}, or --allow-inconclusive"
    )


def _where(lossy: dict[str, Any] | None) -> str:
    """Return the round that shows a loss."""
    if lossy is None:
        return ""
    parts = [f"after the text {lossy['after']}" if lossy["after"] else "at the start of the text"]
    if lossy["tokens_wanted"] is not None:
        parts.append(f"with {lossy['tokens_wanted']} tokens wanted")
    if lossy["state"]:
        parts.append(lossy["state"])
    return f"\nfirst seen                {'; '.join(parts)} (distance {lossy['tv']:.3g})"
