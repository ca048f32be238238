"""`model.generate(custom_generate=...)` against transformers' own loop, token for token."""

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    LogitsProcessor,
    LogitsProcessorList,
    StoppingCriteria,
    StoppingCriteriaList,
)

import hierspec

LEVELS = [
    {"method": "early_exit", "exit_layer": 1, "num_speculative_tokens": 2},
    {"method": "early_exit", "exit_layer": 2, "num_speculative_tokens": 4, "verify": "block"},
]


@pytest.fixture(scope="module")
def model(tiny_family):
    model = AutoModelForCausalLM.from_pretrained(tiny_family["target"], dtype=torch.float64)
    model.generation_config.pad_token_id = 0
    return model.eval()


def both(model, ids, **options):
    plain = model.generate(ids, **options)
    fast = model.generate(
        ids, custom_generate=hierspec.custom_generate, hierarchy=LEVELS, **options
    )
    return plain, fast


def test_greedy_equals_generate(model):
    ids = torch.tensor([[5, 9, 7, 22]])
    plain, fast = both(model, ids, max_new_tokens=40, do_sample=False)
    assert torch.equal(plain, fast)


def test_left_padded_batches_end_each_in_its_own_time(model):
    ids = torch.tensor([[0, 0, 5, 9], [11, 4, 4, 30], [0, 60, 2, 8]])
    mask = (torch.arange(4) >= torch.tensor([[2], [0], [1]])).long()
    eos = int(model.generate(ids[1:2], max_new_tokens=9, do_sample=False)[0, -1])
    options = {"attention_mask": mask, "max_new_tokens": 25, "do_sample": False}
    plain, fast = both(model, ids, **options, eos_token_id=[eos, 2])
    assert torch.equal(plain, fast)


def test_processors_and_criteria_see_every_token(model):
    class NoRepeat(LogitsProcessor):
        def __call__(self, input_ids, scores):
            scores = scores.clone()
            scores[:, input_ids[0, -1]] = -torch.inf
            return scores

    class Enough(StoppingCriteria):
        def __call__(self, input_ids, scores, **_):
            return torch.tensor([int(row[-1]) % 7 == 3 for row in input_ids])

    ids = torch.tensor([[5, 9, 7, 22]])
    plain, fast = both(
        model,
        ids,
        max_new_tokens=40,
        do_sample=False,
        repetition_penalty=1.3,
        logits_processor=LogitsProcessorList([NoRepeat()]),
        stopping_criteria=StoppingCriteriaList([Enough()]),
    )
    assert torch.equal(plain, fast)


def test_sampling_is_seeded_and_returns_several(model):
    ids = torch.tensor([[5, 9, 7, 22]])
    options = {
        "max_new_tokens": 12,
        "do_sample": True,
        "num_return_sequences": 3,
        "temperature": 0.8,
        "top_k": 20,
        "custom_generate": hierspec.custom_generate,
        "hierarchy": LEVELS,
    }
    a, b = (model.generate(ids, seed=4, **options) for _ in range(2))
    assert torch.equal(a, b)
    assert a.shape[0] == 3
    assert not torch.equal(a[0], a[1])
    torch.manual_seed(1)
    c = model.generate(ids, **options)
    torch.manual_seed(1)
    assert torch.equal(c, model.generate(ids, **options))


def test_streamer_and_output_object(model):
    class Collect:
        def __init__(self):
            self.got, self.ended = [], False

        def put(self, value):
            self.got += value.flatten().tolist()

        def end(self):
            self.ended = True

    streamer = Collect()
    ids = torch.tensor([[5, 9, 7, 22]])
    out = model.generate(
        ids,
        custom_generate=hierspec.custom_generate,
        hierarchy={"levels": LEVELS, "verify": "tokenwise"},
        token_streamer=streamer,
        max_new_tokens=10,
        do_sample=False,
        return_dict_in_generate=True,
    )
    assert streamer.ended
    assert streamer.got == out.sequences[0].tolist()  # the prompt first, as generate does


def test_what_is_no_next_token_law_is_refused_by_name(model):
    ids = torch.tensor([[5, 9]])
    with pytest.raises(ValueError, match="beam search"):
        model.generate(ids, custom_generate=hierspec.custom_generate, hierarchy=LEVELS, num_beams=2)
    with pytest.raises(ValueError, match="say which levels"):
        model.generate(ids, custom_generate=hierspec.custom_generate, max_new_tokens=3)
