"""What models say of themselves, and how those count that say nothing."""

import pytest

from hierspec.drafters.prompt_lookup import PromptLookup
from hierspec.verifiers.soundness import says


class Plain:
    """A model that says nothing."""


class Telling:
    declines, has_distributions, reads_own_checks = True, False, True


class Denying:
    declines, has_distributions, reads_own_checks = False, True, False


@pytest.mark.parametrize(
    ("kind", "declines", "has_law", "reads"),
    [
        (Plain, False, True, False),
        (Telling, True, False, True),
        (Denying, False, True, False),
        (PromptLookup, False, False, False),
    ],
)
def test_what_models_say(kind, declines, has_law, reads) -> None:
    model = kind.__new__(kind)  # nothing of an instance is asked
    assert says(model, "declines") == declines
    assert says(model, "has_distributions", True) == has_law
    assert says(model, "reads_own_checks") == reads
