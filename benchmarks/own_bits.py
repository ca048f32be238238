"""How far scores in a file's own bits are from float32 on the dequantized weights.

Inputs of such products are rounded to twice 8 bits for each 32, those of bfloat16 weights to
bfloat16, as are keys and values in such caches. The target is a GGUF file, as it is and with its
matrices rounded to each other format; where a format needs rows of 256 weights and a matrix has
others, it gets what llama.cpp gives it.
Scores are compared at every position of some chats of ``data/smollm2-sibling-answers.jsonl.xz``.

    python benchmarks/own_bits.py
"""

from __future__ import annotations

import argparse
import copy
import json
import lzma
from typing import Any

import common
import torch

from hierspec.config.checkpoints import load_tokenizer
from hierspec.lm.backend import Span
from hierspec.lm.load import load
from hierspec.lm.native.formats import FORMATS, GROUP, SUPER, Format
from hierspec.lm.native.gguf_blocks import Codes
from hierspec.lm.native.matrices import PackedMatrix, pack_codes
from hierspec.lm.native.model import LayerWeights
from hierspec.zoo import registry

ANSWERS = common.ROOT / "benchmarks" / "data" / "smollm2-sibling-answers.jsonl.xz"
FALLBACKS = {"Q2_K": "IQ4_NL", "Q3_K": "IQ4_NL", "Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0"}
STEP_BITS = {"Q2_K": 4, "Q3_K": 5, "Q4_K": 6, "Q5_K": 6, "Q6_K": 7}  # without a sign


