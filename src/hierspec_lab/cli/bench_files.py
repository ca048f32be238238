"""The files of ``hierspec bench``: checks before the work, and advice after an interruption."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hierspec.errors import HierspecError

if TYPE_CHECKING:
    from hierspec_lab.bench.records import BenchResults


@dataclass(slots=True, kw_only=True)
class BenchFiles:
    """The files of one ``hierspec bench``, each named after its option.

    Attributes:
        results: the results file to write (``-o``); ``source``: one to show (``--from``).
        next_step: returns the advice for a user who interrupts the command now; called when that
            happens, because the results may have been finished a moment ago.
    """

    results: Path | None
    overwrite: bool
    source: Path | None
    prompts: Path | None
    report: Path | None
    plots: Path | None
    spec_bench: Path | None
    as_json: bool
    next_step: Callable[[], str] = lambda: "nothing was measured"

    def validate(self) -> None:
        """Refuse files that could not be written after minutes of measuring."""
        from hierspec.utils.files import validate_folder_writable, validate_writable

        if self.results is not None:
            validate_writable(self.results, "results")
        if self.report is not None:
            regular = self.report.is_file() or not self.report.exists()
            if regular and self.report.suffix.lower() != ".html":
                raise HierspecError(
                    f"--report writes a page: give it a name that ends in .html, not {self.report}"
                )
            if self.results and self.report.resolve() == self.results.resolve():
                raise HierspecError(f"-o and --report both name {self.report}: choose two files")
            validate_writable(self.report, "a page")
        if self.spec_bench is not None:
            validate_writable(self.spec_bench, "answers")
        if self.plots is not None:
            from hierspec_lab.plotting.figures import matplotlib

            matplotlib()
            validate_folder_writable(self.plots, self.plots, "pictures")

    @property
    def profile(self) -> Path | None:
        """The profile of planned methods, beside the results file."""
        return self.results and self.results.with_suffix(".profile.json")

    def begin(self, data: BenchResults) -> None:
        """Write the results so far, none yet; remove a profile that must be measured again."""
        from hierspec_lab.bench import results

        if self.results is None:
            return
        results.write(self.results, data)
        if self.overwrite and self.profile is not None:
            self.profile.unlink(missing_ok=True)

    def say_how_to_resume(self) -> str:
        """Say how to resume the measurement, or how to show its results if it is finished."""
        from hierspec_lab.bench.results import is_finished

        if self.results is None:
            return "-o FILE keeps it"
        if is_finished(self.results):  # the same command would be refused
            return self.say_how_to_show()
        command = "the same command without --overwrite" if self.overwrite else "the same command"
        return f"{command} continues where it stopped"

    def say_how_to_show(self) -> str:
        """Say where the results are, and which command shows them and writes the other files."""
        path = self.source or self.results
        if path is None:
            return "the results are measured, but in no file; -o FILE keeps them"
        words = ["hierspec", "bench", "--from", str(path)]
        for name in ("report", "plots", "spec_bench"):
            if (value := getattr(self, name)) is not None:
                words += [f"--{name.replace('_', '-')}", str(value)]
        if self.spec_bench is not None and self.prompts is not None:
            words += ["--prompts", str(self.prompts)]
        if self.as_json:
            words.append("--json")
        return f"the results are in {path}; {shlex.join(words)} shows them"
