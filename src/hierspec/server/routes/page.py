"""``GET /``: the playground."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import HTMLResponse

from hierspec.server.playground.page import build_page

router = APIRouter()


@router.get("/", include_in_schema=False)
async def playground() -> HTMLResponse:
    """Show the playground, a page that sends requests to this service only."""
    content = build_page()
    return HTMLResponse(content.html, headers=content.headers)
