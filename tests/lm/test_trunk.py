"""The trunk: each (token, segment) once, whatever the order of questions, rewinds and crashes."""

from __future__ import annotations

import random

import pytest
import torch
from fakes.models import Ledger, ToyBackend
from work import Work

from hierspec.core.context import Context
from hierspec.lm.base import LanguageModel, Query
from hierspec.lm.trunk.trunk import Trunk

V, LAYERS = ToyBackend.vocab_size, ToyBackend.num_layers


def fresh(exit_layer: int, ids: list[int]) -> torch.Tensor:
    """All rows of one exit, from scratch."""
    view = Trunk(ToyBackend(), [exit_layer]).view(exit_layer)
    return view.score([Query(view.open(), Context(ids), 1)])


@pytest.mark.parametrize("seed", range(12))
def test_any_history_gives_the_rows_of_a_fresh_forward_and_no_work_twice(seed):
    rng = random.Random(seed)
    trunk = Trunk(ToyBackend(), [2, 3])
    trunk.chunk = rng.choice([1, 3, 8, 512])
    done = Work(trunk)
    views = [trunk.view(e) for e in (2, 3, LAYERS)]
    slots = [trunk.open() for _ in range(3)]
    committed = [[rng.randrange(V) for _ in range(rng.randint(1, 12))] for _ in slots]
    drafts: list[tuple[int, ...]] = [()] * 3
    ledgers = [Ledger(3) for _ in slots]
    for _ in range(60):
        index = rng.randrange(3)
        view = views[index]
        queries, wanted = [], []
        for i in rng.sample(range(3), rng.randint(1, 3)):
            match rng.randrange(4):
                case 0:  # draft on
                    drafts[i] += tuple(rng.randrange(V) for _ in range(rng.randint(1, 4)))
                case 1:  # a rejection: keep some, replace one
                    kept = rng.randint(0, len(drafts[i]))
                    drafts[i] = (*drafts[i][:kept], rng.randrange(V))
                case 2:  # commit some of the draft
                    kept = rng.randint(0, len(drafts[i]))
                    committed[i].extend(drafts[i][:kept])
                    drafts[i] = drafts[i][kept:] if rng.random() < 0.5 else ()
                case 3:  # ask for a shorter context
                    drafts[i] = drafts[i][: rng.randint(0, len(drafts[i]))]
            context = Context(committed[i], drafts[i])
            start = rng.randint(1, len(context)) if rng.random() < 0.3 else len(context)
            queries.append(Query(slots[i], context, start))
            ids = list(context)
            wanted.append(fresh(view.exit_layer, ids)[start - 1 :])
            ledgers[i].ask(ids, index)
        got = view.score(queries)
        assert (got - torch.cat(wanted)).abs().max() < 1e-12
    work = [sum(ledger.work[s] for ledger in ledgers) for s in range(3)]
    assert done.tokens == work
    assert trunk.bounds == ((0, 2), (2, 3), (3, LAYERS))


def test_levels_share_what_lower_exits_have_computed():
    trunk = Trunk(ToyBackend(), [2, 4])
    done, slot = Work(trunk), trunk.open()
    prompt = [1, 2, 3]
    low, mid, top = (trunk.view(e) for e in (2, 4, None))
    low.score([Query(slot, Context(prompt), 3)])
    low.score([Query(slot, Context(prompt, (4,)), 4)])
    low.score([Query(slot, Context(prompt, (4, 5)), 5)])
    mid.score([Query(slot, Context(prompt, (4, 5)), 3)])
    assert done.tokens == [5, 5, 0]
    top.score([Query(slot, Context(prompt, (4, 5)), 3)])
    assert done.tokens == [5, 5, 5]
    assert done.calls == [3, 1, 1]
    # The second draft token is rejected and corrected: one token is new, in every segment.
    top.score([Query(slot, Context([*prompt, 4], (6,)), 5)])
    assert done.tokens == [6, 6, 6]
    # Rows that were computed are read again, not recomputed.
    top.score([Query(slot, Context([*prompt, 4], (6,)), 1)])
    assert done.tokens == [6, 6, 6]
    assert done.calls == [4, 2, 2]


