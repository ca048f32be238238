"""A tiny family with a tokenizer, made once."""

import pytest
from server_cases import save_family


@pytest.fixture(scope="session")
def family(tmp_path_factory):
    return save_family(tmp_path_factory.mktemp("served"))
