"""A seeded text is the same alone and in any company, on every path that a draft may take."""

from __future__ import annotations

import pytest
import tape
import torch
from installed import LAB, installed
from stacks import PROMPTS, built, model, stacks

from hierspec import Hierarchy, SamplingParams
from hierspec.core.rng import PhiloxRng
from hierspec.drafters import model as drafting
from hierspec.engine.control import levels_below
from hierspec.engine.observers import Observer
from hierspec.exact.cases import JumpingController
from hierspec.lm.trunk.cuda_graphs import CudaGraphTrunk
from hierspec.planner.estimates import Chain, ideal
from hierspec.planner.online.controller import OnlineController
from hierspec.sampling import sampler as readings


def no_repeat(ids, scores):
    scores = scores.clone()
    scores[:, ids[0, -1]] = -torch.inf
    return scores


KINDS = {
    "as it is": SamplingParams(temperature=1.0),
    "cold": SamplingParams(temperature=0.4),
    "hot": SamplingParams(temperature=1.7),
    "greedy": SamplingParams(temperature=0.0),
    "truncated": SamplingParams(temperature=1.0, top_k=5, top_p=0.9),
    "penalised": SamplingParams(temperature=1.0, repetition_penalty=1.3),
    "biased": SamplingParams(temperature=1.0, logit_bias=((3, 2.0),)),
    "processed": SamplingParams(temperature=1.0, logits_processors=(no_repeat,)),
}


def hierarchies(family):
    """What :func:`stacks.stacks` has, and windows of every kind and place."""
    found = stacks(family)
    entropy = {"kind": "entropy", "threshold": 2.0}
    pool = {"method": "ngram_pool", "num_speculative_tokens": 3, "shared": True}
    exit_2 = {"method": "early_exit", "exit_layer": 2, "num_speculative_tokens": 6}
    found["running window"] = {"levels": [model(family["draft"], 7, window={"kind": "entropy"})]}
    found["fixed threshold"] = {"levels": [model(family["draft"], 7, window=entropy)]}
    found["greedy level, window"] = {
        "levels": [model(family["draft"], 7, window=entropy, temperature=0.0)]
    }
    found["exit, window"] = {"levels": [{**exit_2, "window": {"kind": "confidence", "floor": 0.1}}]}
    found["shared pool"] = {"levels": [pool]}
    found["shared pool, then a draft"] = {
        "levels": [{"method": "concatenate", "parts": [[pool], [model(family["draft"], 6)]]}]
    }
    return installed(found)


WINDOWS = ["windows", "running window", "fixed threshold", "greedy level, window", "exit, window"]
NAMES = [name for name in hierarchies({"draft": "", "small": ""}) if name not in WINDOWS]
# Windows part the paths; a recording changes no path, and takes long to make.
CASES = [
    *(("ordinary", name) for name in (*NAMES, "windows")),
    *(("fixed shapes", name) for name in ("three levels", "several drafts", *WINDOWS)),
    ("recorded", "fixed threshold"),
]


@pytest.fixture
def path(request, monkeypatch):
    if request.param != "ordinary":
        monkeypatch.setattr(
            "hierspec.config.build.trunk_for", lambda *args, **_: CudaGraphTrunk(*args)
        )
    if request.param == "recorded":
        tape.install(monkeypatch)
        monkeypatch.setattr("hierspec.utils.graphs._TRIALS", 1)
        monkeypatch.setattr(readings, "_nucleus", readings._nucleus_by_bins)
    return request.param


def recorded(hierarchy: Hierarchy) -> None:
    """Let the graphs of its models believe that they are on a GPU."""
    for node in [hierarchy.root, hierarchy.root.below]:
        graphs = getattr(getattr(node, "model", None), "graphs", None)
        if graphs is not None:
            graphs.device = torch.device("cuda")


def rows(hierarchy, prompts, kinds, seed):
    options = {"max_new_tokens": 10, "ignore_eos": True, "seed": seed}
    sampling = [KINDS[kind] for kind in kinds]
    results = hierarchy.generate_batch(prompts, sampling=sampling, **options)
    return [result.token_ids for result in results]


@pytest.mark.parametrize(("path", "name"), CASES, indirect=["path"])
def test_a_seeded_row_is_the_same_alone_and_in_any_company(tiny_family, path, name):
    hierarchy = built(tiny_family, hierarchies(tiny_family)[name], "cpu", "float64")
    if path == "recorded":
        recorded(hierarchy)

    kinds, number = list(KINDS), CASES.index((path, name))
    for seed in range(4):  # every case has four kinds of its own, and other neighbours for each
        first, *company = (kinds[(number + step) % 8] for step in (2 * seed, 3 * seed + 1, 5))
        company = company[: 1 + seed % 2]
        alone = rows(hierarchy, PROMPTS[:1], [first], seed)
        together = rows(hierarchy, PROMPTS[: 1 + len(company)], [first, *company], seed)
        assert together[:1] == alone, (first, company, seed)


