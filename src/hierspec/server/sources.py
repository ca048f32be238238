"""Where settings come from: a file, the environment, the command line.

Defaults are overridden by the file (``--config``, JSON or TOML), the file by the environment
(``HIERSPEC_SERVE_*``), and the environment by options. Each is checked by itself, so that an error
names the one that is wrong.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic_settings import BaseSettings, EnvSettingsSource, SettingsConfigDict

from hierspec.errors import HierspecError, errors_in
from hierspec.utils.documents import read_object
from hierspec.utils.schema import validate

from .settings import ServeSettings


class _Environment(BaseSettings):
    serve: ServeSettings

    model_config = SettingsConfigDict(
        env_prefix="HIERSPEC_",
        env_nested_delimiter="_",
        env_nested_max_split=1,
        env_ignore_empty=True,
        enable_decoding=False,  # lists are split at commas, not parsed as JSON
        strict=True,  # text becomes numbers and objects here
    )


def load(file: Path | None = None, options: Mapping[str, Any] | None = None) -> ServeSettings:
    """Load settings from the file, the environment and options; an option of ``None`` is absent.

    Raises:
        HierspecError: an unknown key or a wrong value; the message says where it is.
    """
    values: dict[str, Any] = {}
    if file is not None:
        values |= read_object(file, "settings file", ": give a .json or .toml file")
        validate(ServeSettings, values, str(file))
    for name, value in _read_variables().items():
        with errors_in(f"HIERSPEC_SERVE_{name.upper()}"):
            validate(ServeSettings, {name: value}, "")
        values[name] = value
    options = {key: value for key, value in (options or {}).items() if value not in (None, [], ())}
    return validate(ServeSettings, values | options, "options")


def parse_assignments(texts: Sequence[str]) -> dict[str, Any]:
    """Parse ``["max_queue=10"]`` to ``{"max_queue": 10}``, as in the environment."""
    pairs = [text.partition("=") for text in texts]
    for name, equals, _ in pairs:
        if not equals:
            raise HierspecError(f"--set takes NAME=VALUE, not {name!r}")
    return _read_variables(
        {f"hierspec_serve_{name.strip().lower()}": value for name, _, value in pairs if value}
    )


def _read_variables(variables: Mapping[str, str | None] | None = None) -> dict[str, Any]:
    """Read settings from variables, by default the environment's; unknown ones stay text."""
    source = EnvSettingsSource(_Environment)
    if variables is None:
        variables = source.env_vars
    return source.explode_env_vars("serve", _Environment.model_fields["serve"], variables)
