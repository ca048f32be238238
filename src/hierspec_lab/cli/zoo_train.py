"""``hierspec zoo train``: build the shipped models, or drafters for ``zoo:smollm2``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hierspec.cli.options import Seed, Threads
from hierspec.errors import HierspecError

from .options import options_used, output_option

_OF_FAMILY = {"--trunk-steps", "--student-steps", "--checkpoints", "--resume"}
_OF_SMOLLM2 = {"-o", "--conversations", "--epochs", "--minutes"}


def train(
    context: typer.Context,
    out: Annotated[
        Path,
        typer.Argument(
            metavar="OUT|smollm2",
            help="Folder to write the family to; or smollm2: drafters for zoo:smollm2, into "
            "--output.",
        ),
    ],
    seed: Seed = 0,
    trunk_steps: Annotated[
        int | None, typer.Option(min=1, help="Training steps of the family's trunk.")
    ] = None,
    student_steps: Annotated[
        int | None,
        typer.Option(min=1, help="Training steps of mid and small, which learn from the trunk."),
    ] = None,
    output: Annotated[Path, output_option("smollm2: folder for its drafters.")] = Path(
        "smollm2-drafters"
    ),
    conversations: Annotated[
        int,
        typer.Option(min=1, help="smollm2: conversations that the model answers to learn from."),
    ] = 2500,
    epochs: Annotated[float, typer.Option(help="smollm2: passes over the answers.")] = 8,
    minutes: Annotated[
        float, typer.Option(help="smollm2: minutes to train zoo:smollm2-sibling.")
    ] = 45,
    checkpoints: Annotated[
        Path | None, typer.Option(help="Folder for checkpoints; default: OUT/.training.")
    ] = None,
    resume: Annotated[bool, typer.Option(help="Continue from the checkpoints.")] = True,
    quick: Annotated[
        bool, typer.Option(help="Train tiny, useless models in seconds, for tests.")
    ] = False,
    threads: Threads = None,
) -> None:
    """Rebuild the family from this Python's standard library (about an hour on two cores).

    With smollm2: train drafters for zoo:smollm2 on its own answers (hours). Both go on where they
    were interrupted.
    """
    is_smollm2 = str(out) == "smollm2"
    if unread := sorted({*options_used(context)} & (_OF_FAMILY if is_smollm2 else _OF_SMOLLM2)):
        what = "smollm2" if is_smollm2 else "the family"
        raise HierspecError(f"{unread[0]} has no effect on {what}: leave it out")
    if is_smollm2:
        _train_smollm2(output, seed, conversations, epochs, minutes, quick, threads)
        return
    from hierspec.utils.threads import use_threads
    from hierspec_lab.training.family import build

    use_threads(threads)
    metrics = build.train(out, seed, trunk_steps, student_steps, checkpoints, resume, quick)
    losses = metrics["evaluation"]["held_out_loss"]
    listing = ", ".join(f"{name} {loss:.3f}" for name, loss in losses.items())
    print(f"Wrote {out}. Held-out loss in nats per token: {listing}")


def _train_smollm2(
    out: Path,
    seed: int,
    conversations: int,
    epochs: float,
    minutes: float,
    quick: bool,
    threads: int | None,
) -> None:
    import dataclasses

    from hierspec.cli.rendering import interruptible, notes, progress, say
    from hierspec.utils.threads import use_threads
    from hierspec_lab.training.smollm2 import build

    use_threads(threads)
    settings = build.DraftersSettings()
    tiny: dict[str, int] = {"batch": 4, "max_new_tokens": 8, "own_tokens": 24} if quick else {}
    sibling = dataclasses.replace(settings.sibling, minutes=minutes, seed=seed)
    if quick:
        sibling = dataclasses.replace(sibling, size=(1, 64, 2, 64), minutes=0.01)
    settings = dataclasses.replace(
        settings,
        sibling=sibling,
        answers=dataclasses.replace(
            settings.answers, conversations=conversations, seed=seed, **tiny
        ),
        heads=dataclasses.replace(
            settings.heads, epochs=epochs, seed=seed, steps=2 if quick else None
        ),
        eagle3=dataclasses.replace(
            settings.eagle3, epochs=epochs, seed=seed, steps=2 if quick else None
        ),
    )
    console = notes()
    with interruptible(console), progress(console, "drafters for zoo:smollm2") as report:
        build.train(out, settings, report)
    say(console, f"written to {out}: {build.CARD} says how well they draft")
