"""Certificates: how many random lossy hierarchies pass (none may), how many lossless ones fail.

The cases are the tests' own (``tests/exact/certificate_cases.py``): planted mistakes and sound
rules among windows, controllers, orders and depths. A case counts as lossy where an enumerated
law, two and four tokens longer than the longest proposal, says so without the proof under test.
"""

from __future__ import annotations

import argparse
import json
import sys
from itertools import count
from typing import Any

from common import ROOT, environment, write
from tqdm import tqdm

sys.path.insert(0, str(ROOT / "tests"))
sys.path.insert(0, str(ROOT / "tests" / "exact"))

from certificate_cases import Case, is_lossy, lossless, with_a_mistake

from hierspec.exact.certificate import Certificate, certify_tree

OLD_HORIZON = 2  # tokens past the longest proposal that used to be called conclusive
TOLERANCE = 1e-9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=1000, help="of either kind")
    options = parser.parse_args()
    out: dict[str, Any] = {
        "environment": environment(),
        "settings": {"cases": options.cases},
        "lossy": lossy(options.cases),
        "lossless": sound(options.cases),
    }
    print(json.dumps({key: out[key] for key in ("lossy", "lossless")}, indent=1))
    write("certificates", out)


def certify_case(case: Case) -> Certificate:
    return certify_tree(case.root, case.vocab_size, controller=case.controller)


def lossy(cases: int) -> dict[str, Any]:
    """Count lossy cases, those that passed, and those that the old horizon would have passed."""
    passed, hidden, tried = [], 0, 0
    with tqdm(total=cases, desc="lossy") as bar:
        for seed in count():
            if tried == cases:
                break
            case = with_a_mistake(seed)
            if not is_lossy(case):
                continue
            tried += 1
            bar.update()
            hidden += case.tv(case.longest + OLD_HORIZON) <= TOLERANCE
            if certify_case(case).passed():
                passed.append(seed)
    return {"cases": tried, "seeds": seed, "certified": passed, "passed_by_old_horizon": hidden}


def sound(cases: int) -> dict[str, Any]:
    """Count lossless cases and those that did not pass, and return the largest distances."""
    failed, tv, worst = [], 0.0, 0.0
    for seed in tqdm(range(cases), desc="lossless"):
        certificate = certify_case(lossless(seed))
        tv = max(tv, certificate.tv)
        worst = max(worst, certificate.worst_round_tv or 0.0)
        if not certificate.passed():
            failed.append(seed)
    return {"cases": cases, "not_certified": failed, "largest_tv": tv, "largest_round_tv": worst}


if __name__ == "__main__":
    main()
