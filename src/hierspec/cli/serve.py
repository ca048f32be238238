"""``hierspec serve``: an OpenAI-compatible service."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hierspec.errors import HierspecError

from .options import (
    REPLICAS,
    Device,
    DraftsOption,
    Dtype,
    HierarchyOption,
    ServedModel,
    ServiceFile,
    ServiceSettings,
    Threads,
    TokenizerOption,
    split_values,
)

if TYPE_CHECKING:
    from hierspec.server.settings import ServeSettings


def serve(
    model: ServedModel = None,
    hierarchy: HierarchyOption = None,
    draft: DraftsOption = None,
    tokenizer: TokenizerOption = None,
    dtype: Dtype = None,
    device: Device = None,
    threads: Threads = None,
    host: Annotated[
        str | None, typer.Option(help="Address to listen on; default: 127.0.0.1.")
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="Port to listen on; default: 8000; 0: any free one."),
    ] = None,
    api_key: Annotated[
        list[str] | None,
        typer.Option(
            help="API key that requests must send; repeat for several, of which any is accepted. "
            "It is safer in the variable HIERSPEC_SERVE_API_KEY, which lists of processes do not "
            "show."
        ),
    ] = None,
    allow_without_key: Annotated[
        bool,
        typer.Option(
            "--allow-without-key",
            help="Accept requests from other machines even if no API key is set.",
        ),
    ] = False,
    measure_again: Annotated[
        bool,
        typer.Option(
            "--measure-again",
            help="With --hierarchy auto: measure again, even if a profile is stored.",
        ),
    ] = False,
    config: ServiceFile = None,
    setting: ServiceSettings = None,
    replicas: Annotated[int | None, REPLICAS] = None,
    autoscale: Annotated[
        str | None,
        typer.Option(help="Instead of --replicas: MIN:MAX processes, as many as the load needs."),
    ] = None,
    ray_address: Annotated[
        str | None,
        typer.Option(
            help="Address of a Ray cluster to run on, or auto, which finds it. Default: Ray on "
            "this machine alone."
        ),
    ] = None,
) -> int:
    """Serve a model to OpenAI clients.

    Examples:

      hierspec serve

      hierspec serve --model ./Llama-8B --draft ./Llama-1B --hierarchy speculative
    """
    options: dict[str, Any] = {
        "model": model,
        "hierarchy": hierarchy,
        "draft": draft and split_values(draft),
        "tokenizer": tokenizer,
        "measure_again": measure_again or None,
        "dtype": dtype,
        "device": device,
        "threads": threads,
        "host": host,
        "port": port,
        "api_key": api_key,
        "allow_without_key": allow_without_key or None,
    }
    settings = service_settings(config, options, setting or [])
    settings.validate_exposure()
    settings.validate_models()
    settings.validate_address()
    if replicas or autoscale or ray_address:
        return _serve_with_ray(settings, replicas, autoscale, ray_address)

    from hierspec.utils.threads import use_threads

    use_threads(settings.threads)

    from hierspec.presets.registry import AUTO
    from hierspec.server import logs
    from hierspec.server.app import create_app
    from hierspec.server.loading import load
    from hierspec.server.process import serve as run

    from .rendering import interruptible, notes, progress, say, warnings_as_notes

    logs.configure(settings.log_level, settings.log_format)
    console = notes()
    with warnings_as_notes(console):
        if AUTO in (settings.hierarchy, *settings.hierarchies.values()):
            bar = progress(console, f"measuring {settings.target} (once)")
            with interruptible(console), bar as report:
                hierarchies = load(settings, report)
        else:
            hierarchies = load(settings)
        app = create_app(settings, hierarchies)
    name = app.state.service.model
    if app.state.service.tokenizer is None:
        say(
            console,
            f"hierspec: note: {name} has no tokenizer: prompts are token ids, and answers have no "
            "text (return_token_ids: true asks for theirs); --tokenizer takes a folder with one, "
            "or a model that has one",
        )

    def say_where(url: str) -> None:
        say(console, f"hierspec: serving {name} on {url}/v1; a page to try it: {url}/")

    run(app, settings, say_where)
    return 0


def _serve_with_ray(
    settings: ServeSettings, replicas: int | None, autoscale: str | None, address: str | None
) -> int:
    from hierspec.server.cluster.scale import Scale
    from hierspec.server.cluster.service import run

    from .rendering import notes, say

    scale, console = Scale.from_options(replicas, autoscale), notes()
    say(console, f"hierspec: starting {scale} with Ray")
    run(settings, scale, address, lambda url: say(console, f"hierspec: serving on {url}"))
    return 0


def service_settings(
    config: Path | None, options: Mapping[str, Any], settings: Sequence[str]
) -> ServeSettings:
    """Return a service's settings: file, environment, options, and ``--set NAME=VALUE``.

    Raises:
        HierspecError: a wrong setting, or the extra is not installed.
    """
    try:
        import fastapi_offline  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError:
        raise HierspecError("a service needs an extra: pip install 'hierspec[server]'") from None

    from hierspec.server.settings import load, parse_assignments

    return load(config, {**options, **parse_assignments(list(settings))})
