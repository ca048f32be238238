"""``hierspec bench serve``: put load on a server and measure what its clients see."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hierspec.errors import HierspecError

from .options import (
    MODEL,
    MaxConcurrency,
    Seed,
    TemperatureOption,
    json_option,
    load_tokenizer,
    output_option,
)

if TYPE_CHECKING:
    from hierspec.bench.load.client import Endpoint
    from hierspec.bench.load.run import Load, LoadRun

_MAX_PROMPTS = 100_000


def serve(
    base_url: Annotated[
        str, typer.Option(help="The server's address, with or without /v1 at the end.")
    ] = "http://127.0.0.1:8000",
    backend: Annotated[
        str,
        typer.Option(
            help="API that is called: openai (/v1/completions) or openai-chat "
            "(/v1/chat/completions)."
        ),
    ] = "openai",
    model: Annotated[
        str | None, typer.Option(help="Name of the model to ask for; default: the server's first.")
    ] = None,
    num_prompts: Annotated[
        int, typer.Option(min=1, max=_MAX_PROMPTS, help="Number of requests to send.")
    ] = 64,
    max_concurrency: MaxConcurrency = 16,
    request_rate: Annotated[
        float,
        typer.Option(
            help="Requests sent per second, on average; inf: whenever --max-concurrency permits."
        ),
    ] = float("inf"),
    burstiness: Annotated[
        float,
        typer.Option(
            help="How requests arrive: 1 independently of each other (Poisson), below 1 in bursts, "
            "above 1 more evenly."
        ),
    ] = 1.0,
    dataset_name: Annotated[
        str,
        typer.Option(
            help="Where prompts are from: built-in, custom (the file of --dataset-path) or random. "
            "Default: custom with --dataset-path, else built-in."
        ),
    ] = "",
    dataset_path: Annotated[
        Path | None,
        typer.Option(help="A .jsonl file, a prompt a line; used again where it is too short."),
    ] = None,
    input_len: Annotated[
        int,
        typer.Option(
            "--input-len",
            "--random-input-len",
            min=1,
            help="Length of random prompts in words; with --tokenizer, in tokens.",
        ),
    ] = 256,
    output_len: Annotated[
        int,
        typer.Option(
            "--output-len",
            "--random-output-len",
            min=1,
            help="Maximum number of tokens per answer.",
        ),
    ] = 128,
    tokenizer: Annotated[
        str | None,
        typer.Option(help=f"Model in whose tokens --input-len is counted: {MODEL}."),
    ] = None,
    temperature: TemperatureOption = 0.0,
    ignore_eos: Annotated[
        bool,
        typer.Option(
            "--ignore-eos",
            help="Ask for answers that go on to --output-len (an extension, as in vLLM).",
        ),
    ] = False,
    extra_body: Annotated[
        str | None, typer.Option(help="A JSON object: further fields of every request.")
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option(help="HTTP header of every request: KEY=VALUE; repeatable."),
    ] = None,
    goodput: Annotated[
        list[str] | None,
        typer.Option(
            help="Limit that a good request keeps, METRIC:MS, where METRIC is the time to the "
            "first token (ttft), for each further token (tpot) or to the end (e2el); repeatable."
        ),
    ] = None,
    num_warmups: Annotated[
        int, typer.Option(min=0, max=1000, help="Requests that are sent first and not measured.")
    ] = 1,
    timeout: Annotated[
        float, typer.Option(min=0.1, help="Seconds after which a request counts as failed.")
    ] = 600.0,
    time_limit: Annotated[
        float, typer.Option(min=1, help="Seconds after which the run ends, whatever still runs.")
    ] = 600.0,
    ready_timeout: Annotated[
        float, typer.Option(min=0, help="Seconds to wait for a server that is not there yet.")
    ] = 0.0,
    seed: Seed = 0,
    output: Annotated[Path | None, output_option("Write the result to this file.")] = None,
    save_detailed: Annotated[
        bool,
        typer.Option("--save-detailed", help="Add every request's text and times to the result."),
    ] = False,
    as_json: Annotated[
        bool, json_option("Print the result, one JSON object, instead of tables.")
    ] = False,
) -> int:
    """Load an OpenAI-compatible server and measure it as its clients do.

    Requests are streamed. Fields and definitions are those of vllm bench serve. A key is read from
    OPENAI_API_KEY. Exit status 1 where no request came to its end.

    Examples:

      hierspec bench serve --num-prompts 64 --max-concurrency 16

      hierspec bench serve --backend openai-chat --request-rate 4 --dataset-path p.jsonl -o r.json
    """
    import asyncio

    from hierspec.bench.load import client, prompts, run, summary
    from hierspec.utils.checks import check_temperature
    from hierspec.utils.files import check_writable, write_atomically
    from hierspec.utils.schema import json_object

    from .rendering import interruptible, notes, progress, say
    from .rendering.load import show

    client.load_aiohttp()
    check_temperature(temperature, "--temperature")
    if output is not None:
        check_writable(output, "the result")
    base_url = _normalise_url(base_url)
    if backend not in client.BACKENDS:
        raise HierspecError(f"--backend must be one of {', '.join(client.BACKENDS)}")
    if request_rate <= 0 or burstiness <= 0:
        raise HierspecError("--request-rate and --burstiness must be above 0")
    limits = _parse_goodput(goodput or [])
    options: dict[str, Any] = {"temperature": temperature}
    if ignore_eos:
        options["ignore_eos"] = True
    if extra_body is not None:
        options |= json_object(extra_body, "--extra-body", "it")
    headers = _parse_headers(header or [])
    texts, dataset = prompts.choose(
        dataset_name or ("built-in" if dataset_path is None else "custom"),
        dataset_path,
        num_prompts,
        input_len=input_len,
        seed=seed,
        tokenizer=None if tokenizer is None else load_tokenizer(tokenizer),
    )
    load = run.Load(
        request_rate=request_rate,
        burstiness=burstiness,
        max_concurrency=max_concurrency,
        num_warmups=num_warmups,
        time_limit=time_limit,
        seed=seed,
    )
    console = notes()
    with interruptible(console, lambda: "nothing was written"):
        name = asyncio.run(run.first_model(base_url, headers, ready_timeout, model))
        endpoint = client.Endpoint(
            base_url=base_url, backend=backend, model=name, options=options, timeout=timeout
        )
        with progress(console, f"load on {base_url}") as bar:

            def report(answered: int, failed: int) -> None:
                stage = f"{answered} of {num_prompts} answered"
                if failed:
                    stage += f", {failed} failed"
                # Without a terminal each stage is a line: one for every tenth of the requests.
                tenth, previous = (10 * n // num_prompts for n in (answered, answered - 1))
                if console.is_terminal or tenth != previous:
                    bar(stage, answered / num_prompts)

            measured: LoadRun = asyncio.run(
                run.run(endpoint, texts, output_len, load, headers=headers, report=report)
            )
    result = {
        **_settings_fields(endpoint, load, num_prompts, output_len, dataset),
        **summary.summary(measured, limits),
    }
    if save_detailed:
        result |= summary.details(measured.outcomes)
    if output is not None:
        write_atomically(output, json.dumps(result, indent=1) + "\n", "the result")
        say(console, f"written to {output}")
    if as_json:
        print(json.dumps(result))
    else:
        show(result)
    for error, count in result["error_counts"].items():
        say(console, f"{count} failed: {error}")
    return 0 if result["completed"] else 1


def _settings_fields(
    endpoint: Endpoint, load: Load, num_prompts: int, output_len: int, dataset: dict[str, Any]
) -> dict[str, Any]:
    """Return the settings of a run, in vLLM's fields where it has them."""
    return {
        "schema_version": 1,
        "date": datetime.now(UTC).strftime("%Y%m%d-%H%M%S"),
        "backend": endpoint.backend,
        "base_url": endpoint.base_url,
        "model_id": endpoint.model,
        "num_prompts": num_prompts,
        # JSON has no infinity
        "request_rate": "inf" if load.request_rate == float("inf") else load.request_rate,
        "burstiness": load.burstiness,
        "max_concurrency": load.max_concurrency,
        "output_len": output_len,
        "options": dict(endpoint.options),
        "dataset": dataset,
        "seed": load.seed,
    }


def _normalise_url(text: str) -> str:
    from urllib.parse import urlsplit

    url = text.rstrip("/").removesuffix("/v1")
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise HierspecError(f"--base-url is a URL such as http://127.0.0.1:8000, not {text!r}")
    return url


def _parse_goodput(pairs: list[str]) -> dict[str, float]:
    limits = {}
    for pair in pairs:
        name, _, value = pair.partition(":")
        try:
            limits[name] = float(value)
        except ValueError:
            limits[name] = -1.0
        if name not in ("ttft", "tpot", "e2el") or not limits[name] > 0:
            raise HierspecError(f"--goodput takes ttft:MS, tpot:MS or e2el:MS, not {pair!r}")
    return limits


def _parse_headers(pairs: list[str]) -> dict[str, str]:
    headers = {}
    if key := os.environ.get("OPENAI_API_KEY"):
        headers["Authorization"] = f"Bearer {key}"
    for pair in pairs:
        name, separator, value = pair.partition("=")
        if not separator or not name:
            raise HierspecError(f"--header takes KEY=VALUE, not {pair!r}")
        headers[name] = value
    return headers
