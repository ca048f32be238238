"""What counts as a model's own scores, by a loop of ours."""

from types import SimpleNamespace

import pytest
import torch

from hierspec.errors import HierspecError
from hierspec.lm.hf.support import validate_scores


def test_half_precision_may_be_far_off_at_one_position_and_not_at_all():
    backend = SimpleNamespace(
        name="m", weight_dtype=torch.bfloat16, config=SimpleNamespace(model_type="llama")
    )
    theirs = torch.full((8, 4), 30.0)
    ours = theirs.clone()
    ours[1] += 2.0
    validate_scores(backend, ours, theirs)
    with pytest.raises(HierspecError, match="differ by 2"):
        validate_scores(backend, theirs + 2.0, theirs)
    backend.weight_dtype = torch.float32
    with pytest.raises(HierspecError, match="differ by 2"):
        validate_scores(backend, ours, theirs)
