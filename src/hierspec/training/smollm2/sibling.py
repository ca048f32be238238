"""A small sibling of a released model: a few layers on its tokenizer, distilled from it.

Its embedding and its head are the larger model's through a matrix each
(:mod:`hierspec.zoo.sibling`), so that only layers and the two matrices are learnt. The
larger model's last hidden states over the texts are computed once; a step then costs the siblings
alone, and several sizes share the cost of the teacher's distributions.

The size is chosen by the planner's formula, from acceptance on held-out text and the measured time
of a call (:func:`choose`).
"""

from __future__ import annotations

import dataclasses
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from rich.console import Console
from torch import Tensor, nn

from hierspec.errors import HierspecError
from hierspec.lm.backend import Span
from hierspec.lm.load import load
from hierspec.lm.weights import EMBEDDING, HEAD, WeightSource
from hierspec.planner.estimates import Chain, ideal
from hierspec.planner.latency import latency
from hierspec.profiling.settings import Report
from hierspec.training import texts
from hierspec.training.eagle3.start import most_frequent_ids
from hierspec.training.family.export import llama_config, write_folder
from hierspec.training.family.model import Llama, Shape
from hierspec.training.fit import Losses, Objective, Phase, TimedSchedule, TrainingStep, curve, fit
from hierspec.training.fit import compiled as compile_
from hierspec.training.losses import distances, kl_then_tv
from hierspec.training.models import weights_and_tokenizer
from hierspec.training.store import FeatureStore, Passes, progress_reporter
from hierspec.utils import machine
from hierspec.zoo import fingerprint, registry, sibling

_DEPTH = 5  # tokens of a draft whose yield is reported
_LONGEST_DRAFT = 8  # tokens, of the drafts priced in :func:`choose`
_PROMPT_WEIGHT = 0.2  # of a token of a prompt, relative to one that the model wrote
_TIMED = 30  # calls
_INPUT, _SCORES = 0.1, 0.5  # root mean squares to begin with


@dataclass(frozen=True, slots=True)
class SiblingSettings:
    """Which sizes are trained, on how much, for how long.

    Attributes:
        sizes: (layers, hidden, heads, intermediate) of each; all are trained side by side.
        vocabulary: v, how many tokens are scored.
        minutes: of training.
        batch: places of a step.
        longest: tokens of a conversation.
    """

    sizes: tuple[tuple[int, int, int, int], ...] = (
        (1, 256, 4, 576),
        (2, 192, 3, 448),
        (4, 256, 4, 640),
    )
    vocabulary: int = 8192
    minutes: float = 45.0
    batch: int = 4096
    longest: int = 640
    matrix_rate: float = 4e-3
    other_rate: float = 4e-3
    compile: bool = True
    seed: int = 0


class SiblingNetwork(Llama):
    """A sibling while it is trained.

    Args:
        embedding: the larger model's, [V, D].
        output: rows of its output matrix, [v, D].
        directions: [D, d] orthonormal, the principal directions of the embedding.
    """

    embedding: Tensor
    output: Tensor

    def __init__(
        self, shape: Shape, embedding: Tensor, output: Tensor, directions: Tensor, seed: int
    ) -> None:
        super().__init__(shape)
        del self.model.embed_tokens
        self.initialise(torch.Generator().manual_seed(seed))
        self.register_buffer("embedding", embedding.to(self.dtype), persistent=False)
        self.register_buffer("output", output.to(self.dtype), persistent=False)
        seen, scored = (float((x @ directions).square().mean().sqrt()) for x in (embedding, output))
        self.embed_projection = nn.Parameter(directions.T * (_INPUT / seen))
        # Scores of normed states of d dimensions are d ** 0.5 times as large as an entry of a row.
        self.head_projection = nn.Parameter(directions * (_SCORES / scored * shape.hidden**-0.5))

    def embed(self, tokens: Tensor) -> Tensor:
        return F.linear(F.embedding(tokens, self.embedding), self.embed_projection.to(self.dtype))

    def head(self) -> Tensor:
        """Return the output matrix [v, d] in the working dtype."""
        return self.output @ self.head_projection.to(self.dtype)

    def tensors(self, ids: Tensor) -> dict[str, Tensor]:
        """Return the tensors as the folder of a sibling holds them."""
        own = dict(self.state_dict())
        return {
            sibling.EMBED_PROJECTION: own.pop("embed_projection"),
            sibling.HEAD_PROJECTION: own.pop("head_projection"),
            sibling.VOCABULARY: ids.int(),
            **own,
        }


