"""A small sibling of a released model: a few layers on its tokenizer, distilled from it.

Its embedding and its head are the larger model's, each multiplied by a matrix
(:mod:`hierspec.zoo.sibling`), so that only layers and the two matrices are learnt. The larger
model's likeliest tokens at every place of the texts are computed once; a step then runs the
sibling alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn

from hierspec.errors import HierspecError
from hierspec.lm.load import load
from hierspec.lm.weights import EMBEDDING, HEAD, WeightSource
from hierspec.profiling.settings import ReportProgress
from hierspec.utils import machine
from hierspec.verifiers.formulas import overlap
from hierspec.zoo import fingerprint, sibling
from hierspec_lab.training import texts
from hierspec_lab.training.eagle3.measure import tokens_of_round
from hierspec_lab.training.eagle3.start import most_frequent_ids
from hierspec_lab.training.family.export import llama_config, write_folder
from hierspec_lab.training.family.model import Llama, Shape
from hierspec_lab.training.fit import (
    Losses,
    Objective,
    Phase,
    TimedSchedule,
    TrainingStep,
    curve,
    fit,
)
from hierspec_lab.training.losses import Likeliest, head_distances, kl_then_tv
from hierspec_lab.training.models import (
    as_written,
    load_weights_and_tokenizer,
    validate_numbers,
)
from hierspec_lab.training.store import FeatureStore, Passes, limited_reporter

_LIKELIEST = 64  # tokens of the larger model's distribution that are learnt
_DEPTH = 5  # tokens of a draft whose yield is reported
_PROMPT_WEIGHT = 0.2  # of a token of a prompt, relative to one that the model wrote
_INITIAL_INPUT_RMS, _INITIAL_SCORES_RMS = 0.1, 0.5


@dataclass(frozen=True, slots=True)
class SiblingSettings:
    """The size of a sibling, how many tokens it scores, and how long it is trained.

    Attributes:
        size: (layers, hidden, heads, intermediate).
        vocabulary: v, how many tokens are scored.
        minutes: of training.
        batch: positions in a batch, padding included.
        longest: tokens read of a conversation; the rest is left out.
    """

    size: tuple[int, int, int, int] = (2, 192, 3, 448)
    vocabulary: int = 8192
    minutes: float = 45.0
    batch: int = 4096
    longest: int = 640
    matrix_rate: float = 4e-3
    adamw_rate: float = 4e-3
    seed: int = 0

    def __post_init__(self) -> None:
        validate_numbers(self, ("minutes",))


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
        input_rms, row_rms = (
            float((x @ directions).square().mean().sqrt()) for x in (embedding, output)
        )
        self.embed_projection = nn.Parameter(directions.T * (_INITIAL_INPUT_RMS / input_rms))
        # Scores of normed states of d dimensions are d ** 0.5 times as large as an entry of a row.
        scale = _INITIAL_SCORES_RMS / row_rms * shape.hidden**-0.5
        self.head_projection = nn.Parameter(directions * scale)

    def embed(self, tokens: Tensor) -> Tensor:
        return F.linear(F.embedding(tokens, self.embedding), self.embed_projection.to(self.dtype))

    def head(self) -> Tensor:
        """Return the output matrix [v, d] in the working dtype."""
        return self.output @ self.head_projection.to(self.dtype)

    def tensors(self, ids: Tensor) -> dict[str, Tensor]:
        """Return the tensors by their names in the folder of a sibling that scores ``ids``."""
        parameters = dict(self.state_dict())
        return {
            sibling.EMBED_PROJECTION: parameters.pop("embed_projection"),
            sibling.HEAD_PROJECTION: parameters.pop("head_projection"),
            sibling.VOCABULARY: ids.int(),
            **parameters,
        }

    def set_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over such tensors, whatever tokens they scored."""
        parameters = {name: tensors[name] for name in tensors.keys() - {sibling.VOCABULARY}}
        parameters["embed_projection"] = parameters.pop(sibling.EMBED_PROJECTION)
        parameters["head_projection"] = parameters.pop(sibling.HEAD_PROJECTION)
        self.load_state_dict(parameters)


