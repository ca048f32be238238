"""The page as one document: its style and its script are inline, and it loads nothing else."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from pathlib import Path

from fastapi.responses import HTMLResponse

# The scripts are one module: later ones use what earlier ones define.
_SOURCES = ("page.html", "style.css", "wire.js", "view.js", "app.js")


@cache
def build_page() -> HTMLResponse:
    """Build the page, once; its headers let it load nothing from elsewhere."""
    html, style, *scripts = (
        (Path(__file__).parent / name).read_text(encoding="utf-8") for name in _SOURCES
    )
    script = "\n".join(scripts)
    html = html.replace("{{ style }}", style).replace("{{ script }}", script)
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
    return HTMLResponse(html, headers=headers)


def _hash(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"
