"""What the page on serving says of settings, metrics and the dashboard is so."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

from fastapi.testclient import TestClient
from server_cases import app_of

from hierspec.server.settings import ServeSettings

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "serving.md").read_text()


def test_the_page_has_every_setting_with_its_default_and_meaning():
    about = " ".join(str(ServeSettings.__doc__).split("Attributes:")[1].split())
    names = [field.name for field in dataclasses.fields(ServeSettings)]
    parts = re.split(rf"(?:^| )({'|'.join(names)}): ", about)
    meanings = dict(zip(parts[1::2], parts[2::2], strict=True))
    lines = []
    for field in dataclasses.fields(ServeSettings):
        value = getattr(ServeSettings(), field.name)
        shown = "" if value is None else f"`{value}`"
        meaning = meanings[field.name].replace("``", "`")
        lines.append(f"| `{field.name}` | {shown} | {meaning} |".replace("|  |", "| |"))
    table = PAGE.partition("<!-- settings -->")[2].partition("<!-- end of settings -->")[0]
    assert table.strip().split("\n")[2:] == lines


def test_the_dashboard_asks_for_metrics_that_there_are(family):
    app = app_of(family)
    text = app.state.service.metrics.text().decode()
    app.state.service.close()
    named = set(re.findall(r"^# TYPE (\w+)", text, re.M))
    board = json.loads((ROOT / "examples" / "serving" / "grafana.json").read_text())
    asked = {
        name
        for panel in board["panels"]
        for target in panel["targets"]
        for name in re.findall(r"hierspec_\w+", target["expr"])
    }
    assert len(asked) >= 12
    for name in asked:
        assert name in named or name.removesuffix("_bucket") in named, name


def test_the_description_is_a_page_that_fetches_nothing_from_elsewhere(family):
    app = app_of(family, api_key=("sesame",))  # a browser cannot send it where it asks for a page
    with TestClient(app) as client:
        description = client.get("/openapi.json").json()
        assert description["components"]["securitySchemes"]  # but there the reader can give it
        for page in ("/docs", "/redoc"):
            html = client.get(page).text
            fetched = re.findall(r'(?:src|href)="([^"]+)"', html)
            assert len(fetched) >= 2
            for address in fetched:
                assert address.startswith("/")
                assert client.get(address).status_code == 200
