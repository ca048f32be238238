"""Whatever is typed or written: an answer or one line about the mistake, never a bug."""

from __future__ import annotations

import os

import pytest
from fuzzing import Playground, command_lines, hierarchies
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

COUNT = int(os.environ.get("HIERSPEC_FUZZ", "30"))  # any other number: new ones each time
LIMITS = settings(
    max_examples=COUNT,
    deadline=None,
    derandomize=COUNT == 30,
    database=None,
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(scope="module")
def play(tmp_path_factory):
    playground = Playground(tmp_path_factory.mktemp("fuzz"))
    with playground.open():
        yield playground


@given(data=st.data())
@LIMITS
def test_any_command_line(play, data):
    play.call(data.draw(command_lines(play)))


@given(data=st.data())
@LIMITS
def test_any_hierarchy(play, data):
    inline = data.draw(hierarchies(play))
    play.call(["generate", "def f", "--max-new-tokens", "4", "--hierarchy", inline])


def test_a_bug_of_ours_is_seen(play, monkeypatch):
    monkeypatch.setattr("hierspec.cli.doctor.examine", lambda: 1 / 0)
    with pytest.raises(AssertionError, match="this is a bug"):
        play.call(["doctor"])
