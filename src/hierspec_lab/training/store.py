"""Hidden states of a frozen target over texts, computed once and kept on disk.

``features.bin`` holds, per token, the hidden states after the layers that a drafter reads and after
the last one, bfloat16: a pass over the texts then runs the drafter alone, and the target's
distribution costs one matrix product. ``texts.jsonl`` lists the texts in the same order; it is
written after the features, and more texts are appended, also by other trainings.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import torch

from hierspec.errors import HierspecError
from hierspec.lm.backend import Backend, Span
from hierspec.profiling.settings import ReportProgress
from hierspec.utils.files import locked, write_atomically
from hierspec.utils.json_lines import read_line
from hierspec.utils.records import Record

from .models import hidden_states
from .texts import TrainingText

_BATCH = 2048  # tokens of one forward of the target
_BYTES = 2  # of a bfloat16
_POOL = 64  # texts sorted by length at once: enough to fill batches, few enough to mix them


def limited_reporter(
    report_progress: ReportProgress, stage: str, share: float = 0.0, max_tokens: float = math.inf
) -> Callable[[int], bool]:
    """Return a callback for :meth:`FeatureStore.extend`.

    It reports how many tokens were added, and ends reading once they are ``max_tokens``.
    """

    def goes_on(tokens: int) -> bool:
        report_progress(f"{stage}: {tokens // 10_000 * 10} k tokens", share)
        return tokens < max_tokens

    return goes_on


class _IndexLine(Record):
    key: str
    ids: tuple[int, ...]
    counts: tuple[tuple[int, int], ...]
    group: str
    domain: str = ""


class FeatureStore:
    """Texts and their features.

    Attributes:
        groups: of this training's own texts, by their keys; others may be stored beside them.

    Args:
        folder: created if it is missing.
        backend: the frozen target.
        layers: after which its hidden states are kept, besides the last.
        max_bytes: largest size of ``features.bin``.
    """

    def __init__(
        self, folder: Path, backend: Backend, layers: Sequence[int], max_bytes: float
    ) -> None:
        self.folder, self.backend, self.layers = folder, backend, tuple(layers)
        self.parts = len(self.layers) + 1
        self.width = self.parts * backend.hidden_size
        self.max_tokens = int(max_bytes // (self.width * _BYTES))
        self.groups: dict[str, str] = {}
        self.is_full = False  # texts were left out, since there was no room
        folder.mkdir(parents=True, exist_ok=True)
        self._read_index()
        self._map = np.empty(0)

    def _read_index(self) -> None:
        self.texts: list[TrainingText] = []
        self.starts: list[int] = []
        self.keys: set[str] = set()
        self.tokens = 0
        index, data = self.folder / "texts.jsonl", self.folder / "features.bin"
        if not index.is_file():
            return
        num_rows = data.stat().st_size // (self.width * _BYTES) if data.is_file() else 0
        lines = index.read_text(encoding="utf-8").splitlines()
        for line in lines:
            row = read_line(_IndexLine, line)
            if row is None or self.tokens + len(row.ids) > num_rows:
                break
            self._append(TrainingText(row.key, row.ids, row.counts, row.group, row.domain))
        if len(self.texts) < len(lines):  # what an interruption left behind; more is added after it
            write_atomically(index, "".join(map(_index_line, self.texts)), "the texts")

    def _append(self, text: TrainingText) -> None:
        self.texts.append(text)
        self.starts.append(self.tokens)
        self.keys.add(text.key)
        self.tokens += len(text.ids)

    def extend(
        self, texts: Iterable[TrainingText], goes_on: Callable[[int], bool] = lambda tokens: True
    ) -> None:
        """Add texts while there is room and ``goes_on(tokens added)`` is true.

        They are this training's own from now on, stored ones, too. :func:`.texts.read` can leave
        those out, if it is given :attr:`groups`.

        Texts of fewer than three tokens, or with none to predict, are left out.

        Raises:
            HierspecError: the disk is full, or cannot be written, or another process writes there.
        """
        busy = f"another process adds features to {self.folder}: wait for it, or name another"
        try:
            with locked(self.folder / "features.bin", "features", busy):
                self._read_index()  # another process may have added to it
                self._extend(texts, goes_on)
        except OSError as error:
            raise HierspecError(
                f"cannot keep features in {self.folder}: {error.strerror or error}; make room "
                "there, or give a smaller --store-gib"
            ) from None

    def _extend(self, texts: Iterable[TrainingText], goes_on: Callable[[int], bool]) -> None:
        added = 0
        with (self.folder / "features.bin").open("ab") as file:
            file.truncate(self.tokens * self.width * _BYTES)  # what an interrupted call left behind
            for batch in _batches(self._new(texts)):
                if self.tokens + sum(len(text.ids) for text in batch) > self.max_tokens:
                    self.is_full = True
                    break
                file.write(self._features([text.ids for text in batch]).tobytes())
                file.flush()
                with (self.folder / "texts.jsonl").open("a", encoding="utf-8") as index:
                    index.writelines(map(_index_line, batch))
                for text in batch:
                    self._append(text)
                    added += len(text.ids)
                if not goes_on(added):
                    break

    def _new(self, texts: Iterable[TrainingText]) -> Iterator[TrainingText]:
        for text in texts:
            self.groups.setdefault(text.key, text.group)
            if text.key not in self.keys:
                yield text

    @torch.inference_mode()
    def _features(self, rows: Sequence[Sequence[int]]) -> np.ndarray:
        """Compute features [tokens, width] bfloat16, as 16-bit integers."""
        backend = self.backend
        spans = [Span(backend.new_cache(len(ids)), 0, len(ids)) for ids in rows]
        ids = torch.tensor([token for row in rows for token in row], device=backend.device)
        states = hidden_states(backend, ids, spans, self.layers)
        return torch.cat([h.to(torch.bfloat16) for h in states], 1).cpu().view(torch.int16).numpy()

    def features(self, number: int, first: int, end: int) -> torch.Tensor:
        """Read rows [first, end) of the features of a text, by number: [n, parts, d] float32."""
        if len(self._map) < self.tokens:
            path, shape = self.folder / "features.bin", (self.tokens, self.width)
            self._map = np.memmap(path, np.int16, "r", shape=shape)
        start = self.starts[number]
        rows = torch.from_numpy(np.array(self._map[start + first : start + end]))
        return rows.view(torch.bfloat16).float().unflatten(1, (self.parts, -1))

    def numbers(self, group: str = "") -> list[int]:
        """Return the numbers of own texts of a held-out group; ``""``: of those to train on."""
        return [i for i, text in enumerate(self.texts) if self.groups.get(text.key) == group]

    def held_out_groups(self) -> list[str]:
        """Return the names of the held-out groups of own texts."""
        return sorted({self.groups.get(text.key, "") for text in self.texts} - {""})


def _index_line(text: TrainingText) -> str:
    fields = asdict(text)
    fields["counts"] = fields.pop("predicted")  # the file keeps its key
    return json.dumps(fields) + "\n"


def _batches(texts: Iterable[TrainingText]) -> Iterator[list[TrainingText]]:
    batch: list[TrainingText] = []
    for text in texts:
        if len(text.ids) < 3 or not text.predicted:
            continue
        if batch and sum(len(t.ids) for t in (*batch, text)) > _BATCH:
            yield batch
            batch = []
        batch.append(text)
    if batch:
        yield batch


@dataclass(slots=True)
class Passes:
    """Endless shuffled passes over the training texts, which with the seed decide every step.

    Attributes:
        max_positions: of a batch, padding included; a longer text is a batch of its own.
        num_end_tokens: tokens at the end of a text that predict nothing.
    """

    store: FeatureStore
    max_positions: int
    seed: int
    num_end_tokens: int = 1
    _num_texts: int = 0  # to train on when the passes were made
    _first_step: int = 0  # of pass 0
    _passes: dict[int, list[list[int]]] = field(default_factory=dict)

    def texts_at(self, step: int) -> list[int]:
        """Return the texts of a step, by number; they are of similar length."""
        if self._num_texts != (num_texts := len(self.store.numbers())):
            self._first_step = step if self._num_texts else 0
            self._num_texts, self._passes = num_texts, {}
        step -= self._first_step
        number = 0
        while step >= len(self._pass(number)):
            step -= len(self._pass(number))
            number += 1
        return self._pass(number)[step]

    @property
    def batches_per_pass(self) -> int:
        return len(self._pass(0))

    def pack(self, texts: Sequence[int]) -> list[list[int]]:
        """Pack texts, by number, into batches without changing their order."""
        batches: list[list[int]] = []
        longest = 0
        for i in texts:
            length = len(self.store.texts[i].ids) - self.num_end_tokens
            longest = max(longest, length)
            if batches and longest * (len(batches[-1]) + 1) <= self.max_positions:
                batches[-1].append(i)
            else:
                batches.append([i])
                longest = length
        return batches

    def _pass(self, number: int) -> list[list[int]]:
        if number not in self._passes:
            generator = torch.Generator().manual_seed(self.seed * 1_000_003 + number)
            texts = self.store.numbers()
            order = [texts[i] for i in torch.randperm(len(texts), generator=generator).tolist()]
            batches: list[list[int]] = []
            for start in range(0, len(order), _POOL):
                pool = order[start : start + _POOL]
                pool.sort(key=lambda i: len(self.store.texts[i].ids))
                batches += self.pack(pool)
            batch_order = torch.randperm(len(batches), generator=generator).tolist()
            self._passes[number] = [batches[i] for i in batch_order]
        return self._passes[number]
