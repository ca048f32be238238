"""What users of other programs type is answered with what to type here."""

import random

import pytest
from installed import needs_lab

from hierspec.cli import run


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("run llama3.2", "hierspec chat --target FILE.gguf (or a folder, or a hub id OWNER/NAME) "),
        ("run", "hierspec chat --target FILE.gguf"),
        ("run zoo:smollm2", "hierspec chat --target zoo:smollm2 talks"),
        ("run Qwen/Qwen3-0.6B", "hierspec chat --target Qwen/Qwen3-0.6B talks"),
        ("run hf.co/a:Q4_0", "hierspec chat --target FILE.gguf"),
        ("pull llama3", "nothing needs to be fetched first"),
        ("list", "hierspec zoo list"),
        ("show x.gguf", "gguf-dump FILE.gguf"),
        ("rm llama3", "no command here removes them"),
        ("create x -f Modelfile", "--target takes FILE.gguf"),
        ("chat llama3", "did you mean --target FILE.gguf (or a folder"),
        ("serve llama3", "did you mean --model FILE.gguf (or a folder"),
        ("serve --served-model-name gpt-4o", "--set served_model_name="),
        ("serve --port 99999", "'--port'"),
        ("-m x.gguf -p hello", "a command comes first, as in hierspec generate -m"),
        ("generate x.gguf hello", "did you mean --target x.gguf?"),
        ("generate a -ngl 99", "--device cuda"),
        ("generate a -c 4096", "leave it out"),
        ("chat --ctx-size=4096", "leave it out"),
        ("generate a --repeat-penalty 1.1", "--repetition-penalty"),
        ("generate a -md small.gguf", "--draft"),
        ("presets", "generate --hierarchy NAME takes a preset"),
        ("trace", "generate --trace FILE.jsonl"),
        pytest.param(
            "plan --target zoo:tiny", "hierspec profile --target NAME -o FILE", marks=needs_lab
        ),
        ("generate a -hf a/b:Q4_0", "fetch the GGUF file"),
        ("serve -np 4", "max_num_seqs"),
        ("serve --alias x", "served_model_name"),
        ("generate a -s 42", "in place of -s: --seed"),
        ("generate a -cnv", "hierspec chat talks with a model"),
        ("generate a -no-cnv", "unless --chat is given"),
        ("generate a --system pirate", "hierspec chat --system TEXT"),
        ("generate a -sys pirate", "hierspec chat --system TEXT"),
        ("chat -m x.gguf -p hello", "messages are typed"),
        ("generate a --verify block", "a key of a hierarchy file"),
        pytest.param("bench -p 512", "--prompts FILE", marks=needs_lab),
        ("generate a --jinja", "leave it out"),
        ("generate a -m zoo:tiny-draft --dtype int7", "error: --dtype: unsupported dtype 'int7'"),
        ("generate a -m zoo:tiny-draft --dtype torch.auto", "unsupported dtype 'torch.auto'"),
        ("generate a -m zoo:tiny-draft --dtype fp16", "did you mean float16?"),
        ("generate a --model=", "error: --target is empty: name a model"),
        ("serve --model=", "error: --model is empty: name a model"),
        ("generate a -m zoo:tiny-draft --draft exit:0", "write exit:LAYER, as in exit:4"),
        ("generate a -m zoo:tiny-draft --draft prompt-lookup:x", "did you mean 'prompt-lookup'?"),
        ("generate a -m zoo:tiny-draft --draft backof", "--plugin FILE.py"),
        ("generate a -m llama3.2", "FILE.gguf, zoo:NAME or a hub id with its owner (OWNER/NAME)"),
        ("generate a -n -1", "-n 1000000 writes until"),
        ("serve -t -1", "leave it out for all cores"),
        ("serve -m zoo:tiny-draft --dtype int7", "unsupported dtype 'int7'"),
        ("generat a", "Did you mean 'generate'"),
        ("generate a -p b", "not both"),
        ("generate -m x.gguf -p a -md small.gguf", "in place of -md: --draft"),
        ("generate a -tb 2", "in place of -tb: --threads"),
        ("generate a -r User:", "in place of -r: --stop"),
        ("generate a -st", "hierspec generate --chat asks one question"),
        ("generate a --grammar-file x.gbnf", "response_format"),
        ("serve -cb", "leave it out"),
        ("generate -p a -p b --prompts x.txt", "not both (see hierspec generate --help)"),
        ("generate -p a -md B --prompts x.txt", "in place of -md: --draft"),
        ("generate a --logit-bias 5+1", "logit_bias"),
        ("generate a --lora x", "an adapter of peft"),
        ("generate a --keep 5", "leave it out"),
        ("chat --chat-template chatml", "leave it out"),
        ("chat --verbose", "/stats"),
        ("quantize x.gguf", "--draft quantized"),
        ("perplexity", "echo and logprobs"),
        ("version", "hierspec --version"),
        pytest.param("bench -n 8", "in place of -n: --max-new-tokens", marks=needs_lab),
    ],
)
def test_other_programs_words_get_a_hint(line, says, capsys):
    assert run(line.split()) == 2
    err = capsys.readouterr().err
    assert says in err
    assert len(err.splitlines()) == 1


HABITS = ["run", "pull", "ls", "chat", "serve", "generate", "bench", "ps", "-m", "--model", "-p",
          "-n", "-t", "-c", "-ngl", "--temp", "--top-k", "--ctx-size=9", "-md", "x.gguf", "llama3",
          "./x.gguf", "hf.co/a/b", "-f", "8", "0.7", "-1", "--", "--repeat-penalty", "hello there",
          "--set", "num_ctx=4096", "-sys", "--jinja", "-hf", "a/b:Q4_0", ""]  # fmt: skip


@pytest.mark.parametrize("seed", range(30))
def test_habits_in_any_order_are_one_line(seed, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = random.Random(seed)
    line = rng.sample(HABITS, rng.randint(1, 6))
    if not {"-m", "--model"} & {*line}:  # so that nothing is loaded, and no service started
        line += ["-m", "./none.gguf"]
    status = run(line)
    said = capsys.readouterr().err
    assert status == 2, line
    assert said.startswith("hierspec: error: "), line
    assert said.count("\n") == 1, line
    assert "bug" not in said, line


def test_short_names_are_those_of_other_programs(tmp_path, capsys):
    from tiny_models import save_tiny

    model = str(save_tiny("llama", tmp_path))
    long = ["generate", "--target", model, "--ids", "5 6", "--max-new-tokens", "3"]
    short = ["generate", "-m", model, "--ids", "-p", "5 6", "-n", "3", "-t", "1", "--temp", "0"]
    texts = []
    for argv in (long, short):
        assert run(argv) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1]
