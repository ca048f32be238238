"""Pages of HTML, rendered from a room's templates."""

from __future__ import annotations

from typing import Any


def render_page(package: str, values: dict[str, Any], folder: str = "") -> str:
    """Render ``page.html.j2``.

    Args:
        package: where the template lies.
        values: names in the template; texts are escaped, but for :class:`markupsafe.Markup`.
        folder: of the template, inside the package.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader(package, folder),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template("page.html.j2").render(values)
