"""Calls of fixed shape give what ordinary calls give, recorded or not, and wait once at most."""

from __future__ import annotations

import gc
import random
import warnings
from itertools import chain

import pytest
import tape
import torch
from following import drafted
from stacks import built, model
from tiny_models import save_tiny

from hierspec.core.context import Context
from hierspec.core.distributions import OneHotDistributions
from hierspec.core.nodes import Draft, Verify, walk_levels
from hierspec.core.rng import PhiloxRng
from hierspec.drafters.base import DraftCall
from hierspec.drafters.multi_draft import MultiDrafter
from hierspec.engine.sequences import LiveSequence
from hierspec.exact.cases import JumpingController
from hierspec.lm.base import Query
from hierspec.lm.lean.decoder import LeanBackend
from hierspec.lm.lean.device_copy import DeviceCopy
from hierspec.lm.trees import Tree
from hierspec.lm.trunk.cuda_graphs import CudaGraphTrunk, trunk_for
from hierspec.lm.trunk.trunk import Trunk
from hierspec.lm.weights import from_directory
from hierspec.methods import quantized
from hierspec.sampling import sampler as readings
from hierspec.sampling.parameters import SamplingParams
from hierspec.sampling.sampler import NoDistributionError, Sampler
from hierspec.sampling.scores import ScoreRows, compute_signals
from hierspec.utils.graphs import Graphs
from hierspec.verifiers.registry import get

SHAPES = {
    "llama": {},
    "qwen3": {},  # norms of heads, grouped keys
    "mistral": {"sliding_window": 6},
}
READINGS = [
    Sampler(96, 0.0),
    Sampler(96, 0.8),
    Sampler(90, 1.0, top_k=20, top_p=0.8, min_p=0.01),
]


@pytest.fixture(scope="module", params=SHAPES)
def backend(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    save_tiny(request.param, folder, seed=3, layers=3, **SHAPES[request.param])
    return LeanBackend(from_directory(folder), torch.float64)


@pytest.fixture(params=["as it stands", "recorded"])
def fixed(request, backend, monkeypatch):
    """A maker of fixed trunks; recorded ones believe that they are on a GPU."""
    monkeypatch.setattr(
        "hierspec.lm.trunk.arena._FIRST_COLUMNS", 256
    )  # the models' texts are short
    monkeypatch.setattr("hierspec.lm.trunk.cuda_graphs._MIN_COLUMNS", 256)

    def make(exits=()):
        trunk = CudaGraphTrunk(backend, exits)
        if request.param == "recorded":
            tape.install(monkeypatch)
            # At the second use, so that many shapes are; and nuclei as a GPU finds them.
            monkeypatch.setattr("hierspec.utils.graphs._TRIALS", 1)
            monkeypatch.setattr(readings, "_nucleus", readings._nucleus_by_bins)
            trunk.graphs.device = torch.device("cuda")
        return trunk

    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="running without a CUDA graph")
        yield make


