"""A token tree in one call scores as its paths do one by one, and what is accepted is kept."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from eagle3_cases import LAYERS, save_drafter
from heads_cases import random_head
from installed import LAB
from tiny_models import save_tiny, tiny_config
from transformers import GPTNeoConfig, GPTNeoForCausalLM
from work import Work

from hierspec.core.context import Context
from hierspec.errors import HierspecError
from hierspec.lm.base import Query, takes_trees
from hierspec.lm.eagle3 import checkpoint
from hierspec.lm.eagle3.model import Eagle3Model
from hierspec.lm.exit_heads import KINDS, MLP
from hierspec.lm.hf.decoder import HFBackend
from hierspec.lm.lean.decoder import LeanBackend
from hierspec.lm.load import load
from hierspec.lm.native import library
from hierspec.lm.native.backend import NativeBackend
from hierspec.lm.tabular import TabularModel
from hierspec.lm.trees import Branches, Tree
from hierspec.lm.trunk.cuda_graphs import CudaGraphTrunk
from hierspec.lm.trunk.self_draft import SelfDraft
from hierspec.lm.trunk.trunk import Trunk
from hierspec.lm.weights import from_directory
from hierspec.methods.quantized import quantize

if LAB:
    from hierspec_lab.methods.adaptive_exit.model import AdaptiveExit
    from hierspec_lab.methods.layer_skip.skipping import SkippingBackend


V = 90


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trees")
    return lambda family, **kw: save_tiny(family, folder / family, seed=1, layers=4, **kw)


FAMILIES = (
    *("llama", "hf llama", "mistral", "hf mistral", "gemma2", "opt", "gpt2", "deepseek_v3"),
    *("bloom", "falcon_alibi", "gpt_neo"),
)
OTHERS = (
    *(("adaptive llama", "skipping") if LAB else ()),
    *("fixed shapes", "eagle3", "eagle3 on hf", "table"),
    *("single llama", "single mistral"),  # several sequences' attention in the kernels
    *("bit-exact llama", "bit-exact mistral", "bit-exact qwen3"),
)
needs_kernels = pytest.mark.skipif(library.load() is None, reason="no C compiler here")


@pytest.fixture(params=[*FAMILIES, *OTHERS])
def models(request, saved, tmp_path) -> list[Any]:
    """Models that share slots: the target, an exit of it, and a drafter on its states."""
    kind = request.param
    if kind == "table":
        return [TabularModel.random(V + 10, 1, torch.Generator().manual_seed(0))]
    how, _, own = kind.rpartition(" ")
    if own == "gpt_neo":
        path = save_gpt_neo(tmp_path)
    else:
        path = saved(own if own in (*FAMILIES, "qwen3") else "llama")
    if how == "bit-exact":
        if library.load() is None:
            pytest.skip("no C compiler here")
        trunk: Trunk = Trunk(load(path, torch.float32, backend="deterministic"), LAYERS)
        trunk.chunk = 16
    elif kind == "fixed shapes":
        trunk = CudaGraphTrunk(LeanBackend(from_directory(path), torch.float64), [1, 2])
    elif kind == "skipping":
        trunk = Trunk(SkippingBackend(load(path), [1]), [1, 2])
    else:
        single = how == "single" or kind in ("deepseek_v3", "gpt_neo")
        dtype = torch.float32 if single else torch.float64
        exits = [*LAYERS, 2] if "eagle3" in kind else [1, 2]
        trunk = Trunk(load(path, dtype, backend="hf" if "hf" in kind else "auto"), exits)
        trunk.chunk = 16
    found: list[Any] = [trunk.view(), trunk.view(2)]
    if kind == "bit-exact llama":
        found += [trunk.view(2, random_head(one, trunk.backend, one == MLP)) for one in KINDS]
    if "eagle3" in kind or kind == "bit-exact llama":
        drafter = save_drafter(tmp_path / "eagle3", tiny_config("llama", layers=4))
        found.append(Eagle3Model(trunk, checkpoint.read_network(drafter), LAYERS, "eagle3"))
    if kind == "adaptive llama":
        # Of their rows a third is the first exit's, a third the second's, a third the target's.
        found.append(AdaptiveExit([trunk.view(n) for n in (1, 2, 4)], 0.2, "adaptive"))
    return found


def copied(kind: str, saved: Any) -> SelfDraft:
    """A cheaper form of a target that drafts on its cache."""
    own = kind.rpartition(" ")[2]
    backend: Any = load(
        saved(own if own in FAMILIES else "llama"),
        torch.float32 if "bits" in kind else torch.float64,
        backend="hf" if "hf" in kind else "lean" if "torch" in kind else "auto",
    )
    form = quantize(backend, int(kind[0])) if "bits" in kind else SkippingBackend(backend, [1])
    trunk = Trunk(backend, [2])
    trunk.chunk = 16
    return SelfDraft(trunk, form)


def save_gpt_neo(folder: Any) -> str:
    """Every other layer attends to the last eight tokens, by a triangle of the library's own."""
    config = GPTNeoConfig(
        vocab_size=V + 6,
        hidden_size=32,
        num_layers=4,
        num_heads=2,
        attention_types=[[["global", "local"], 2]],
        window_size=8,
        max_position_embeddings=96,
    )
    torch.manual_seed(0)
    model = GPTNeoForCausalLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    model.save_pretrained(folder / "gpt_neo")
    return str(folder / "gpt_neo")


