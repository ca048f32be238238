"""What users of other programs type, and what does the same here."""

from __future__ import annotations

import re
from collections.abc import Sequence

_COMMANDS = {
    "run": "hierspec chat --target MODEL talks with a model, hierspec generate PROMPT continues a "
    "text",
    "complete": "hierspec generate PROMPT continues a text",
    "pull": "nothing needs to be fetched first: --target takes a hub id, a folder or FILE.gguf",
    "list": "hierspec zoo list names the models that ship with it",
    "ps": "one process serves one model: GET /health says how it is",
    "server": "hierspec serve --model MODEL",
    "benchmark": "hierspec bench",
    "show": "hierspec zoo list names the models that ship with it, and gguf-dump FILE.gguf, of the "
    "package gguf, shows a file",
    "rm": "models are files of your own: no command here removes them",
    "create": "there is nothing to create first: --target takes FILE.gguf, and chat takes --system",
    "presets": "generate --hierarchy NAME takes a preset; an unknown NAME lists them all",
    "trace": "generate --trace FILE.jsonl writes a trace, and hierspec timeline draws it",
    "stop": "Ctrl-C ends a server",
    "quantize": "nothing here writes a model in fewer bits: --target takes FILE.gguf as it is, and "
    "--draft quantized drafts with a copy of the target in fewer bits",
    "perplexity": "hierspec serve scores texts: /v1/completions with echo and logprobs",
    "version": "hierspec --version",
}
_COMMANDS |= {
    "download": _COMMANDS["pull"],
    "ls": _COMMANDS["list"],
    "models": _COMMANDS["list"],
    "cli": _COMMANDS["run"],
    "llama-cli": _COMMANDS["run"],
    "llama-server": _COMMANDS["server"],
    "llama-quantize": _COMMANDS["quantize"],
    "llama-perplexity": _COMMANDS["perplexity"],
}
_OPTIONS = {
    "-s": "--seed",
    "-i": "hierspec chat talks with a model, hierspec generate --chat asks it one question",
    "-no-cnv": "hierspec generate continues a text, unless --chat is given",
    "-c": "the context grows as needed, up to the model's limit: leave it out",
    "-ngl": "--device cuda runs the whole model on a GPU",
    "--repeat-penalty": "--repetition-penalty",
    "--model-draft": "--draft",
    "--draft-max": "num_speculative_tokens of a level, in --hierarchy",
    "--file": "--prompts",
    "--system-prompt": "--system",
    "--speculative-config": "--hierarchy or --draft",
    "--hf-repo": "fetch the GGUF file and name it: --target FILE.gguf",
    "--verify": '"verify": "RULE", a key of a hierarchy file',
    "--jinja": "--chat uses the model's own template: leave it out",
    "--parallel": "hierspec serve --set max_num_seqs=N",
    "--alias": "hierspec serve --set served_model_name=NAME",
    "--flash-attn": "leave it out",
    "--cache-type-k": "caches have the model's own precision: leave it out",
    "--reverse-prompt": "--stop",
    "--single-turn": "hierspec generate --chat asks one question",
    "--no-display-prompt": "hierspec generate --chat prints the answer alone",
    "--lora": "--target takes the folder of an adapter of peft",
    "--keep": "a text ends where the model's context is full: leave it out",
    "--logit-bias": "hierspec serve takes logit_bias in a request, Python's generate as an option",
    "--grammar": "hierspec serve takes a JSON schema, as a request's response_format",
}
_OPTIONS |= {
    "--ctx-size": _OPTIONS["-c"],
    "--max-model-len": "--set max_prompt_tokens=N limits prompts",
    "--n-gpu-layers": _OPTIONS["-ngl"],
    "--gpu-layers": _OPTIONS["-ngl"],
    "-md": _OPTIONS["--model-draft"],
    "--speculative-model": _OPTIONS["--model-draft"],
    "--assistant-model": _OPTIONS["--model-draft"],
    "--draft-min": _OPTIONS["--draft-max"],
    "-f": _OPTIONS["--file"],
    "-cnv": _OPTIONS["-i"],
    "--conversation": _OPTIONS["-i"],
    "--interactive": _OPTIONS["-i"],
    "--no-conversation": _OPTIONS["-no-cnv"],
    "-sys": _OPTIONS["--system-prompt"],
    "-hf": _OPTIONS["--hf-repo"],
    "-np": _OPTIONS["--parallel"],
    "-fa": _OPTIONS["--flash-attn"],
    "--color": _OPTIONS["--flash-attn"],
    "--mlock": _OPTIONS["--flash-attn"],
    "--no-mmap": _OPTIONS["--flash-attn"],
    "--cache-type-v": _OPTIONS["--cache-type-k"],
    "-tb": "--threads",
    "-ctk": _OPTIONS["--cache-type-k"],
    "-ctv": _OPTIONS["--cache-type-k"],
    "-r": _OPTIONS["--reverse-prompt"],
    "-st": _OPTIONS["--single-turn"],
    "--draft-n": _OPTIONS["--draft-max"],
    "--grammar-file": _OPTIONS["--grammar"],
    "--json-schema": _OPTIONS["--grammar"],
    "--no-warmup": _OPTIONS["--flash-attn"],
    "-cb": _OPTIONS["--flash-attn"],
    "--chat-template": _OPTIONS["--jinja"],
    "--chat-template-file": _OPTIONS["--jinja"],
}
_OF_ONE_COMMAND = {
    ("generate", "--system"): "hierspec chat --system TEXT; or --prompts FILE.jsonl, with messages",
    ("bench", "-p"): "--prompts FILE takes the texts to measure on, --max-new-tokens their length",
    ("bench", "-n"): "--max-new-tokens",
    ("generate", "--verbose"): "--trace FILE.jsonl records every round, --json counts every level",
    ("chat", "--verbose"): "/stats shows the speed",
    ("serve", "--verbose"): "--set log_level=debug",
    ("chat", "-p"): "messages are typed, or come on standard input; --system TEXT says how to "
    "answer",
}
_OF_ONE_COMMAND |= {
    ("generate", "--system-prompt"): _OF_ONE_COMMAND["generate", "--system"],
    ("generate", "-sys"): _OF_ONE_COMMAND["generate", "--system"],
    ("chat", "--prompt"): _OF_ONE_COMMAND["chat", "-p"],
}
_NUMBERS = {  # of llama.cpp, where -1 stands for a default
    "--max-new-tokens": "-n 1000000 writes until the text or the context ends",
    "--threads": "leave it out for all cores",
}
_OF_A_MODEL = ("-m", "--model", "--target", "-p", "--prompt")
_MODEL_OPTIONS = ("-m", "--model", "--target", "--draft", "--candidates")
_TAKE_A_MODEL = {"chat": "--target", "serve": "--model", "batch": "--model"}


