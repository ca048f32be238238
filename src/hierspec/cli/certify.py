"""``hierspec certify``: the exact law of a tabular hierarchy, as a check."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

from hierspec.exact.certificate import Certificate, certify, load_case


def run(case: Path, *, as_json: bool, law: bool, allow_inconclusive: bool) -> int:
    """0: lossless and conclusive; 1: not."""
    certificate = certify(load_case(case))
    passed = certificate.passed(allow_inconclusive)
    with contextlib.suppress(BrokenPipeError):  # | head must not turn a failed check into success
        _print(certificate, passed, as_json, law)
    return 0 if passed else 1


def _print(certificate: Certificate, passed: bool, as_json: bool, law: bool) -> None:
    if as_json:
        print(json.dumps(certificate.to_dict(law=law)))
        return
    print(f"total variation distance  {certificate.tv:.3g} over {certificate.horizon} tokens")
    print(f"conclusive                {'yes' if certificate.conclusive else 'no'}")
    print(f"accepted in first check   {certificate.expected_accepted:.6g}")
    print(f"tokens per target call    {certificate.expected_tokens_per_target_call:.6g}")
    print(f"paths enumerated          {certificate.paths}")
    if law:
        for tokens, probability in sorted(certificate.law.items()):
            print(f"  {','.join(map(str, tokens))}  {probability:.12g}")
    if passed:
        print("lossless: the output has the target's law")
    elif certificate.tv > 1e-9:
        print("LOSSY: the output does not have the target's law")
    else:
        print(
            f"inconclusive: a horizon of {certificate.horizon} may hide a lossy rule; use at "
            f"least {certificate.longest_proposal + 2}, or --allow-inconclusive"
        )
