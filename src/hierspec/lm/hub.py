"""Models by their hub ids: whether the hub answers is asked once, before libraries wait for it."""

from __future__ import annotations

import os
import time
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread

from hierspec.errors import HierspecError, first_line
from hierspec.utils.files import expand_user

_SECONDS = 5  # in which the hub answers; the variable HF_HUB_ETAG_TIMEOUT says otherwise
_KNOWN_FOR = 60.0  # seconds
_found: tuple[float, str | None] | None = None  # when it was asked, and why there was no answer


def local_files_only(ref: str) -> bool:
    """Return whether a model is read from the local cache, since the hub does not answer.

    The libraries would ask six times for each file, some 40 seconds long.

    Args:
        ref: a hub id, or a folder, for which no hub is asked.

    Raises:
        HierspecError: the hub does not answer, and the model is not in the cache.
    """
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE or expand_user(ref).is_dir():
        return False
    reason = _why_no_answer()
    if reason is None:
        return False
    try:
        fetch(ref, local_files_only=True)
    except Exception as error:  # not in the cache, or no id at all
        raise HierspecError(
            f"{ref!r} is not in the local cache, and {constants.ENDPOINT} cannot be reached "
            f"({reason}){what_it_may_be(ref)}; HF_HUB_OFFLINE=1 looks in the cache alone"
        ) from error
    return True


def fetch(ref: str, *, local_files_only: bool) -> Path:
    """Return the folder with the files of a model that are read, fetched where they are missing."""
    from huggingface_hub import snapshot_download

    return Path(
        snapshot_download(
            ref,
            allow_patterns=["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja"],
            ignore_patterns=["*/*", "consolidated*"],  # other models, and weights a second time
            local_files_only=local_files_only,
        )
    )


def _why_no_answer() -> str | None:
    global _found
    if _found is None or time.monotonic() - _found[0] > _KNOWN_FOR:
        reason = _ask()
        _found = time.monotonic(), reason
    return _found[1]


def _ask() -> str | None:
    from huggingface_hub import constants
    from huggingface_hub.utils import get_session

    name = "HF_HUB_ETAG_TIMEOUT"
    seconds = constants.HF_HUB_ETAG_TIMEOUT if name in os.environ else _SECONDS
    answers = SimpleQueue[str | None]()

    def ask() -> None:
        try:
            get_session().head(constants.ENDPOINT, timeout=seconds)
            answers.put(None)
        except Exception as error:  # of any HTTP library
            answers.put(first_line(error))

    # In a thread: a name server may take longer than any timeout.
    Thread(target=ask, name="hub", daemon=True).start()
    try:
        return answers.get(timeout=seconds)
    except Empty:
        return f"no answer in {seconds} s; {name} sets how long it is given"


def what_it_may_be(ref: str) -> str:
    """Return what to name in place of a model that cannot be fetched, as the end of an error."""
    if "/" not in ref:
        return (
            ": name a folder, FILE.gguf, zoo:NAME or a hub id with its owner (OWNER/NAME); a "
            "drafting method of your own is known with --plugin FILE.py"
        )
    return (
        ". Offline, give the path of a folder saved with save_pretrained, or zoo:NAME for a model "
        "that hierspec zoo list names"
    )
