"""Users' own drafters and rules: a name everywhere, and one true line for every fault."""

from __future__ import annotations

import json
import math
import os
import pickle
import random
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from tiny_models import tiny_model

import hierspec
from hierspec.cli import run
from hierspec.config import methods
from hierspec.config.schema import HierarchyConfig
from hierspec.errors import HierspecError
from hierspec.utils import plugins
from hierspec.verifiers import registry

DRAFTER = """
from dataclasses import dataclass, field
import hierspec

@dataclass
class Options:
    token: int
    others: list[int] = field(default_factory=list)

@hierspec.register_method("constant", Options)
class Constant(hierspec.LookUp):
    def __init__(self, options, target):
        self.token = options.token % target.vocab_size
    def propose(self, context, limit, slot):
        return [self.token] * limit
"""
RULE = """
import hierspec
from hierspec.verifiers.tokenwise import Tokenwise

@hierspec.register
class Mine(Tokenwise):
    name = "mine"
"""
CASE = {
    "vocab": 2,
    "models": [{"table": {"": [0.2, 0.8]}}, {"table": {"": [0.6, 0.4]}}],
    "levels": [{"num_speculative_tokens": 2}, {"verify": "mine"}],
}


@pytest.fixture(autouse=True)
def forgets(monkeypatch):
    """Plug-ins of a test are gone after it."""
    methods.built_in()  # they register themselves once
    monkeypatch.setattr(methods, "_REGISTERED", dict(methods._REGISTERED))
    monkeypatch.setattr(registry, "_RULES", dict(registry._RULES))
    monkeypatch.setattr(plugins, "_FILES", {})


def write(folder: Path, text: str, name: str = "mine.py") -> str:
    path = folder / name
    path.write_text(text)
    return str(path)


def generate(plugin: str, *options: str) -> int:
    target = [] if "--hierarchy" in options else ["--target", "zoo:tiny-draft"]
    return run(["generate", "--plugin", plugin, *target, "--max-new-tokens", "4",
                *options, "def f"])  # fmt: skip


