"""Records of the files that we write: in memory a JSON object's known keys are attributes.

Unlike what people write (:mod:`hierspec.utils.schema`), such a file may hold further keys, of other
versions for instance. They are kept, and a key that the file lacks is not added when it is written.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, TypeAdapter


class Record(BaseModel):
    """A JSON object of a file."""

    model_config = ConfigDict(
        extra="allow", allow_inf_nan=False, validate_by_name=True, validate_by_alias=True
    )

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object: the fields that were set or read, in the file's order."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True)


class FrozenRecord(Record):
    """A JSON object of a file that is only read."""

    model_config = ConfigDict(frozen=True)


def to_json(shape: Any, value: Any) -> Any:
    """Return a value of type ``shape``, such as a list of records, as JSON."""
    return TypeAdapter(shape).dump_python(value, mode="json", by_alias=True, exclude_unset=True)
