"""A certificate on a terminal: what was enumerated, and what it proves."""

from __future__ import annotations

from typing import Any

from hierspec.exact.certificate import TOLERANCE, Certificate, rounding_note


def show(certificate: Certificate, passed: bool, with_law: bool) -> None:
    """Print what was enumerated, and what it proves."""
    print(f"total variation distance  {certificate.tv:.3g} over {certificate.horizon} tokens")
    print(f"conclusive                {'yes' if certificate.conclusive else 'no'}")
    print(f"accepted in first check   {certificate.expected_accepted:.6g}")
    print(f"tokens per target call    {certificate.expected_tokens_per_target_call:.6g}")
    print(f"paths enumerated          {certificate.paths}")
    print(f"states compared           {certificate.states}{'' if certificate.complete else ' +'}")
    print(f"worst round               {certificate.worst_round_tv:.3g}")
    if with_law:
        for tokens, probability in sorted(certificate.law.items()):
            print(f"  {','.join(map(str, tokens))}  {probability:.12g}")
    print(_conclusion(certificate, passed))


def _conclusion(certificate: Certificate, passed: bool) -> str:
    if certificate.lossy:
        place = _describe_round(certificate.lossy_round)
        note = rounding_note(max(certificate.tv, certificate.worst_round_tv))
        return f"LOSSY: the output does not have the target's distribution{note}{place}"
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
