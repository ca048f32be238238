"""The root of the command line: its help, the options before a command, and its commands."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import Annotated

import typer

from hierspec.utils import plugins

from . import heads, ngram, zoo
from .batch import batch
from .certify import certify
from .chat import chat
from .doctor import doctor
from .generate import generate
from .options import NamesChoices
from .plan import plan
from .profile import profile
from .serve import serve

GROUP = "hierspec.commands"  # of entry points

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


for command in (generate, chat, serve, batch, certify, doctor, profile, plan):
    app.command(cls=NamesChoices)(command)
for group in (heads.app, ngram.app, zoo.app):
    app.add_typer(group)


def _add_commands_of_packages() -> None:
    """Add the commands that installed packages offer, each a function, by the words of its name.

    An entry point ``heads.train`` is the command ``hierspec heads train``. A package that cannot be
    imported costs its own commands only.
    """
    groups = {"": app, **{group.info.name: group for group in (heads.app, ngram.app, zoo.app)}}
    for words, entry in sorted(plugins.entry_point_names(GROUP).items()):
        if find_spec(entry.module.partition(".")[0]) is None:  # a checkout without that package
            continue
        group, _, name = words.rpartition(".")
        try:
            groups[group].command(name, cls=NamesChoices)(entry.load())
        except (Exception, SystemExit) as error:
            problem = plugins.describe(error)
            print(f"hierspec: warning: hierspec {words} is left out: {problem}", file=sys.stderr)


_add_commands_of_packages()
