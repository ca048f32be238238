"""The second hour of three kinds of users, as they would type it, on small models on disk."""

import contextlib
import dataclasses
import io
import json
import re
import signal
import subprocess
import sys

import gguf_files
import httpx
import pytest
import torch
from chat_cases import save_chat_model, talk
from installed import LAB
from loading import own_cache
from transformers import AutoModelForCausalLM, AutoTokenizer

import hierspec
from hierspec.cli import run
from hierspec.config import methods
from hierspec.server.loading import load
from hierspec.server.settings import ServeSettings
from hierspec.utils import plugins
from hierspec.verifiers import registry


@pytest.fixture
def hour(tmp_path, monkeypatch, capsys):
    """Runs a command in an empty folder: ``hour(*words)`` → (status, output, what it says)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HIERSPEC_CACHE", own_cache(tmp_path / "cache"))

    def command(*words):
        status = run([*map(str, words)])
        output, said = capsys.readouterr()
        assert "Traceback" not in said
        return status, output, said

    return command


def test_of_somebody_with_a_gguf_file(hour, tmp_path):
    pytest.importorskip("gguf", reason="GGUF files are read by the package gguf (extra smollm2)")
    model = str(gguf_files.save(tmp_path / "m.gguf", gguf_files.tiny(), quantization="Q8_0"))
    assert f"hierspec chat --target {model}" in hour("run", model)[2]
    assert f"did you mean --target {model}?" in hour("chat", model)[2]
    assert "there is no file" in hour("generate", "-m", "./n.gguf", "-p", "the")[2]

    asked = ["generate", "-m", model, "-p", "the the the", "-n", 8, "-t", 1]
    assert "--chat asks it as a question" in hour(*asked)[2]
    assert "as a question" not in hour(*asked, "--chat")[2]
    texts = [
        json.loads(hour(*asked, *more, "--json")[1])["text"]
        for more in (["--temp", 0], ["--draft", "suffix"])
    ]
    assert texts[0] == texts[1]
    status, _, said = hour(*asked[:-4], "-p", "the " * 200)
    assert status == 2
    assert "give a PROMPT or --prompt" not in said
    assert "the target's context holds 128" in said

    shown = talk(
        ["chat", "-m", model, "-n", "4", "--temp", "0"],
        tmp_path / "cache",
        [
            *("the the\r", '"""the\r', 'a"""\r', "/set top_k 3\r", "/system the end\r"),
            *("/retry\r", "/save c.json\r", "/reset\r", "/load c.json\r", "/sett top_k 3\r"),
            *("/stats\r", "/set\r", "\x1b[A\x1b[A\r", "/bye\r"),
        ],
    )
    assert shown.count("4 tokens, cut: /set max_new_tokens for more") == 3
    assert shown.count("3 answers, 12 tokens") == 2  # arrow up twice is /stats
    for line in ("saved to c.json", "5 messages of c.json", "did you mean /set", "top_k = 3"):
        assert line in shown
    assert "Traceback" not in shown
    assert (tmp_path / "cache" / "chat" / "history").stat().st_mode & 0o077 == 0
    saved = json.loads((tmp_path / "c.json").read_text())["messages"]
    assert [m["content"] for m in saved if m["role"] != "assistant"] == [
        *("the end", "the the", "the\na")
    ]

    with serving("-m", model) as url:
        message = {"role": "user", "content": "the"}
        body = {"messages": [message], "max_tokens": 4, "temperature": 0}
        answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60).json()
        assert answer["usage"]["completion_tokens"] == 4


@contextlib.contextmanager
def serving(*words):
    """Start a service and yield its address; Ctrl-C ends it."""
    command = [sys.executable, "-m", "hierspec", "serve", "--port", "0", *words]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        address = next(
            filter(None, (re.search(r"http://[\w.:]+", line) for line in process.stderr))
        )
        yield address[0]
    finally:
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=60)[1]
    assert process.returncode == 130, said
    assert "Traceback" not in said


def test_of_a_gguf_file_without_a_tokenizer(hour, tmp_path, monkeypatch):
    pytest.importorskip("gguf", reason="GGUF files are read by the package gguf (extra smollm2)")
    model, save = gguf_files.tiny(), gguf_files.save
    whole, bare = tmp_path / "whole.gguf", tmp_path / "bare.gguf"
    save(whole, model)
    save(bare, model, vocabulary=lambda writer: writer.add_tokenizer_model("no_vocab"))
    tokenizer = hierspec.Hierarchy(str(whole)).tokenizer
    tokenizer.save_pretrained(tmp_path / "beside")

    asked = ["generate", "-p", "the the", "-n", 8, "--json", "-m"]
    status, expected, _ = hour(*asked, whole)
    assert status == 0
    for name in (whole, "beside", "beside/tokenizer.json"):
        status, output, _ = hour(*asked, bare, "--tokenizer", name)
        assert status == 0
        assert json.loads(output)["token_ids"] == json.loads(expected)["token_ids"]
    fast = hierspec.Hierarchy(str(bare), tokenizer)
    assert fast.generate("the the", max_new_tokens=8).text == json.loads(expected)["text"]
    assert hour("generate", "-m", bare, "--ids", "-p", "4 5", "-n", 3)[0] == 0

    assert "--tokenizer FOLDER" in hour(*asked, bare)[2]
    assert "--tokenizer FOLDER" in hour("chat", "-m", bare)[2]
    auto = [*asked, bare, "--hierarchy", "auto"]
    assert "not in auto" in hour(*auto)[2]
    assert "name another --hierarchy" in hour(*auto, "--tokenizer", whole)[2]
    assert "no tokenizer at 'nowhere'" in hour(*asked, bare, "--tokenizer", "nowhere")[2]
    monkeypatch.setattr("sys.stdin", io.StringIO("the the\n"))
    assert hour("chat", "-m", bare, "--tokenizer", whole, "-n", 2)[0] == 0
    settings = ServeSettings(model=str(bare), tokenizer=str(whole))
    served = load(settings)["default"]
    assert served.tokenizer.chat_template == gguf_files.TEMPLATE
    assert served.eos_token_ids() == hierspec.Hierarchy(str(whole)).eos_token_ids() == {0}
    with pytest.raises(hierspec.HierspecError, match="another --hierarchy"):
        dataclasses.replace(settings, hierarchy="auto").validate_models()


def test_of_somebody_with_transformers(hour, tmp_path):
    folder = str(save_chat_model(tmp_path / "model"))
    model = AutoModelForCausalLM.from_pretrained(folder)
    words = AutoTokenizer.from_pretrained(folder, padding_side="left", pad_token="w0")
    prompts = ["w5 w9 w7 w5 w9", "w11 w4"]
    batch = words(prompts, return_tensors="pt", padding=True)
    greedy = {"max_new_tokens": 12, "do_sample": False}
    expected = model.generate(**batch, **greedy)
    for drafts in (["ngram"], ["exit:1"], ["suffix", "quantized"]):
        ours = model.generate(
            **batch, **greedy, custom_generate=hierspec.custom_generate, drafts=drafts
        )
        assert torch.equal(ours, expected)

    fast = hierspec.Hierarchy(model, words, drafts=["suffix"])
    ids = [row[batch["input_ids"].shape[1] :].tolist() for row in expected]
    options = {"max_new_tokens": 12, "ignore_eos": True}
    assert [list(r.token_ids) for r in fast.generate_batch(prompts, **options)] == ids
    talked = fast.generate([{"role": "user", "content": "w5"}], **options)
    assert "".join(event.text for event in fast.stream("w91 w5 w92", **options)) == talked.text
    sampled = [fast.generate("w5", temperature=0.8, seed=3, **options).text for _ in range(2)]
    assert sampled[0] == sampled[1]
    planned = hierspec.Hierarchy.auto(model, ["suffix"])
    assert list(planned.generate(prompts[0], **options).token_ids) == ids[0]
    with torch.no_grad():
        model.model.layers[0].mlp.up_proj.weight.mul_(2)  # training goes on
    with pytest.raises(hierspec.HierspecError, match="changed"):
        fast.generate("w5")
    with pytest.raises(hierspec.HierspecError, match="num_beams"):
        model.generate(**batch, custom_generate=hierspec.custom_generate, num_beams=2)


PLUGIN = """
from dataclasses import dataclass

