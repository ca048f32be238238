"""What is wrong on the command line is said before torch is loaded, which takes seconds."""

from __future__ import annotations

import json
import subprocess
import sys

from installed import LAB

MISTAKES = [
    (["generate", "x", "--hierarchy", "speculatve"], "did you mean 'speculative'?"),
    (["generate", "x", "--target", "/nowhere/at/all"], "no directory '/nowhere/at/all'"),
    (["generate", "x", "--target", "/nowhere/m.gguf"], "there is no file '/nowhere/m.gguf'"),
    (["generate", "x", "--target", "sha256-0"], "a link to it that ends in .gguf"),
    (["generate", "x", "--target", "folder"], "name one, as in folder/a.gguf"),
    (["generate", "x", "--target", "zoo:huge"], "no model called 'zoo:huge'"),
    (["generate", "x", "--target", "zoo:tin"], "did you mean zoo:tiny?"),
    (["generate", "x", "--target", "smollm2"], "did you mean zoo:smollm2?"),
    (["generate", "x", "--target", "llama3.2:1b"], "does not read ollama's names"),
    (["generate", "x", "--target", "hf.co/a/b-GGUF:Q4_K_M"], "does not read ollama's names"),
    (["generate", "x", "--target", "zoo:tiny?eps=a"], "has no options"),
    (["generate", "x", "--draft", "/nowhere/at/all"], "no directory '/nowhere/at/all'"),
    (
        ["generate", "x", "--hierarchy", "hispec", "--target", "/nowhere/at/all"],
        "no directory '/nowhere/at/all'",
    ),
    (
        ["generate", "x", "--hierarchy", "auto", "--target", "/nowhere/at/all"],
        "no directory '/nowhere/at/all'",
    ),
    (["generate", "x", "--hierarchy", "suffix", "--draft", "zoo:tiny-draft"], "no draft model"),
    (["generate", "x", "--hierarchy", '{"target": "zoo:huge"}'], "no model called 'zoo:huge'"),
    (
        ["generate", "x", "--hierarchy", '{"target": "zoo:tiny", "verify": "blok"}'],
        "no verifier called 'blok'",
    ),
    (["generate", "x", "--hierarchy", '{"target": "zoo:tiny", "levels": 3}'], "levels"),
    (["generate", "x", "--hierarchy", "gone.json"], "gone.json"),
    (["generate", "x", "--temperature", "-1"], "temperature"),
    (["generate", "x", "--seed", str(2**64)], "seed"),
    (["generate", "x", "--hierarchy", "quantized:4"], "add --draft"),
    (["generate", "x", "--draft", "early_exit"], "write exit:LAYER"),
    (["chat", "--target", "/nowhere/at/all"], "no directory '/nowhere/at/all'"),
    (["chat", "--hierarchy", "speculatve"], "did you mean 'speculative'?"),
    (["serve", "--model", "/nowhere/at/all"], "no directory '/nowhere/at/all'"),
    (["serve", "--hierarchy", "speculatve"], "did you mean 'speculative'?"),
    (["serve", "--measure-again"], "is for --hierarchy auto"),
]
if LAB:  # whose models run without torch being asked
    MISTAKES += [
        (["generate", "x", "--threads", "99999", "--target", "zoo:trunk"], "--threads must lie"),
        (["generate", "x", "--target", "zoo:large?eps=a"], "is not a number"),
    ]
CODE = """
import contextlib, io, json, sys
from hierspec.cli import run

found = []
for words in json.load(sys.stdin):
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        status = run(words)
    loaded = [name for name in ("torch", "transformers") if name in sys.modules]
    found.append((status, said.getvalue(), loaded))
json.dump(found, sys.stdout)
"""


def test_a_mistake_is_told_before_torch_is_loaded(tmp_path):
    (tmp_path / "sha256-0").write_bytes(b"GGUF....")  # a name as in ollama's folder
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "a.gguf").touch()
    done = subprocess.run(
        [sys.executable, "-c", CODE],
        input=json.dumps([words for words, _ in MISTAKES]),
        capture_output=True,
        text=True,
        timeout=120,
        cwd=tmp_path,
        check=True,
    )
    for (words, expected), (status, said, loaded) in zip(
        MISTAKES, json.loads(done.stdout), strict=True
    ):
        assert (status, said.count("\n")) == (2, 1), (words, said)
        assert expected in said, words
        assert not loaded, words


def test_the_extra_of_a_service_is_named_whichever_package_of_it_is_missing(tmp_path):
    code = (
        "import sys\n"
        "from hierspec.cli import run\n"
        "for name in ('httpx', 'uvicorn', 'pydantic_settings', 'fastapi_offline'):\n"
        "    sys.modules[name] = None\n"
        "    for words in (['batch', 'in.jsonl', 'out.jsonl'], ['serve']):\n"
        "        assert run(words) == 2\n"
        "    del sys.modules[name]\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    lines = done.stderr.splitlines()
    assert len(lines) == 8
    assert all("a service needs an extra: pip install 'hierspec[server]'" in one for one in lines)
