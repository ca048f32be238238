"""The root of the command line: its help, the options before a command, and its commands."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from hierspec.utils import plugins

from . import zoo
from .batch import batch
from .certify import certify
from .chat import chat
from .doctor import doctor
from .generate import generate
from .options import Command
from .serve import serve

COMMANDS = "hierspec.commands"  # group of entry points

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


for command in (generate, chat, serve, batch, certify, doctor):
    app.command(cls=Command)(command)
app.add_typer(zoo.app)


def _add_commands_of_packages() -> None:
    """Add the commands of installed packages, by the words of their names.

    An entry point ``zoo.train`` is the command ``hierspec zoo train``; it may be a group of
    commands itself. A package that cannot be imported costs only what it adds.
    """
    groups = {"": app, "zoo": zoo.app}

    def add(words: str, command: Any) -> None:
        if isinstance(command, typer.Typer):
            groups[words] = command
            app.add_typer(command, name=words)
            return
        group, _, name = words.rpartition(".")
        groups[group].command(name, cls=Command)(command)

    for words, entry in sorted(plugins.entry_point_names(COMMANDS).items()):
        try:
            add(words, entry.load())
        except (Exception, SystemExit) as error:
            problem = plugins.describe(error)
            print(f"hierspec: warning: hierspec {words} is left out: {problem}", file=sys.stderr)


_add_commands_of_packages()
