"""The root of the command line: its help, the options before a command, and its commands."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Annotated

import typer

from . import heads, ngram, zoo
from .batch import batch
from .bench import bench
from .certify import certify
from .chat import chat
from .doctor import doctor
from .generate import generate
from .options import NamesPresets
from .plan import plan
from .profile import profile
from .serve import serve
from .timeline import timeline

app = typer.Typer(
    name="hierspec",
    help="Generate faster with large language models, without changing what they would write: "
    "a stack of models in which each level drafts for the one above and verifies the one below.",
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)


def _print_version(is_requested: bool) -> None:
    if is_requested:
        from hierspec import __version__

        print(f"hierspec {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
    plugin: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE.py",
            help="Import a file of your own rules and drafting methods (anywhere on the line; "
            "repeatable).",
        ),
    ] = None,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show a traceback on errors (anywhere on the line).")
    ] = False,
) -> None:
    pass


app.command(cls=NamesPresets)(generate)
for command in (
    chat,
    serve,
    batch,
    bench,
    certify,
    doctor,
    timeline,
    profile,
    plan,
):
    app.command()(command)
if find_spec("hierspec_papers"):  # it stands above this package, which runs without it
    app.command()(import_module("hierspec_papers.command").reproduce)
app.add_typer(heads.app, name="heads")
app.add_typer(ngram.app, name="ngram")
app.add_typer(zoo.app, name="zoo")