def hint(argv: Sequence[str], message: str) -> str:
    """Return what to type in place of a command line that was refused; empty if none is known."""
    if not argv:
        return ""
    if message.startswith("No such command"):
        return _COMMANDS.get(argv[0], "").replace("MODEL", _model(*argv[1:2]))
    if message.startswith("No such option") and argv[0] in _OF_A_MODEL:
        return f"a command comes first, as in hierspec generate {argv[0]} …"
    if message.startswith("No such option") and argv[0] == "plan" and {*argv} & {*_MODEL_OPTIONS}:
        return "hierspec profile --target NAME -o FILE measures what plan FILE plans with"
    for word in argv:
        name = word.split("=")[0]
        if message.startswith("No such option") and (argv[0], name) in _OF_ONE_COMMAND:
            return f"in place of {name}: {_OF_ONE_COMMAND[argv[0], name]}"
        if name in _OPTIONS:
            return f"in place of {name}: {_OPTIONS[name]}"
    refused = re.match(r"Invalid value for '(--[\w-]+)'", message)
    if refused and "-1" in argv:
        return _NUMBERS.get(refused[1], "")
    unknown = re.match(r"No such option: --([\w-]+)", message)
    if unknown and argv[0] in ("serve", "batch"):
        from hierspec.server.settings import FIELDS

        setting = unknown[1].replace("-", "_")
        return f"in its place: --set {setting}=…" if setting in FIELDS else ""
    extra = re.search(r"unexpected extra argument\S* \((\S+)\)", message)
    if extra and argv[0] in _TAKE_A_MODEL:
        return f"did you mean {_TAKE_A_MODEL[argv[0]]} {_model(extra[1])}?"
    if extra and argv[0] == "generate" and argv[1].endswith(".gguf"):
        return f"did you mean --target {argv[1]}?"
    return ""


def _model(word: str = "") -> str:
    """Return a word if it may be a model here; for any other, ollama's names too, what may be."""
    from hierspec.utils.files import expand_user
    from hierspec.zoo import registry

    is_id = re.fullmatch(r"[\w.-]+/[\w.-]+", word) and not word.startswith(("hf.co/", "."))
    if is_id or registry.can_resolve(word) or (word and expand_user(word).is_dir()):
        return word
    return "FILE.gguf (or a folder, or a hub id OWNER/NAME)"