def jumping(root):
    several = len(levels_below(root)) > 1
    return JumpingController(
        root, [[2, 3], [0, 2], [0, 0], [4, 0], [1, 1]] if several else [[3], [0], [1]]
    )


def online(root):
    num = len(levels_below(root)) + 1
    costs = (0.4, 3.0, 11.0)[-num:]
    rates = [[0.0 if j <= i else 0.8 for j in range(num)] for i in range(num)]
    budgets = tuple(node.budget for node in levels_below(root))
    controller = OnlineController(root, ideal(costs, rates), Chain((*range(num),), budgets))
    controller.first_wait = 2
    return controller


@pytest.mark.parametrize(
    ("path", "name", "controller"),
    [
        ("ordinary", "three levels", jumping),
        ("ordinary", "windows", online),
        ("ordinary", "early exits", jumping),
        *[("ordinary", "leading", online)] * LAB,
        ("ordinary", "several drafts", jumping),
        ("fixed shapes", "three levels", online),
        ("fixed shapes", "windows", jumping),
        ("fixed shapes", "fixed threshold", online),
    ],
    indirect=["path"],
)
def test_a_seeded_row_under_a_controller_is_the_same_in_any_company(
    tiny_family, path, name, controller
):
    """Every sequence follows a plan of its own, and writes its own text."""
    plain = built(tiny_family, hierarchies(tiny_family)[name], "cpu", "float64")
    steered = built(tiny_family, hierarchies(tiny_family)[name], "cpu", "float64")
    steered.controller = controller(steered.root)
    options = {"max_new_tokens": 16, "ignore_eos": True}
    apart = False
    for company in (["as it is", "hot", "greedy"], ["cold", "truncated", "penalised"]):
        sampling = [KINDS[kind] for kind in company]
        greedy = [i for i, parameters in enumerate(sampling) if parameters.greedy]
        expected = [
            plain.generate(PROMPTS[i], sampling=sampling[i], **options).token_ids for i in greedy
        ]
        for seed in range(2):
            together = steered.generate_batch(PROMPTS[:3], sampling=sampling, seed=seed, **options)
            alone = steered.generate(PROMPTS[0], sampling=sampling[0], seed=seed, **options)
            assert together[0].token_ids == alone.token_ids
            assert together[0].control == alone.control
            assert [together[i].token_ids for i in greedy] == expected
            apart = apart or any(one.control != alone.control for one in together)
    assert apart, "some sequences followed other plans"


def test_checks_of_other_plans_share_the_targets_calls(tiny_family):
    steered = built(tiny_family, hierarchies(tiny_family)["three levels"], "cpu", "float64")
    steered.controller = jumping(steered.root)
    plans = []

    class Watching(Observer):
        def on_round_begin(self, sequences):
            plans.append({sequence.root for sequence in sequences})

    generation = steered.start(
        PROMPTS[:3],
        max_new_tokens=24,
        ignore_eos=True,
        seed=1,
        temperature=1.0,
        observers=[Watching()],
    )
    for _ in generation:
        pass
    assert any(len(one) > 1 for one in plans)
    rounds = max(result.target_calls for result in generation.results())
    assert generation.results()[0].target["calls"] == rounds == len(plans) - 1  # the prompt's own


@pytest.mark.parametrize("budget", [3, 4, 6, 9])
def test_both_ways_of_drafting_leave_the_dice_alike(tiny_family, monkeypatch, budget):
    """After every draft of a window's, whether the model drafted by itself or not."""
    monkeypatch.setattr("hierspec.config.build.trunk_for", lambda *args, **_: CudaGraphTrunk(*args))
    window = {"kind": "entropy", "threshold": 2.5}
    config = {"levels": [model(tiny_family["draft"], budget, window=window)]}
    hierarchy = built(tiny_family, config, "cpu", "float64")
    way, taken = [], []
    take = PhiloxRng.take

    def counting(self, n):
        taken.append(n)
        return take(self, n)

    monkeypatch.setattr(PhiloxRng, "take", counting)
    for function in ("grow_on_device", "grow"):
        real = getattr(drafting.ModelDrafter, function)

        def watched(self, *args, real=real, function=function):
            before = sum(taken)
            real(self, *args)
            (one,) = next(each for each in args if isinstance(each, list))
            draft = one if function == "grow" else one[0]  # beside its sampler
            way.append((function, draft.tokens, sum(taken) - before))

        monkeypatch.setattr(drafting.ModelDrafter, function, watched)
    together = []
    for shared in (True, False):
        with monkeypatch.context() as patch:
            if not shared:
                patch.setattr(drafting, "shared_sampler", lambda jobs: None)
            rows(hierarchy, PROMPTS[:1], ["as it is"], 7)
        together.append([(tokens, spent) for _, tokens, spent in way])
        assert {function for function, *_ in way} == {"grow_on_device" if shared else "grow"}
        way.clear()
    assert together[0] == together[1]
    assert any(spent > len(tokens) for tokens, spent in together[0]), (
        "some uniforms are thrown away"
    )
