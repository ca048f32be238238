"""The page as one document: its style and its script are inline, and it loads nothing else."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_HERE = Path(__file__).parent
_SCRIPTS = ("wire.js", "view.js", "app.js")  # one module: later ones use what earlier ones define


@dataclass(frozen=True, slots=True)
class Page:
    """The page's HTML, and headers with a policy that lets it load nothing from elsewhere."""

    html: str
    headers: dict[str, str]


@cache
def build_page() -> Page:
    """Build the page, once."""
    style = _read("style.css")
    script = "\n".join(_read(name) for name in _SCRIPTS)
    html = _read("page.html").replace("{{ style }}", style).replace("{{ script }}", script)
    policy = (
        "default-src 'none'; "
        f"style-src {_hash(style)}; script-src {_hash(script)}; "
        "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    )
    headers = {
        "Content-Security-Policy": policy,
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-cache",
    }
    return Page(html, headers)


def _read(name: str) -> str:
    return (_HERE / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"