def train(
    target: str,
    settings: SiblingSettings,
    output: Path,
    text_paths: Sequence[Path],
    *,
    start_from: Path | None = None,
    report_progress: ReportProgress = lambda stage, share: None,
    stop_after: int | None = None,
) -> dict[str, Any]:
    """Train a sibling into ``output``; an interrupted training goes on from ``OUTPUT.training``.

    Args:
        start_from: folder of a sibling of the same size, to begin with its weights; which tokens it
            scored does not matter.

    Returns what ``sibling.json`` says: settings, and figures on held-out texts.

    Raises:
        HierspecError: no text to learn from, or a target that is not a Llama-shaped model with a
            tokenizer.
        KeyboardInterrupt: stopped; at most a minute of work is lost.
    """
    folder = output.with_name(f"{output.name}.training")
    report_progress("loading the model", 0.0)
    source, tokenizer = load_weights_and_tokenizer(target)
    backend: Any = load(source, torch.bfloat16, backend="lean")
    store = FeatureStore(folder / "features", backend, (), 2**33)
    new_texts = texts.read(text_paths, tokenizer, store.keys, settings.longest, groups=store.groups)
    store.extend(new_texts, limited_reporter(report_progress, "the model reads its answers", 0.05))
    if not store.numbers():
        raise HierspecError("too little text to learn from: give more --conversations")
    train_texts = [store.texts[i] for i in store.numbers()]
    ids = most_frequent_ids(train_texts, settings.vocabulary, source.config.vocab_size)
    network = initial_network(source, settings, ids)
    if start_from is not None:
        network.set_tensors(load_file(start_from / "model.safetensors"))
    teacher = likeliest(store, ids, report_progress)
    schedule = TimedSchedule(
        1,
        (Phase(1.0, 1, settings.batch),),
        matrix_rate=settings.matrix_rate,
        adamw_rate=settings.adamw_rate,
        decay_share=0.6,
        seconds=60 * settings.minutes,
    )
    result = fit(
        network,
        _objective(network, teacher, store, settings, report_progress),
        schedule,
        folder,
        settings.seed,
        "sibling",
        stop_after=stop_after,
        show_progress=False,
    )
    report_progress("measuring", 0.97)
    layers, hidden, *_ = settings.size
    info = {
        "schema_version": sibling.SCHEMA,
        "model": target,
        "fingerprint": fingerprint.compute_if_local(target),
        "settings": as_written(settings),
        "texts": {
            "names": [path.name for path in text_paths],
            "tokens": sum(len(text.ids) for text in train_texts),
        },
        "steps": result["steps"],
        "seconds": result["seconds"],
        "environment": machine.hardware(torch.device("cpu")),
        "curve": curve(folder / "sibling.jsonl", max_lines=60),
        "size": f"{layers}x{hidden}",
        "parameters": sum(p.numel() for p in network.parameters()),
        "figures": measure(network, store, ids),
    }
    _write(output, network, ids, source, info)
    return info


def initial_network(source: WeightSource, settings: SiblingSettings, ids: Tensor) -> SiblingNetwork:
    """Build an untrained sibling of a model, decided by the seed."""
    layers, hidden, heads, intermediate = settings.size
    embedding = source.tensor(EMBEDDING).float()
    if hidden > embedding.shape[1]:
        raise HierspecError(f"a sibling of width {hidden} is wider than {source.name}")
    output = source.tensor(HEAD).float()[ids]
    # Of a symmetric matrix, the eigenvectors of the largest eigenvalues come last.
    directions = torch.linalg.eigh(embedding.T @ embedding).eigenvectors.flip(1)
    shape = Shape(
        hidden,
        layers,
        heads,
        intermediate,
        vocab=source.config.vocab_size,
        max_length=source.config.max_position_embeddings,
    )
    return SiblingNetwork(shape, embedding, output, directions[:, :hidden], settings.seed)


@torch.no_grad()
def likeliest(
    store: FeatureStore, ids: Tensor, report_progress: ReportProgress = lambda stage, share: None
) -> Likeliest:
    """Return the larger model's likeliest tokens among ``ids`` at every token of a store.

    Columns are int32, to take half the memory; probabilities are those among all tokens.
    """
    size = (store.tokens, min(_LIKELIEST, len(ids)))
    found = Likeliest(torch.empty(size, dtype=torch.int32), torch.empty(size, dtype=torch.bfloat16))
    for i, (start, text) in enumerate(zip(store.starts, store.texts, strict=True)):
        report_progress(f"the model scores its answers: {start // 10_000 * 10} k tokens", 0.08)
        last = store.features(i, 0, len(text.ids))[:, -1]
        scores = store.backend.head(last.to(store.backend.dtype)).float()
        probs, columns = scores.softmax(-1)[:, ids].topk(size[1])
        found.columns[start : start + len(last)] = columns
        found.probs[start : start + len(last)] = probs
    return found


