"""The page as an answer: whole, with a policy that keeps everything else out."""

from __future__ import annotations

import base64
import hashlib
import re

from hierspec.server.playground.page import build_page


def test_it_needs_nothing_but_itself():
    html = build_page().body.decode()
    assert re.findall(r"(?:src|href)=\"(?!#|data:)", html) == []
    assert "http://" not in html
    assert "https://" not in html
    assert "@import" not in html
    assert "/* style.css */" not in html
    assert "/* script.js */" not in html


def test_the_policy_names_what_stands_in_it():
    made = build_page()
    html, policy = made.body.decode(), made.headers["Content-Security-Policy"]
    for tag in ("style", "script"):
        (text,) = re.findall(rf"<{tag}[^>]*>(.*?)</{tag}>", html, re.S)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    assert not re.search(r'\s(style|on\w+)="', html)  # such a policy would ignore them