def close(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.shape == b.shape and torch.allclose(a, b, rtol=0, atol=1e-9)


def poison(trunk: CudaGraphTrunk, row: int) -> None:
    with torch.inference_mode():
        trunk.arena.cache[:, row] = float("nan")
        trunk.arena.outputs[0][row] = float("nan")


class Pair:
    """The same questions to an ordinary trunk and to one of fixed shapes."""

    def __init__(self, backend, fixed, exits, seed):
        self.trunks = Trunk(backend, exits), fixed(exits)
        self.rng = random.Random(seed)
        self.texts = [self.ids(n) for n in (5, 37, 2)]
        self.slots = [[trunk.open() for _ in self.texts] for trunk in self.trunks]

    def ids(self, n):
        return [self.rng.randrange(96) for _ in range(n)]

    def some(self):
        return [i for i in range(3) if self.rng.random() < 0.6] or [self.rng.randrange(3)]

    def score(self):
        index, which = self.rng.randrange(len(self.trunks[0].exits)), self.some()
        drafts = [tuple(self.ids(self.rng.randrange(5))) for _ in which]
        found = [
            trunk.exit_model(index).score(
                [
                    Query(slots[i], Context(self.texts[i], draft), len(self.texts[i]))
                    for i, draft in zip(which, drafts, strict=True)
                ]
            )
            for trunk, slots in zip(self.trunks, self.slots, strict=True)
        ]
        assert close(*found)

    def draft(self, sampler):
        index, which = self.rng.randrange(len(self.trunks[0].exits)), self.some()
        counts = [self.rng.randrange(1, 5) for _ in which]
        uniforms = [[self.rng.random() for _ in range(n)] for n in counts]
        ours, theirs = (
            [Query(slots[i], Context(self.texts[i]), len(self.texts[i])) for i in which]
            for slots in self.slots
        )
        plain, fixed = self.trunks
        scored = plain.exit_model(index).score_stepwise(ours, counts)
        a = drafted(*scored, counts, sampler, uniforms)
        b = fixed.exit_model(index).draft(theirs, counts, [sampler] * len(counts), uniforms)
        assert [len(one) for one in a.tokens] == counts
        assert a.tokens == b.tokens
        for mine, other in zip(a.distributions, b.distributions, strict=True):
            assert len(mine) == len(other)
            assert isinstance(mine, OneHotDistributions) is isinstance(other, OneHotDistributions)
            assert close(mine.dense(96), other.dense(96))

    def grow(self):
        for text in self.texts:
            text += self.ids(self.rng.randrange(3))


@pytest.mark.parametrize("exits", [(), (1, 2)])
def test_what_an_ordinary_trunk_says(backend, fixed, exits):
    pair = Pair(backend, fixed, exits, seed=1)
    for turn in range(24):
        pair.score()
        pair.draft(READINGS[turn % 3])
        pair.grow()
        if turn == 16:
            pair.texts[0] += pair.ids(300)  # a prompt's length at once, past the first columns
    trunk = pair.trunks[1]
    assert (trunk.graphs.num_recorded > 3) == (trunk.graphs.device.type == "cuda")
    assert trunk.arena.capacity == 512


def test_a_draft_is_what_asking_token_by_token_gives(backend):
    """What an ordinary trunk continues, against rows asked one by one."""
    trunk, sampler = Trunk(backend, (2,)), READINGS[2]
    model = trunk.view(2)
    text, uniforms = [4, 8, 15, 16], [0.3, 0.9, 0.05, 0.6]
    slot = model.open()
    following = model.score_stepwise([Query(slot, Context(text), 4)], [4])
    found = drafted(*following, [4], sampler, [uniforms])
    tokens: tuple[int, ...] = ()
    for step, u in enumerate(uniforms):
        query = Query(fresh := model.open(), Context(text, tokens), 4 + step)
        picked, law = sampler.pick(model.score([query]), [u])
        assert close(law.dense(90)[0], found.distributions[0].dense(90)[step])
        model.close(fresh)
        tokens += (picked[0],)
    assert found.tokens == [list(tokens)]
    assert slot.tokens == [*text, *tokens[:-1]]  # the last one is computed when it is needed


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("rule", ["traversal", "rrs-without-replacement"])
def test_trees_are_those_of_an_ordinary_trunk(backend, fixed, rule, temperature):
    """Drafts of the host and of a device, by the same uniforms, and checks of the cache of both."""
    params, rng = SamplingParams(temperature=temperature), random.Random(3)
    texts, sides = [[4, 8, 15, 16], [23]], []
    for trunk in (Trunk(backend, (2,)), fixed((2,))):
        leaf = Draft(0, "exit", trunk.view(2), 4, num_drafts=3).for_rule(get(rule))
        root = Verify(1, "target", trunk.view(), 4, get(rule), leaf)
        live = [
            LiveSequence(i, root, text, params, PhiloxRng(7, i), 99) for i, text in enumerate(texts)
        ]
        sides.append((MultiDrafter(leaf), root.model, live))
    for turn in range(6):
        found = []
        for drafter, target, live in sides:
            calls = [
                DraftCall(
                    ScoreRows(params, sequence.context(), len(sequence.tokens), 1, 1, 96),
                    limit,
                    4,
                    (),
                    sequence.rng,
                    sequence.slot,
                )
                for sequence, limit in zip(live, (4, 1 + turn % 4), strict=True)
            ]
            drafts = [proposal.drafts for proposal in drafter.draft(calls).proposals]
            trees = [Tree.merge(draft.tokens for draft in several)[0] for several in drafts]
            queries = [
                Query(sequence.slot(target), call.job.context, call.job.start, tree=tree)
                for sequence, call, tree in zip(live, calls, trees, strict=True)
            ]
            found.append((drafts, target.score(queries)))
        (ours, our_rows), (theirs, their_rows) = found
        for mine, other in zip(chain(*ours), chain(*theirs), strict=True):
            assert mine.tokens == other.tokens
            assert close(
                mine.distributions.dense(96).double(), other.distributions.dense(96).double()
            )
        assert close(our_rows, their_rows)
        for text, several in zip(texts, ours, strict=True):
            draft = rng.choice(several).tokens
            text += [*draft[: rng.randrange(len(draft) + 1)], rng.randrange(96)]


def test_rows_come_back_and_are_cleaned(backend, fixed):
    trunk = fixed()
    slots = [trunk.open() for _ in range(3)]
    for slot in slots:
        trunk.exit_model(0).score([Query(slot, Context([1, 2, 3]), 3)])
    assert [slot.state.row for slot in slots] == [0, 1, 2]
    poison(trunk, 1)
    trunk.close(slots[1])
    again = trunk.open()
    scores = trunk.exit_model(0).score([Query(again, Context([1, 2, 3]), 3)])
    assert again.state.row == 1
    assert close(scores, trunk.exit_model(0).score([Query(slots[0], Context([1, 2, 3]), 3)]))
    del slots, slot  # a caller that forgets to close
    assert trunk.open() is not None
    assert sorted(trunk.arena._free) == [0, 2, 3]


def test_one_sequence_of_nonsense_does_not_reach_another(backend, fixed):
    trunk = fixed()
    good, bad = trunk.open(), trunk.open()
    ask = lambda slot: Query(slot, Context([7, 7, 7]), 3)  # noqa: E731
    expected = trunk.exit_model(0).score([ask(good)])
    trunk.exit_model(0).score([ask(bad)])
    poison(trunk, bad.state.row)
    for _ in range(4):
        both = trunk.exit_model(0).score([ask(good), ask(bad)])
        assert close(both[:1], expected)
        assert both[1].isnan().all()
        for sampler in READINGS[:2]:
            with pytest.raises(NoDistributionError):
                trunk.exit_model(0).draft(
                    [ask(good), ask(bad)], [2, 2], [sampler] * 2, [[0.5] * 2] * 2
                )
            alone = trunk.exit_model(0).draft([ask(good)], [2], [sampler], [[0.5] * 2])
            assert len(alone.tokens[0]) == 2


def test_an_interruption_costs_nothing_but_time(backend, fixed, monkeypatch):
    trunk, plain = fixed((1,)), Trunk(backend, (1,))
    slot, other = trunk.open(), plain.open()
    text = [9, 9, 3, 40]
    trunk.exit_model(1).score([Query(slot, Context(text), 4)])

    def stop(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("hierspec.utils.graphs.GraphCall.run", stop)
        for call in (
            lambda: trunk.exit_model(0).draft(
                [Query(slot, Context(text), 4)], [3], [READINGS[0]], [()]
            ),
            lambda: trunk.exit_model(1).score([Query(slot, Context([*text, 5, 6]), 5)]),
        ):
            with pytest.raises(KeyboardInterrupt):
                call()
    again = [*text, 5, 8]
    assert close(
        trunk.exit_model(1).score([Query(slot, Context(again), 2)]),
        plain.exit_model(1).score([Query(other, Context(again), 2)]),
    )


def test_end_of_text_needs_no_shape_of_its_own(backend, fixed):
    trunk = fixed()
    slot = trunk.open()
    for count in (4, 4, 3, 2, 1):
        query = Query(slot, Context([1, 2]), 2)
        trunk.exit_model(0).draft([query], [count], [READINGS[0]], [()])
    assert len(trunk.graphs._calls) <= 3  # after the prompt, with nothing to read, and a step


def test_what_cannot_be_recorded_runs_as_it_stands(monkeypatch):
    tape.install(monkeypatch)
    graphs, out = Graphs(torch.device("cuda")), torch.zeros(1)

    def body():
        out.add_(float(out.sum()) * 0.0 + 1.0)  # looks at a value

    call = graphs.get("looks", lambda: (out, body))
    for _ in range(2):
        call.run()
    with pytest.warns(UserWarning, match="running without a CUDA graph: operation not permitted"):
        call.run()
    call.run()
    assert (out.item(), call.recorded) == (4.0, False)


def test_recordings_are_forgotten_together():
    """A graph that goes may take a workspace along that others would go on using."""
    graphs = Graphs(torch.device("cpu"), max_kept=2)
    made = []
    for key in "abacacba":
        graphs.get(key, lambda key=key: (made.append(key), lambda: None))
    assert made == ["a", "b", "c", "a", "b", "a"]


def test_only_lean_models_on_gpus_get_fixed_shapes(backend):
    assert type(trunk_for(backend)) is Trunk


def test_what_a_window_reads_is_what_it_reads_token_by_token(backend):
    """Signals and laws of a chunk, against the scores asked one by one."""
    text = [4, 8, 15]
    for kind in ("entropy", "confidence"):
        sampler = Sampler(96, 0.7, signal=kind)
        trunk = CudaGraphTrunk(backend)
        query = Query(trunk.open(), Context(text), 3)
        found = trunk.exit_model(0).draft([query], [3], [sampler], [[0.2, 0.7, 0.4]])
        (tokens,), (values,) = found.tokens, found.signals
        again = Query(trunk.open(), Context(text, tuple(tokens[:-1])), 3)
        rows = trunk.view().score([again])
        assert values == pytest.approx(compute_signals(rows, tokens, kind), abs=1e-9)


def test_an_arena_that_cannot_grow_stays_as_it_is(backend, fixed, monkeypatch):
    trunk, plain = fixed((1,)), Trunk(backend, (1,))
    slot, other = trunk.open(), plain.open()
    text = [9, 9, 3, 40]
    trunk.exit_model(1).score([Query(slot, Context(text), 4)])

    real, made = torch.zeros, []

    def out_of_memory(*args, **kwargs):
        made.append(args)
        if len(made) > 1:  # the larger cache is there, the first edge is not; nor afterwards
            raise torch.OutOfMemoryError("CUDA out of memory")
        return real(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(torch, "zeros", out_of_memory)
        with pytest.raises(torch.OutOfMemoryError):
            trunk.exit_model(1).score([Query(trunk.open(), Context([1] * 400), 400)])
    again = [*text, 5]
    found = trunk.exit_model(1).score([Query(slot, Context(again), 5)])
    assert close(found, plain.exit_model(1).score([Query(other, Context(again), 5)]))


@pytest.mark.parametrize(
    ("name", "temperature"), [("draft model", 1.0), ("copy", 0.0), ("exits", 1.0)]
)
def test_budgets_that_change_need_few_shapes(tmp_path, monkeypatch, name, temperature):
    """Texts below 512 tokens by a controller that jumps between budgets: twelve shapes recur."""
    monkeypatch.setattr("hierspec.config.build.trunk_for", lambda *args, **_: CudaGraphTrunk(*args))
    monkeypatch.setattr(quantized, "quantize", lambda model, bits, *_: DeviceCopy(model, bits))
    long = {"max_position_embeddings": 2048, "layers": 3}
    target, draft = (save_tiny("llama", tmp_path / part, seed=3, **long) for part in "ab")
    lower, upper = (
        {"method": "early_exit", "exit_layer": layer, "num_speculative_tokens": budget}
        for layer, budget in ((1, 3), (2, 8))
    )
    levels = {
        "draft model": [model(str(draft), 12)],
        "copy": [{"method": "quantized", "num_speculative_tokens": 12}],
        "exits": [lower, {**upper, "verify": "block"}],
    }[name]
    hierarchy = built({"target": str(target)}, {"levels": levels}, "cpu", backend="lean")
    one, two = [(n,) for n in range(13)], [(a, b) for a in (0, 3) for b in (1, 3, 8)]
    budgets = one if len(levels) == 1 else two
    hierarchy.controller = JumpingController(hierarchy.root, budgets)
    options = {"max_new_tokens": 456, "ignore_eos": True, "temperature": temperature, "seed": 1}
    assert len(hierarchy.generate(list(range(3, 43)), **options).token_ids) == 456
    kept = {id(node.model.graphs): node.model.graphs for node in walk_levels(hierarchy.root)}
    recurring = [
        key for graphs in kept.values() for key, call in graphs._calls.items() if call._runs > 2
    ]
    assert len(recurring) <= 12, recurring


def test_room_for_an_announced_text_is_made_before_it_grows(backend, fixed):
    trunk = fixed()
    trunk.reserve(400)
    slot, text = trunk.open(), [1, 2, 3]
    trunk.exit_model(0).score([Query(slot, Context(text), 3)])
    address = trunk.arena.cache.data_ptr()
    trunk.exit_model(0).score([Query(slot, Context([*text, *[5] * 397]), 400)])
    assert trunk.arena.cache.data_ptr() == address
    assert trunk.arena.capacity % 16 == 0


def test_an_arena_that_grows_where_recordings_were_discards_them_once(fixed, monkeypatch):
    trunk = fixed()
    first = trunk.open()
    trunk.exit_model(0).score([Query(first, Context([1, 2]), 2)])
    cleared, real = [], trunk.arena._new_tensors

    def out_of_memory(*args):
        if not cleared:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return real(*args)

    monkeypatch.setattr(trunk.arena, "_new_tensors", out_of_memory)
    trunk.arena.on_move = lambda: cleared.append(trunk.arena._num_rows)
    trunk.exit_model(0).score([Query(trunk.open(), Context([1] * 4), 4)])
    assert cleared == [1]
    assert (first.state.row, trunk.arena._num_rows) == (0, 2)


def test_a_draft_that_is_not_recorded_keeps_no_row(backend):
    trunk = CudaGraphTrunk(backend)
    slot = trunk.open()
    query = Query(slot, Context([4, 8, 15]), 3)
    trunk.exit_model(0).draft([query], [2], [READINGS[2]], [[0.3, 0.9]])
    trunk.close(slot)
    del query, slot
    gc.collect()
    assert 0 in trunk.arena._free


def test_a_compacted_slot_gives_its_row_back(backend, fixed):
    """Texts that are kept for their prefixes take memory by their tokens, as is counted."""
    trunk = fixed()
    model, text = trunk.exit_model(0), [1, 2, 3, 4, 5]
    kept, live = trunk.open(), trunk.open()
    wanted = model.score([Query(kept, Context(text), 1)])
    trunk.compact(kept)
    assert kept.state.cache.shape[3] == 16
    found = model.score([Query(live, Context(text), 1)])
    assert torch.equal(found, wanted)
    assert (live.state.row, trunk.arena._num_rows) == (0, 1)
    more = [*text, 6, 7]
    found = model.score([Query(kept, Context(more), len(more))])
    assert (kept.state.row, trunk.arena._num_rows) == (1, 2)
    wanted = model.score([Query(live, Context(more), len(more))])
    torch.testing.assert_close(found, wanted)


def test_the_whole_text_is_announced_before_its_prompt_is_read(backend, monkeypatch, tmp_path):
    announced = []
    monkeypatch.setattr(
        Trunk, "reserve", lambda trunk, length: announced.append(length), raising=False
    )
    path = save_tiny("llama", tmp_path / "target", seed=3, layers=3)
    hierarchy = built({"target": str(path)}, {"levels": []}, "cpu")
    hierarchy.generate([3, 4, 5, 6, 7], max_new_tokens=30, ignore_eos=True)
    assert announced == [35]


def test_shapes_share_memory_for_what_is_read_before_the_next_call():
    device = torch.device("cpu")
    graphs = Graphs(device)
    sizes = [(1, 1, 64), (1, 8, 64), (4, 8, 64), (2, 8, 64), (4, 1, 64)]
    first = [graphs.buffer("scores", size, torch.float32, device) for size in sizes]
    again = [graphs.buffer("scores", size, torch.float32, device) for size in sizes]
    assert [x.data_ptr() for x in first] == [x.data_ptr() for x in again]
    kept = graphs._buffers["scores", torch.float32, device]
    assert sum(memory.numel() for memory in kept) <= 2 * 4 * 8 * 64
    other = graphs.buffer("probs", (1, 1, 64), torch.float32, device)
    assert other.data_ptr() not in {x.data_ptr() for x in first}
