"""A slot that took over another's prefix scores as a fresh one does, whatever is kept in it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from eagle3_cases import LAYERS, save_drafter
from installed import LAB
from tiny_models import save_tiny, tiny_config
from work import Work

from hierspec.core.context import Context
from hierspec.lm.base import Query
from hierspec.lm.eagle3 import checkpoint
from hierspec.lm.eagle3.model import Eagle3Model
from hierspec.lm.lean.decoder import LeanBackend
from hierspec.lm.load import load
from hierspec.lm.trunk.cuda_graphs import CudaGraphTrunk
from hierspec.lm.trunk.self_draft import SelfDraft
from hierspec.lm.trunk.trunk import Trunk
from hierspec.lm.weights import from_directory
from hierspec.methods.quantized import quantize

if LAB:
    from hierspec_lab.methods.layer_skip.skipping import SkippingBackend


TEXT = [3 + (7 * i * i + 5 * i) % 90 for i in range(40)]
SHARED = 24
OTHER = [*TEXT[:SHARED], 91, 17, 4, 60, 12, 33, 8]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("forked")
    return lambda family: save_tiny(family, folder / family, seed=1, layers=4)


FAMILIES = ("llama", "hf llama", "deepseek_v3", "bloom", "gemma2")
OTHERS = ("deterministic", "fixed shapes", "quantized", "eagle3", "eagle3 on hf")
OTHERS += ("skipping",) if LAB else ()


@pytest.fixture(params=[*FAMILIES, *OTHERS])
def models(request, saved, tmp_path) -> list[Any]:
    """Models that share slots, the target first, and an exit of it."""
    kind, exits = request.param, [1, 2, 3]
    path = saved(kind if kind in ("deepseek_v3", "bloom", "gemma2") else "llama")
    if kind == "fixed shapes":
        trunk: Trunk = CudaGraphTrunk(LeanBackend(from_directory(path), torch.float64), exits)
    elif kind == "deterministic":
        trunk = Trunk(load(path, torch.float32), exits)
    elif kind == "skipping":
        trunk = Trunk(SkippingBackend(load(path), [1]), [1, 2])
    else:
        # DeepSeek's experts have no float64.
        dtype = torch.float32 if kind == "deepseek_v3" else torch.float64
        trunk = Trunk(load(path, dtype, backend="hf" if "hf" in kind else "auto"), exits)
    found: list[Any] = [trunk.view(), trunk.view(2)]
    if kind == "quantized":
        found.append(SelfDraft(trunk, quantize(trunk.backend)))
    if kind.startswith("eagle3"):
        drafter = save_drafter(tmp_path / "eagle3", tiny_config("llama", layers=4))
        found.append(Eagle3Model(trunk, checkpoint.read_network(drafter), LAYERS, "eagle3"))
    return found


def written(models, slot, text, begin=1):
    """Scores on the way of a text that is written with drafts of which the last is rejected."""
    rows = []
    for end in (begin, *range(begin + 1, len(text) + 1, 5)):
        committed, draft = Context(text[:end]), (5, 9)
        rows.append(models[0].score([Query(slot, committed, end)]))
        for model in reversed(models):
            for n in (0, 2):
                context = Context(text[:end], draft[:n])
                rows.append(model.score([Query(slot, context, len(context))]))
    return torch.cat(rows)


def close_to(found, wanted, models):
    """What is read in other portions differs in the last bits, and then in an 8-bit rounding.

    Some families' own layers compute parts in float32, whatever the weights' type.
    """
    copies = any(isinstance(model, SelfDraft) for model in models)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-3 if copies else 2e-5)


@pytest.mark.parametrize("drafting", [False, True])
def test_a_forked_slot_scores_as_a_fresh_one(models, drafting):
    top = models[0]
    trunk, fresh = top.cache_owner, top.open()
    wanted = written(models, fresh, OTHER, SHARED + 1)
    first = top.open()
    written(models, first, TEXT)
    if drafting:  # beyond what the target has checked
        models[-1].score([Query(first, Context(TEXT, (7, 7, 7)), len(TEXT))])
    before = list(first.tokens)
    forked = trunk.fork(first, SHARED)
    assert forked.tokens == OTHER[:SHARED]
    done = Work(trunk)
    found = written(models, forked, OTHER, SHARED + 1)
    assert first.tokens == before
    close_to(found, wanted, models)
    assert done.tokens[-1] < 6 * len(OTHER), "the prefix is not read again"
    # The first goes on as if nothing had been taken from it.
    more = [*TEXT, 44, 45]
    found, wanted = (written(models, slot, more, len(TEXT)) for slot in (first, top.open()))
    close_to(found, wanted, models)


def test_a_forked_slot_of_a_fork_and_of_nothing(models):
    top = models[0]
    trunk, first = top.cache_owner, top.open()
    assert trunk.fork(first, 5).tokens == []
    written(models, first, TEXT)
    again = trunk.fork(trunk.fork(first, SHARED), 9)
    first.state = None
    assert again.tokens == TEXT[:9]
    other = [*TEXT[:9], 50, 51, 52]
    found, wanted = (written(models, slot, other, 10) for slot in (again, top.open()))
    close_to(found, wanted, models)


def test_a_slot_without_spare_room_scores_as_before(models):
    top = models[0]
    trunk, slot = top.cache_owner, top.open()
    written(models, slot, TEXT)
    before, room = list(slot.tokens), slot.state.capacity
    trunk.compact(slot)
    assert slot.tokens == before
    assert slot.state.capacity == 48
    assert len(before) <= 48 < room / 2
    compacted = slot.state
    trunk.compact(slot)
    assert slot.state is compacted, "nothing to give back"
    forked = trunk.fork(slot, SHARED)
    found, wanted = (written(models, one, OTHER, SHARED + 1) for one in (forked, top.open()))
    close_to(found, wanted, models)
    more = [*TEXT, 44, 45]  # and what is added to it has room again
    found, wanted = (written(models, one, more, len(TEXT)) for one in (slot, top.open()))
    close_to(found, wanted, models)
    trunk.compact(empty := trunk.open())
    assert empty.state is None


def test_a_network_reads_the_shared_beginning_once(saved, tmp_path):
    trunk = Trunk(load(saved("llama")), LAYERS)
    drafter = save_drafter(tmp_path / "eagle3", tiny_config("llama", layers=4))
    model = Eagle3Model(trunk, checkpoint.read_network(drafter), LAYERS, "eagle3")
    top, slot = trunk.view(), trunk.open()
    written([top, model], slot, TEXT)
    forked = trunk.fork(slot, SHARED)
    rows, layers = [], model.layer.model.layers
    model.layer.model.layers = lambda *given: rows.append(len(given[0])) or layers(*given)
    context = Context(OTHER)
    top.score([Query(forked, context, len(context))])
    model.score([Query(forked, context, len(context))])
    assert sum(rows) == len(OTHER) - SHARED
