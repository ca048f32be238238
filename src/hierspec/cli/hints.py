"""What users of other programs type, and what does the same here."""

from __future__ import annotations

import re
from collections.abc import Sequence


def _by_name(answers: dict[str, str]) -> dict[str, str]:
    """Return the answer of each name; several with the same are one key, with blanks between."""
    return {name: answer for names, answer in answers.items() for name in names.split()}


_COMMANDS = _by_name(
    {
        "run cli llama-cli": "hierspec chat --target MODEL talks with a model, hierspec generate "
        "PROMPT continues a text",
        "complete": "hierspec generate PROMPT continues a text",
        "pull download": "nothing needs to be fetched first: --target takes a hub id, a folder or "
        "FILE.gguf",
        "list ls models": "hierspec zoo list names the models that ship with it",
        "ps": "one process serves one model: GET /health says how it is",
        "server llama-server": "hierspec serve --model MODEL",
        "benchmark": "hierspec bench",
        "show": "hierspec zoo list names models that come with it, and gguf-dump FILE.gguf, of "
        "the package gguf, shows a file",
        "rm": "models are files of your own: no command here removes them",
        "create": "there is nothing to create first: --target takes FILE.gguf, and chat takes "
        "--system",
        "presets": "generate --hierarchy NAME takes a preset; an unknown NAME lists them all",
        "trace": "generate --trace FILE.jsonl writes a trace, and hierspec timeline draws it",
        "stop": "Ctrl-C ends a server",
        "quantize llama-quantize": "nothing here writes a model in fewer bits: --target takes "
        "FILE.gguf as it is, and --draft quantized drafts with a copy of the target in fewer bits",
        "perplexity llama-perplexity": "hierspec serve scores texts: /v1/completions with echo and "
        "logprobs",
        "version": "hierspec --version",
    }
)
_OPTIONS = _by_name(
    {
        "-s": "--seed",
        "-i -cnv --conversation --interactive": "hierspec chat talks with a model, hierspec "
        "generate --chat asks it one question",
        "-no-cnv --no-conversation": "hierspec generate continues a text, unless --chat is given",
        "-c --ctx-size": "the context grows as needed, up to the model's limit: leave it out",
        "--max-model-len": "--set max_prompt_tokens=N limits prompts",
        "-ngl --n-gpu-layers --gpu-layers": "--device cuda runs the whole model on a GPU",
        "--repeat-penalty": "--repetition-penalty",
        "--model-draft -md --speculative-model --assistant-model": "--draft",
        "--draft-max --draft-min --draft-n": "num_speculative_tokens of a level, in --hierarchy",
        "--file -f": "--prompts",
        "--system-prompt -sys": "--system",
        "--speculative-config": "--hierarchy or --draft",
        "--hf-repo -hf": "fetch the GGUF file and name it: --target FILE.gguf",
        "--verify": '"verify": "RULE", a key of a hierarchy file',
        "--jinja --chat-template --chat-template-file": "--chat uses the model's own template: "
        "leave it out",
        "--parallel -np": "hierspec serve --set max_num_seqs=N",
        "--alias": "hierspec serve --set served_model_name=NAME",
        "--flash-attn -fa --color --mlock --no-mmap --no-warmup -cb": "leave it out",
        "--cache-type-k --cache-type-v -ctk -ctv": "caches have the model's own precision: leave "
        "it out",
        "-tb": "--threads",
        "--reverse-prompt -r": "--stop",
        "--single-turn -st": "hierspec generate --chat asks one question",
        "--no-display-prompt": "hierspec generate --chat prints the answer alone",
        "--lora": "--target takes the folder of an adapter of peft",
        "--keep": "a text ends where the model's context is full: leave it out",
        "--logit-bias": "hierspec serve takes logit_bias in a request, Python's generate as an "
        "option",
        "--grammar --grammar-file --json-schema": "hierspec serve takes a JSON schema, as a "
        "request's response_format",
    }
)
_OF_ONE_COMMAND = {
    "generate": _by_name(
        {
            "--system --system-prompt -sys": "hierspec chat --system TEXT; or --prompts "
            "FILE.jsonl, with messages",
            "--verbose": "--trace FILE.jsonl records every round, --json counts every level",
        }
    ),
    "chat": _by_name(
        {
            "--verbose": "/stats shows the speed",
            "-p --prompt": "messages are typed, or come on standard input; --system TEXT says how "
            "to answer",
        }
    ),
    "serve": {"--verbose": "--set log_level=debug"},
    "bench": {
        "-p": "--prompts FILE takes the texts to measure on, --max-new-tokens their length",
        "-n": "--max-new-tokens",
    },
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
        own = _OF_ONE_COMMAND.get(argv[0], {}) if message.startswith("No such option") else {}
        if known := own.get(name, _OPTIONS.get(name)):
            return f"in place of {name}: {known}"
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
