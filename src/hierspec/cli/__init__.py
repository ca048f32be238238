"""The command line: ``hierspec generate · profile · plan · bench · certify · reproduce · …``.

Only this package prints. A user's mistake is one line on standard error and exit status 2; a
traceback appears only with ``--debug``.
"""

from __future__ import annotations

import codecs
import contextlib
import errno
import functools
import gc
import io
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any

from hierspec.errors import HierspecError
from hierspec.utils import plugins, threads

_MAX_MESSAGE = 1200  # characters
_WRITE_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)

threads.prepare()
# Imports make objects that stay: to search them for garbage takes a tenth of a command's start.
gc.set_threshold(100_000)
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


def main(argv: list[str] | None = None) -> None:
    """Run the ``hierspec`` command and end the process with its exit status."""
    status = run(sys.argv[1:] if argv is None else argv)
    signal.signal(signal.SIGINT, _exit_on_interrupt)  # libraries take a while to shut down
    if "triton" not in sys.modules:  # which complains of what is left at the end
        gc.freeze()  # Python would search all that was imported for garbage, for half a second
    sys.exit(status)


def _exit_on_interrupt(*_: object) -> None:
    """End the process on a Ctrl-C after the command, with a line and not a traceback."""
    os.write(2, b"interrupted: the command had ended already\n")
    os._exit(130)


def run(argv: list[str]) -> int:
    """Run a command line; return its exit status: 0, 1 (a check failed), 2 (a mistake), 130."""
    # None: closed from the start
    sys.stdin = sys.stdin or open(os.devnull)  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    status = _run_command(argv)
    try:
        if sys.stdout is not None:  # None: closed from the start
            sys.stdout.flush()
    except BrokenPipeError:
        _discard_output()
    except OSError as error:  # a full disk
        _discard_output()
        return _report_error(error)
    return status


@functools.cache
def _command() -> Any:
    """Return the tree of all commands; it is built once per process."""
    import typer

    from .root import app

    return typer.main.get_command(app)


def _run_command(argv: list[str]) -> int:
    debug = "--debug" in argv
    argv = [arg for arg in argv if arg != "--debug"]
    outside = os.environ.get(plugins.VARIABLE)
    try:
        argv = _load_plugins(argv)
        status = _command().main(argv, prog_name="hierspec", standalone_mode=False)
    except KeyboardInterrupt:  # while the command is imported: click ends those of its body
        return 130
    except BrokenPipeError:
        return 0  # the reader has exited (| head), which is no error
    except SystemExit as exit_:  # click and rich convert a broken pipe to it
        if isinstance(exit_.__context__, BrokenPipeError):
            return 0
        if plugins.place_of(exit_):
            return _report_error(exit_)
        raise
    except Exception as error:
        if debug:
            raise
        return _report_error(error, argv)
    finally:
        os.environ.pop(plugins.VARIABLE, None)
        if outside is not None:
            os.environ[plugins.VARIABLE] = outside
    return status if isinstance(status, int) else 0


def _load_plugins(argv: list[str]) -> list[str]:
    """Import the files of ``--plugin FILE``, anywhere on the line; return what else is there."""
    import click

    end = argv.index("--") if "--" in argv else len(argv)
    given, rest = iter(argv[:end]), list[str]()
    for arg in given:
        name, equals, file = arg.partition("=")
        if name != "--plugin":
            rest.append(arg)
            continue
        file = file if equals else next(given, "")
        if not file:
            raise click.BadOptionUsage("plugin", "--plugin takes the path of a Python file")
        plugins.load_file(file, must_register=True)
        inherited = os.environ.get(plugins.VARIABLE)
        files = [inherited] if inherited else []
        os.environ[plugins.VARIABLE] = os.pathsep.join([*files, os.path.abspath(file)])
    return rest + argv[end:]


def _discard_output() -> None:
    """Send standard output to the null device, so that flushing it at exit cannot fail."""
    if sys.stdout is None:  # closed from the start
        return
    with contextlib.suppress(io.UnsupportedOperation):  # a stream without a file
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _report_error(error: BaseException, argv: Sequence[str] = ()) -> int:
    """Print an error in one line; return 2 for a user's mistake, 1 for a bug of ours."""
    if type(error).__name__ == "NoArgsIsHelpError":  # a group, no command
        print(error.format_message())  # type: ignore[attr-defined]
        return 0
    mistake = _mistake(error, argv)
    bug = (
        f"{type(error).__name__}: {_one_line(str(error))}: this is a bug, please report it with "
        "this line and what hierspec doctor prints; --debug shows where"
    )
    print(f"hierspec: error: {mistake or bug}", file=sys.stderr)
    return 2 if mistake else 1


def _mistake(error: BaseException, argv: Sequence[str]) -> str:
    """Say what a user did wrong, or what the machine refused; empty for a bug."""
    from .hints import hint

    if format_message := getattr(error, "format_message", None):  # wrong options, unknown commands
        context = getattr(error, "ctx", None)
        named = [word for word in argv[:1] if not word.startswith("-")]
        command = context.command_path if context else " ".join(["hierspec", *named])
        message = _one_line(format_message())
        if known := hint(argv, message):
            message = f"{message.rstrip('.')}: {known}"
        return f"{message} (see {command} --help)"
    if isinstance(error, OSError) and error.filename is None and error.errno in _WRITE_ERRORS:
        _discard_output()  # or what is left of it would fail again, and be reported again
        return f"cannot write to standard output: {error.strerror}"
    if isinstance(error, UnicodeEncodeError) and (message := _encoding_problem(error)):
        return message
    if place := plugins.place_of(error):  # a user's own rule or drafter
        return _one_line(f"{place}: {plugins.describe(error)}")
    # What the system refuses has a number: a missing file, no permission, a connection.
    refused_by_system = isinstance(error, OSError) and error.errno is not None
    if isinstance(error, HierspecError) or refused_by_system:
        return _one_line(str(error)) or type(error).__name__
    if isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and "out of memory" in str(error).lower()
    ):
        return "out of memory: try a smaller --batch-size or --max-new-tokens"
    return ""


def _encoding_problem(error: UnicodeEncodeError) -> str:
    """Say what cannot be encoded: an argument, or the output; empty for anything else."""
    if any("\udc80" <= character <= "\udcff" for character in error.object):
        return "an argument is not UTF-8 text"  # Python decodes its other bytes to these
    output = codecs.lookup(getattr(sys.stdout, "encoding", None) or "utf-8").name
    if output != "utf-8" and codecs.lookup(error.encoding).name == output:
        return f"the output is encoded as {error.encoding}: set PYTHONIOENCODING=utf-8"
    return ""


def _one_line(text: str) -> str:
    """Return a text without line breaks, and without its middle if it is very long (a dump)."""
    line = " ".join(text.split())
    return (
        line
        if len(line) <= _MAX_MESSAGE
        else f"{line[: _MAX_MESSAGE // 2]} … {line[-_MAX_MESSAGE // 2 :]}"
    )
