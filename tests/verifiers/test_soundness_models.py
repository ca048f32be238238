"""What models say of themselves, and how those count that say nothing."""

import pytest

from hierspec.drafters.prompt_lookup import PromptLookup
from hierspec.verifiers.soundness import says


class Plain:
    """A model that says nothing."""


class Telling:
    declines, has_distributions = True, False


class Denying:
    declines, has_distributions = False, True


@pytest.mark.parametrize(
    ("kind", "declines", "has_law"),
    [
        (Plain, False, True),
        (Telling, True, False),
        (Denying, False, True),
        (PromptLookup, False, False),
    ],
)
def test_what_models_say(kind, declines, has_law) -> None:
    model = kind.__new__(kind)  # nothing of an instance is asked
    assert says(model, "declines") == declines
    assert says(model, "has_distributions", True) == has_law
