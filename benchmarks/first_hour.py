"""The first hour of a transformers user, played over many families of tiny models made on disk.

Each family's model and a smaller one of its kind are saved with a tokenizer; the target then
continues prompts by every way in: the command line, ``Hierarchy`` on loaded models, a ragged batch,
and ``custom_generate`` alone and left-padded. All must give, token for token, what transformers'
own greedy ``generate`` gives in float32. Families that cannot be driven must be refused in one
line by every way in; encoder-decoders by ``custom_generate``, which is not given their prompts.

    python benchmarks/first_hour.py [FAMILY ...] [--cli PATH_OF_HIERSPEC]

``--cli`` runs another installation's command (a fresh environment with the wheel); without it the
command runs in this process.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

sys.path.append(str(Path(__file__).parents[1] / "tests"))  # for tiny_models

TOKENS = 24
PROMPTS = ("w5 w9 w7 w22", "w11 w4 w4 w30 w8 w61 w17", "w60")
SMALLER = 2  # layers of the draft model; targets have 3


def tokenizer() -> Any:
    """Return words ``w0`` … ``w95``, one id each; the first three are special."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from transformers import PreTrainedTokenizerFast

    model = Tokenizer(WordLevel({f"w{i}": i for i in range(96)}, unk_token="w3"))
    model.pre_tokenizer = WhitespaceSplit()  # type: ignore[assignment]
    return PreTrainedTokenizerFast(
        tokenizer_object=model, pad_token="w0", bos_token="w1", eos_token="w2", padding_side="left"
    )


def play(family: str, folder: Path, cli: str | None = None, tokens: int = TOKENS) -> dict[str, Any]:
    """Try every way in for a supported family: whether each gave transformers' tokens."""
    from tiny_models import tiny_model
    from transformers import AutoTokenizer

    import hierspec
    from hierspec import HierspecError

    target, draft, words = folder / "target", folder / "draft", tokenizer()
    model = tiny_model(family, seed=1, dtype=torch.float32)
    smaller = tiny_model(family, seed=2, layers=SMALLER, dtype=torch.float32)
    for saved, path in ((model, target), (smaller, draft)):
        saved.generation_config.eos_token_id = None
        saved.save_pretrained(path)
        words.save_pretrained(path)
    rows = [words(prompt)["input_ids"] for prompt in PROMPTS]
    options: dict[str, Any] = {"max_new_tokens": tokens, "do_sample": False}
    has_encoder = model.config.is_encoder_decoder  # its text begins with a start token of its own
    expected = [
        model.generate(torch.tensor([row]), **options)[0, 1 if has_encoder else len(row) :].tolist()
        for row in rows
    ]

    # Of some families AutoTokenizer takes the class, whatever was saved: qwen2's reads no words.
    as_ids = AutoTokenizer.from_pretrained(target)(PROMPTS[0])["input_ids"] != rows[0]
    inputs = [" ".join(map(str, row)) for row in rows] if as_ids else PROMPTS

    def through_cli() -> list[list[int]]:
        argv = ["--target", str(target), "--draft", str(draft), "--hierarchy", "hierarchy"]
        argv += ["--dtype", "float32", "--max-new-tokens", str(tokens), "--ignore-eos", "--json"]
        argv += ["--ids"] * as_ids
        out = []
        for text in inputs:
            status, output, error = command(["generate", text, *argv], cli)
            if status:
                raise HierspecError(error.strip())
            out.append(json.loads(output)["token_ids"])
        return out

    fast = hierspec.Hierarchy(model, words, drafts=[smaller, "ngram"])
    ours: dict[str, Any] = {"max_new_tokens": tokens, "ignore_eos": True}

    def padded() -> list[list[int]]:
        batch = words(list(PROMPTS), return_tensors="pt", padding=True)
        ids, mask = batch["input_ids"], batch["attention_mask"]
        out = model.generate(
            ids,
            attention_mask=mask,
            custom_generate=hierspec.custom_generate,
            drafts=[smaller],
            **options,
        )
        return out[:, ids.shape[1] :].tolist()

    ways = {
        "cli": through_cli,
        "python": lambda: [list(fast.generate(text, **ours).token_ids) for text in PROMPTS],
        "batch": lambda: [list(r.token_ids) for r in fast.generate_batch(PROMPTS, **ours)],
    }
    custom = {
        "custom_generate": lambda: [
            model.generate(
                torch.tensor([row]),
                custom_generate=hierspec.custom_generate,
                hierarchy="layerskip",
                **options,
            )[0, len(row) :].tolist()
            for row in rows
        ],
        "custom_generate, padded": padded,
    }
    row: dict[str, Any] = {"family": family, "prompts_as_ids": as_ids}
    if has_encoder:
        try:
            custom["custom_generate"]()
        except HierspecError as error:
            row["refused"] = {"custom_generate": str(error)}
    else:
        ways |= custom
    equal, refusals = dict.fromkeys(ways, False), {}
    for way, run in ways.items():
        try:
            equal[way] = run() == expected
        except HierspecError as error:  # of a family that is supported: wrong, and to be read
            refusals[way] = str(error)
    row["equal"] = equal
    return {**row, "refusals": refusals} if refusals else row