def test_views_share_slots_and_own_nothing():
    trunk = Trunk(ToyBackend(), [2])
    for view in (trunk.view(2), trunk.view()):
        assert isinstance(view, LanguageModel)
        assert view.cache_owner is trunk
    assert (trunk.view(2).name, trunk.view().name) == ("toy@2", "toy")


def test_long_prompts_go_through_in_chunks():
    toy = ToyBackend()
    trunk = Trunk(toy, [2])
    trunk.chunk = 16
    done = Work(trunk)
    view = trunk.view()
    first, second = [i % V for i in range(100)], [i * 3 % V for i in range(41)]
    got = view.score(
        [Query(view.open(), Context(first), 98), Query(view.open(), Context(second), 41)]
    )
    assert toy.widest == 16
    want = torch.cat([fresh(LAYERS, first)[97:], fresh(LAYERS, second)[40:]])
    assert (got - want).abs().max() < 1e-12
    assert done.tokens == [141, 141]


@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt])
@pytest.mark.parametrize("at", range(1, 13))
def test_an_exception_half_way_leaves_the_slots_consistent(error, at):
    toy = ToyBackend()
    trunk = Trunk(toy, [2, 4])
    trunk.chunk = 8
    view, low = trunk.view(), trunk.view(2)
    slots = [trunk.open(), trunk.open()]
    prompts = [[1, 2, 3], [4, 5, 6, 1, 0]]
    view.score([Query(s, Context(p), len(p)) for s, p in zip(slots, prompts, strict=True)])
    toy.fail_at, toy.error = at, error
    drafts = [(5, 5), (6, 6, 6)]
    with pytest.raises(error):
        view.score(
            [
                Query(s, Context(p, d), len(p))
                for s, p, d in zip(slots, prompts, drafts, strict=True)
            ]
        )
    # Whatever is asked next is right: the same, something else, at any exit.
    for model, pending in ((low, (5,)), (view, (5, 1)), (view, (5, 5)), (low, (0,))):
        got = model.score(
            [Query(s, Context(p, pending), len(p)) for s, p in zip(slots, prompts, strict=True)]
        )
        want = [fresh(model.exit_layer, [*p, *pending])[len(p) - 1 :] for p in prompts]
        assert (got - torch.cat(want)).abs().max() < 1e-12


def test_caches_grow_and_can_be_closed_and_used_again():
    view = Trunk(ToyBackend(), [2]).view()
    slot = view.open()
    ids = [i * i % V for i in range(1500)]
    rooms = []
    for n in (10, 255, 256, 257, 700, 1024, 1025, 1500):
        got = view.score([Query(slot, Context(ids[:n]), n)])
        assert (got - fresh(LAYERS, ids[:n])[-1:]).abs().max() < 1e-12
        rooms.append(slot.state.capacity)
    assert rooms == [1024] * 6 + [2048] * 2
    view.close(slot)
    assert slot.tokens == []
    assert slot.state is None
    got = view.score([Query(slot, Context([3, 1]), 1)])
    assert (got - fresh(LAYERS, [3, 1])).abs().max() < 1e-12


def test_scores_may_be_written_into():
    view = Trunk(ToyBackend()).view()
    view.score([Query(view.open(), Context([1, 2]), 1)]).div_(2.0)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: Trunk(ToyBackend(), [7]), "between 1 and 6"),
        (lambda: Trunk(ToyBackend(), [0]), "between 1 and 6"),
        (lambda: Trunk(ToyBackend(), [2]).view(3), r"no exit after layer 3.*\(2, 6\)"),
        (lambda: _ask([], 1), "at least one token"),
        (lambda: _ask([1], 0), "at least one token"),
        (lambda: _ask([1], 2), "between 1 and 1"),
        (lambda: _ask([1] * 5000, 1), "exceed the longest context"),
    ],
)
def test_mistakes_are_named(call, words):
    with pytest.raises(ValueError, match=words):
        call()


def _ask(ids: list[int], start: int) -> torch.Tensor:
    view = Trunk(ToyBackend()).view()
    return view.score([Query(view.open(), Context(ids), start)])
