"""The command line: ``hierspec generate · profile · plan · bench · certify · reproduce · …``.

Only this package prints. A user's mistake is one line on standard error and exit status 2; a
traceback appears with ``--debug`` alone.
"""

from __future__ import annotations

import errno
import functools
import os
import signal
import sys
from typing import Any

from hierspec.errors import HierspecError
from hierspec.utils import openmp

_LONGEST = 1200  # characters of a message
_UNWRITTEN = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)

openmp.prepare()
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


def main(argv: list[str] | None = None) -> None:
    """Run the ``hierspec`` command and end the process with its exit status."""
    status = run(sys.argv[1:] if argv is None else argv)
    signal.signal(signal.SIGINT, _interrupted_at_exit)  # libraries take a while to leave
    sys.exit(status)


def _interrupted_at_exit(*_: object) -> None:
    """Answer Ctrl-C after the command's end by a line instead of a library's traceback."""
    os.write(2, b"interrupted: the command had ended already\n")
    os._exit(130)


def run(argv: list[str]) -> int:
    """Run a command line and return its exit status: 0, 1 (a check failed), 2 (a mistake)."""
    status = _status(argv)
    try:
        if sys.stdout is not None:  # closed from the start
            sys.stdout.flush()
    except BrokenPipeError:
        _discard_output()
    except OSError as error:  # a full disk
        _discard_output()
        return _explain(error)
    return status


@functools.cache
def _command() -> Any:
    """Return the tree of all commands, built once a process."""
    import typer

    from .root import app

    return typer.main.get_command(app)


def _status(argv: list[str]) -> int:
    debug = "--debug" in argv
    argv = [arg for arg in argv if arg != "--debug"]
    try:
        status = _command().main(argv, prog_name="hierspec", standalone_mode=False)
    except BrokenPipeError:
        return 0  # the reader has gone (| head), which is no error
    except SystemExit as exit_:  # what click and rich make of a broken pipe
        if isinstance(exit_.__context__, BrokenPipeError):
            return 0
        raise
    except Exception as error:
        if debug:
            raise
        return _explain(error)
    return status if isinstance(status, int) else 0


def _discard_output() -> None:
    """Send standard output to nowhere: what it still holds must not be flushed at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _explain(error: Exception) -> int:
    """Print in one line what is wrong; return 2 for a user's mistake, 1 for one of ours."""
    if type(error).__name__ == "NoArgsIsHelpError":  # a group of commands, and none named
        print(error.format_message())  # type: ignore[attr-defined]
        return 0
    if hasattr(error, "format_message"):  # wrong options, unknown commands
        context = getattr(error, "ctx", None)
        command = context.command_path if context else "hierspec"
        _complain(f"{_one_line(error.format_message())} (see {command} --help)")  # type: ignore[attr-defined]
        return 2
    if isinstance(error, OSError) and error.filename is None and error.errno in _UNWRITTEN:
        _complain(f"cannot write to standard output: {error.strerror}")
        return 2
    if isinstance(error, UnicodeEncodeError):
        what = "what was given is not UTF-8 text"
        if error.encoding.lower().replace("-", "") != "utf8":
            what = f"the output takes {error.encoding} alone: set PYTHONIOENCODING=utf-8"
        _complain(what)
        return 2
    if isinstance(error, HierspecError | OSError):
        _complain(_one_line(str(error)) or type(error).__name__)
        return 2
    if isinstance(error, MemoryError) or "out of memory" in str(error).lower():
        _complain("out of memory: try a smaller --batch-size or --max-new-tokens")
        return 2
    _complain(
        f"{type(error).__name__}: {_one_line(str(error))}: this is a bug, please report it with "
        "this line and what hierspec doctor prints; --debug shows where"
    )
    return 1


def _complain(text: str) -> None:
    print(f"hierspec: error: {text}", file=sys.stderr)


def _one_line(text: str) -> str:
    """Return a text without line breaks; of a very long one (a path, a dump) both ends."""
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST // 2]} … {line[-_LONGEST // 2 :]}"
