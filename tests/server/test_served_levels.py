"""Every kind of level behind the service: texts are those of plain decoding, alone and mixed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from eagle3_cases import save_drafter
from estimate_cases import estimates
from server_cases import asking, completions
from transformers import AutoConfig, AutoModelForCausalLM

from hierspec import Hierarchy
from hierspec.config.build import build
from hierspec.config.checkpoints import Loaded
from hierspec.config.schema import HierarchyConfig
from hierspec.planner.estimates import Chain
from hierspec.planner.online.controller import OnlineController
from hierspec.server.app import create_app
from hierspec.server.settings import ServeSettings

INT8 = {"method": "quantized", "num_speculative_tokens": 3}
LOOK_UP = {"method": "prompt_lookup", "num_speculative_tokens": 2}
EXIT = {"method": "early_exit", "exit_layer": 1, "num_speculative_tokens": 2}
BODIES = [
    {
        "prompt": f"{'the ' * (i % 4)}number {i % 3} on {'in the ' * (7 * (i % 2))}",
        "max_tokens": 6 + i % 7,
        "ignore_eos": True,
    }
    for i in range(12)
]


@pytest.fixture(scope="module")
def hierarchies(family, tmp_path_factory):
    """Hierarchies over one target, by name of their levels."""
    config = AutoConfig.from_pretrained(family["target"])
    drafter = save_drafter(tmp_path_factory.mktemp("eagle3"), config, max_position_embeddings=2048)
    eagle3 = {"method": "eagle3", "model": str(drafter), "num_speculative_tokens": 3}
    chains = {
        "quantized": [INT8],
        "quantized above a look-up": [LOOK_UP, {**INT8, "num_speculative_tokens": 4}],
        "eagle3": [eagle3],
        "eagle3 below an exit": [eagle3, {**EXIT, "exit_layer": 2, "num_speculative_tokens": 5}],
    }
    target = {"model": family["target"], "dtype": "float32"}
    return lambda name, rule="block": Hierarchy.from_config(
        {"target": target, "levels": chains[name], "verify": rule}
    )


def words(answers):
    return [answer["choices"][0]["text"] for answer in answers]


def served(hierarchy, **settings):
    chosen = ServeSettings(served_model_name="tiny", prefill_chunk=8, **settings)
    return create_app(chosen, {"default": hierarchy})


@pytest.mark.parametrize(
    "name", ["quantized", "quantized above a look-up", "eagle3", "eagle3 below an exit"]
)
def test_greedy_texts_are_those_of_plain_decoding(hierarchies, name):
    models = hierarchies(name)
    bodies = [{**body, "temperature": 0} for body in BODIES]
    plain = [{**body, "speculative": False} for body in bodies]
    wanted = words(completions(served(models, prefix_caching=False), plain, together=False))
    assert len(set(wanted)) > 6
    alone = completions(served(models), bodies, together=False)
    assert words(alone) == wanted
    # Some have no drafts, while the service tries what pays.
    drafted = [one["speculative"]["levels"][-1]["num_draft_tokens"] for one in alone]
    assert sum(drafted) > 0
    # Half of them without drafts, all twice: the second time on what is cached of the first.
    mixed = [{**body, "speculative": i % 2 > 0} for i, body in enumerate(bodies)]
    assert words(completions(served(models, max_num_seqs=7), [*mixed, *bodies], True)) == wanted * 2


@pytest.mark.parametrize("name", ["quantized", "eagle3 below an exit"])
def test_names_have_no_folders(hierarchies, family, name):
    models = hierarchies(name)
    (answer,) = completions(served(models), [{**BODIES[0], "seed": 1}], together=False)
    shown = [level["name"] for level in answer["speculative"]["levels"]]
    ends = {"quantized": ["target:int8"]}
    assert shown[-1:] == ends.get(name, ["target@2"])
    assert str(Path(family["target"]).parent) not in json.dumps(answer)


def test_plans_that_a_profile_has_priced_are_not_tried_by_a_request_alone(family):
    levels = [{"method": "draft_model", "model": family["draft"], "num_speculative_tokens": 4}]
    config = {"target": {"model": family["target"], "dtype": "float32"}, "levels": levels}
    known = estimates((1.0, 10.0), [[0.0, 0.8], [0.0, 0.0]])

    def plans(**settings):
        built = build(HierarchyConfig.from_dict(config), Loaded())
        controller = OnlineController(built.root, known, Chain((0, 1), (4,)))
        app = served(Hierarchy(built, controller=controller), **settings)
        body = {**BODIES[0], "max_tokens": 40, "temperature": 0}
        (answer,) = completions(app, [body], together=False)
        assert str(Path(family["target"]).parent) not in json.dumps(answer)
        return answer["speculative"]["plans"]

    assert plans() == plans(adapt_to_load=False)
    assert any(plan.startswith("draft ") for plan in plans())


@pytest.mark.parametrize("name", ["quantized", "eagle3", "eagle3 below an exit"])
def test_a_seed_is_a_seed_whoever_shares_the_service(hierarchies, name):
    models = hierarchies(name)
    bodies = [{**body, "seed": i, "temperature": 0.9} for i, body in enumerate(BODIES)]
    options = {"temperature": 0.9, "ignore_eos": True}
    wanted = [
        models.generate(b["prompt"], max_new_tokens=b["max_tokens"], seed=b["seed"], **options).text
        for b in bodies
    ]
    assert (
        words(completions(served(models, max_num_seqs=7), bodies * 2, together=True)) == wanted * 2
    )


@pytest.mark.parametrize("name", ["quantized", "eagle3"])
def test_under_match_a_seed_gives_plain_decodings_text(hierarchies, name):
    """No draft shows in it: none at all, and drafts that follow the load, write the same."""
    models = hierarchies(name, "match")
    bodies = [{**body, "seed": i, "temperature": 0.9} for i, body in enumerate(BODIES)]
    plain = [{**body, "speculative": False} for body in bodies]
    wanted = words(completions(served(models, prefix_caching=False), plain, together=False))
    assert words(completions(served(models), bodies, together=False)) == wanted
    mixed = [{**body, "speculative": i % 2 > 0} for i, body in enumerate(bodies)]
    assert words(completions(served(models, max_num_seqs=7), [*mixed, *bodies], True)) == wanted * 2
    predicted = [{**body, "prediction": {"content": wanted[i]}} for i, body in enumerate(bodies)]
    assert words(completions(served(models), predicted, together=True)) == wanted


def test_rules_that_are_lossless_greedily_alone_refuse_samples(family):
    level = {"method": "draft_model", "model": family["draft"], "num_speculative_tokens": 3}
    config = {"target": {"model": family["target"], "dtype": "float32"}, "levels": [level]}
    bodies = [{**BODIES[0], "temperature": temperature} for temperature in (0, 1.0)]

    def codes(**more):
        async def work(client):
            return [await client.post("/v1/completions", json=body) for body in bodies]

        answers = asking(
            served(Hierarchy.from_config({**config, "verify": "leading", **more})), work
        )
        return [one.status_code for one in answers], answers[1].text

    found, said = codes()
    assert found == [200, 400]
    assert "changes the distribution of the output" in said
    assert codes(allow_lossy=True)[0] == [200, 200]


def test_a_model_that_has_changed_is_not_served(family):
    model = AutoModelForCausalLM.from_pretrained(family["target"], dtype=torch.float32)
    app = served(Hierarchy(model, drafts=["suffix"]))

    async def work(client):
        first = await client.post("/v1/completions", json=BODIES[0])
        with torch.no_grad():
            model.lm_head.weight.add_(1.0)
        return first, await client.post("/v1/completions", json=BODIES[0])

    first, second = asking(app, work)
    assert (first.status_code, second.status_code) == (200, 400)
    assert "has changed" in second.text


def test_an_answer_counts_alternative_drafts_as_the_service_does(family):
    level = {"method": "draft_model", "model": family["draft"], "num_speculative_tokens": 3}
    config = {
        "target": {"model": family["target"], "dtype": "float32"},
        "levels": [{**level, "num_drafts": 3}],
        "verify": "rrs",
    }
    app = served(Hierarchy.from_config(config), adapt_to_load=False)
    (answer,) = completions(app, [{**BODIES[0], "seed": 1, "temperature": 1.0}], together=False)
    (drafter,) = answer["speculative"]["levels"]
    assert drafter["num_draft_tokens"] > 3 * drafter["num_drafts"], "of three drafts in a tree"
