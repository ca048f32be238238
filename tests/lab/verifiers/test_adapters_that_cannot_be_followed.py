"""Ten rules in three styles of randomness: the right verdict, or a refusal, never a wrong word."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hierspec.cli import run

# What a style calls a uniform number, and a draw from weights.
STYLES = {
    "torch": """
import torch
def uniform(): return torch.rand(1)
def pick(weights): return int(torch.multinomial(weights[None], 1))
""",
    "numpy": """
import numpy as np
def uniform(): return np.random.rand()
def pick(weights):
    weights = weights.numpy()
    return int(np.random.choice(len(weights), p=weights / weights.sum()))
""",
    "random": """
import random
def uniform(): return random.random()
def pick(weights): return random.choices(range(len(weights)), weights.tolist())[0]
""",
}
# The body of verify(tokens, q, p); `x` and `n` are the draft as a list, and its length.
LOSSLESS = {
    "tokenwise": """
    for i in range(n):
        if not uniform() < p[i, x[i]] / q[i, x[i]]:
            return [*x[:i], pick((p[i] - q[i]).clamp(min=0))]
    return [*x, pick(p[n])]
""",
    "plain": """
    return [pick(p[0])]
""",
    "compare": """
    out = []
    for i in range(n + 1):
        out.append(pick(p[i]))
        if i == n or out[-1] != x[i]:
            return out
""",
    "first-only": """
    if uniform() < p[0, x[0]] / q[0, x[0]]:
        return [x[0], pick(p[1])]
    return [pick((p[0] - q[0]).clamp(min=0))]
""",
    "lazy": """
    if uniform() < 0.5:
        return [pick(p[0])]
    for i in range(n):
        if not uniform() < p[i, x[i]] / q[i, x[i]]:
            return [*x[:i], pick((p[i] - q[i]).clamp(min=0))]
    return [*x, pick(p[n])]
""",
}
LOSSY = {
    "all": """
    return [*x, pick(p[n])]
""",
    "generous": """
    for i in range(n):
        if not uniform() < 1.25 * p[i, x[i]] / q[i, x[i]]:
            return [*x[:i], pick((p[i] - q[i]).clamp(min=0))]
    return [*x, pick(p[n])]
""",
    "no-residual": """
    for i in range(n):
        if not uniform() < p[i, x[i]] / q[i, x[i]]:
            return [*x[:i], pick(p[i])]
    return [*x, pick(p[n])]
""",
    "draft-bonus": """
    for i in range(n):
        if not uniform() < p[i, x[i]] / q[i, x[i]]:
            return [*x[:i], pick((p[i] - q[i]).clamp(min=0))]
    return [*x, pick(q[n - 1])]
""",
    "coin": """
    return [*x, pick(p[n])] if uniform() < 0.5 else [pick(p[0])]
