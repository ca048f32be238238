"""One thread for what is over before a second one has woken up."""

from __future__ import annotations

from types import TracebackType

import torch


class OneThread:
    """Within it, torch uses one thread if ``when``; afterwards as many as before, in any case.

    torch keeps the count per thread. Only a thread that is started in the meantime, and that uses
    torch for the first time then, would inherit the 1; it may set its own.
    """

    __slots__ = ("before", "when")

    def __init__(self, when: bool) -> None:
        self.when = when

    def __enter__(self) -> None:
        self.before = torch.get_num_threads() if self.when else 1
        if self.before > 1:
            torch.set_num_threads(1)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.before > 1:
            torch.set_num_threads(self.before)
