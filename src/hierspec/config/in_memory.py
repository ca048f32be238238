"""Models that callers have loaded themselves, standing wherever a model's name may stand.

A configuration names its models, and messages, metrics and files show those names. So a loaded
model is a name that carries the model: text to whoever writes it down, and one of a kind to
whoever looks it up. Written to a file it is where the model came from, which is where it can be
loaded again.
"""

from __future__ import annotations

from typing import Any


class ModelInMemory(str):
    """The name of a model that is in memory: ``name_or_path``, or its class and size without one.

    Two of them are equal where they carry the same model; none equals a plain name.
    """

    model: Any

    def __new__(cls, model: Any) -> ModelInMemory:
        config = getattr(model, "config", None)
        name = getattr(config, "name_or_path", None) or f"{type(model).__name__}-{_size(model)}"
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
        return (str, (str(self),))  # a copy in another process knows where it came from


def _size(model: Any) -> str:
    """Return the number of parameters as in names of models: 27K, 135M, 7B."""
    number = sum(parameter.numel() for parameter in model.parameters())
    for unit, size in (("B", 10**9), ("M", 10**6), ("K", 10**3)):
        if number >= size:
            return f"{number / size:.3g}{unit}"
    return str(number)


def is_model(value: Any) -> bool:
    """Return whether a value is a model, of transformers or peft, and not the name of one."""
    return hasattr(value, "named_modules") and hasattr(value, "forward")


def named(value: Any) -> Any:
    """Wrap a model so that it can take the place of a name; return anything else as it is."""
    if isinstance(value, ModelInMemory) or not is_model(value):
        return value
    return ModelInMemory(value)