def in_units(weight: torch.Tensor, form: Format) -> Codes:
    """Round a matrix to a format whose steps are multiples of a unit of 256 inputs."""
    most, steps_most = (1 << form.bits) - 1, (1 << STEP_BITS[form.name]) - 1
    size = GROUP // form.num_steps
    groups = weight.unflatten(1, (-1, SUPER // size, size))  # [out, units, groups, inputs]
    low, high = groups.amin(3).clamp_max(0), groups.amax(3)

    def whole(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        unit = (values.amax(2) / steps_most).half()
        numbers = values / unit.float().clamp_min(1e-20)[..., None]
        return numbers.round().clamp(0, steps_most), unit

    if form.lowest:
        steps, unit = whole((high - low) / most)
        below, below_unit = whole(-low)
        start = -below * below_unit.float()[..., None]
    else:
        steps, unit = whole(groups.abs().amax(3) / (most - form.zero))
        below, below_unit, start = None, None, -form.zero * steps * unit.float()[..., None]
    step = (steps * unit.float()[..., None]).clamp_min(1e-20)
    codes = ((groups - start[..., None]) / step[..., None]).round().clamp(0, most)
    kind = torch.uint8 if form.lowest else torch.int8
    return Codes(
        codes.to(torch.uint8).flatten(1),
        steps.to(kind).flatten(1),
        None if below is None else below.to(torch.uint8).flatten(1),
        unit,
        below_unit,
    )


def in_a_table(weight: torch.Tensor, form: Format) -> Codes:
    """Round a matrix to a format whose codes stand for numbers of a table."""
    table = torch.tensor(form.table, dtype=torch.float32) - form.zero
    groups = weight.unflatten(1, (-1, GROUP))
    step = groups.abs().amax(2) / table.abs().max()
    if form.name == "MXFP4":
        step = torch.exp2(step.clamp_min(1e-30).log2().ceil()).bfloat16()
    else:
        step = step.half()
    scaled = groups / step.float().clamp_min(1e-20)[..., None]
    codes = torch.empty(groups.shape, dtype=torch.uint8)
    for start in range(0, len(groups), 1024):
        part = scaled[start : start + 1024]
        codes[start : start + 1024] = (part[..., None] - table).abs().argmin(-1).to(torch.uint8)
    return Codes(codes.flatten(1), step)


def packed(backend: Any, matrix: PackedMatrix, name: str) -> PackedMatrix:
    """Return a matrix rounded to a format of files."""
    if FORMATS[name].units and matrix.width % SUPER:
        name = FALLBACKS[name]
    form, weight = FORMATS[name], backend.library.all_rows(matrix)
    if not (form.units or form.table):
        return PackedMatrix.of(weight, name, matrix.bias_of_outputs)
    codes = in_units(weight, form) if form.units else in_a_table(weight, form)
    panels = pack_codes(codes, form)
    return PackedMatrix(form, matrix.num_out, matrix.width, panels, matrix.bias_of_outputs)


def replaced(backend: Any, name: str, cache_dtype: torch.dtype = torch.float32) -> Any:
    """Return a model with all its matrices in a format, the output's included."""
    copied = copy.copy(backend)
    copied.attention_dtype = cache_dtype
    layers = [
        LayerWeights(
            **{part: packed(backend, matrix, name) for part, matrix in layer.matrices().items()},
            norm=layer.norm,
            mlp_norm=layer.mlp_norm,
            head_norm=layer.head_norm,
        )
        for layer in backend._layers.weights
    ]
    tied = backend._embedding is backend._output
    copied._output = packed(backend, backend._output, name)
    copied._embedding = copied._output if tied else packed(backend, backend._embedding, name)
    copied._set_layers(layers)
    return copied


@torch.inference_mode()
def scores(backend: Any, texts: list[torch.Tensor]) -> torch.Tensor:
    """Return log-probabilities at every position, [positions, vocabulary]."""
    rows = []
    for ids in texts:
        spans = [Span(backend.new_cache(len(ids)), 0, len(ids))]
        h = backend.layers(backend.embed(ids, spans), 0, backend.num_layers, spans)
        rows.append(backend.head(h).log_softmax(-1))
    return torch.cat(rows)


def compare(own: torch.Tensor, reference: torch.Tensor) -> dict[str, Any]:
    """Compare log-probabilities; of differences those of tokens with at least one in a thousand."""
    gaps = (own - reference).abs()
    likely = reference >= -6.9
    same = own.argmax(1) == reference.argmax(1)
    best = reference.topk(2).values
    return {
        "largest_difference": float(gaps.max()),
        "largest_difference_of_likely_tokens": float(gaps[likely].max()),
        "mean_difference_of_likely_tokens": float(gaps[likely].mean()),
        "equal_argmax": float(same.double().mean()),
        "largest_margin_where_not": float((best[:, 0] - best[:, 1])[~same].max())
        if not same.all()
        else None,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", default="zoo:smollm2")
    parser.add_argument("--positions", type=int, default=1000)
    parser.add_argument("--formats", nargs="+", default=[f for f in FORMATS if f != "Q6_1"])
    parser.add_argument("--caches", nargs="+", default=["float32"], help="dtypes")
    parser.add_argument("--name", default="own-bits", help="of the result file")
    args = parser.parse_args()
    print("expected: five minutes", flush=True)
    source = registry.resolve(args.target)
    tokenizer, texts = load_tokenizer(source), list[torch.Tensor]()
    with lzma.open(ANSWERS, "rt", encoding="utf-8") as file:
        for line in file:
            chat = json.loads(line)["messages"]
            texts.append(torch.tensor(tokenizer.apply_chat_template(chat, return_dict=False)))
            if sum(map(len, texts)) >= args.positions:
                break
    exact: Any = load(source, torch.float32)
    reference = scores(exact, texts)
    file: Any = load(source)
    found = {"the file": {"formats": file.formats, **compare(scores(file, texts), reference)}}
    print("the file", found["the file"], flush=True)
    for name in args.formats:
        exactly = scores(replaced(replaced(exact, name), "F32"), texts)
        for caches in args.caches:
            rounded = replaced(exact, name, getattr(torch, caches))
            own = name if caches == "float32" else f"{name}, {caches} caches"
            found[own] = {
                "formats": rounded.formats,
                **compare(scores(rounded, texts), exactly),
            }
            print(own, found[own], flush=True)
    common.write(
        args.name,
        {
            "environment": common.environment(),
            "settings": vars(args) | {"positions": len(reference)},
            "results": found,
        },
    )


if __name__ == "__main__":
    main()