def one_by_one(model: Any, text: list[int], tree: Tree, start: int) -> torch.Tensor:
    """The rows of a tree query, each path asked in a fresh slot."""
    rows = []
    for end in range(start, len(text) + 1):
        rows.append(model.score([Query(model.open(), Context(text[:end]), end)]))
    for path in tree.paths()[max(start - len(text) - 1, 0) :]:
        context = Context(text, path)
        rows.append(model.score([Query(model.open(), context, len(context))]))
    return torch.cat(rows)


def random_tree(rng: random.Random, most: int) -> Tree:
    drafts = [[rng.randrange(3, V) for _ in range(rng.randint(1, most))] for _ in range(3)]
    drafts.append([*drafts[0][:1], rng.randrange(3, V), rng.randrange(3, V)][: rng.randint(1, 3)])
    return Tree.merge(drafts)[0]


def test_trees_score_as_their_paths_do_and_what_is_accepted_stays(models):
    rng = random.Random(3)
    assert all(takes_trees(model) for model in models)
    same_bits = isinstance(getattr(models[0].cache_owner, "backend", None), NativeBackend)
    owner = models[0].cache_owner
    slots = [owner.open(), owner.open()]
    texts = [[rng.randrange(3, V) for _ in range(n)] for n in (21, 5)]
    for _ in range(4):
        for model in rng.sample(models, len(models)):
            trees = [random_tree(rng, 4), random_tree(rng, 3)]
            alone = rng.randrange(3)  # sometimes one of the two asks for a plain row
            queries = [
                Query(
                    slot,
                    Context(text),
                    max(1, len(text) - rng.randrange(3)) if i == alone else len(text),
                    tree=None if i == alone else tree,
                )
                for i, (slot, text, tree) in enumerate(zip(slots, texts, trees, strict=True))
            ]
            found = model.score(queries)
            wanted = torch.cat(
                [one_by_one(model, list(q.context), q.tree or Tree(), q.start) for q in queries]
            )
            assert found.shape == wanted.shape
            # Gemma's norms and BLOOM's softmax are in float32 whatever the weights are.
            single = found.dtype == torch.float32 or any(
                name in model.name for name in ("gemma2", "bloom")
            )
            tolerance = 2e-4 if single else 1e-9
            assert torch.allclose(found, wanted, atol=tolerance, rtol=tolerance)
            if same_bits:
                assert torch.equal(found, wanted)
        for i, tree in enumerate(trees):  # a path is accepted, and a token of the model's own
            path = rng.choice([(), *tree.paths()])
            texts[i] += [*path, rng.randrange(3, V)]