def _objective(
    network: SiblingNetwork,
    teacher: Likeliest,
    store: FeatureStore,
    settings: SiblingSettings,
    report_progress: ReportProgress,
) -> Objective:
    passes = Passes(store, settings.batch, settings.seed)

    def objective(step: TrainingStep) -> Losses:
        numbers = passes.texts_at(step.number)
        rows, length = len(numbers), max(len(store.texts[i].ids) for i in numbers) - 1
        ids = torch.zeros(rows, length, dtype=torch.int64)
        place = torch.zeros(rows, length, dtype=torch.int64)  # in the store
        weights = torch.zeros(rows, length)
        for row, i in enumerate(numbers):
            text = store.texts[i]
            n = len(text.ids) - 1
            ids[row, :n] = torch.tensor(text.ids[:-1])
            place[row, :n] = store.starts[i] + torch.arange(n)
            weights[row, :n] = _PROMPT_WEIGHT
            for low, high in text.predicted:
                weights[row, max(low - 1, 0) : min(high - 1, n)] = 1.0
        taken = weights > 0
        columns, probs = (of_all[place[taken]] for of_all in teacher)
        learnt = Likeliest(columns.long(), probs)
        kl, tv = head_distances(network(ids)[-1][taken], network.head(), learnt, weights[taken])
        parts = {"kl": kl.detach(), "tv": tv.detach()}
        if step.number % 10 == 0:
            losses = " ".join(f"{float(part):.3f}" for part in parts.values())
            report_progress(f"step {step.number}, {losses}", 0.1 + 0.85 * step.progress)
        return kl_then_tv(kl, tv, step.progress), parts

    return objective


@torch.no_grad()
def measure(network: SiblingNetwork, store: FeatureStore, ids: Tensor) -> dict[str, dict[str, Any]]:
    """Measure a sibling's drafts on held-out texts: by domain, and of ``all``.

    Means over tokens that the larger model wrote, teacher-forced: ``acceptance`` is 1 − TV at
    temperature 1, ``agreement`` the share of equal likeliest tokens, ``known`` the larger model's
    mass on the tokens that the sibling scores; ``tokens_per_call`` and ``greedy_tokens_per_call``
    are what a check of a draft of five tokens yields, the larger model's own token included.
    """
    head, sums = network.head().float(), {}
    for i in store.numbers(texts.HELD_OUT):
        text = store.texts[i]
        n = len(text.ids) - 1
        state = network(torch.tensor(text.ids[:-1])[None])[-1][0].float()
        positions = [t for low, high in text.predicted for t in range(max(low - 1, 0), high - 1)]
        scores = store.backend.head(store.features(i, 0, n)[positions, -1]).float()
        p, q = scores.softmax(-1)[:, ids], F.linear(state[positions], head).softmax(-1)
        accepted = overlap(p, q)
        agreed = (ids[q.argmax(-1)] == scores.argmax(-1)).float()
        yields = (_draft_yields(accepted), _draft_yields(agreed))
        figures = torch.stack((accepted, agreed, p.sum(-1), *yields), 1)
        for domain in ("all", text.domain or "text"):
            num_texts, num_rows, total = sums.get(domain, (0, 0, torch.zeros(5)))
            sums[domain] = num_texts + 1, num_rows + len(figures), total + figures.sum(0)
    names = "acceptance", "agreement", "known", "tokens_per_call", "greedy_tokens_per_call"
    return {
        domain: {
            "texts": num_texts,
            "rows": num_rows,
            **dict(
                zip(names, (round(x / max(num_rows, 1), 4) for x in total.tolist()), strict=True)
            ),
        }
        for domain, (num_texts, num_rows, total) in sorted(sums.items())
    }


def _draft_yields(acceptance: Tensor) -> Tensor:
    """Return what a draft of five tokens from each position yields: 1 + a₀ + a₀ a₁ + …, [n].

    Args:
        acceptance: the chance that each token is accepted, [n]; after the last, 0.
    """
    drafts = F.pad(acceptance, (0, _DEPTH)).unfold(0, _DEPTH, 1)[: len(acceptance)]
    return tokens_of_round(drafts)


def _write(
    folder: Path, network: SiblingNetwork, ids: Tensor, source: WeightSource, info: dict[str, Any]
) -> None:
    config = llama_config(network.shape) | {"tie_word_embeddings": False}
    for key in ("bos_token_id", "eos_token_id", "pad_token_id"):
        config[key] = getattr(source.config, key)
    description = json.dumps(info, indent=1) + "\n"
    write_folder(folder, network.tensors(ids), config, {sibling.FILE: description})