def train(
    target: str,
    settings: SiblingSettings,
    output: Path,
    given: Sequence[Path],
    *,
    report: Report = lambda stage, share: None,
    stop_after: int | None = None,
) -> dict[str, Any]:
    """Train siblings of all sizes, and write the one that gains most into ``output``.

    The others lie beside it, in ``OUTPUT.training``, where an interrupted training goes on.

    Returns what ``sibling.json`` says: settings, figures on held-out texts, and the gain of each
    size.

    Raises:
        HierspecError: no text to learn from, or a target that is not a Llama-shaped model with a
            tokenizer.
        KeyboardInterrupt: stopped; at most a minute of work is lost.
    """
    folder = output.with_name(f"{output.name}.training")
    report("loading the model", 0.0)
    source, tokenizer = weights_and_tokenizer(target)
    backend: Any = load(source, torch.bfloat16, backend="lean")
    store = FeatureStore(folder / "features", backend, (), 2**33)
    read = texts.read(given, tokenizer, store.seen, settings.longest)
    store.extend(read, progress_reporter(report, "the model reads its answers", 0.05))
    if not store.numbers():
        raise HierspecError("too little text to learn from: give more --conversations")
    learnt = (store.texts[i] for i in store.numbers())
    ids = most_frequent_ids(learnt, settings.vocabulary, source.config.vocab_size)
    networks = initial_networks(source, settings, ids)
    schedule = TimedSchedule(
        1,
        (Phase(1.0, 1, settings.batch),),
        matrix_rate=settings.matrix_rate,
        other_rate=settings.other_rate,
        decay_share=0.6,
        seconds=60 * settings.minutes,
    )
    found = fit(
        networks,
        _objective(networks, _teacher(store, source, ids), store, settings, report),
        schedule,
        folder,
        settings.seed,
        "sibling",
        stop_after=stop_after,
        console=Console(quiet=True),
    )
    if found["steps"] == stop_after:
        raise KeyboardInterrupt
    whole = {
        "schema_version": sibling.SCHEMA,
        "model": target,
        "fingerprint": fingerprint.compute_if_local(target),
        "settings": dataclasses.asdict(settings),
        "texts": {
            "names": [path.name for path in given],
            "tokens": sum(len(store.texts[i].ids) for i in store.numbers()),
        },
        "steps": found["steps"],
        "seconds": found["seconds"],
        "environment": machine.hardware(torch.device("cpu")),
        "curve": curve(folder / "sibling.jsonl", most=60),
    }
    described = {}
    for name, network in networks.items():
        assert isinstance(network, SiblingNetwork)
        report(f"measuring {name}", 0.97)
        described[name] = {
            **whole,
            "size": name,
            "parameters": sum(p.numel() for p in network.parameters()),
            "figures": measure(network, store, ids),
        }
        _write(folder / name, network, ids, source, described[name])
    gains = choose(target, {name: folder / name for name in networks}, described)
    best = max(gains, key=lambda name: gains[name]["speedup"])
    described[best]["sizes"] = gains
    network = networks[best]
    assert isinstance(network, SiblingNetwork)
    _write(output, network, ids, source, described[best])
    return described[best]