@pytest.mark.parametrize(
    "kind",
    [
        *(
            pytest.param(f"{bits} bits {family}", marks=needs_kernels)
            for family in ("llama", "mistral", "qwen3")
            for bits in (8, 4)
        ),
        "8 bits of torch",
        *(("without a layer", "hf without a layer") if LAB else ()),
    ],
)
def test_a_draft_on_the_targets_cache_grows_trees_there(saved, kind):
    """The target checks what was drafted, and a path of it is kept for both."""
    model, rng = copied(kind, saved), random.Random(5)
    target = model.trunk.view()
    tree_slots, line_slots = ([model.open(), model.open()] for _ in range(2))
    texts = [[rng.randrange(3, V) for _ in range(n)] for n in (21, 5)]
    assert takes_trees(model)
    for _ in range(5):
        trees = [random_tree(rng, 4), random_tree(rng, 3)]
        for slot, line, text in zip(tree_slots, line_slots, texts, strict=True):
            for one in (slot, line):  # the last token is one that the target has not seen
                target.score([Query(one, Context(text[:-1]), len(text) - 1)])
        depths = [[len(path) for path in tree.paths()] for tree in trees]
        for depth in range(max(map(max, depths)) + 1):  # one more of their tokens a call
            queries, wanted = [], []
            for i, (tree, text) in enumerate(zip(trees, texts, strict=True)):
                paths = [path for path in tree.paths() if len(path) <= depth]
                part, _ = Tree.merge(paths)
                asked = [path for path in part.paths() if len(path) == depth] if depth else [()]
                start = len(text) + len(part) - len(asked) + 1
                if asked:
                    queries.append(Query(tree_slots[i], Context(text), start, tree=part or None))
                for path in asked:
                    line = Context(text, path)
                    wanted.append(model.score([Query(line_slots[i], line, len(line))]))
            found = model.score(queries)
            tolerance = 1e-9 if found.dtype == torch.float64 else 2e-4
            if kind.startswith("4"):
                tolerance = 5e-3  # rounded inputs make much of the last digits before
            assert torch.allclose(found, torch.cat(wanted), atol=tolerance, rtol=tolerance)
        for i, (slot, tree) in enumerate(zip(tree_slots, trees, strict=True)):
            query = Query(slot, Context(texts[i]), len(texts[i]), tree=tree)
            own, line = target.score([query]), one_by_one(target, texts[i], tree, len(texts[i]))
            tolerance = 1e-9 if own.dtype == torch.float64 else 2e-4
            assert torch.allclose(own, line, atol=tolerance, rtol=tolerance)
            texts[i] += [*rng.choice([(), *tree.paths()]), rng.randrange(3, V)]


def test_what_a_draft_on_the_targets_cache_has_computed_of_a_path_is_kept(saved):
    """A level between two others checks a tree, and goes on after the path it has accepted."""
    model, text = copied("8 bits of torch", saved), [5, 6, 7, 8]
    slot, tree = model.open(), Tree.merge([[9, 10], [11, 12]])[0]
    model.score([Query(slot, Context(text), len(text), tree=tree)])
    done, longer = Work(model), [*text, 11, 12, 13]
    row = model.score([Query(slot, Context(longer), len(longer))])
    assert done.tokens == [1]
    assert torch.allclose(row, model.score([Query(model.open(), Context(longer), 7)]), atol=1e-5)


def test_a_tree_grows_in_its_slot_and_only_what_is_new_is_computed(saved):
    trunk = Trunk(load(saved("llama"), torch.float64))
    model, slot, text = trunk.view(), trunk.open(), [5, 6, 7, 8]
    tree, _ = Tree.merge([[9, 10], [9, 11], [12, 13]])
    small, _ = Tree.merge([[9], [12]])
    model.score([Query(slot, Context(text), len(text), tree=small)])
    done = Work(trunk)
    rows = model.score([Query(slot, Context(text), len(text) + 3, tree=tree)])
    assert done.tokens == [3]  # of five nodes two were there
    assert torch.allclose(rows, one_by_one(model, text, tree, len(text) + 3), atol=1e-9)
    done, longer = Work(trunk), [*text, 9, 11, 40]
    row = model.score([Query(slot, Context(longer), len(longer))])
    assert done.tokens == [1]  # the path's keys and values moved along
    fresh = model.score([Query(trunk.open(), Context(longer), len(longer))])
    assert torch.allclose(row, fresh, atol=1e-9)


