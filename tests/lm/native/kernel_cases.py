"""Random matrices and models of odd sizes, and what the kernels make of them, against float64."""

from __future__ import annotations

import ctypes
import random
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F
from unpacking import dense

from hierspec.core.distributions import draw
from hierspec.lm.backend import HiddenStates, LayerParts, Span
from hierspec.lm.lean.shape import LlamaShape
from hierspec.lm.native.formats import FORMATS, GROUP, SUPER
from hierspec.lm.native.gguf_blocks import Codes
from hierspec.lm.native.library import Library
from hierspec.lm.native.matrices import PackedMatrix, pack_codes
from hierspec.lm.native.model import CACHE_DTYPES, Drafting, LayerWeights, NativeModel
from hierspec.lm.trees import Branches
from hierspec.sampling.sampler import Sampler

BLOCK = 256  # keys whose weights have one largest, as in attention.h
ROUNDED = tuple(name for name, form in FORMATS.items() if not (form.units or form.table))


class WrongError(Exception):
    """What a case found, in words."""


def random_matrix(
    name: str, num_out: int, width: int, generator: torch.Generator, bias: bool = False
) -> PackedMatrix:
    """A matrix of about unit norm; of those formats that only files have, any codes and scales."""
    form, own = FORMATS[name], torch.randn(num_out, generator=generator) if bias else None
    if name in ROUNDED:
        weight = torch.randn(num_out, width, generator=generator) * width**-0.5
        return PackedMatrix.of(weight, name, own)

    def numbers(most: int, n: int, least: int = 0) -> torch.Tensor:
        return torch.randint(least, most, (num_out, n), generator=generator)

    codes = numbers(1 << form.bits, width).to(torch.uint8)
    size = width**-0.5 / (60 if form.table else 1 << form.bits)
    if not form.units:
        scales = torch.randn(num_out, width // GROUP, generator=generator) * size
        parts = Codes(codes, scales.to(torch.bfloat16 if name == "MXFP4" else torch.float16))
    else:
        signed, most = name in ("Q3_K", "Q6_K"), 16 if name == "Q2_K" else 64
        steps = numbers(most // 2 if signed else most, width // GROUP * form.num_steps, -most // 2)
        steps = steps.to(torch.int8) if signed else steps.abs().to(torch.uint8)
        lowest = steps.flip(1).contiguous() if form.lowest else None
        unit = torch.randn(2, num_out, width // SUPER, generator=generator) * size / most * 4
        units = unit.half()
        parts = Codes(codes, steps, lowest, units[0], units[1] if form.lowest else None)
    return PackedMatrix(form, num_out, width, pack_codes(parts, form), own)


def shapes_of(name: str) -> list[tuple[int, int]]:
    """Shapes that a format takes, from even to odd ones."""
    if FORMATS[name].units:
        return [(53, 2 * SUPER), (16, SUPER)]
    if FORMATS[name].table:
        return [(53, 3 * GROUP), (5, GROUP)]
    return [(53, 96), (37, 97), (5, 31), (1, 1), (300, 33)]


def in_codes(x: torch.Tensor, narrow: bool, shift: float = 0.0) -> torch.Tensor:
    """Inputs [N, in] as the kernels round them for codes, by the largest of 32; float64.

    Args:
        narrow: to 8 bits, not to 16.
        shift: added before rounding, in steps: what is nearer to a tie comes out another number.
    """
    groups = F.pad(x.double(), (0, -x.size(1) % GROUP)).unflatten(1, (-1, GROUP))
    steps = groups.abs().amax(2, keepdim=True).clamp_min(1e-30) / (127 if narrow else 32512)
    return ((groups / steps + shift).round() * steps).flatten(1)[:, : x.size(1)]


def check_products(
    kernels: Library, name: str, num_out: int, width: int, seed: int = 0, narrow: bool = False
) -> None:
    """Products of rows against float64, the same bits for any number of rows and threads.

    Args:
        narrow: whether codes are multiplied by inputs in 8 bits.

    Raises:
        WrongError: they are not.
    """
    generator = torch.Generator().manual_seed(seed)
    matrix = random_matrix(name, num_out, width, generator, bias=seed % 2 == 0)
    form, weights, most = FORMATS[name], dense(matrix).double(), 50
    x = torch.randn(most, width, generator=generator) * 3
    x[1] = 0.0
    x[2, : width // 2] *= 1e4
    inputs = (x.bfloat16() if name == "BF16" else in_codes(x, True) if narrow else x).double()

    def multiply(x: torch.Tensor, threads: int) -> torch.Tensor:
        struct, y = kernels.struct(matrix), torch.empty(len(x), num_out)
        struct.narrow = narrow
        at = (ctypes.byref(struct), None, 0.0, x.data_ptr(), len(x), y.data_ptr())
        assert kernels.product(*at, threads) == 0
        return y

    together = multiply(x, 1)
    expected = inputs @ weights.T
    if matrix.bias_of_outputs is not None:
        expected += matrix.bias_of_outputs.double()
    limit = 2e-6 * inputs.abs() @ weights.abs().T
    if narrow:  # ties may be broken otherwise in float32
        limit += (in_codes(x, True, 1e-4) - in_codes(x, True, -1e-4)) @ weights.abs().T
    elif not form.is_float:
        limit += (2e-5 * inputs.abs().amax(1, keepdim=True) + 1e-7) * weights.abs().sum(1)
    worst = ((together.double() - expected).abs() - limit).max()
    if not worst <= 1e-6:
        raise WrongError(f"{name} {num_out} x {width}: off by {worst:.2e}")
    few = [(n, threads) for n in range(1, 10) for threads in (1, 3)]
    for rows, threads in [*few, (17, 3), (48, 2), (49, 5)]:
        for first in range(most) if rows == 1 else (0, most - rows):
            found = multiply(x[first : first + rows], threads)
            if not torch.equal(found, together[first : first + rows]):
                raise WrongError(f"{name} {num_out} x {width}: other bits in {rows} rows")
    ids = torch.tensor([0, num_out - 1, num_out // 2, 0])
    if not torch.equal(kernels.rows(matrix, ids), dense(matrix)[ids]):
        raise WrongError(f"{name} {num_out} x {width}: other weights")


def law_of(scores: torch.Tensor, sampler: Sampler) -> torch.Tensor:
    """Probabilities [V] of a row, float64, by sorting it: temperature, top-k, top-p, min-p."""
    x = scores.double().numpy()
    weights = np.exp((x - x.max()) / sampler.temperature)
    if sampler.top_k is not None and sampler.top_k < len(x):
        weights[x < np.sort(x)[-sampler.top_k]] = 0.0
    if sampler.top_p is not None and sampler.top_p < 1.0:
        order = np.argsort(weights, kind="stable")[::-1]  # the best first, of equals the last
        before = weights[order].cumsum() - weights[order]
        weights[order[before >= sampler.top_p * weights.sum()]] = 0.0
    weights[weights < (sampler.min_p or 0.0)] = 0.0
    return torch.from_numpy(weights / weights.sum())


def laws_of(scores: torch.Tensor, sampler: Sampler) -> Iterator[torch.Tensor]:
    """The same, and with limits that differ as float32 numbers do: a mass may come that near."""
    for factor in (1.0, 1 - 1e-6, 1 + 1e-6):
        top_p, min_p = ((x or 0.0) * factor or None for x in (sampler.top_p, sampler.min_p))
        yield law_of(scores, replace(sampler, top_p=top_p, min_p=min_p))


class Case:
    """A random model, some sequences with tokens stored, and rows of each to compute.

    Args:
        formats: of matrices; at least one takes any width.
    """

    def __init__(self, seed: int, formats: tuple[str, ...]) -> None:
        self.seed, choose = seed, random.Random(seed)
        self.error = 0.0  # of the largest allowed, when checked
        self.generator = torch.Generator().manual_seed(seed)
        whole = choose.random() < 0.4  # sizes that every format takes
        dim = choose.choice((40, 50, 64, 66, 80, 96, 128, 256) if not whole else (64, 128, 256))
        kv = choose.choice((1, 1, 2, 3))
        heads = kv * choose.choice((1, 2, 3, 5, 13 if dim < 80 else 4))
        if whole:
            kv, heads = 1, choose.choice((1, 2)) * 256 // dim
        hidden = (
            256 * choose.choice((1, 2)) if whole else choose.choice((1, 17, 31, 33, 48, 97, 150))
        )
        inner = 256 * choose.choice((1, 2)) if whole else choose.choice((1, 15, 33, 70, 96, 131))
        num_layers = choose.choice((1, 2))
        self.windows = tuple(choose.choice((None, None, 1, 5, 16, 40)) for _ in range(num_layers))
        self.kept, self.threads = choose.choice(CACHE_DTYPES), choose.choice((1, 2, 3, 5))
        self.qk_norm = choose.random() < 0.4
        biased = {
            name for name in ("q", "k", "v", "proj", "gate", "up", "down") if choose.random() < 0.3
        }
        self.shape = LlamaShape(
            vocab_size=1, num_layers=num_layers, hidden_size=hidden, intermediate_size=inner,
            num_heads=heads, num_kv_heads=kv, head_dim=dim, eps=1e-5, max_length=999,
            qk_norm=self.qk_norm, windows=self.windows, biased=frozenset(biased),
        )  # fmt: skip
        num_inputs = 2 if num_layers == 1 and choose.random() < 0.4 else 1
        read = num_inputs * hidden
        sizes = {
            "q": (heads * dim, read), "k": (kv * dim, read), "v": (kv * dim, read),
            "proj": (hidden, heads * dim), "gate": (inner, hidden), "up": (inner, hidden),
            "down": (hidden, inner),
        }  # fmt: skip

        sizes |= dict.fromkeys(("embedding", "output"), (choose.choice((3, 16, 70)), hidden))

        def matrix(name: str) -> PackedMatrix:
            out, width = sizes[name]
            step = SUPER if width % SUPER == 0 else GROUP if width % GROUP == 0 else 1
            fitting = [
                f for f in formats
                if f in ROUNDED or step == SUPER or (step == GROUP and FORMATS[f].table)
            ]  # fmt: skip
            form = choose.choice(fitting)
            return random_matrix(form, out, width, self.generator, name in biased)

        def norm(*size: int) -> torch.Tensor:
            return (1 + 0.2 * self.randn(*size)) * size[-1] ** 0.5

        self.layers = [
            LayerWeights(
                **{name: matrix(name) for name in sizes if name not in ("embedding", "output")},
                norm=norm(num_inputs, hidden),
                mlp_norm=norm(hidden),
                head_norm=norm(heads + kv, dim) if self.qk_norm else None,
            )
            for _ in range(num_layers)
        ]
        self.embedding, self.output = matrix("embedding"), matrix("output")
        self.final_norm = norm(hidden)
        self.spans = list[Span]()
        left = choose.choice((1, 2, 5, 9, 17, 40))
        while left:
            n = choose.randint(1, left)
            left -= n
            start = choose.choice((0, 1, 7, 31, 64, 100, 250, 530))  # blocks end at 256 and 512
            branches = None
            if choose.random() < 0.5:  # a tree, of which some nodes may be stored before
                branches = Branches(choose.randint(0, start) if choose.random() < 0.5 else start)
                while branches.base + len(branches) < start + n:
                    parent = choose.randint(-1, len(branches) - 1)
                    branches.add_child(parent, len(branches))
            capacity = start + n + choose.choice((0, 1, 9))
            cache = torch.full((num_layers, 1, 2 * kv, capacity, dim), torch.nan)
            cache[..., :start, :] = self.randn(num_layers, 1, 2 * kv, start, dim)
            self.spans.append(Span(cache.to(self.kept), start, n, branches))
        num_rows = sum(span.n for span in self.spans)
        self.ids = [choose.randrange(self.embedding.num_out) for _ in range(num_rows)]
        self.inputs = self.randn(num_rows, 2, hidden) if num_inputs == 2 else None
        longest = max(max(span.positions) for span in self.spans) + 1
        angles = self.randn(longest, 1, dim // 2) * 3
        self.rotations = torch.polar(torch.ones_like(angles), angles)
        self.parts = None
        if choose.random() < 0.2:
            self.parts = [
                LayerParts(i, *choose.choice(((True, True), (True, False), (False, True))))
                for i in range(num_layers)
            ]
        self.narrow = choose.random() < 0.4

    def randn(self, *size: int) -> torch.Tensor:
        return torch.randn(size, generator=self.generator)

    def __str__(self) -> str:
        s = self.shape
        forms = sorted({m.format.name for one in self.layers for m in one.matrices().values()})
        spans = [(span.start, span.n, span.branches is not None) for span in self.spans]
        return (
            f"case {self.seed}: {s.hidden_size}/{s.intermediate_size}, {s.num_heads}/"
            f"{s.num_kv_heads} heads of {s.head_dim}, windows {self.windows}, {self.kept}, "
            f"{self.threads} threads, norms {self.qk_norm}, {forms}, biases {sorted(s.biased)}, "
            f"parts {self.parts}, inputs {self.inputs is not None}, in 8 bits {self.narrow}, "
            f"(start, rows, tree) {spans}"
        )

    def model(self, kernels: Library) -> NativeModel:
        return NativeModel(
            *(kernels, self.layers, self.shape, self.kept),
            narrow_inputs=self.narrow,
            embedding=self.embedding,
            final_norm=self.final_norm,
            output=self.output,
        )

    def share(
        self, kernels: Library, spans: list[Span], attended: torch.Tensor | None = None
    ) -> None:
        """Tell kernels in another process of the memory that calls read and write."""
        if owns := getattr(kernels, "owns", None):
            owns([span.cache for span in spans] + [self.rotations, attended, self.final_norm])
            for one in self.layers:
                owns((one.norm, one.mlp_norm, one.head_norm))

    def check_drafts(self, kernels: Library) -> int:
        """Draft after its texts in one call, and then token by token; return how many calls.

        Raises:
            WrongError: drafts, hidden states or caches differ in a bit; or probabilities by more
                than float32 rounds them.
        """
        if self.inputs is not None:
            return 0
        choose, width = random.Random(self.seed), self.shape.hidden_size
        if choose.random() < 0.4:  # a vocabulary of several stretches
            self.embedding, self.output = (
                random_matrix(one.format.name, 700, width, self.generator)
                for one in (self.embedding, self.output)
            )
        model = self.model(kernels)
        counts = [choose.choice((1, 2, 3, 6)) for _ in self.spans]
        names, num_choices = None, choose.randint(1, self.output.num_out)
        if choose.random() < 0.3:
            names = torch.randperm(self.embedding.num_out, generator=self.generator)
        longest = max(span.start + span.n + n for span, n in zip(self.spans, counts, strict=True))
        angles = self.randn(longest, 1, self.shape.head_dim // 2) * 3
        self.rotations = torch.polar(torch.ones_like(angles), angles)
        spans = list[Span]()
        for (old, start, n, _), count in zip(self.spans, counts, strict=True):
            cache = torch.full((*old.shape[:3], start + n + count - 1, old.shape[4]), torch.nan)
            cache[..., :start, :] = old[..., :start, :]
            spans.append(Span(cache.to(self.kept), start, n))
        hidden = [
            torch.full((span.n + count - 1, self.shape.hidden_size), torch.nan)
            for span, count in zip(spans, counts, strict=True)
        ]

        def run(
            texts: list[Span], rows: list[torch.Tensor], ids: list[int], drafting: Drafting | None
        ) -> torch.Tensor:
            self.share(kernels, texts)
            outputs = [HiddenStates(h, t.start) for h, t in zip(rows, texts, strict=True)]
            last = [t.start + t.n - 1 for t in texts]
            return model.run(
                *(0, self.shape.num_layers, texts, outputs, self.threads),
                ids=ids,
                scored=[(states, (at,)) for states, at in zip(outputs, last, strict=True)],
                rotations=self.rotations,
                drafting=drafting,
            )

        samplers = [
            Sampler(
                num_choices,
                choose.choice((0.0, 0.3, 1.0, 2.5)),
                choose.choice((None, None, 1, 4, 40)),
                choose.choice((None, None, 0.3, 0.95)),
                choose.choice((None, None, 0.05, 1.0)),
            )
            for _ in counts
        ]
        uniforms = [[choose.random() for _ in range(count)] for count in counts]
        drafting, at, calls = Drafting(counts, num_choices, names, samplers, uniforms), 0, 1
        run(spans, hidden, self.ids, drafting)
        for i, (span, states, found) in enumerate(zip(spans, hidden, drafting.tokens, strict=True)):
            own = span._replace(cache=torch.full_like(span.cache, torch.nan))
            own.cache[..., : span.start, :] = span.cache[..., : span.start, :]
            ids, expected, rows = self.ids[at : at + span.n], list[int](), list[torch.Tensor]()
            at += span.n
            while len(expected) < len(found):
                h = torch.empty(own.n, self.shape.hidden_size)
                scores = run([own], [h], ids, None)
                calls += 1
                rows.append(h)
                if samplers[i].greedy:
                    best = int(scores[0, :num_choices].numpy().argmax())
                else:
                    best = self._drawn(drafting, i, len(expected), scores[0, :num_choices])
                expected.append(best if names is None else int(names[best]))
                ids, own = expected[-1:], own._replace(start=own.start + own.n, n=1)
            if list(found) != expected:
                raise WrongError(f"{self}: drafts {list(found)}, one by one {expected}")
            pairs = ((states, torch.cat(rows)), (span.cache, own.cache))
            if not all(torch.equal(a.nan_to_num(7.0), b.nan_to_num(7.0)) for a, b in pairs):
                raise WrongError(f"{self}: drafts leave other bits than token by token")
        return calls

    def _drawn(self, drafting: Drafting, draft: int, step: int, scores: torch.Tensor) -> int:
        """Return the output that a draft must have drawn at a step, from its own probabilities."""
        rows = drafting.probs[draft]
        assert rows is not None
        probs = rows[step : step + 1]
        laws = laws_of(scores, drafting.samplers[draft])
        if not any(torch.allclose(probs[0].double(), law, rtol=1e-5, atol=1e-37) for law in laws):
            raise WrongError(f"{self}: other probabilities than {drafting.samplers[draft]} makes")
        (output,) = draw(probs, [drafting.uniforms[draft][step]])
        return output

    def check(self, kernels: Library, alone: bool = True) -> int:
        """Run it; return how many calls that took.

        Args:
            alone: compute each row by itself, too.

        Raises:
            WrongError: scores are not float64's, or a row's bits depend on what is beside it.
        """
        model, calls = self.model(kernels), [0]

        def run(rows: list[int], spans: list[Span], threads: int) -> torch.Tensor:
            """Hidden states of these rows behind the last layer, and their scores."""
            calls[0] += 1
            attended = None if self.inputs is None else self.inputs[rows]
            self.share(kernels, spans, attended)
            outputs = [
                HiddenStates(torch.empty(span.n, self.shape.hidden_size), span.start)
                for span in spans
            ]
            scores = model.run(
                *(0, self.shape.num_layers, spans, outputs, threads),
                ids=[self.ids[row] for row in rows],
                scored=[
                    (states, range(span.start, span.start + span.n))
                    for states, span in zip(outputs, spans, strict=True)
                ],
                rotations=self.rotations,
                parts=self.parts,
                attended=attended,
            )
            return torch.cat((torch.cat([states.rows for states in outputs]), scores), 1)

        spans = [span._replace(cache=span.cache.clone()) for span in self.spans]
        found = run(list(range(len(self.ids))), spans, self.threads)
        exact, errors = self.reference(rounded=False), list[float]()
        for paired in {self.kept == torch.bfloat16, False}:
            expected = self.reference(rounded=True, paired=paired)
            # In float32 some are rounded to the other side: by a step, where rounding took a half.
            limit = 1e-4 + 2 * self._distance(*expected, *exact)
            errors.append(self._distance(found, [s.cache for s in spans], *expected) / limit)
        self.error = min(errors)
        if not self.error <= 1:
            raise WrongError(f"{self}: off by {self.error:.2f} of what is allowed")
        if not alone:
            return calls[0]
        again = [span._replace(cache=span.cache.clone()) for span in self.spans]
        row = 0
        for span, other in zip(again, spans, strict=True):
            for i in range(span.n):
                alone_span = span._replace(start=span.start + i, n=1)
                h = run([row], [alone_span], 1)
                if not torch.equal(h[0], found[row]):
                    raise WrongError(f"{self}: row {row} has other bits alone")
                row += 1
            if not torch.equal(span.cache.nan_to_num(7.0), other.cache.nan_to_num(7.0)):
                raise WrongError(f"{self}: a cache has other bits")
        row = 0
        for span in self.spans:
            branches = span.branches
            if branches is not None and branches.base == span.start:
                path = [node - span.start for node in branches.path_to(span.start + span.n - 1)[1]]
                text = Span(span.cache.clone(), span.start, len(path))
                h = run([row + node for node in path], [text], 1)
                if not torch.equal(h, found[[row + node for node in path]]):
                    raise WrongError(f"{self}: a path has other bits as plain text")
            row += span.n
        return calls[0]

    def _distance(
        self,
        found: torch.Tensor,
        found_caches: list[torch.Tensor],
        expected: torch.Tensor,
        caches: list[torch.Tensor],
    ) -> float:
        """The largest difference of hidden states, scores or a cache, of its largest number."""
        sizes = [self.shape.hidden_size, self.output.num_out]
        worst = 0.0
        for ours, theirs in (
            *zip(found.split(sizes, 1), expected.split(sizes, 1), strict=True),
            *zip(found_caches, caches, strict=True),
        ):
            if not torch.equal(ours.isnan(), theirs.isnan()):
                raise WrongError(f"{self}: other places have no number")
            apart, most = (ours.double() - theirs).nan_to_num(), theirs.nan_to_num()
            worst = max(worst, float(apart.abs().max() / most.abs().max()))
        return worst

    def reference(
        self, rounded: bool, paired: bool = False
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Hidden states and scores side by side, and the caches, in float64.

        Args:
            rounded: whether inputs of products are, and keys and values, as in the kernels.
            paired: whether queries and weights are rounded to bfloat16, too, as on processors that
                multiply its pairs.
        """
        s, h = self.shape, dense(self.embedding)[self.ids].double()
        caches = [span.cache.double() for span in self.spans]
        positions = [p for span in self.spans for p in span.positions]
        rotations = self.rotations[positions].to(torch.complex128)

        def to(dtype: torch.dtype, x: torch.Tensor) -> torch.Tensor:
            return x.float().to(dtype).double() if rounded else x

        def normed(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
            size = x.shape[-1]
            return x / (x.square().sum(-1, keepdim=True) + s.eps * size).sqrt() * weight.double()

        def rotated(x: torch.Tensor) -> torch.Tensor:
            pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
            return torch.view_as_real(pairs * rotations).flatten(-2)

        def times(x: torch.Tensor, matrix: PackedMatrix, even: bool = False) -> torch.Tensor:
            if matrix.format.name == "BF16":
                x = to(torch.bfloat16, x)
            elif rounded and not matrix.format.is_float:
                x = in_codes(x, self.narrow and even)
            y = x @ dense(matrix).double().T
            own = matrix.bias_of_outputs
            return y if own is None else y + own.double()

        parts = self.parts or [LayerParts(i, True, True) for i in range(s.num_layers)]
        for part in parts:
            i, layer, window = part.layer, self.layers[part.layer], self.windows[part.layer]
            if part.attention:
                x = normed(h if self.inputs is None else self.inputs.double(), layer.norm)
                x = x.reshape(len(h), -1)
                q, k, v = (
                    times(x, m, even=True).unflatten(-1, (-1, s.head_dim))
                    for m in (layer.q, layer.k, layer.v)
                )
                if layer.head_norm is not None:
                    q = normed(q, layer.head_norm[: s.num_heads])
                    k = normed(k, layer.head_norm[s.num_heads :])
                multiplied = torch.bfloat16 if paired else torch.float64
                q, k = to(multiplied, rotated(q)), rotated(k)
                out, row = torch.zeros_like(q), 0
                for span, cache in zip(self.spans, caches, strict=True):
                    own = torch.cat((k[row : row + span.n], v[row : row + span.n]), 1).transpose(
                        0, 1
                    )
                    cache[i, 0, :, span.start : span.start + span.n] = to(self.kept, own)
                    for j in range(span.n):
                        places = list(range(span.start + j + 1))
                        if span.branches is not None:
                            text, path = span.branches.path_to(span.start + j)
                            places = [*range(text), *path]
                        places = places[-window:] if window else places
                        kv = cache[i, 0, :, places].repeat_interleave(
                            s.num_heads // s.num_kv_heads, 0
                        )
                        keys, values = kv.chunk(2)
                        scores = (keys @ q[row, :, :, None]).squeeze(-1) * s.head_dim**-0.5
                        weights, end = torch.empty_like(scores), span.positions[j] + 1
                        blocks = torch.arange(end - len(places), end) // BLOCK
                        for block in blocks.unique():
                            own = scores[:, blocks == block]
                            most = own.amax(1, keepdim=True)
                            far = (most - scores.amax(1, keepdim=True)).exp()
                            weights[:, blocks == block] = to(multiplied, (own - most).exp()) * far
                        weights /= weights.sum(1, keepdim=True)
                        out[row] = (weights[:, None] @ values).squeeze(1)
                        row += 1
                h = h + times(out.flatten(1), layer.proj)
            if part.mlp:
                x = normed(h, layer.mlp_norm)
                gate = F.silu(times(x, layer.gate, even=True))
                h = h + times(gate * times(x, layer.up, even=True), layer.down)
        return torch.cat((h, times(normed(h, self.final_norm), self.output)), 1), caches


def head_scores(
    kernels: Library,
    x: torch.Tensor,
    norm: torch.Tensor,
    eps: float,
    threads: int,
    output: PackedMatrix,
    refined: PackedMatrix,
) -> torch.Tensor:
    """Scores of hidden states [N, d] by a model without layers."""
    shape = LlamaShape(
        vocab_size=output.num_out, num_layers=0, hidden_size=len(norm), intermediate_size=1,
        num_heads=1, num_kv_heads=1, head_dim=2, eps=eps / len(norm), max_length=1, qk_norm=False,
        windows=(), biased=frozenset(),
    )  # fmt: skip
    ends = {"final_norm": norm, "output": output, "refined": refined}
    model = NativeModel(kernels, [], shape, torch.float32, **ends)
    return model.run(0, 0, (), (), threads, scored=[(HiddenStates(x), range(len(x)))])


def check_refined(kernels: Library, seed: int) -> None:
    """Scores in few bits, and in more near the best, of a random head.

    Raises:
        WrongError: they are not those of the two matrices.
    """
    choose, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    out, width, rows = choose.randint(1, 700), choose.randint(1, 150), choose.choice((1, 3, 8, 11))
    fine, coarse = (random_matrix(name, out, width, generator) for name in ("Q8_0", "Q4_1"))
    norm, x = torch.ones(width), torch.randn(rows, width, generator=generator)
    if owns := getattr(kernels, "owns", None):
        owns([norm])
    one, other = (kernels.multiply(m, x, 1, norm, 1e-5) for m in (fine, coarse))
    found = head_scores(kernels, x, norm, 1e-5, choose.choice((1, 2, 5)), coarse, fine)
    if not ((found == one) | (found == other)).all():
        raise WrongError(f"head {seed}: neither in few bits nor in more")
