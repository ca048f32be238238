"""``hierspec heads train``: train drafters on a frozen model's states."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from hierspec.cli.options import (
    MODEL,
    AsJson,
    Device,
    Dtype,
    Seed,
    Threads,
    split_values,
    target_option,
)
from hierspec.errors import HierspecError

from .options import options_used, output_option

T = TypeVar("T")


_EAGLE3 = {"--held-out", "--conversations", "--minutes", "--draft-vocab", "--feature-layers"}
_EAGLE3 |= {"--depth", "--store-gib", "--watch", "--measure"}
_EXITS = {"--vocabulary", "--inner", "--loss", "--teacher"}
_WINDOWS = {"--windows", "--tokens", "--rows", "--width", "--dtype", "--device"}
# Options that a kind does not read.
_UNREAD = {"eagle3": _EXITS | _WINDOWS, "acceptance": _EXITS | _EAGLE3 | {"--features", "--from"}}


def _refuse_unread(kind: str, used: Sequence[str]) -> None:
    if unread := sorted({*used} & _UNREAD.get(kind, _EAGLE3)):
        raise HierspecError(f"{unread[0]} has no effect with --kind {kind}: leave it out")


def train(
    context: typer.Context,
    more_texts: Annotated[
        list[Path] | None,
        typer.Argument(help="Further texts, as after --texts.", metavar="TEXTS"),
    ] = None,
    *,
    model: Annotated[str, target_option("It stays unchanged.", "--model", "--target")],
    exits: Annotated[
        list[str] | None,
        typer.Option(
            metavar="LAYER",
            help="Layers after which the model gets a head; repeated, or with commas between, as "
            "in 2,4.",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        output_option(
            "File to write; default: exit_heads.safetensors in the model's directory, or, for "
            "acceptance, acceptance_head.safetensors in the draft model's. For eagle3 a folder. "
            "Interrupted training is continued."
        ),
    ] = None,
    texts: Annotated[
        list[Path] | None,
        typer.Option(
            help="Texts to learn from, one or several: text files, .jsonl files of texts or "
            'conversations, {"messages": [{"role": …, "content": …}]} a line, folders. '
            "Default: what the shipped family learnt from; for other models, and eagle3, what they "
            "write.",
        ),
    ] = None,
    kind: Annotated[
        str,
        typer.Option(
            help="What to train. For exits, with hidden size d and V tokens: transform, a d x d "
            "matrix before the model's own head; mlp, that and a hidden layer beside it; full, a "
            "V x d head. eagle3: a network that drafts from the model's hidden states. acceptance: "
            "a head that predicts which tokens of --draft the model keeps.",
        ),
    ] = "transform",
    draft: Annotated[
        str | None,
        typer.Option(help=f"acceptance: the draft model the head belongs to: {MODEL}."),
    ] = None,
    rejection_weight: Annotated[
        float, typer.Option(help="acceptance: weight of rejections in the loss.")
    ] = 6.0,
    vocabulary: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Score only so many tokens, those most frequent in the texts; an exit costs less, "
            "and never drafts the others.",
        ),
    ] = None,
    inner: Annotated[
        int | None,
        typer.Option(min=1, help="mlp: size of its hidden layer; default: twice the model's."),
    ] = None,
    loss: Annotated[
        str,
        typer.Option(
            help="Distance to the model's distribution that is minimised: kl, or tv, which begins "
            "as KL and turns into the total variation."
        ),
    ] = "kl",
    teacher: Annotated[
        int | None,
        typer.Option(
            metavar="LAYER",
            help="Further training of --from: the heads before this one learn from it instead of "
            "the model, and it stays as it is.",
        ),
    ] = None,
    windows: Annotated[
        int, typer.Option(min=1, help="heads: most windows, or conversations, to measure on.")
    ] = 16,
    features: Annotated[
        Path | None,
        typer.Option(
            help="Folder for the model's hidden states, to be used again; they are large."
        ),
    ] = None,
    start_from: Annotated[
        Path | None,
        typer.Option("--from", help="Heads or a drafter to continue from, of the same kind."),
    ] = None,
    epochs: Annotated[float, typer.Option(help="Passes over the texts.")] = 2,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Training steps, instead of --epochs.")
    ] = None,
    tokens: Annotated[int, typer.Option(min=1, help="heads: most tokens of text.")] = 131_072,
    lr: Annotated[
        float | None,
        typer.Option(
            "--lr",
            help="Learning rate after the warm-up; default: 2e-4, eagle3 2e-3, acceptance 1e-3.",
        ),
    ] = None,
    rows: Annotated[int, typer.Option(min=1, help="heads: windows of text in a batch.")] = 2,
    width: Annotated[int, typer.Option(min=1, help="heads: tokens in a window.")] = 256,
    seed: Seed = 0,
    overwrite: Annotated[
        bool,
        typer.Option(
            "--overwrite",
            help="Replace the file if there is one, and give up an interrupted training of other "
            "settings.",
        ),
    ] = False,
    held_out: Annotated[
        list[Path] | None,
        typer.Option(help="eagle3: texts of other origins, measured on and never learnt from."),
    ] = None,
    conversations: Annotated[
        int,
        typer.Option(min=1, help="eagle3: conversations that the model writes, without --texts."),
    ] = 2500,
    minutes: Annotated[
        float | None, typer.Option(help="eagle3: minutes to train, instead of --epochs.")
    ] = None,
    draft_vocab: Annotated[
        int, typer.Option(min=1, help="eagle3: tokens it can draft, the most frequent ones.")
    ] = 8192,
    feature_layers: Annotated[
        list[str] | None,
        typer.Option(
            metavar="LAYER",
            help="eagle3: three layers it reads, as in 2,15,27; default: 2, n/2, n - 3.",
        ),
    ] = None,
    depth: Annotated[
        int, typer.Option(min=1, help="eagle3: most tokens drafted one after another in training.")
    ] = 5,
    store_gib: Annotated[
        float, typer.Option(help="eagle3: most GiB of the model's hidden states on disk.")
    ] = 8,
    watch: Annotated[
        int,
        typer.Option(min=0, help="eagle3: steps after which to look for new texts; 0: never."),
    ] = 0,
    measure: Annotated[
        float,
        typer.Option(help="eagle3: minutes after which to measure the network and write it."),
    ] = 15,
    dtype: Dtype = None,
    device: Device = None,
    threads: Threads = None,
    as_json: AsJson = False,
) -> int:
    """Train drafters to match the model's own distribution; the model stays unchanged.

    Examples:

      hierspec heads train --model zoo:mid --exits 1,2 -o heads.safetensors

      hierspec heads train --kind eagle3 --target zoo:smollm2 --texts chats.jsonl -o eagle3

      hierspec heads train --kind acceptance --target zoo:large --draft zoo:mid -o head.safetensors
    """
    if (kind == "acceptance") != (draft is not None):
        raise HierspecError(
            "--kind acceptance goes with --draft MODEL, whose tokens the head judges; no other "
            "kind does"
        )
    if draft is not None and exits:
        raise HierspecError("--exits goes with heads of exits; an acceptance head has none")
    _refuse_unread(kind, options_used(context))
    all_texts = [*(texts or ()), *(more_texts or ())]
    schedule: dict[str, Any] = {"epochs": epochs, "steps": steps, "seed": seed}
    if lr is not None:
        schedule["learning_rate"] = lr
    level: dict[str, Any]
    text_windows: dict[str, Any] = {
        "held_out": windows,
        "tokens": tokens,
        "rows": rows,
        "width": width,
    }
    placement = {"dtype": dtype or "auto", "device": device or "auto"}

    from hierspec.cli.rendering import interruptible, notes, progress, say

    from .heads_output import show_acceptance_head, show_exit_heads

    console = notes()

    def run(title: str, training: Callable[..., T], *arguments: Any, **options: Any) -> T:
        from hierspec.utils.threads import use_threads

        use_threads(threads)
        with interruptible(console), progress(console, title) as report:
            return training(*arguments, overwrite=overwrite, report_progress=report, **options)

    if draft is not None:
        from hierspec_lab.training.heads import acceptance

        settings = acceptance.AcceptanceSettings(
            rejection_weight=rejection_weight, **text_windows, **schedule
        )
        arguments = (model, draft, settings, output, all_texts)
        head = run(f"acceptance head for {draft}", acceptance.train, *arguments, **placement)
        show_acceptance_head(head, as_json)
        path = head.path
        level = {"method": "draft_model", "model": draft, "num_speculative_tokens": 16}
        level |= {"window": {"kind": "acceptance", "head": str(path)}}
    elif kind == "eagle3":
        if exits:
            raise HierspecError("--exits goes with heads; an eagle3 drafter has --feature-layers")
        if output is None:
            raise HierspecError("say into which folder the drafter goes: -o FOLDER")
        from hierspec_lab.training.eagle3 import train as eagle3
        from hierspec_lab.training.eagle3.settings import Eagle3Settings

        settings = Eagle3Settings(
            draft_vocab=draft_vocab,
            feature_layers=_parse_layers("--feature-layers", feature_layers),
            depth=depth,
            minutes=minutes,
            conversations=conversations,
            store_gib=store_gib,
            watch_steps=watch,
            measure_minutes=measure,
            **schedule,
        )
        info = run(
            f"eagle3 for {model}",
            eagle3.train,
            *(model, settings, output, all_texts, held_out or []),
            start_from=start_from,
            features=features,
            tell=lambda line: say(console, line),
        )
        if as_json:
            print(json.dumps({"folder": str(output), **info}))
        path = output
        level = {"method": "eagle3", "model": str(path), "num_speculative_tokens": 4}
    else:
        if not exits:
            raise HierspecError("say after which layers the heads are to be, as in --exits 2,4,8")
        from hierspec_lab.training.heads import train as exit_heads
        from hierspec_lab.training.heads.settings import HeadsSettings

        settings = HeadsSettings(
            exits=_parse_layers("--exits", exits) or (),
            kind=kind,
            vocabulary=vocabulary,
            inner=inner,
            loss=loss,
            teacher=teacher,
            **text_windows,
            **schedule,
        )
        heads = run(
            f"heads for {model}",
            exit_heads.train,
            *(model, settings, output, all_texts),
            states=features,
            start_from=start_from,
            **placement,
        )
        show_exit_heads(heads, as_json)
        without_head, with_head = heads.info.before, heads.info.after
        if worse := [n for n, row in with_head.items() if row.kl > without_head[n].kl]:
            say(
                console,
                f"the exits after layers {', '.join(worse)} got worse on held-out text: give more "
                "or more varied texts (--tokens), or a smaller --lr",
            )
        path = heads.path
        level = {"method": "early_exit", "exit_layer": heads.exits[-1], "head": str(path)}
        level |= {"num_speculative_tokens": 4}
    if not as_json:
        say(console, f"written to {path}; as a level: {json.dumps(level)}")
    return 0


def _parse_layers(option: str, values: Sequence[str] | None) -> tuple[int, ...] | None:
    """Return ``2,4,8`` as numbers."""
    if values is None:
        return None
    words = split_values(values)
    if not all(word.isdecimal() for word in words):
        raise HierspecError(
            f"{option} takes layer numbers, repeated or with commas between, as in 2,4; got "
            f"{' '.join(values)!r}"
        )
    return tuple(sorted({int(word) for word in words}))
