"""``GET /``: the playground."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import HTMLResponse

from hierspec.server.playground.page import page

router = APIRouter()


@router.get("/", include_in_schema=False)
async def playground() -> HTMLResponse:
    """Show a page for people; it asks this service alone."""
    made = page()
    return HTMLResponse(made.html, headers=made.headers)
