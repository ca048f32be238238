"""``hierspec serve``: an OpenAI-compatible service."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hierspec.errors import HierspecError

from . import options

if TYPE_CHECKING:
    from hierspec.server.settings import ServeSettings


def serve(
    ctx: typer.Context,
    model: options.ServedModel = None,
    hierarchy: options.ServedHierarchy = None,
    draft: options.DraftsOption = None,
    tokenizer: options.TokenizerOption = None,
    dtype: options.Dtype = None,
    device: options.Device = None,
    threads: options.Threads = None,
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
    measure_again: options.MeasureAgain = False,
    config: options.ServiceFile = None,
    setting: options.ServiceSettings = None,
    replicas: Annotated[int | None, options.REPLICAS] = None,
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
    settings = service_settings(ctx.params, config, setting)
    settings.validate_exposure()
    settings.validate_models()
    settings.validate_address()

    from .rendering import interruptible, notes, progress, say, warnings_as_notes

    console = notes()
    if replicas or autoscale or ray_address:
        from hierspec.server.cluster.deployments import num_replicas
        from hierspec.server.cluster.service import run

        bounds = num_replicas(replicas, autoscale)
        counts = " to ".join(map(str, dict.fromkeys(bounds)))
        say(console, f"hierspec: starting {counts} replica{'s' * (bounds != (1, 1))} with Ray")
        run(settings, bounds, ray_address, lambda url: say(console, f"hierspec: serving on {url}"))
        return 0

    from hierspec.utils.threads import use_threads

    use_threads(settings.threads)

    from hierspec.presets.registry import AUTO
    from hierspec.server import logs
    from hierspec.server.app import create_app
    from hierspec.server.loading import load
    from hierspec.server.process import make_server

    logs.configure(settings.log_level, settings.log_format)
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

    make_server(app, settings, say_where).run()
    return 0


def service_settings(
    params: Mapping[str, Any], file: Path | None, assignments: Sequence[str] | None
) -> ServeSettings:
    """Return a service's settings: file, environment, options, and ``--set NAME=VALUE``.

    Args:
        params: of the command; an option that is called like a setting is that setting.

    Raises:
        HierspecError: a wrong setting, or the extra is not installed.
    """
    try:
        import fastapi_offline  # noqa: F401
        import httpx  # noqa: F401
        import pydantic_settings  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError:
        raise HierspecError("a service needs an extra: pip install 'hierspec[server]'") from None

    from hierspec.server.settings import FIELDS
    from hierspec.server.sources import load, parse_assignments

    given = {name: value for name, value in params.items() if name in FIELDS and value is not False}
    given["draft"] = options.split_values(given["draft"])
    return load(file, {**given, **parse_assignments(assignments or ())})
