"""A tiny family with a tokenizer, made once, and requests to services on it."""

import asyncio

import pytest
from server_cases import app_of, asking, save_family


@pytest.fixture(scope="session")
def family(tmp_path_factory):
    return save_family(tmp_path_factory.mktemp("served"))


@pytest.fixture
def ask(family):
    """Requests to one app: ``ask((method, path, body), …, **settings)`` → their answers."""

    def run(*requests, headers=None, **settings):
        async def work(client):
            made = [client.request(m, p, json=b, headers=headers) for m, p, b in requests]
            return await asyncio.gather(*made)

        return asking(app_of(family, **settings), work)

    return run