import torch

import hierspec


@dataclass
class Options:
    token: int = 3


@hierspec.register_method("constant", Options)
class Constant(hierspec.LookUp):
    def __init__(self, options, target):
        self.token = options.token % target.vocab_size

    def propose(self, context, limit, slot):
        return [self.token] * limit


@hierspec.register
class Mine(hierspec.Verifier):
    name = "mine"

    def acceptance(self, batch):
        n = batch.tokens.shape[1]
        ids = batch.tokens.unsqueeze(-1)
        p = batch.p[:, :n].gather(-1, ids).squeeze(-1).double()
        q = batch.q.gather(-1, ids).squeeze(-1).double()
        real = torch.arange(n) < batch.lengths.unsqueeze(-1)
        h = torch.where(real, (p / q.clamp_min(1e-300)).clamp(max=1.0), 0.0)
        return hierspec.Acceptance(h, h.new_ones(len(h), n + 1))


def verify(tokens, q, p):
    return [int(torch.multinomial(p[:1], 1))]
"""


def test_of_a_researcher(hour, tmp_path, monkeypatch):
    monkeypatch.setattr(methods, "_REGISTERED", dict(methods._REGISTERED))
    monkeypatch.setattr(registry, "_RULES", dict(registry._RULES))
    monkeypatch.setattr(plugins, "_FILES", {})
    (tmp_path / "mine.py").write_text(PLUGIN)
    case = {
        "vocab": 2,
        "models": [{"table": {"": [0.2, 0.8]}}, {"table": {"": [0.6, 0.4]}}],
        "levels": [{"num_speculative_tokens": 2}, {"verify": "mine"}],
    }
    (tmp_path / "case.json").write_text(json.dumps(case))
    level = {"method": "constant", "token": 5, "num_speculative_tokens": 3}
    hierarchy = {"target": "zoo:tiny-draft", "levels": [level], "verify": "mine"}
    (tmp_path / "mine.json").write_text(json.dumps(hierarchy))
    plugin = ["--plugin", "mine.py"]

    assert "lossless" in hour("certify", "case.json", *plugin)[1]
    asked = ["generate", *plugin, "-n", 8, "def f", "--json", "--hierarchy"]
    written = json.loads(hour(*asked, "mine.json")[1])
    assert written["levels"][0]["name"] == "constant"
    config = hierspec.Hierarchy("mine.json").config.to_dict()
    assert (config["levels"], config["verify"]) == ([level], "mine")

    if LAB:  # whose commands these are
        quick = ["--max-speculative-tokens", 2, "--tokens", 8, "--places", 1, "--repeats", 1]
        few = ["--num-prompts", 1, "--temperature", 0]
        status, _, said = hour(
            *("profile", "--target", "zoo:tiny-draft", "-o", "p.json", *quick, *few),
            *("--candidates", "ngram:zoo:tiny-ngram", "prompt-lookup"),
        )
        assert status == 0
        assert "next: hierspec plan p.json" in said
        plan = json.loads(hour("plan", "p.json", "--json")[1])
        (tmp_path / "plan.json").write_text(json.dumps(plan["hierarchy"]))
        planned = json.loads(hour(*asked, "plan.json")[1])
        assert planned["token_ids"] == written["token_ids"]
        assert "lossless" in hour("certify", "--adapter", "mine.py:verify")[1]
        status, output, said = hour(
            *("bench", "--target", "zoo:tiny-draft", "--draft", "constant:7", *plugin, *few),
            *("--methods", "alone,mine.json", "--max-new-tokens", 4, "--tune-tokens", 3),
            *("--tune-prompts", 1, "--json"),
        )
        assert status == 0, said
        found = {one["name"]: one for one in json.loads(output)["cells"][0]["methods"]}
        assert list(found) == ["plain", "alone-constant-7", "mine.json"]
        assert found["mine.json"]["configuration"]["levels"] == [level]
        refused = hour("profile", "--candidates", "constant", "-o", "q.json", *plugin)[2]
        assert "cannot be planned" in refused
    with serving(*plugin, "--hierarchy", "mine.json") as url:
        body = {"prompt": "def f", "max_tokens": 8, "temperature": 0}
        answer = httpx.post(f"{url}/v1/completions", json=body, timeout=60).json()
    assert answer["choices"][0]["text"] == written["text"]
