"""Models that callers have loaded themselves, which may be used wherever a model's name may.

A configuration names its models, and messages, metrics and files show those names. So a loaded
model is represented by a name that carries the model: it prints like any name, and as a key it is
equal only to a name of the same model. Written to a file it is the place the model came from, from
which it can be loaded again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hierspec.lm.adapters import plain_model
from hierspec.zoo import fingerprint


class ModelInMemory(str):
    """The name of a model that is in memory: ``name_or_path``, or else its class and size.

    Two are equal if they carry the same model; none equals a plain name.
    """

    model: Any

    def __new__(cls, model: Any) -> ModelInMemory:
        config = getattr(model, "config", None)
        name = (
            getattr(config, "name_or_path", None) or f"{type(model).__name__}-{_format_size(model)}"
        )
        self = super().__new__(cls, name)
        self.model = model
        return self

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ModelInMemory) and other.model is self.model

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return id(self.model)

    def __reduce__(self) -> Any:
        return (str, (str(self),))  # in another process the name alone remains

    def __deepcopy__(self, memo: Any) -> ModelInMemory:
        return self


def _format_size(model: Any) -> str:
    """Return the number of parameters as in names of models: 27K, 135M, 7B."""
    number = sum(parameter.numel() for parameter in model.parameters())
    for unit, size in (("B", 10**9), ("M", 10**6), ("K", 10**3)):
        if number >= size:
            return f"{number / size:.3g}{unit}"
    return str(number)


def put_back(value: Any, models: Mapping[str, ModelInMemory]) -> Any:
    """Return a hierarchy file's object with loaded models where it has their names."""
    if isinstance(value, Mapping):
        return {
            key: models.get(str(entry), entry) if key == "model" else put_back(entry, models)
            for key, entry in value.items()
        }
    if isinstance(value, list | tuple):
        return [put_back(entry, models) for entry in value]
    return value


def fingerprint_of(name: str) -> str:
    if not isinstance(name, ModelInMemory):
        return fingerprint.compute(name)
    from hierspec.lm.loaded import fingerprint as fingerprint_loaded

    return fingerprint_loaded(plain_model(name.model))


def is_model(value: Any) -> bool:
    is_class = isinstance(value, type)
    return not is_class and hasattr(value, "named_modules") and hasattr(value, "forward")


def wrap_model(value: Any) -> Any:
    """Wrap a model so that it can be used as a name; return anything else unchanged."""
    if isinstance(value, ModelInMemory) or not is_model(value):
        return value
    return ModelInMemory(value)
