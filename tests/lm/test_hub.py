"""A hub that does not answer: an error in seconds, and models in the cache all the same."""

from __future__ import annotations

import socket
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from tiny_models import save_tiny

from hierspec import HierspecError
from hierspec.config.checkpoints import load_tokenizer
from hierspec.config.model_defaults import _generation_config
from hierspec.config.target import model_config
from hierspec.lm import hub
from hierspec.lm.load import load


@pytest.fixture
def endpoint(monkeypatch, tmp_path):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.delenv("HF_HUB_ETAG_TIMEOUT", raising=False)
    monkeypatch.setattr(hub, "_SECONDS", 0.5)
    monkeypatch.setattr(hub, "_found", None)

    def use(url: str) -> None:
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", url)

    return use


@pytest.fixture
def silent(endpoint):
    """A hub that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        endpoint(f"http://127.0.0.1:{server.getsockname()[1]}")
        yield


@pytest.mark.parametrize("read", [load, model_config, _generation_config])
def test_one_that_never_answers(silent, read):
    expected = r"'a/b' is not in the local cache, and http://127.0.0.1:\d+ cannot be reached \("
    with pytest.raises(HierspecError, match=expected + r"(timed out|no answer in 0.5 s)"):
        read("a/b")
    assert load_tokenizer("a/b") is None


def test_one_that_refuses(endpoint):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    endpoint(f"http://127.0.0.1:{port}")
    with pytest.raises(HierspecError, match=r"reached \(.*refused.*folder .*HF_HUB_OFFLINE=1"):
        load("a/b")


def test_models_in_the_cache(silent, tmp_path):
    repository = tmp_path / "hub" / "models--a--b"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("1" * 40)
    save_tiny("gpt2", repository / "snapshots" / ("1" * 40))
    assert hub.local_files_only("a/b")
    assert model_config("a/b").model_type == "gpt2"
    assert load("a/b").name == "a/b"


def test_one_that_answers_anything_is_asked_once(endpoint):
    asked = list[str]()

    class Busy(BaseHTTPRequestHandler):
        def do_HEAD(self):
            asked.append(self.path)
            self.send_response(503)
            self.end_headers()

    with HTTPServer(("127.0.0.1", 0), Busy) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        endpoint(f"http://127.0.0.1:{server.server_port}")
        assert not hub.local_files_only("a/b")
        assert not hub.local_files_only("c/d")
        server.shutdown()
    assert len(asked) == 1