def initial_networks(source: WeightSource, settings: SiblingSettings, ids: Tensor) -> nn.ModuleDict:
    """Build untrained siblings of a model, decided by the seed."""
    embedding = source.tensor(EMBEDDING).float()
    output = source.tensor(HEAD).float()[ids]
    # Of a symmetric matrix, the eigenvectors of the largest eigenvalues come last.
    directions = torch.linalg.eigh(embedding.T @ embedding).eigenvectors.flip(1)
    networks = nn.ModuleDict()
    for number, (layers, hidden, heads, intermediate) in enumerate(settings.sizes):
        if hidden > embedding.shape[1]:
            raise HierspecError(f"a sibling of width {hidden} is wider than {source.name}")
        shape = Shape(
            hidden,
            layers,
            heads,
            intermediate,
            vocab=source.config.vocab_size,
            max_length=source.config.max_position_embeddings,
        )
        networks[f"{layers}x{hidden}"] = SiblingNetwork(
            shape, embedding, output, directions[:, :hidden], settings.seed + number
        )
    return networks


def _teacher(store: FeatureStore, source: WeightSource, ids: Tensor) -> Callable[[Tensor], Tensor]:
    """Return the larger model's scorer: last hidden states [n, D] → [n, v], bfloat16."""
    rows = source.tensor(HEAD)[ids].bfloat16()

    @torch.no_grad()
    def scores(last: Tensor) -> Tensor:
        return store.backend.head(last, lambda x: F.linear(x.bfloat16(), rows)).bfloat16()

    return scores


def _objective(
    networks: nn.ModuleDict,
    teacher: Callable[[Tensor], Tensor],
    store: FeatureStore,
    settings: SiblingSettings,
    report: Report,
) -> Objective:
    passes = Passes(store, settings.batch, settings.seed)

    def learn(state: Tensor, head: Tensor, wanted: Tensor, weights: Tensor) -> tuple[Tensor, ...]:
        return distances(wanted, F.linear(state, head), weights)

    learning = compile_(learn, settings.compile)

    def objective(now: TrainingStep) -> Losses:
        numbers = passes.texts_of(now.number)
        rows, length = len(numbers), max(len(store.texts[i].ids) for i in numbers) - 1
        size = max(settings.batch, rows * length)  # one shape, or it would be compiled again
        ids = torch.zeros(rows, length, dtype=torch.int64)
        last = torch.zeros(size, store.backend.hidden_size)
        weights = torch.zeros(size)
        for row, i in enumerate(numbers):
            text = store.texts[i]
            n, at = len(text.ids) - 1, row * length
            ids[row, :n] = torch.tensor(text.ids[:-1])
            last[at : at + n] = store.features(i, 0, n)[:, -1]
            weights[at : at + n] = _PROMPT_WEIGHT
            for low, high in text.counts:
                weights[at + max(low - 1, 0) : at + min(high - 1, n)] = 1.0
        wanted = teacher(last)
        total, parts = torch.zeros(()), {}
        for name, network in networks.items():
            state = network(ids)[-1].flatten(0, 1)
            state = F.pad(state, (0, 0, 0, size - len(state)))
            kl, tv = learning(state, network.head(), wanted, weights)  # pyright: ignore[reportCallIssue]
            total = total + kl_then_tv(kl, tv, now.done)
            parts |= {f"{name}_kl": kl.detach(), f"{name}_tv": tv.detach()}
        if now.number % 10 == 0:
            losses = " ".join(f"{float(part):.3f}" for part in parts.values())
            report(f"step {now.number}, {losses}", 0.1 + 0.85 * now.done)
        return total, parts

    return objective