def test_a_method_has_a_name_in_commands_and_files(tmp_path, capsys):
    plugin = write(tmp_path, DRAFTER)
    assert generate(plugin, "--draft", "constant:7", "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["num_tokens"] == 4
    levels = [{"method": "constant", "token": 7, "others": [1], "num_speculative_tokens": 2}]
    file = write(tmp_path, json.dumps({"target": "zoo:tiny-draft", "levels": levels}), "h.json")
    config = HierarchyConfig.load(file)
    assert config.to_dict()["levels"] == levels
    assert (
        run(["generate", f"--plugin={plugin}", "--hierarchy", file, "--max-new-tokens", "4", "a"])
        == 0
    )


def test_options_need_no_hash_in_custom_generate(tmp_path, monkeypatch):
    from hierspec.integrations import transformers as integration

    plugins.load_file(write(tmp_path, DRAFTER))
    built, build = [], integration.build
    monkeypatch.setattr(integration, "build", lambda *given: built.append(1) or build(*given))
    model, ids = tiny_model("llama", layers=1), torch.tensor([[5, 9, 7]])
    plain = model.generate(ids, max_new_tokens=6, do_sample=False)
    for others, count in (([1], 1), ([1], 1), ([1, 2], 2)):
        level = {"method": "constant", "token": 7, "others": others, "num_speculative_tokens": 2}
        options = {"custom_generate": hierspec.custom_generate, "hierarchy": [level]}
        fast = model.generate(ids, max_new_tokens=6, do_sample=False, **options)
        assert torch.equal(fast, plain)
        assert len(built) == count


def test_a_drafter_may_be_certain_of_a_token_that_is_forbidden():
    @hierspec.register_method("certain")
    class Certain(hierspec.NextTokenModel):
        def __init__(self, options, target):
            pass

        def probabilities(self, tokens):
            return torch.eye(self.vocab_size)[7]

    model = tiny_model("llama", layers=1)
    level = {"method": "certain", "num_speculative_tokens": 3}
    plain = hierspec.Hierarchy(model, drafts=[])
    options = {"max_new_tokens": 8, "ignore_eos": True}
    for levels in ([level], [{"method": "suffix", "num_speculative_tokens": 2}, level]):
        fast = hierspec.Hierarchy({"target": model, "levels": levels})
        for bias in ({}, {7: -math.inf}):
            expected = plain.generate([5, 9, 7], logit_bias=bias, **options).token_ids
            found = fast.generate([5, 9, 7], logit_bias=bias, **options).token_ids
            assert found == expected
        sampled = fast.generate([5], logit_bias=bias, temperature=1.0, seed=1, **options).token_ids
        assert 7 not in sampled


@pytest.mark.parametrize(
    ("level", "words"),
    [
        ({"token": 1, "tokn": 2}, "unknown key 'tokn'; did you mean 'token'?"),
        ({}, "'token' is missing"),
        ({"token": "a"}, "token must be"),
        ({"token": 1, "temperature": 0.5}, "has no use"),
    ],
)
def test_the_keys_of_a_level_are_checked(level, words, tmp_path):
    plugins.load_file(write(tmp_path, DRAFTER))
    with pytest.raises(HierspecError, match="levels") as error:
        HierarchyConfig.from_dict(
            {
                "target": "x",
                "levels": [{"method": "constant", "num_speculative_tokens": 1, **level}],
            }
        )
    assert words in str(error.value)


def test_an_unknown_method_names_those_of_plug_ins(tmp_path):
    plugins.load_file(write(tmp_path, DRAFTER))
    with pytest.raises(HierspecError, match="did you mean 'constant'"):
        HierarchyConfig.from_dict({"target": "x", "levels": [{"method": "constnt"}]})


def test_a_rule_has_a_name_in_certify_and_files(tmp_path, capsys):
    plugin = write(tmp_path, RULE)
    file = write(tmp_path, json.dumps(CASE), "case.json")
    assert run(["certify", "--plugin", plugin, file]) == 0
    hierarchy = {
        "target": "zoo:tiny-draft",
        "levels": [{"method": "suffix", "num_speculative_tokens": 3}],
    }
    inline = json.dumps(hierarchy | {"verify": "mine"})
    assert (
        run(["generate", "--hierarchy", inline, "--max-new-tokens", "4", "a", "--plugin", plugin])
        == 0
    )


@pytest.mark.parametrize("first", ["one", "two"])
def test_a_file_may_import_another(first, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    files = {"one": write(tmp_path, RULE + DRAFTER, "one_of_mine.py")}
    files["two"] = write(tmp_path, "from one_of_mine import Constant, Mine", "two_of_mine.py")
    second = ({*files} - {first}).pop()
    for file in (files[first], files[second]):
        plugins.load_file(file)
    assert "mine" in registry.names()
    with pytest.raises(HierspecError, match="verifier called 'mine' already"):
        plugins.load_file(write(tmp_path, RULE, "three.py"))


@pytest.mark.parametrize(
    ("draw", "source"),
    [
        ("np.random.rand()", "numpy"),
        ("np.random.RandomState(0).rand()", "numpy"),
        ("OLD.rand()", "numpy"),
        ("random.Random(0).random()", "Python's random module"),
        ("OWN.random()", "Python's random module"),
    ],
)
def test_a_rule_that_draws_elsewhere_is_not_certified(draw, source, tmp_path, capsys):
    setting = "import random\nimport numpy as np\nOLD = np.random.RandomState(0)\n"
    drawing = f"    def acceptance(self, batch):\n        {draw}\n"
    plugin = write(
        tmp_path,
        f"{setting}OWN = random.Random(0)\n{RULE}\n{drawing}"
        "        return super().acceptance(batch)\n",
    )
    file = write(tmp_path, json.dumps(CASE), "case.json")
    assert run(["certify", "--plugin", plugin, file]) == 2
    assert f"draws random numbers from {source}" in capsys.readouterr().err


@pytest.mark.parametrize("group", [methods.GROUP, registry.GROUP])
def test_packages_offer_them_by_entry_points(group, tmp_path, monkeypatch):
    def load():
        module = plugins.load_file(write(tmp_path, DRAFTER if "methods" in group else RULE))
        return module.Constant if "methods" in group else module.Mine

    entry = SimpleNamespace(load=load, module="nowhere", dist=SimpleNamespace(name="package"))
    name = "constant" if "methods" in group else "mine"
    offered = {
        group: {name: entry, "broken": SimpleNamespace(**vars(entry) | {"load": lambda: 1 / 0})}
    }
    monkeypatch.setattr(plugins, "entry_point_names", lambda group: offered.get(group, {}))
    find = methods.find if "methods" in group else registry.get
    listed = methods.names() if "methods" in group else registry.names()
    assert name in listed
    assert find(name)
    with pytest.raises(HierspecError, match="'broken' of the package package: ZeroDivisionError"):
        find("broken")


def test_another_process_unpickles_what_a_file_made(tmp_path):
    file = write(tmp_path, "class Found(list):\n    pass\n")
    sent = pickle.dumps(plugins.load_file(file).Found([3]))
    code = f"""if True:
        import pickle
        from hierspec.utils import plugins
        plugins.load_inherited()
        print(pickle.loads({sent!r}))
    """
    command = [sys.executable, "-c", code]
    env = os.environ | {plugins.VARIABLE: file, "PYTHONHASHSEED": "random"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    assert done.stdout == "[3]\n"


@pytest.mark.parametrize(
    ("module", "is_users"),
    [
        ("hierspec.verifiers.block", False),
        ("hierspec_lab.rules.naive", False),  # installed with it
        ("hierspec_rules", True),
        ("__main__", True),
    ],
)
def test_whose_a_class_is(module, is_users):
    assert plugins.is_users(type("Mine", (), {"__module__": module})) is is_users


METHOD = "import hierspec\n@hierspec.register_method({name})\n{body}"
FAULTS = {
    "def f(:": "line 1: SyntaxError",
    "x = 1\n1 / 0": "line 2: ZeroDivisionError",
    "import no_such_module": "line 1: ModuleNotFoundError",
    "raise SystemExit(3)": "line 1: SystemExit: 3",
    "\0": "null bytes",  # a SyntaxError, a ValueError before Python 3.11.4
    "import hierspec": "it registers nothing: put @hierspec.register above",
    RULE.replace('"mine"', '"block"'): "line 5: there is a verifier called 'block' already",
    RULE + RULE.replace("Mine", "Other"): "there is a verifier called 'mine' already",
    RULE.replace("name =", "nam ="): "there is a verifier called 'tokenwise' already",
    f"{RULE}    def decide(self, *_): return 0, 1.0": "line 5: Mine defines decide",
    f"{RULE}    def greedy(self, *_): return 0": "line 5: Mine defines greedy",
    "import hierspec\nhierspec.register(3)": "line 2: register takes a hierspec.Verifier, not int",
    DRAFTER + DRAFTER.replace("Constant", "Other"): "there is a method called 'constant' already",
    DRAFTER.replace('"constant"', '"suffix"'): "there is a method called 'suffix' already",
    DRAFTER.replace('"constant"', '"a b"'): "letters, digits",
    DRAFTER.replace("@dataclass\n", ""): "made by @dataclass",
    DRAFTER.replace("token: int", "window: int"): "every level has a key 'window'",
    DRAFTER.replace("token: int", "token: hierspec.LookUp"): "a file cannot hold its options",
    DRAFTER.replace("% target.vocab_size", "/ 0"): "line 13: ZeroDivisionError",
    DRAFTER.replace("return [self.token] * limit", "return [0][9]"): "line 15: IndexError",
    **{
        DRAFTER.replace("[self.token] * limit", value): "line 14: constant proposes up to"
        for value in ("3", "'ab'", "[0.5]", "[-1]", "[10**9]", "[0] * 999", "object()")
    },
    METHOD.format(name="'constant'", body="def f(options, target): return 3"): "which cannot draft",
    METHOD.format(name="'constant'", body="def f(): pass"): "f() is called with",
    METHOD.format(
        name="'constant'",
        body="class C(hierspec.LookUp):\n    def __init__(self, options): pass\n"
        "    def propose(self, context, limit, slot): return []",
    ): "C(options) is called with options and the target: give it __init__(self, options, target)",
    METHOD.format(
        name="'constant'",
        body="class C(hierspec.LookUp):\n    def propose(self, context, limit, slot): return []",
    ): "C() is called with options and the target",
    **{
        METHOD.format(
            name="'constant'",
            body="class C(hierspec.NextTokenModel):\n"
            "    def __init__(self, options, target): self.n = target.vocab_size\n"
            f"    def probabilities(self, tokens): return {value}",
        ): f"line 5: the probabilities of constant {words}"
        for value, words in {
            "None": "must be",
            "[0.5]": "must be",
            "[float('nan')] * self.n": "hold a negative number or NaN",
            "[1.0] * self.n": "sum to",
            "'a'": "must be",
        }.items()
    },
}


@pytest.mark.parametrize("number", range(len(FAULTS)))
def test_a_fault_is_one_line_with_its_place(number, tmp_path, capsys):
    text, words = list(FAULTS.items())[number]
    plugin = write(tmp_path, text)
    options = "constant:3" if "Options" in text else "constant"
    status = generate(plugin, "--draft", options, "--temperature", "1")
    error = capsys.readouterr().err
    last = error.strip().splitlines()[-1]
    assert status == 2, error
    assert words in last
    assert last.startswith("hierspec: error: ")
    assert "mine.py" in last
    assert "Traceback" not in error


@pytest.mark.parametrize("file", ["nowhere.py", ".", "notes.txt", ""])
def test_a_file_that_is_none(file, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path, "x = 1", "notes.txt")
    assert generate(file) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        ("None", "must be hierspec.Acceptance"),
        ("hierspec.Acceptance(None, None)", "as tensors"),
        ("hierspec.Acceptance(a.h[:, :0], a.w)", "has h [B, n]"),
        ("hierspec.Acceptance(a.h * float('nan'), a.w)", "NaN"),
        ("hierspec.Acceptance(a.h, a.w * float('nan'))", "NaN"),
        ("hierspec.Acceptance(a.h + 2, a.w)", "outside 0 … 1"),
        ("1 / 0", "line 11: ZeroDivisionError"),
    ],
)
@pytest.mark.parametrize("command", ["certify", "generate"])
def test_a_rule_that_returns_something_else(command, returned, words, tmp_path, capsys):
    plugin = write(
        tmp_path,
        f"{RULE}\n    def acceptance(self, batch):\n"
        f"        a = super().acceptance(batch)\n        return {returned}\n",
    )
    if command == "certify":
        file = write(tmp_path, json.dumps(CASE), "case.json")
        status = run(["certify", "--plugin", plugin, file])
    else:
        levels = [{"method": "ngram_table", "table": "zoo:tiny-ngram", "num_speculative_tokens": 3}]
        inline = json.dumps({"target": "zoo:tiny-draft", "levels": levels, "verify": "mine"})
        status = generate(plugin, "--hierarchy", inline, "--temperature", "1")
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert status == 2
    assert words in error
    assert "mine.py, line" in error


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        (
            "p - 1.25 * torch.minimum(p, batch.q[at])",
            "negative number",
        ),  # sums to what algebra asks
        ("p * float('nan')", "NaN"),
        ("None", "must be rows"),
        ("p.tolist()", "must be rows"),
        ("p[:, :0].sum() / 0", "must be rows"),
        ("p[0]", "must be rows"),  # of the first draft, for all
        ("p[:, :1]", "must be rows"),
    ],
)
@pytest.mark.parametrize("command", ["certify", "generate"])
def test_a_residual_that_is_no_distribution(command, returned, words, tmp_path, capsys):
    """A law with negative chances may add up to the target's: it would be no certificate."""
    plugin = write(
        tmp_path,
        f"import torch\n{RULE}\n    def acceptance(self, batch):\n"
        "        a = super().acceptance(batch)\n"
        "        return hierspec.Acceptance((1.25 * a.h).clamp(max=0.9), a.w)\n"
        f"    def rest(self, p, w, batch, at):\n        return {returned}\n",
    )
    if command == "certify":
        file = write(tmp_path, json.dumps(CASE), "case.json")
        status = run(["certify", "--plugin", plugin, file])
    else:
        levels = [{"method": "ngram_table", "table": "zoo:tiny-ngram", "num_speculative_tokens": 3}]
        inline = json.dumps({"target": "zoo:tiny-draft", "levels": levels, "verify": "mine"})
        status = generate(plugin, "--hierarchy", inline, "--temperature", "1", "--seed", "1")
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert status == 2
    assert words in error
    assert "mine.py, line 13: the residual of rule 'mine'" in error