@pytest.mark.parametrize("then", ["fork", "rewind", "follow", "grow", "interrupt"])
def test_a_slot_with_branches_may_be_used_in_any_other_way(saved, then, monkeypatch):
    trunk = Trunk(load(saved("llama"), torch.float64), [2])
    model, slot, text = trunk.view(), trunk.open(), [5, 6, 7, 8]
    tree, _ = Tree.merge([[9, 10], [11, 12]])
    model.score([Query(slot, Context(text), len(text), tree=tree)])
    longer = [*text, 11, 12, 13]
    if then == "fork":
        slot = trunk.fork(slot, 4)
    elif then == "rewind":
        trunk.rewind(slot, 3)
    elif then == "follow":
        scores, after = model.score_stepwise([Query(slot, Context(longer[:5]), 5)], [3])
        scores = torch.cat([scores, after([0], [12]), after([0], [13])])
        wanted = [model.score([Query(trunk.open(), Context(longer[:n]), n)]) for n in (5, 6, 7)]
        assert torch.allclose(scores, torch.cat(wanted), atol=1e-9)
    elif then == "grow":
        trunk.make_room(slot, slot.state.capacity + 1)
    else:
        moved = trunk.backend.move

        def fails(*arguments: Any) -> None:
            moved(*arguments)
            raise KeyboardInterrupt

        monkeypatch.setattr(trunk.backend, "move", fails)
        with pytest.raises(KeyboardInterrupt):
            model.score([Query(slot, Context(longer), 5)])
        monkeypatch.setattr(trunk.backend, "move", moved)
    row = model.score([Query(slot, Context(longer), 5)])
    assert torch.allclose(row, model.score([Query(trunk.open(), Context(longer), 5)]), atol=1e-9)


def test_room_that_could_not_be_made_leaves_nothing_to_move(saved, monkeypatch):
    """Nodes are noted before there is room for them; what was never computed is not moved."""
    trunk = Trunk(load(saved("llama"), torch.float64))
    model, slot, text = trunk.view(), trunk.open(), [5, 6, 7, 8]
    small, _ = Tree.merge([[9]])
    model.score([Query(slot, Context(text), len(text), tree=small)])
    large, _ = Tree.merge([[9, 10, 11, 12], [13, 14, 15]])
    make_room = trunk.make_room

    def fails(*_: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(trunk, "make_room", fails)
    with pytest.raises(MemoryError):
        model.score([Query(slot, Context(text), len(text), tree=large)])
    monkeypatch.setattr(trunk, "make_room", make_room)
    longer = [*text, 13, 14, 15]
    row = model.score([Query(slot, Context(longer), len(longer))])
    fresh = model.score([Query(trunk.open(), Context(longer), len(longer))])
    assert torch.allclose(row, fresh, atol=1e-9)


def test_a_path_longer_than_the_model_can_take_is_refused(saved):
    model = Trunk(load(saved("llama"))).view()
    text = [5] * (model.max_length - 1)
    tree, _ = Tree.merge([[6, 7], [8]])
    with pytest.raises(HierspecError, match="exceed the longest context"):
        model.score([Query(model.open(), Context(text), len(text), tree=tree)])


def test_layers_with_masks_and_forwards_of_their_own_take_no_trees(tmp_path):
    """GPT-Neo's attention slices a triangle by the number of keys: a stand-in has another one."""
    backend: Any = load(save_gpt_neo(tmp_path))
    assert backend.trees
    attention = backend.modules[1].attn.attention
    attention.forward = attention.forward  # as hooks of other libraries do it
    assert not HFBackend(backend.model).trees


def test_a_tree_of_drafts():
    tree, paths = Tree.merge([[1, 2, 3], [1, 4], [], [1, 2, 5], [6]])
    assert tree.tokens == (1, 6, 2, 4, 3, 5)
    assert tree.parents == (-1, -1, 0, 0, 2, 2)
    assert paths == [[0, 2, 4], [0, 3], [], [0, 2, 5], [1]]
    assert tree.depth == 3
    assert tree.paths()[5] == (1, 2, 5)
    held = Branches(10)
    assert held.tokens == []
    assert held.add(tree) == [0, 1, 2, 3, 4, 5] == held.add(tree)
    assert held.longest_path([1, 2, 9]) == [0, 2]
    assert held.positions(9, 4) == [9, 10, 10, 11]
    assert held.attention_mask(15, 1)[0].nonzero().flatten().tolist() == [*range(10), 10, 12, 15]
    assert held.attention_mask(15, 1, window=2)[0].nonzero().flatten().tolist() == [12, 15]
