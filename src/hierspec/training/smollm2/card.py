"""The drafters' model card, from the reports of their trainings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined


def model_card(report: dict[str, Any]) -> str:
    """The whole card as Markdown, from what ``report.json`` holds."""
    templates = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        autoescape=False,
    )
    return templates.get_template("MODEL_CARD.md.jinja").render({"zip": zip, **report})