""",
}
FOLLOWED = "torch"


def write(folder: Path, setting: str, body: str) -> str:
    path = folder / "mine.py"
    path.write_text(
        f"{setting}\n\ndef verify(tokens, q, p):\n    x, n = tokens.tolist(), len(tokens){body}"
    )
    return f"{path}:verify"


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("rule", [*LOSSLESS, *LOSSY])
def test_a_verdict_is_right_or_refused(rule, style, tmp_path, capsys):
    adapter = write(tmp_path, STYLES[style], (LOSSLESS | LOSSY)[rule])
    status = run(["certify", "--adapter", adapter, "--json"])
    out, error = capsys.readouterr()
    if style == FOLLOWED:
        assert json.loads(out)["lossless"] == (rule in LOSSLESS)
        assert status == (rule not in LOSSLESS)
        return
    assert status == 2
    assert out == ""
    assert {"numpy": "numpy", "random": "Python's random module"}[style] in error
    assert "torch.rand" in error, "it says what to do"
    assert error.count("\n") == 1


ELSEWHERE = {
    "a generator of its own": ("rng = np.random.default_rng(0)", "rng.random()", "numpy"),
    "one it makes itself": ("", "np.random.default_rng(0).random()", "numpy"),
    "an old generator": ("rng = np.random.RandomState(0)", "rng.rand()", "numpy"),
    "Python's own": ("rng = random.Random(0)", "rng.random()", "Python's random module"),
    "an old one it makes itself": ("", "np.random.RandomState(0).rand()", "numpy"),
    "numpy's parts": ("", "np.random.Generator(np.random.PCG64(0)).random()", "numpy"),
    "Python's, made inside": ("", "random.Random(0).random()", "Python's random module"),
    "by name": ("from random import Random", "Random(0).random()", "Python's random module"),
    "a fresh one": ("", "np.random.default_rng().random()", "operating system"),
    "secrets": ("", "secrets.randbelow(1000) / 1000", "operating system"),
    "the system": ("", "os.urandom(1)[0] / 256", "operating system"),
    "torch by name": ("from torch import rand", "rand(1)", "torch's own generator"),
    "another function": ("", "torch.empty(1).uniform_()", "torch's own generator"),
    "the clock": ("", "time.perf_counter_ns() % 1000 / 1000", "somewhere unseen"),
    "a counter": ("calls = iter(range(10**9))", "next(calls) * 0.618 % 1.0", "somewhere unseen"),
    "NumPy's numbers": ("", "torch.rand(1).numpy()[0]", "a way that is not seen"),
    "its complement": ("", "1 - torch.rand(1)", "a way that is not seen"),
    "none": ("", "0.5", ""),
}


@pytest.mark.parametrize("source", ELSEWHERE)
def test_only_the_test_draws_elsewhere(source, tmp_path, capsys):
    """The recovered token is drawn as it should be: the verdict would look like a measured one."""
    setting, expression, named = ELSEWHERE[source]
    setting = (
        f"import os, random, secrets, time\nimport numpy as np\n{STYLES['torch']}"
        f"{setting}\ndef uniform(): return {expression}\n"
    )
    status = run(["certify", "--adapter", write(tmp_path, setting, LOSSLESS["tokenwise"])])
    out, error = capsys.readouterr()
    if not named:  # a threshold of its own is no randomness, and lossy
        assert status == 1
        assert "NOT lossless" in out
        return
    assert status == 2, out
    assert named in error


@pytest.mark.parametrize("number", ["torch.rand(()).item()", "torch.rand(n).tolist()[i]"])
def test_numbers_of_python_are_followed(number, tmp_path, capsys):
    body = LOSSLESS["tokenwise"].replace("uniform()", number)
    assert run(["certify", "--adapter", write(tmp_path, STYLES["torch"], body)]) == 0
    assert "lossless" in capsys.readouterr().out


FAULTS = {
    "    return [1 / 0]": "line 2: ZeroDivisionError: division by zero",
    "    return [int(p[99, 0])]": "line 2: IndexError",
    "    import nothing_of_that_name": "line 2: ModuleNotFoundError",
    "    raise SystemExit('enough')": "line 2: SystemExit: enough",
    "    return None": "a verifier returns 1 to 2 token ids for a draft of 1, not None",
    "    return 3": "not 3",
    "    return 'ab'": "not 'ab'",
    "    return [float('nan')]": "not [nan]",
    "    return [7]": "not (7)",
    "    import torch\n    return torch.multinomial(p[-1:] * float('nan'), 1)": "line 3: ",
    "    import torch\n    return torch.rand(1) < torch.rand(1)": "line 3: two uniforms",
    "    return [0": "line 2: SyntaxError",
}


@pytest.mark.parametrize("body", FAULTS)
def test_a_fault_is_named_with_its_line(body, tmp_path, capsys):
    path = tmp_path / "mine.py"
    path.write_text(f"def verify(tokens, q, p):\n{body}\n")
    assert run(["certify", "--adapter", f"{path}:verify"]) == 2
    error = capsys.readouterr().err
    assert FAULTS[body] in error
    assert "bug" not in error
    assert error.count("\n") == 1


def test_what_goes_with_a_case_is_refused(capsys):
    for option in ("--law", "--allow-inconclusive", "--engine-runs=3"):
        assert run(["certify", "--adapter", "all", option]) == 2
        assert "go with a CASE.json" in capsys.readouterr().err


def test_lenience_one_is_said(tmp_path, capsys):
    table = {"": [0.5, 0.5]}
    case = {
        "vocab": 2,
        "models": [{"table": {"": [0.2, 0.8]}}, {"table": table}],
        "levels": [{"num_speculative_tokens": 1}, {"verify": "lenient"}],
    }
    path = tmp_path / "case.json"
    for lenience in (1.0, 2.0):
        case["levels"][1]["lenience"] = lenience
        path.write_text(json.dumps(case))
        assert run(["certify", str(path)]) == (lenience > 1)
        assert ("which is tokenwise" in capsys.readouterr().err) == (lenience == 1)
