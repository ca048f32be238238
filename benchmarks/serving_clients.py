"""Other people's clients against a started service: lm-eval, schemathesis, llm-comply, guidellm.

They are run as commands, so that nothing of theirs is a dependency:

    python -m venv EVAL && EVAL/bin/pip install 'lm-eval[api]' transformers
    python -m venv SCHEMA && SCHEMA/bin/pip install schemathesis
    python benchmarks/serving_clients.py lm-eval --command EVAL/bin/lm_eval --data QUESTIONS.jsonl
    python benchmarks/serving_clients.py schemathesis --command SCHEMA/bin/schemathesis
    python -m venv COMPLY && COMPLY/bin/pip install llm-comply
    python benchmarks/serving_clients.py llm-comply --command COMPLY/bin/llm-comply
    python -m venv GUIDE && GUIDE/bin/pip install guidellm
    python benchmarks/serving_clients.py guidellm --command GUIDE/bin/guidellm

``lm-eval`` scores multiple-choice questions (JSON lines with ``question``, ``choices`` and
``answer``, the place of the right one) through ``local-completions``, and the log-likelihoods it
got are compared with those computed in this process; then it asks the same questions through
``local-chat-completions``, and the answers are compared with this process's. ``llm-comply`` holds
answers against OpenAI's schemas, for chats and for Responses. ``guidellm`` sends synthetic prompts
made with the model's own tokenizer, so many at a time.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import common
from serving_common import URL, server

TASK = """task: own_choices
dataset_path: json
dataset_kwargs:
  data_files: {{test: {data}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: choices
doc_to_target: answer
metric_list: [{{metric: acc}}]
"""
CHAT_TASK = """task: own_chats
dataset_path: json
dataset_kwargs:
  data_files: {{test: {data}}}
test_split: test
output_type: generate_until
doc_to_text: "{{{{question}}}}"
doc_to_target: answer
generation_kwargs: {{max_gen_toks: 16, temperature: 0, until: ["<none>"]}}
metric_list: [{{metric: bypass}}]
"""
QUESTIONS = [
    {"question": "The capital of France is", "choices": ["Paris", "Rome"], "answer": 0},
    {"question": "Two and two make", "choices": ["five", "four"], "answer": 1},
    {"question": "Water freezes into", "choices": ["ice", "fire"], "answer": 0},
    {"question": "The sun rises in the", "choices": ["west", "east"], "answer": 1},
]


def lm_eval(arguments: argparse.Namespace) -> dict[str, Any]:
    """Compare log-likelihoods through the API with those computed here."""
    options = ["--dtype", arguments.dtype, "--model", arguments.model]
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        data = arguments.data or place / "questions.jsonl"
        if arguments.data is None:
            data.write_text("\n".join(map(json.dumps, QUESTIONS)))
        (place / "own_choices.yaml").write_text(TASK.format(data=data.resolve()))
        (place / "own_chats.yaml").write_text(CHAT_TASK.format(data=data.resolve()))
        tokenizer = _tokenizer(arguments.model, place)
        model_args = {
            "model": arguments.model,
            "base_url": f"{URL}/v1/completions",
            "tokenizer": str(tokenizer),
            "tokenizer_backend": "huggingface",
            "num_concurrent": "8",
            "max_length": "2048",
        }
        shared = ["--include_path", folder, "--log_samples"]
        command = [arguments.command, "--model", "local-completions", "--tasks", "own_choices"]
        command += ["--model_args", ",".join(f"{k}={v}" for k, v in model_args.items())]
        command += [*shared, "--output_path", f"{folder}/scored"]
        model_args["base_url"] = f"{URL}/v1/chat/completions"
        chatting = [arguments.command, "--model", "local-chat-completions", "--tasks", "own_chats"]
        chatting += ["--model_args", ",".join(f"{k}={v}" for k, v in model_args.items())]
        chatting += [*shared, "--output_path", f"{folder}/answered", "--apply_chat_template"]
        environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
        environment.pop("PYTHONPATH", None)
        with server(*options):
            for line in (command, chatting):
                process = subprocess.run(line, env=environment, capture_output=True, text=True)
                if process.returncode:
                    return {"status": process.returncode, "tail": process.stderr[-3000:]}
        samples, answers = _samples(place / "scored"), _samples(place / "answered")
    from hierspec import Hierarchy

    models = Hierarchy.from_config({"target": {"model": arguments.model, "dtype": arguments.dtype}})
    worst, scored = 0.0, 0
    for sample in samples:
        requests = sample["arguments"]
        parts = requests.values() if isinstance(requests, dict) else requests
        for pair, answer in zip(parts, sample["filtered_resps"], strict=True):
            context, continuation = pair.values() if isinstance(pair, dict) else pair
            theirs = float(answer[0])
            worst = max(worst, abs(theirs - _likelihood(models, context, continuation)))
            scored += 1
    num_equal = sum(
        sample["filtered_resps"][0]
        == models.generate(sample["doc"]["question"], chat=True, max_new_tokens=16).text
        for sample in answers
    )
    return {
        "status": 0,
        "scored": scored,
        "largest_difference": worst,
        "chats": len(answers),
        "chats_equal": num_equal,
    }


def _samples(folder: Path) -> list[dict[str, Any]]:
    """Read the samples that it logged, one a line."""
    files = folder.rglob("samples_*.jsonl")
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def _likelihood(models: Any, context: str, continuation: str) -> float:
    """Return the log-probability of ``continuation`` after ``context``, computed here."""
    from hierspec_lab.bench.correctness import likelihood

    ids = models.tokenizer(context + continuation)["input_ids"]
    start = len(models.tokenizer(context)["input_ids"])
    return likelihood(models.root.model, ids[:start], ids[start:], 1.0).logprob


def _tokenizer(model: str, place: Path) -> Path:
    from hierspec.config.checkpoints import load_tokenizer
    from hierspec.zoo import registry

    source: Any = registry.resolve(model) if registry.can_resolve(model) else model
    load_tokenizer(source).save_pretrained(place / "tokenizer")
    return place / "tokenizer"


def schemathesis(arguments: argparse.Namespace) -> dict[str, Any]:
    """Send requests generated from the description: no answer may be a 5xx."""
    options = ["--model", arguments.model, "--set", "max_tokens_default=4"]
    options += ["--set", "request_timeout=5"]
    command = [arguments.command, "run", f"{URL}/openapi.json", "--checks", "not_a_server_error"]
    command += ["--max-examples", str(arguments.examples), "--request-timeout", "60"]
    command += ["--continue-on-failure", "--seed", "1"]
    environment = dict(os.environ)
    environment.pop("PYTHONPATH", None)
    # It leaves a folder where it runs.
    with server(*options) as process, tempfile.TemporaryDirectory() as place:
        completed = subprocess.run(
            command, env=environment, cwd=place, capture_output=True, text=True
        )
        alive = process.poll() is None
    text = completed.stdout
    counts = re.findall(r"(\d+) (?:test cases?|generated|passed|failed|failures?)", text)
    return {"status": completed.returncode, "alive": alive, "counts": counts, "tail": text[-3000:]}


def llm_comply(arguments: argparse.Namespace) -> dict[str, Any]:
    """Run its tests of chats and of Responses: which pass, which do not and why."""
    report: dict[str, Any] = {"status": 0}
    with server("--model", arguments.model):
        for kind in ("openai-chat", "open-responses"):
            options = ["--format", kind, "-u", f"{URL}/v1", "-k", "none", "-m", arguments.model]
            command = [arguments.command, *options, "--json"]
            process = subprocess.run(command, capture_output=True, text=True)
            try:
                results = json.loads(process.stdout)
            except ValueError:
                return {
                    "status": process.returncode,
                    "tail": (process.stdout + process.stderr)[-3000:],
                }
            for test in results["results"]:
                test.pop("duration_ms", None)
            report[kind] = results
    return report


def guidellm(arguments: argparse.Namespace) -> dict[str, Any]:
    """Send requests as it makes them, and return what it counts of the answers."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        tokenizer = _tokenizer(arguments.model, place)
        options = {
            "backend": f"kind=openai_http,target={URL},model={arguments.model}",
            "profile": "kind=concurrent,streams=4",
            "constraint": f"kind=max_requests,count={arguments.examples}",
            "tokenizer": f"kind=hf_auto,model={tokenizer}",
            "data": "kind=synthetic_text,prompt_tokens=64,output_tokens=48",
            "output": f"kind=json,path={place / 'guide.json'}",
        }
        command = [arguments.command, "run", "--disable-console"]
        for name, value in options.items():
            command += [f"--{name}", value]
        environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
        environment.pop("PYTHONPATH", None)
        with server("--model", arguments.model):
            process = subprocess.run(command, env=environment, capture_output=True, text=True)
        if process.returncode or not (place / "guide.json").exists():
            return {"status": process.returncode, "tail": (process.stdout + process.stderr)[-3000:]}
        report = json.loads((place / "guide.json").read_text())
    metrics = report["benchmarks"][0]["metrics"]
    return {
        "status": 0,
        "requests": metrics["request_totals"],
        "output_tokens_per_second": metrics["output_tokens_per_second"]["successful"]["mean"],
    }


CLIENTS = {
    "lm-eval": lm_eval,
    "schemathesis": schemathesis,
    "llm-comply": llm_comply,
    "guidellm": guidellm,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("client", choices=CLIENTS)
    parser.add_argument("--command", required=True)
    parser.add_argument("--model", default="zoo:smollm2")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--data", type=Path, default=None)
    parser.add_argument("--examples", type=int, default=100)
    arguments = parser.parse_args()
    result = CLIENTS[arguments.client](arguments)
    settings = {k: str(v) for k, v in vars(arguments).items() if k not in ("command", "data")}
    print({key: value for key, value in result.items() if key != "tail"})
    record = {"settings": settings, **result, "environment": common.environment()}
    common.write(f"serving-{arguments.client}", record)


if __name__ == "__main__":
    main()