SEVERAL = """
    multi_draft = True
    def choose(self, drafts, p):
        stop = yield from RRS().choose(drafts, p)
        {}
"""
COMPLETE = """
    def complete(self, node, pending, draft, verdict):
        yield Draw(node, DenseDistributions({}))
        return verdict
"""
ACCEPTANCE = """
    calls = 0
    def acceptance(self, batch):
        a = super().acceptance(batch)
        {}
        return a
"""


def test_a_rule_that_takes_scores_for_logarithms_is_not_certified(tmp_path, capsys):
    """At another temperature than 1, and where tokens are cut off, they are not p's."""
    body = ACCEPTANCE.format(
        "ids = batch.tokens.unsqueeze(-1)\n"
        "        p_x = batch.scores[:, :-1].softmax(-1).gather(-1, ids).squeeze(-1)\n"
        "        q_x = batch.q.gather(-1, ids).squeeze(-1)\n"
        "        real = torch.arange(q_x.shape[1]) < batch.lengths.unsqueeze(-1)\n"
        "        a.h.copy_(torch.where(real, p_x / q_x, 0.0).clamp(max=1.0))"
    )
    plugin = write(tmp_path, f"import torch\n{RULE}    reads_scores = True\n{body}")
    file = write(tmp_path, json.dumps(CASE), "case.json")
    assert run(["certify", "--plugin", plugin, file]) == 1
    assert "lossy" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (SEVERAL.format("return Stop(stop.draft, 0, -stop.distribution)"), "has a negative"),
        (SEVERAL.format("return Stop(stop.draft, 0, stop.distribution * float('nan'))"), "NaN"),
        (SEVERAL.format("return Stop(9, 0, stop.distribution)"), "ends in Stop("),
        (SEVERAL.format("return stop.draft, 0"), "ends in Stop("),
        (SEVERAL.format("yield 1.5"), "yields chances from 0 to 1, not 1.5"),
        (COMPLETE.format("torch.tensor([[1.5, -0.5]])"), "draws from what has a negative"),
        (COMPLETE.format("torch.ones(2, 2)"), "draws from what has"),
        (ACCEPTANCE.format("a.h.mul_(0.9 if len(batch.p) > 1 else 1.0)"), "otherwise alone"),
        (ACCEPTANCE.format("Mine.calls += 1; a.h.div_(self.calls)"), "otherwise alone"),
        (ACCEPTANCE.format("a.h.sqrt_() if batch.p.dtype == torch.float32 else a"), "are float32"),
        (ACCEPTANCE.format("batch.q @ torch.eye(3, dtype=torch.float64)"), "RuntimeError: "),
    ],
)
def test_what_else_a_rule_says_is_checked(body, words, tmp_path, capsys):
    """No certificate for what an engine may run otherwise."""
    imports = (
        "import torch\nfrom hierspec.core.distributions import DenseDistributions\n"
        "from hierspec.core.requests import Draw\nfrom hierspec.core.rules import Stop\n"
        "from hierspec.verifiers.multi_draft import RRS\n"
    )
    plugin = write(tmp_path, f"{imports}{RULE}{body}")
    num_drafts = 2 if "choose" in body else 1
    levels = [{"num_speculative_tokens": 2, "num_drafts": num_drafts}, {"verify": "mine"}]
    file = write(tmp_path, json.dumps(CASE | {"levels": levels}), "case.json")
    assert run(["certify", "--plugin", plugin, file]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert "mine.py, line" in error


WORDS = ["self", "limit", "None", "1j", "...", "b''", "hierspec", "print", "yield 1"]


@pytest.mark.parametrize("seed", range(12))
def test_a_damaged_file_is_one_line_or_works(seed, tmp_path, capsys):
    """Lines that are lost, doubled, cut and exchanged, and words that stand for others."""
    rng = random.Random(seed)
    lines = rng.choice([DRAFTER, RULE, DRAFTER + RULE]).splitlines()
    for _ in range(rng.randint(1, 3)):
        i, j = rng.randrange(len(lines)), rng.randrange(len(lines))
        match rng.randrange(5):
            case 0:
                lines[i] = ""
            case 1:
                lines[i] = f"{lines[i]}\n{lines[j]}"
            case 2:
                lines[i] = lines[i][: rng.randint(0, len(lines[i]))]
            case 3:
                lines[i], lines[j] = lines[j], lines[i]
            case _:
                lines[i] = re.sub(r"\w+$", rng.choice(WORDS), lines[i])
    plugin = write(tmp_path, "\n".join(lines))
    file = write(tmp_path, json.dumps(CASE), "case.json")
    for certified in (False, True):
        if certified:
            status = run(["certify", "--plugin", plugin, file])
        else:
            status = generate(plugin, "--draft", "constant:3")
        said = capsys.readouterr().err
        assert status in (0, 1, 2), lines
        assert "Traceback" not in said
        assert "bug" not in said
        assert status != 2 or said.splitlines()[-1].startswith("hierspec: error: "), said