def refuse(family: str, folder: Path, cli: str | None = None) -> dict[str, Any]:
    """Try every way in for an unsupported family: the line that each refuses it with."""
    from tiny_models import tiny_model

    import hierspec

    model = tiny_model(family, seed=1, dtype=torch.float32)
    model.save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    argv = ["--target", str(folder), "--hierarchy", "prompt-lookup"]
    status, _, stderr = command(["generate", PROMPTS[0], *argv], cli)
    lines = {"cli": stderr.strip().removeprefix("hierspec: error: ") if status == 2 else stderr}
    ways = {
        "python": lambda: hierspec.Hierarchy(model),
        "custom_generate": lambda: model.generate(
            torch.tensor([[5, 9]]),
            max_new_tokens=2,
            custom_generate=hierspec.custom_generate,
            drafts=["ngram"],
        ),
    }
    for way, run in ways.items():
        try:
            run()
        except hierspec.HierspecError as error:
            lines[way] = str(error)
        else:
            lines[way] = "not refused\n"
    one_line = all("\n" not in line and "bug" not in line for line in lines.values())
    return {"family": family, "refused": lines, "one_line": one_line and status == 2}


def command(argv: list[str], cli: str | None) -> tuple[int, str, str]:
    """Run ``hierspec`` → (exit status, standard output, standard error)."""
    if cli is not None:
        process = subprocess.run([cli, *argv], capture_output=True, text=True, timeout=600)
        return process.returncode, process.stdout, process.stderr
    from hierspec.cli import run

    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = run(argv)
    return status, out.getvalue(), err.getvalue()


def main() -> int:
    import common
    from tiny_models import ENCODER_DECODERS, FAMILIES, REFUSED

    played = [*FAMILIES, *ENCODER_DECODERS]
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("families", nargs="*", help="default: all")
    parser.add_argument("--cli", help="the command of another installation")
    parser.add_argument("--tokens", type=int, default=TOKENS)
    args = parser.parse_args()
    if unknown := set(args.families) - {*played, *REFUSED}:
        parser.error(f"no such family: {', '.join(sorted(unknown))}")
    torch.set_num_threads(1)
    rows = []
    for family in args.families or [*played, *REFUSED]:
        began = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder)
            if family in played:
                row = play(family, path, args.cli, args.tokens)
            else:
                row = refuse(family, path, args.cli)
        good = row["one_line"] if "one_line" in row else all(row["equal"].values())
        print(f"{family:14} {'ok' if good else 'WRONG'}  {time.perf_counter() - began:.1f} s")
        rows.append({**row, "ok": good})
    data = {"tokens": args.tokens, "prompts": list(PROMPTS), "families": rows}
    if not args.families:
        common.write("first-hour", {**data, "environment": common.environment()})
    return 0 if all(row["ok"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