@torch.no_grad()
def measure(network: SiblingNetwork, store: FeatureStore, ids: Tensor) -> dict[str, dict[str, Any]]:
    """Measure a sibling's drafts on texts it has not learnt from: by domain, and of all.

    Teacher-forced, at places that the larger model wrote: ``acceptance`` is 1 − TV at temperature
    1, ``agreement`` the share of equal likeliest tokens, ``known`` the mass on the sibling's
    tokens; ``tokens_per_call`` and ``greedy_tokens_per_call`` what a check of a draft of five
    tokens yields, the larger model's own token included.
    """
    head, sums = network.head().float(), {}
    for i in store.numbers(texts.HELD_OUT):
        text = store.texts[i]
        n = len(text.ids) - 1
        state = network(torch.tensor(text.ids[:-1])[None])[-1][0].float()
        places = [t for low, high in text.counts for t in range(max(low - 1, 0), high - 1)]
        whole = store.backend.head(store.features(i, 0, n)[places, -1]).float()
        p, q = whole.softmax(-1)[:, ids], F.linear(state[places], head).softmax(-1)
        accepted = torch.minimum(p, q).sum(-1)
        agreed = (ids[q.argmax(-1)] == whole.argmax(-1)).float()
        each = torch.stack((accepted, agreed, p.sum(-1)), 1)
        runs = [_yields(each[:, column]) for column in (0, 1)]
        row = torch.cat((each, torch.stack(runs, 1)), 1)
        for domain in ("all", text.domain or "text"):
            old = sums.get(domain, (0, 0, torch.zeros(5)))
            sums[domain] = (old[0] + 1, old[1] + len(row), old[2] + row.sum(0))
    names = ("acceptance", "agreement", "known", "tokens_per_call", "greedy_tokens_per_call")
    return {
        domain: {
            "texts": count,
            "rows": rows,
            **{
                name: round(float(x) / max(rows, 1), 4)
                for name, x in zip(names, total, strict=True)
            },
        }
        for domain, (count, rows, total) in sorted(sums.items())
    }


def _yields(kept: Tensor) -> Tensor:
    """Return what drafts of five tokens from each place yield: 1 + a + a b + …, [n]."""
    run, gained = torch.ones(len(kept)), torch.ones(len(kept))
    for step in range(_DEPTH):
        shifted = torch.cat((kept[step:], torch.zeros(min(step, len(kept)))))[: len(kept)]
        run = run * shifted
        gained = gained + run
    return gained


def choose(
    target: str, folders: dict[str, Path], described: dict[str, dict[str, Any]]
) -> dict[str, dict[str, float]]:
    """Compute the speedup of each size on this machine, by the planner's formula.

    Returns by name: ``acceptance`` (held-out, temperature 1), ``cost`` (a call's time in target
    calls, measured), ``draft`` (the best length) and ``speedup`` over plain decoding, a check
    priced like one call.
    """
    larger = load(registry.open_weights(target), torch.bfloat16, backend="lean")
    smaller = {name: registry.open_weights(str(path)) for name, path in folders.items()}
    calls = {name: load(source, torch.bfloat16) for name, source in smaller.items()}
    times = _times({"": larger, **calls})
    found = {}
    for name in folders:
        acceptance = float(described[name]["figures"]["all"]["acceptance"])
        cost = times[name] / times[""]
        estimates = ideal([cost, 1.0], [[None, acceptance], [None, None]])
        prices = {
            n: latency(estimates, Chain(levels=(0, 1), budgets=(n,))).ms_per_token
            for n in range(1, _LONGEST_DRAFT + 1)
        }
        length = min(prices, key=prices.__getitem__)
        found[name] = {
            "acceptance": acceptance,
            "cost": round(cost, 4),
            "draft": length,
            "speedup": round(1 / prices[length], 4),
        }
    return found


def _times(backends: dict[str, Any]) -> dict[str, float]:
    """Measure seconds of a call of one token at place 256, the median; taken in turns."""
    at, taken = 256, {name: [] for name in backends}
    caches = {name: backend.new_cache(at + 1) for name, backend in backends.items()}
    for _ in range(_TIMED):
        for name, backend in backends.items():
            span = [Span(caches[name], at, 1)]
            began = time.perf_counter()
            with torch.inference_mode():
                h = backend.embed(torch.tensor([1]), span)
                backend.head(backend.layers(h, 0, backend.num_layers, span))
            taken[name].append(time.perf_counter() - began)
    return {name: statistics.median(seconds) for name, seconds in taken.items()}


def _write(
    folder: Path, network: SiblingNetwork, ids: Tensor, source: WeightSource, info: dict[str, Any]
) -> None:
    config = llama_config(network.shape) | {"tie_word_embeddings": False}
    for key in ("bos_token_id", "eos_token_id", "pad_token_id"):
        config[key] = getattr(source.config, key)
    description = json.dumps(info, indent=1) + "\n"
    write_folder(folder, network.tensors(ids), config, {sibling.FILE: description})
