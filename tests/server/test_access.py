"""Who may ask, from where, and how much a request may hold."""

from __future__ import annotations

from server_cases import app_of, asking


def test_keys(ask):
    paths = [("GET", "/v1/models", None), ("GET", "/health", None), ("GET", "/metrics", None)]
    (models, health, metrics) = ask(*paths, api_key=("sesame", "open"))
    assert (models.status_code, health.status_code, metrics.status_code) == (401, 200, 401)
    assert models.json()["error"]["type"] == "authentication_error"
    for given, status in (("open", 200), ("sesam", 401), ("sesame2", 401), ("", 401), ("é", 401)):
        header = {"Authorization": f"Bearer {given}".encode()}
        (found,) = ask(paths[0], headers=header, api_key=("sesame", "open"))
        assert found.status_code == status, given


def test_pages_elsewhere_may_not_ask_unless_told(ask):
    origin = {"Origin": "http://elsewhere"}
    (closed,) = ask(("GET", "/v1/models", None), headers=origin)
    assert "access-control-allow-origin" not in closed.headers
    (allowed,) = ask(("GET", "/v1/models", None), headers=origin, cors_origin=("http://elsewhere",))
    assert allowed.headers["access-control-allow-origin"] == "http://elsewhere"
    asked = {  # what a browser asks before it lets OpenAI's JavaScript client send a request
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type,x-stainless-lang",
    }
    preflight = ("OPTIONS", "/v1/chat/completions", None)
    (sent,) = ask(preflight, headers=origin | asked, cors_origin=("http://elsewhere",))
    assert sent.status_code == 200, sent.text
    (other,) = ask(preflight, headers=origin | asked, cors_origin=("http://there",))
    assert other.status_code == 400


def test_bodies_are_bounded_whatever_they_say(family):
    async def endless():
        for _ in range(100):
            yield b'"' + b"x" * 1000

    async def work(client):
        long = await client.post("/v1/completions", json={"prompt": "x" * 5000})
        chunked = await client.post(
            "/v1/completions", content=endless(), headers={"content-type": "application/json"}
        )
        lying = await client.post(
            "/v1/completions", content=b"{}", headers={"content-length": "minus one"}
        )
        return long, chunked, lying

    long, chunked, lying = asking(app_of(family, max_body_bytes=2000), work)
    assert (long.status_code, chunked.status_code, lying.status_code) == (413, 413, 400)


def test_request_ids_come_back_if_they_are_fine(ask):
    (own,) = ask(("GET", "/version", None), headers={"X-Request-Id": "abc-1"})
    assert own.headers["x-request-id"] == "abc-1"
    (bad,) = ask(("GET", "/version", None), headers={"X-Request-Id": "a b;c"})
    assert bad.headers["x-request-id"].startswith("req-")
